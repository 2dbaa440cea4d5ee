use std::sync::atomic::Ordering::SeqCst;

use bytes::Bytes;
use http::Request;
use tarbet_link::{Body, Dialer, LinkError, Reached, Upgraded, relay};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::rig::*;

#[tokio::test]
async fn bytes_go_both_ways_and_each_way_ends_by_itself() {
    for over in ALL {
        let pair = pair(over).await;
        let mut stream = soon("open", pair.link.open(tcp("echo"))).await.unwrap();
        for size in [1usize, 100, 70_000, 3_000_000] {
            let sent: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            let mut heard = vec![0; size];
            let (mut reader, mut writer) = tokio::io::split(&mut stream);
            let (wrote, read) =
                soon("echo", async { tokio::join!(writer.write_all(&sent), reader.read_exact(&mut heard)) })
                    .await;
            wrote.unwrap();
            read.unwrap();
            assert!(heard == sent, "{size} bytes over {over:?}");
        }
        stream.shutdown().await.unwrap();
        let mut rest = String::new();
        soon("rest", stream.read_to_string(&mut rest)).await.unwrap();
        assert_eq!(rest, "bye", "after this side ended the other goes on");
        drop(stream);
        eventually("it is over", || {
            pair.world.streams.load(SeqCst) == 0 && pair.link.stats().streams_open == 0
        })
        .await;
    }
}

#[tokio::test]
async fn the_first_bytes_travel_with_the_request_to_open() {
    let pair = pair(Over::Memory).await;
    let mut stream = pair.link.open_with(tcp("echo"), Bytes::from("hello ")).await.unwrap();
    stream.write_all(b"there").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut heard = String::new();
    soon("echo", stream.read_to_string(&mut heard)).await.unwrap();
    assert_eq!(heard, "hello therebye");

    // Without waiting for the agent at all.
    let mut stream = pair.link.open_now(&tcp("echo"), Bytes::from("now ")).unwrap();
    stream.write_all(b"and here").await.unwrap();
    stream.shutdown().await.unwrap();
    heard.clear();
    soon("echo", stream.read_to_string(&mut heard)).await.unwrap();
    assert_eq!(heard, "now and herebye");
}

#[tokio::test]
async fn a_refusal_is_told_in_words() {
    let pair = pair(Over::Tcp).await;
    let error = pair.link.open(tcp("refuse")).await.unwrap_err();
    assert_eq!(error.to_string(), "Nobody listens there. (TB-1202; agent → target)");
    assert!(!error.safe_to_retry());
    let mut stream = pair.link.open_now(&tcp("refuse"), Bytes::from("x")).unwrap();
    let error = soon("refusal", stream.read(&mut [0; 8])).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<LinkError>));
    // A handler that lets go without an answer.
    let error = soon("silence", pair.link.open(tcp("nowhere"))).await.unwrap_err();
    assert!(matches!(error, LinkError::Reset { reached: Reached::Yes, .. }), "{error:?}");
}

#[tokio::test]
async fn dropping_a_stream_ends_it_on_the_other_side() {
    let pair = pair(Over::Tcp).await;
    let stream = pair.link.open(tcp("flood")).await.unwrap();
    assert_eq!(pair.world.streams.load(SeqCst), 1);
    drop(stream);
    eventually("the agent stops", || pair.world.streams.load(SeqCst) == 0).await;
}

fn exec(path: &str) -> Request<Body> {
    Request::post(format!("{path}?command=sh"))
        .header("host", "api.local")
        .header("connection", "Upgrade")
        .header("upgrade", "SPDY/3.1")
        .body(Body::empty())
        .unwrap()
}

#[tokio::test]
async fn an_upgrade_becomes_a_stream() {
    for over in ALL {
        let pair = pair(over).await;
        let mut response = soon("upgrade", pair.link.call(exec("/exec"))).await.unwrap();
        assert_eq!(response.status(), 101);
        assert_eq!(
            (&response.headers()["upgrade"], &response.headers()["x-kept"]),
            (&"SPDY/3.1".parse().unwrap(), &"yes".parse().unwrap())
        );
        let mut stream = Upgraded::take(&mut response).unwrap();
        assert!(Upgraded::take(&mut response).is_none());
        stream.write_all(b"ls").await.unwrap();
        let mut heard = [0; 2];
        soon("echo", stream.read_exact(&mut heard)).await.unwrap();
        assert_eq!(&heard, b"ls");
        stream.shutdown().await.unwrap();
        let mut rest = String::new();
        soon("rest", stream.read_to_string(&mut rest)).await.unwrap();
        assert_eq!(rest, "bye");
    }
}

#[tokio::test]
async fn a_rejected_upgrade_is_an_ordinary_answer() {
    let pair = pair(Over::Tcp).await;
    let response = soon("upgrade", pair.link.call(exec("/attach"))).await.unwrap();
    assert_eq!(response.status(), 403);
    assert_eq!(text(response).await, "no shell for you");
    eventually("it is over", || pair.link.stats().streams_open == 0).await;
}

#[tokio::test]
async fn a_relay_joins_a_socket_and_a_stream() {
    let pair = pair(Over::Tcp).await;
    let (near, mut user) = sockets().await;
    let stream = pair.link.open_now(&tcp("echo"), Bytes::new()).unwrap();
    let joined = tokio::spawn(relay(tarbet_link::tcp(near), stream));
    let sent = vec![7u8; 5_000_000];
    let mut heard = Vec::new();
    let (mut reader, mut writer) = user.split();
    soon("relay", async {
        tokio::join!(
            async {
                writer.write_all(&sent).await.unwrap();
                writer.shutdown().await.unwrap();
            },
            async { reader.read_to_end(&mut heard).await.unwrap() },
        )
    })
    .await;
    assert_eq!(heard.len(), sent.len() + 3);
    let moved = joined.await.unwrap().unwrap();
    assert_eq!((moved.forth, moved.back), (sent.len() as u64, sent.len() as u64 + 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_open_streams_are_all_alive() {
    let count = if effort() >= 10 { 9_500 } else { 1_000 };
    let pair = pair(Over::Tcp).await;
    let mut streams = Vec::with_capacity(count);
    for batch in 0..count.div_ceil(500) {
        let opening = (0..500.min(count - batch * 500)).map(|_| pair.link.open(tcp("echo")));
        for stream in soon("open", futures::future::join_all(opening)).await {
            streams.push(stream.unwrap());
        }
    }
    assert_eq!(pair.world.streams.load(SeqCst), count);
    assert_eq!(pair.link.stats().streams_open, count);
    for stream in &mut streams {
        stream.write_all(b"?").await.unwrap();
    }
    for stream in &mut streams {
        let mut heard = [0];
        soon("answer", stream.read_exact(&mut heard)).await.unwrap();
        assert_eq!(&heard, b"?");
    }
    drop(streams);
    eventually("all end", || pair.world.streams.load(SeqCst) == 0).await;
}
