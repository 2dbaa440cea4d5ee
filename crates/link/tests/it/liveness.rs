use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tarbet_link::{CloseReason, Keepalive, LinkError, Reached, Settings};

use super::rig::*;

#[tokio::test(start_paused = true)]
async fn a_peer_that_vanished_is_noticed_at_both_ends() {
    let keepalive = Keepalive {
        interval: Duration::from_millis(400),
        busy_interval: Duration::from_millis(100),
        timeout: Duration::from_millis(200),
    };
    let settings = Settings { keepalive, ..Settings::default() };
    let (a, b, wire) = Severable::wires();
    let pair = join(a, b, settings.clone(), settings).await;
    let hanging = tokio::spawn({
        let link = pair.link.clone();
        async move { link.call(get("/hang")).await }
    });
    eventually("it hangs", || pair.world.hanging.load(SeqCst) == 1).await;
    wire.cut();
    let reason = soon("gateway", pair.gateway_end).await.unwrap();
    assert!(matches!(reason, CloseReason::Silent(_)), "{reason:?}");
    let reason = soon("agent", pair.agent_end).await.unwrap();
    assert!(matches!(reason, CloseReason::Silent(_)), "{reason:?}");
    let error = soon("call", hanging).await.unwrap().unwrap_err();
    assert!(
        matches!(error, LinkError::Closed { reason: CloseReason::Silent(_), reached: Reached::Unknown }),
        "{error:?}"
    );
    eventually("the agent gives it up", || pair.world.hanging.load(SeqCst) == 0).await;
}

// Under paused time hours pass in an instant: an idle link must live through them.
#[tokio::test(start_paused = true)]
async fn an_idle_link_lives_on() {
    let (a, b) = tokio::io::duplex(64 * 1024);
    let settings = Settings::default();
    let interval = settings.keepalive.interval;
    let pair =
        join(tarbet_link::ByteStream::new(a), tarbet_link::ByteStream::new(b), settings.clone(), settings)
            .await;
    let before = pair.link.stats();
    tokio::time::advance(Duration::from_secs(1)).await;
    let hour = tokio::time::Instant::now() + Duration::from_hours(1);
    tokio::time::sleep_until(hour).await;
    let after = pair.link.stats();
    assert!(after.silent_for < interval * 2, "{after:?}");
    let (pings, due) = ((after.bytes_in - before.bytes_in) / 17, 3600 / interval.as_secs());
    assert!((due * 5 / 6..=due * 5 / 4).contains(&pings), "{pings} PINGs or answers in an hour");
    assert_eq!(text(pair.link.call(post("/echo", "awake")).await.unwrap()).await, "awake");
}

#[tokio::test]
async fn a_broken_connection_fails_what_is_on_it() {
    let (a, b) = sockets().await;
    let pair = join(
        tarbet_link::ByteStream::new(a),
        tarbet_link::ByteStream::new(b),
        Settings::default(),
        Settings::default(),
    )
    .await;
    let hanging = tokio::spawn({
        let link = pair.link.clone();
        async move { link.call(get("/hang")).await }
    });
    eventually("it hangs", || pair.world.hanging.load(SeqCst) == 1).await;
    pair.agent.close();
    let error = soon("call", hanging).await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Closed { reached: Reached::Unknown, .. }), "{error:?}");
    eventually("the handler is cancelled", || pair.world.hanging.load(SeqCst) == 0).await;
}
