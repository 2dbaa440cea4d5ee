//! Hints from other processes, over a connection that only listens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use tokio::time::{sleep, timeout};

use super::connect::{DialError, Dialer};
use super::message::hinted;
use crate::hints::Hub;

/// Silence after which the server is asked whether it is still there, and how long it may take to say so.
const PING: Duration = Duration::from_secs(5);
/// Between attempts to subscribe. Watchers look again by themselves meanwhile.
const PAUSE: Duration = Duration::from_millis(250);

/// Subscribes for as long as the store lives, and says whether it hears anything. Ends only by being dropped.
pub(super) async fn run(dialer: Arc<Dialer>, channel: String, hub: Arc<Hub>, listening: Arc<AtomicBool>) {
    loop {
        // Why it ended is told by the calls that fail for the same reason.
        let _ended = listen(&dialer, &channel, &hub, &listening).await;
        listening.store(false, Ordering::Relaxed);
        sleep(PAUSE).await;
    }
}

async fn listen(dialer: &Dialer, channel: &str, hub: &Hub, listening: &AtomicBool) -> Result<(), DialError> {
    let Ok(connected) = timeout(PING, dialer.connect_pubsub()).await else { return Ok(()) };
    let mut pubsub = connected?;
    let Ok(subscribed) = timeout(PING, pubsub.subscribe(channel)).await else { return Ok(()) };
    subscribed?;
    listening.store(true, Ordering::Relaxed);
    // Whatever changed until now was not heard of.
    hub.touch_all();
    let (mut sink, mut messages) = pubsub.split();
    loop {
        match timeout(PING, messages.next()).await {
            Ok(Some(message)) => match hinted(message.get_payload_bytes()) {
                Some(keys) => hub.touch(&keys),
                None => hub.touch_all(),
            },
            Ok(None) => return Ok(()),
            Err(_) => {
                let Ok(answer) = timeout(PING, sink.ping::<::redis::Value>()).await else { return Ok(()) };
                answer?;
            }
        }
    }
}
