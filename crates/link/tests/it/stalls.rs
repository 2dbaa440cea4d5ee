use std::time::Duration;

use futures::future::join_all;
use http_body_util::BodyExt;
use tarbet_link::{BodyError, Dialer, Settings};
use tokio::io::AsyncReadExt;

use super::rig::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_stalled_readers_stop_nobody_else() {
    for over in ALL {
        let pair = pair(over).await;
        let mut stalled = Vec::new();
        for _ in 0..20 {
            // The head is read, the body never is.
            stalled.push(pair.link.call(get("/flood")).await.unwrap());
        }
        eventually("their windows fill", || pair.link.stats().bytes_in > 20 * 1024 * 1024).await;
        let calls = (0..200).map(|_| async {
            let response = pair.link.call(post("/echo", pieces(20, 10_000))).await.unwrap();
            assert_eq!(text(response).await.len(), 200_000);
        });
        soon("others", join_all(calls)).await;
        eventually("only they are left", || pair.link.stats().streams_open == 20).await;
        assert_eq!(pair.link.stats().stalled, 0, "none had to go");
        for response in stalled {
            let frame = soon("a late reader", response.into_body().frame()).await;
            assert!(frame.unwrap().unwrap().is_data());
        }
    }
}

fn tight() -> Settings {
    Settings {
        stream_window: 256 * 1024,
        connection_window: 4 * 1024 * 1024,
        unread_budget: 1024 * 1024,
        stall_grace: Duration::from_millis(500),
        ..Settings::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_budget_the_longest_stalled_go_and_others_go_on() {
    let pair = pair_with(Over::Tcp, tight(), Settings::default()).await;
    let mut stalled = Vec::new();
    for _ in 0..30 {
        stalled.push(pair.link.call(get("/flood")).await.unwrap());
    }
    let flowing = {
        let link = pair.link.clone();
        tokio::spawn(async move {
            let mut body = link.call(get("/flood")).await.unwrap().into_body();
            let mut seen = 0;
            while seen < 20 * 1024 * 1024 {
                seen += body.frame().await.unwrap().unwrap().into_data().unwrap().len();
            }
        })
    };
    eventually("some go", || pair.link.stats().stalled > 0).await;
    soon("a reader that reads", flowing).await.unwrap();
    let response = soon("a new call", pair.link.call(post("/echo", "alive"))).await.unwrap();
    assert_eq!(text(response).await, "alive");

    let (mut reset, mut kept) = (0, 0);
    for response in stalled {
        match soon("a late reader", response.into_body().frame()).await.unwrap() {
            Ok(_) => kept += 1,
            Err(BodyError::Stalled) => reset += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(reset > 0 && kept > 0, "{reset} reset, {kept} kept");
    eventually("the agent stopped sending to them", || pair.agent.stats().streams_open == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_byte_stream_is_reset_at_both_ends() {
    let pair = pair_with(Over::Tcp, tight(), Settings::default()).await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(pair.link.open(tcp("flood")).await.unwrap());
    }
    eventually("some go", || pair.link.stats().stalled > 0).await;
    eventually("the agent lets go", || pair.world.streams.load(std::sync::atomic::Ordering::SeqCst) < 8)
        .await;
    let mut errors = 0;
    for stream in &mut streams {
        if soon("read", stream.read(&mut [0; 64])).await.is_err() {
            errors += 1;
        }
    }
    assert!(errors > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_tiny_frames_do_not_end_the_link() {
    // One byte a frame: the frames weigh far more than what they carry.
    let settings = Settings { stream_window: 300_000, ..Settings::default() };
    let pair = pair_with(Over::Memory, settings, Settings::default()).await;
    let stalled = pair.link.call(get("/tiny-flood")).await.unwrap();
    eventually("its window fills", || pair.link.stats().bytes_in > 3_000_000).await;
    assert_eq!(text(pair.link.call(post("/echo", "alive")).await.unwrap()).await, "alive");
    let mut body = stalled.into_body();
    let mut seen = 0;
    while seen < 400_000 {
        seen += soon("late", body.frame()).await.unwrap().unwrap().into_data().unwrap().len();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tiny_frames_that_are_read_too_slowly_do_not_end_the_link() {
    // A window as it is once a stream has carried much over a long line.
    let settings = Settings { stream_window: 4 * 1024 * 1024, ..Settings::default() };
    let pair = pair_with(Over::Memory, settings, Settings::default()).await;
    let mut body = pair.link.call(get("/tiny-flood")).await.unwrap().into_body();
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    // More frames than the connection lets lie about.
    while pair.link.stats().bytes_in < 12_000_000 {
        let frame = soon("a frame", body.frame()).await.unwrap();
        assert!(frame.unwrap().is_data());
        tick.tick().await;
    }
    assert_eq!(text(pair.link.call(post("/echo", "alive")).await.unwrap()).await, "alive");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_does_not_read_a_request_stops_only_that_one() {
    let pair = pair(Over::Tcp).await;
    let unread: Vec<_> = (0..10)
        .map(|_| {
            let link = pair.link.clone();
            tokio::spawn(async move { link.call(post("/hang", pieces(1000, 10_000))).await })
        })
        .collect();
    eventually("their windows fill", || pair.agent.stats().bytes_in > 10 * 1024 * 1024).await;
    assert_eq!(text(pair.link.call(post("/echo", "alive")).await.unwrap()).await, "alive");
    for task in unread {
        task.abort();
    }
}
