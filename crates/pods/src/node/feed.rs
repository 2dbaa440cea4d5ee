//! States from the other side: pushed where it can, asked for where it cannot.

mod others;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::keeper::Node;
use others::Others;

/// interLink's own rhythm.
const POLL: Duration = Duration::from_secs(5);
/// While states are pushed they are still asked for now and then: a push may have been lost.
const WATCHED: Duration = Duration::from_mins(1);
/// Between two tries to have states pushed.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Feed {
    watching: AtomicBool,
}

impl Feed {
    /// Asks for states until `stop`, all in one call.
    pub(super) async fn poll(self: Arc<Self>, node: Arc<Node>, stop: CancellationToken) {
        let mut others = Others::default();
        loop {
            let pause = if self.watching.load(Ordering::Relaxed) { WATCHED } else { POLL };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
                () = node.poll.notified(), if !self.watching.load(Ordering::Relaxed) => {
                    // Others may be on their way: one call for all of them.
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
            if !node.peer().up {
                continue;
            }
            let asked = node.book.asked();
            if asked.is_empty() {
                continue;
            }
            let origin = node.peer().ping.origin;
            if !origin.is_ours() {
                let heard = others.ask(&node, &asked).await;
                for key in node.book.tell(heard.told, &heard.answered, Instant::now()) {
                    node.queue.add(key);
                }
                continue;
            }
            match node.interlink.status(&asked).await {
                Ok(told) => {
                    for key in node.book.tell(told, &asked, Instant::now()) {
                        node.queue.add(key);
                    }
                }
                Err(error) => tracing::warn!(error = %error, "The states of pods could not be read."),
            }
        }
    }

    /// Hears states until `stop`, whenever the other side offers to push them.
    pub(super) async fn watch(self: Arc<Self>, node: Arc<Node>, stop: CancellationToken) {
        let mut peer = node.peer.subscribe();
        loop {
            let offered = peer.wait_for(|peer| peer.up && peer.ping.extensions.watch);
            tokio::select! {
                () = stop.cancelled() => return,
                offered = offered => if offered.is_err() { return },
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.listen(&node) => {}
            }
            self.watching.store(false, Ordering::Relaxed);
            // What was missed since is asked for at once.
            node.poll.notify_one();
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    async fn listen(&self, node: &Node) {
        let mut states = match node.interlink.watch().await {
            Ok(states) => states,
            Err(error) => {
                tracing::debug!(error = %error, "States are not pushed.");
                return;
            }
        };
        self.watching.store(true, Ordering::Relaxed);
        tracing::debug!("States are pushed.");
        while let Some(state) = states.next().await {
            match state {
                Ok(state) => {
                    for key in node.book.tell(vec![state], &[], Instant::now()) {
                        node.queue.add(key);
                    }
                }
                Err(error) => {
                    tracing::debug!(error = %error, "States are no longer pushed.");
                    return;
                }
            }
        }
    }
}
