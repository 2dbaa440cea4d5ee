use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use tarbet_link::{CloseReason, Link, LinkError, Phase, Refusal, RefusalCode};

use super::rig::*;

// Calls without pause, on whichever of the links takes the call.
async fn load(links: Arc<[Link]>, stop: Arc<AtomicBool>, done: Arc<AtomicUsize>) {
    while !stop.load(SeqCst) {
        let mut sent = false;
        for link in links.iter() {
            match link.call(post("/echo", pieces(3, 2000))).await {
                Ok(response) => {
                    assert_eq!(text(response).await.len(), 6000);
                    sent = true;
                    break;
                }
                Err(error) => assert!(error.safe_to_retry(), "lost a call: {error:?}"),
            }
        }
        assert!(sent, "no link took the call");
        done.fetch_add(1, SeqCst);
    }
}

async fn under_load(leave: impl AsyncFn(&Pair)) {
    for over in ALL {
        let (old, new) = (pair(over).await, pair(over).await);
        let links: Arc<[Link]> = Arc::new([old.link.clone(), new.link.clone()]);
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let workers: Vec<_> =
            (0..32).map(|_| tokio::spawn(load(links.clone(), stop.clone(), done.clone()))).collect();
        eventually("load", || done.load(SeqCst) > 200).await;
        leave(&old).await;
        let reasons = soon("ends", async { (old.gateway_end.await, old.agent_end.await) }).await;
        let reasons = (reasons.0.unwrap(), reasons.1.unwrap());
        assert_eq!(reasons, (CloseReason::Drained, CloseReason::Drained), "over {over:?}");
        let before = done.load(SeqCst);
        eventually("the load goes on", || done.load(SeqCst) > before + 200).await;
        stop.store(true, SeqCst);
        for worker in workers {
            soon("worker", worker).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_leaves_loses_no_call() {
    under_load(async |old: &Pair| old.agent.drain()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_leaves_loses_no_call() {
    under_load(async |old: &Pair| {
        old.link.drain();
        eventually("the agent hears of it", || old.agent.phase() == Phase::Moving).await;
        // Until the agent has another link, this one goes on.
        let response = old.link.call(post("/echo", "still here")).await.unwrap();
        assert_eq!(text(response).await, "still here");
        old.agent.drain();
    })
    .await;
}

#[tokio::test]
async fn what_is_under_way_finishes_and_nothing_new_is_taken() {
    let pair = pair(Over::Tcp).await;
    let (sender, receiver) = futures::channel::mpsc::unbounded();
    let body = tarbet_link::Body::new(http_body_util::StreamBody::new(receiver));
    let running = pair.link.call(post("/echo", body)).await.unwrap();
    pair.agent.drain();
    eventually("the gateway hears of it", || pair.link.phase() == Phase::Draining).await;
    let error = pair.link.call(get("/echo")).await.unwrap_err();
    assert!(matches!(error, LinkError::Draining), "{error:?}");
    let chunk = Ok::<_, std::io::Error>(http_body::Frame::data("to the end".into()));
    sender.unbounded_send(chunk).unwrap();
    drop(sender);
    assert_eq!(soon("the running call", text(running)).await, "to the end");
    assert_eq!(soon("end", pair.link.closed()).await, CloseReason::Drained);
    assert!(matches!(pair.link.call(get("/echo")).await, Err(LinkError::Closed { .. })));
}

#[tokio::test]
async fn a_dismissed_agent_is_told_why() {
    let pair = pair(Over::Tcp).await;
    let hanging = tokio::spawn({
        let link = pair.link.clone();
        async move { link.call(get("/hang")).await }
    });
    eventually("it hangs", || pair.world.hanging.load(SeqCst) == 1).await;
    let refusal = Refusal::new(RefusalCode::Revoked, "The token of lab was revoked.");
    pair.link.dismiss(refusal.clone());
    assert_eq!(soon("gateway", pair.gateway_end).await.unwrap(), CloseReason::Dismissed(refusal.clone()));
    assert_eq!(soon("agent", pair.agent_end).await.unwrap(), CloseReason::Dismissed(refusal));
    let error = soon("call", hanging).await.unwrap().unwrap_err();
    assert!(matches!(error, LinkError::Closed { reason: CloseReason::Dismissed(_), .. }), "{error:?}");
    assert!(!error.safe_to_retry(), "it had reached the agent");
    eventually("the agent stops working for it", || pair.world.hanging.load(SeqCst) == 0).await;
}

#[tokio::test]
async fn a_link_without_handles_ends_after_its_last_call() {
    let pair = pair(Over::Memory).await;
    let response = pair.link.call(post("/echo", pieces(50, 10_000))).await.unwrap();
    drop(pair.link);
    assert_eq!(text(response).await.len(), 500_000);
    soon("gateway", pair.gateway_end).await.unwrap();
    soon("agent", pair.agent_end).await.unwrap();
}

#[tokio::test]
async fn a_driver_that_is_dropped_ends_the_link_for_both() {
    let pair = pair(Over::Tcp).await;
    pair.agent_end.abort();
    assert_eq!(soon("gateway", pair.link.closed()).await, CloseReason::PeerClosed);
    assert_eq!(soon("agent", pair.agent.closed()).await, CloseReason::Local);
}
