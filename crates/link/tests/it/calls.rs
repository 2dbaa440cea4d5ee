use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use bytes::Bytes;
use futures::future::join_all;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;
use tarbet_link::{Body, BodyError, Caller, LinkError, OnTaken, Reached, Target};

use super::rig::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_calls_at_once_with_bodies_and_trailers_both_ways() {
    for over in ALL {
        let pair = pair(over).await;
        let calls = (0..1000 * effort()).map(|i| {
            let link = pair.link.clone();
            async move {
                let (count, size) = (i % 7, 1 + (i * 37) % 5000);
                let response = link.call(post("/echo", pieces(count, size))).await.unwrap();
                assert_eq!(response.status(), 200);
                let body = response.into_body().collect().await.unwrap();
                let trailers: HeaderMap = body.trailers().unwrap().clone();
                assert_eq!(trailers["x-length"], (count * size).to_string());
                assert_eq!(trailers["x-from"], "caller");
                assert_eq!(body.to_bytes().len(), count * size);
            }
        });
        soon("calls", join_all(calls)).await;
        eventually("all streams end", || pair.link.stats().streams_open == 0).await;
        eventually("at the agent too", || pair.agent.stats().streams_open == 0).await;
        assert_eq!(pair.world.answered.load(SeqCst), 1000 * effort());
        let stats = pair.link.stats();
        assert!(
            stats.streams >= 1000 && stats.bytes_in > 1_000_000 && stats.round_trip.is_some(),
            "{stats:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_cancelled_calls_leave_the_link_alive() {
    for over in [Over::Memory, Over::Tcp] {
        let pair = pair(over).await;
        for round in 0..3 * effort() {
            let waiting: Vec<_> = (0..1000)
                .map(|i| {
                    let link = pair.link.clone();
                    let path = if i % 2 == 0 { "/hang" } else { "/flood" };
                    tokio::spawn(async move {
                        let response = link.call(post(path, "question")).await.unwrap();
                        // A flood is dropped in the middle.
                        let mut body = response.into_body();
                        body.frame().await.unwrap().unwrap();
                    })
                })
                .collect();
            eventually("half of them hang", || pair.world.hanging.load(SeqCst) == 500).await;
            for task in &waiting {
                task.abort();
            }
            join_all(waiting).await;
            eventually("the agent hears of it", || pair.world.hanging.load(SeqCst) == 0).await;
            let response = soon("a call after it", pair.link.call(post("/echo", "alive"))).await;
            assert_eq!(text(response.unwrap()).await, "alive", "round {round}");
        }
        eventually("nothing is left", || pair.link.stats().streams_open == 0).await;
    }
}

#[tokio::test]
async fn who_sends_a_request_hears_when_its_body_is_read() {
    let heard = Arc::new(AtomicUsize::new(0));
    let waited_for = |path: &str| {
        let (mut request, heard) = (post(path, pieces(3, 1000)), Arc::clone(&heard));
        request.extensions_mut().insert(OnTaken::new(move || {
            heard.fetch_add(1, SeqCst);
        }));
        request
    };
    for over in ALL {
        let pair = pair(over).await;
        let (link, request) = (pair.link.clone(), waited_for("/late"));
        let asked = tokio::spawn(async move { link.call(request).await });
        eventually("it has arrived", || pair.world.hanging.load(SeqCst) == 1).await;
        // What is sent later arrives later, and so would the word.
        text(pair.link.call(post("/echo", "")).await.unwrap()).await;
        assert_eq!(heard.load(SeqCst), 0);
        pair.world.step.notify_one();
        eventually("the word", || heard.load(SeqCst) == 1).await;
        assert!(!asked.is_finished());
        pair.world.step.notify_one();
        assert_eq!(text(asked.await.unwrap().unwrap()).await, "3000");
        assert_eq!(heard.swap(0, SeqCst), 1);

        // An answer is one as well, a refusal is not; the header stays on the link.
        text(pair.link.call(waited_for("/early")).await.unwrap()).await;
        assert_eq!(heard.swap(0, SeqCst), 1);
        assert!(pair.link.call(waited_for("/deny")).await.is_err());
        assert_eq!(heard.load(SeqCst), 0);
        let headers = text(pair.link.call(waited_for("/headers")).await.unwrap()).await;
        assert!(!headers.contains("taken"), "{headers}");
        heard.store(0, SeqCst);
    }
}

#[tokio::test]
async fn a_cancelled_call_that_never_got_out_does_no_harm() {
    let pair = pair(Over::Memory).await;
    // Polled once and dropped before the driver had a chance to write anything.
    for _ in 0..200 {
        let mut call = std::pin::pin!(pair.link.call(post("/echo", "never")));
        assert!(futures::poll!(call.as_mut()).is_pending());
    }
    assert_eq!(text(pair.link.call(post("/echo", "still")).await.unwrap()).await, "still");
    eventually("nothing is left", || pair.link.stats().streams_open == 0).await;
}

#[tokio::test]
async fn an_answer_may_come_before_the_question_ends() {
    let pair = pair(Over::Tcp).await;
    // The caller's body waits for the answer before it goes on.
    let (sender, receiver) = futures::channel::mpsc::unbounded();
    let body = Body::new(http_body_util::StreamBody::new(receiver));
    sender.unbounded_send(Ok::<_, std::io::Error>(http_body::Frame::data(Bytes::from("first ")))).unwrap();
    let response = soon("answer", pair.link.call(post("/echo", body))).await.unwrap();
    let mut heard = response.into_body();
    let first = heard.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first, "first ");
    sender.unbounded_send(Ok(http_body::Frame::data(Bytes::from("second")))).unwrap();
    drop(sender);
    let rest = soon("rest", heard.collect()).await.unwrap();
    assert_eq!(rest.trailers().unwrap()["x-length"], "12");
    assert_eq!(rest.to_bytes(), "second");

    // And one that is not interested in the question at all.
    let long = post("/early", pieces(10_000, 10_000));
    let response = soon("early", pair.link.call(long)).await.unwrap();
    assert_eq!(text(response).await, "no need to read that");
    eventually("the question is given up", || pair.link.stats().streams_open == 0).await;
}

#[tokio::test]
async fn failures_name_their_side() {
    let pair = pair(Over::Tcp).await;
    let failing = futures::stream::iter([Ok(http_body::Frame::data(Bytes::from("x"))), Err("my disk")]);
    let body = Body::new(http_body_util::StreamBody::new(failing));
    let error = pair.link.call(post("/hang", body)).await.unwrap_err();
    assert!(matches!(error, LinkError::RequestBody(BodyError::Source(_))), "{error:?}");

    // The reset may overtake the head of the answer.
    match pair.link.call(get("/fail")).await {
        Ok(response) => {
            let error = response.into_body().collect().await.unwrap_err();
            assert!(matches!(error, BodyError::Reset { .. }), "{error:?}");
        }
        Err(error) => assert!(matches!(error, LinkError::Reset { reached: Reached::Yes, .. }), "{error:?}"),
    }

    let error = pair.link.call(get("/deny")).await.unwrap_err();
    assert!(error.safe_to_retry());
    let LinkError::Denied(denial) = error else { panic!("{error:?}") };
    assert_eq!((denial.code.as_str(), denial.hop.as_str()), ("TB-1201", "agent lab-1"));
    assert_eq!(denial.message, "Verboten — 100 %\r\nnot a header: x");

    let error = pair.link.call(Request::connect("a:1").body(Body::empty()).unwrap()).await.unwrap_err();
    assert!(matches!(error, LinkError::Request(_)) && error.reached() == Reached::No, "{error:?}");
}

#[tokio::test]
async fn headers_that_are_too_large_harm_nobody_else() {
    let pair = pair(Over::Tcp).await;
    let mut large = get("/echo");
    for i in 0..40 {
        let name: http::HeaderName = format!("x-{i}").parse().unwrap();
        large.headers_mut().insert(name, "v".repeat(16 * 1024).parse().unwrap());
    }
    let error = pair.link.call(large).await.unwrap_err();
    assert!(matches!(error, LinkError::Request(_)), "{error:?}");
    let error = pair.link.call(get("/large-headers")).await.unwrap_err();
    assert!(matches!(error, LinkError::Denied(_)), "{error:?}");
    match pair.link.call(get("/large-trailers")).await {
        Ok(response) => assert!(response.into_body().collect().await.is_err()),
        Err(error) => assert!(matches!(error, LinkError::Reset { .. }), "{error:?}"),
    }
    // The most that is allowed.
    let mut large = get("/echo");
    for i in 0..15 {
        let name: http::HeaderName = format!("x-{i}").parse().unwrap();
        large.headers_mut().insert(name, "~^|".repeat(2600).parse().unwrap());
    }
    assert_eq!(soon("large", pair.link.call(large)).await.unwrap().status(), 200);
    assert_eq!(text(pair.link.call(post("/echo", "alive")).await.unwrap()).await, "alive");
}

#[tokio::test]
async fn the_links_own_headers_cannot_be_forged() {
    let pair = pair(Over::Memory).await;
    let mut request = get("/headers");
    for name in ["tarbet-target", "tarbet-method", "connection", "x-mine"] {
        request.headers_mut().insert(name, "x".parse().unwrap());
    }
    let response = pair.link.call(request).await.unwrap();
    assert!(response.headers().is_empty(), "{:?}", response.headers());
    assert_eq!(text(response).await, "x-mine");

    let mut request = get("/target");
    request.extensions_mut().insert(Target::service("kubernetes").unwrap());
    let caller: &dyn Caller = &pair.link;
    assert_eq!(text(caller.call(request).await.unwrap()).await, "kubernetes");
}

#[tokio::test]
async fn empty_frames_do_not_count_as_an_attack() {
    let pair = pair(Over::Memory).await;
    for _ in 0..20 {
        assert_eq!(text(pair.link.call(get("/empty-frames")).await.unwrap()).await, "xxx");
    }
}

#[tokio::test]
async fn as_many_as_allowed_and_no_more() {
    let settings = tarbet_link::Settings { max_streams: 10, ..Default::default() };
    let pair = pair_with(Over::Memory, settings.clone(), settings).await;
    let hanging: Vec<_> = (0..9)
        .map(|_| {
            let link = pair.link.clone();
            tokio::spawn(async move { link.call(get("/hang")).await })
        })
        .collect();
    eventually("they hang", || pair.world.hanging.load(SeqCst) == 9).await;
    let mut busy = None;
    let mut held = Vec::new();
    for _ in 0..3 {
        let link = pair.link.clone();
        let mut call = Box::pin(async move { link.call(get("/hang")).await });
        match futures::poll!(call.as_mut()) {
            std::task::Poll::Ready(result) => busy = result.err(),
            std::task::Poll::Pending => held.push(call),
        }
    }
    let busy = busy.expect("one was too many");
    assert!(matches!(busy, LinkError::Busy { .. }) && busy.safe_to_retry(), "{busy:?}");
    drop((hanging, held));
}
