//! Has the other side remove a pod.

use std::time::Duration;

use super::inquire::Inquiry;
use super::{Node, Peer};
use crate::node::book::Entry;
use crate::node::metrics::count;

/// How often a peer of other origin, which answers and cannot remove a pod, is asked to: about a minute of
/// tries. The original's own node does not ask twice, and a pod must not be Terminating for ever.
const TRIES: u32 = 12;

impl Node {
    /// True once the pod is gone there, or nothing more can be done.
    pub(super) async fn removed(&self, entry: &Entry, grace: Duration, peer: &Peer) -> bool {
        let answer = self.interlink.delete(&entry.pod, grace, &peer.ping).await;
        count(&self.metrics.deletes, answer.is_ok());
        self.reached.at("pod removed");
        let Err(error) = answer else { return true };
        let (namespace, pod) = entry.key();
        tracing::warn!(%namespace, %pod, error = %error, "A pod could not be removed yet.");
        if peer.ping.origin.is_ours() {
            return false;
        }
        // Others fail to remove what they do not have, some without a word: then it is removed already.
        match self.inquire(entry, peer.ping.origin).await {
            Ok(Inquiry::Absent) => return true,
            // Nobody is there to remove anything: that is an outage, and no try.
            Err(away) if away.retry() => return false,
            Ok(Inquiry::Known(_) | Inquiry::Unsure(_)) | Err(_) => {}
        }
        let tries = self.book.change(entry.uid(), |record| {
            record.removals += 1;
            record.removals
        });
        if tries.is_none_or(|tries| tries < TRIES) {
            return false;
        }
        tracing::error!(%namespace, %pod, uid = entry.uid(), "Gave up removing a pod; it may still run.");
        let note = format!("interLink cannot remove this pod, which may still run there: {}", error.words());
        self.tell_event(entry, "FailedKillPod", &note).await;
        true
    }
}
