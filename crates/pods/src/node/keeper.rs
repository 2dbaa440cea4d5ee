//! Keeps each pod as it should be: one look at a time, from the present state.

mod act;
mod inquire;
mod remove;
mod write;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tarbet_cluster::{Class, Events, Mirror, Newer, Outcome, Queue, Reached, Source, class, describe};
use tokio::sync::{Notify, Semaphore, watch};

use super::book::{Book, Entry, Key};
use super::config::NodeConfig;
use super::gather::Gather;
use super::interlink::{Interlink, Ping};
use super::machine;
use super::metrics::NodeMetrics;
use super::packed::PackedPod;
use super::plan::{self, Circumstances, Remote};
use super::turns::Turns;

/// A pod that the other side does not know any more, although it answers, is lost after this time.
const LOST: Duration = Duration::from_mins(2);
/// Steps of one look; a pod that needs more is looked at again.
const STEPS: usize = 8;
/// The time a pod has to end where nobody says another.
const GRACE: u64 = 30;

/// A pod as the watch keeps it.
pub(super) struct Seen {
    pub(super) kept: Arc<PackedPod>,
    version: u64,
}

impl Seen {
    pub(super) fn new(pod: Pod) -> Self {
        let version = pod.metadata.resource_version.as_deref().and_then(|text| text.parse().ok());
        Self { kept: Arc::new(PackedPod::new(pod)), version: version.unwrap_or_default() }
    }
}

impl Newer for Seen {
    fn uid(&self) -> &str {
        self.kept.uid()
    }
    fn version(&self) -> u64 {
        self.version
    }
}

/// How the other side is.
#[derive(Debug, Clone, Default)]
pub(super) struct Peer {
    /// It answers.
    pub(super) up: bool,
    /// What it last said.
    pub(super) ping: Ping,
}

/// Everything the parts of a node share.
pub(super) struct Node {
    pub(super) config: NodeConfig,
    pub(super) client: Client,
    /// How the client reaches the cluster.
    pub(super) source: Source,
    pub(super) interlink: Interlink,
    pub(super) gather: Gather,
    pub(super) book: Book,
    pub(super) mirror: Mirror<Seen>,
    pub(super) queue: Queue<Key>,
    pub(super) peer: watch::Sender<Peer>,
    /// Asks the feed for states now.
    pub(super) poll: Notify,
    /// Turns to send a pod, and to write a status.
    pub(super) sending: Turns,
    pub(super) writing: Semaphore,
    pub(super) metrics: NodeMetrics,
    pub(super) events: Events,
    /// Who is told of the points that are passed.
    pub(super) reached: Reached,
}

/// What comes after a step.
pub(super) enum After {
    /// Look again at once.
    More,
    /// Write the status, then this.
    Rest(Outcome),
    /// Nothing is left to write.
    Over(Outcome),
}

impl Node {
    pub(super) fn peer(&self) -> Peer {
        self.peer.borrow().clone()
    }

    fn pods(&self, key: &Key) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &key.0)
    }

    fn around(&self) -> Circumstances {
        let peer = self.peer.borrow();
        Circumstances {
            up: peer.up,
            updates: peer.ping.extensions.update,
            discard: self.config.remove_finished_pods,
            now: Timestamp::now(),
        }
    }

    /// One look at a pod.
    pub(super) async fn look(self: Arc<Self>, key: Key) -> Outcome {
        let current = self.mirror.get(&key.0, &key.1);
        let mut all_gone = true;
        for other in self.book.others(&key, current.as_ref().map(|seen| seen.uid())) {
            all_gone &= self.vanished(&other).await;
        }
        let outcome = if current.is_some() { self.advance(&key).await } else { Outcome::Done };
        if all_gone { outcome } else { Outcome::Failed }
    }

    async fn advance(&self, key: &Key) -> Outcome {
        for _ in 0..STEPS {
            // A write of the step before is seen here.
            let Some(seen) = self.mirror.get(&key.0, &key.1) else { return Outcome::Done };
            let entry = self.book.see(&seen.kept);
            let step = plan::next(&entry.pod, &entry.record.memory, self.around());
            tracing::debug!(namespace = %key.0, pod = %key.1, ?step, "Looked at a pod.");
            match self.act(step, &entry).await {
                After::More => {}
                After::Over(outcome) => return outcome,
                After::Rest(outcome) => {
                    if !self.write(entry.uid(), &[]).await {
                        return Outcome::Failed;
                    }
                    // Nobody tells of our own writes, and one that ends a pod may have a step after it.
                    if !self.is_to_leave(key, &entry) {
                        return outcome;
                    }
                }
            }
        }
        Outcome::Again(Duration::from_millis(100))
    }

    /// Whether the pod has just become one that the cluster is to lose.
    fn is_to_leave(&self, key: &Key, before: &Entry) -> bool {
        let ended = |pod: &Pod| machine::is_final(machine::phase_of(pod));
        self.config.remove_finished_pods
            && !ended(&before.pod)
            && self.mirror.get(&key.0, &key.1).is_some_and(|seen| ended(&seen.kept.open()))
    }

    /// Removes on the other side what is no more in the cluster. True once nothing is left to do.
    async fn vanished(&self, entry: &Entry) -> bool {
        let (uid, key) = (entry.uid(), entry.key());
        let sent = plan::sent(&entry.pod);
        let there = match entry.record.memory.remote {
            Remote::Absent | Remote::Gone => false,
            Remote::Unknown => sent,
            Remote::Present => true,
        };
        if there {
            if !self.mirror.is_listed() {
                return false;
            }
            // The watch may be wrong or late; only the cluster itself can say that a pod is gone.
            match self.pods(&key).get_opt(&key.1).await {
                Ok(Some(pod)) if pod.metadata.uid.as_deref() == Some(uid) => return false,
                Ok(_) => {}
                Err(error) if class(&error) == Class::Missing => {}
                Err(error) => {
                    tracing::debug!(cause = describe(&error), "Cannot ask whether a pod is gone.");
                    return false;
                }
            }
            let peer = self.peer();
            if !peer.up || !self.removed(entry, grace(&entry.pod), &peer).await {
                return false;
            }
            tracing::info!(namespace = %key.0, pod = %key.1, uid, "Removed a pod that is no more in the cluster.");
        }
        self.forget(uid);
        true
    }

    fn forget(&self, uid: &str) {
        self.book.forget(uid);
        self.gather.forget(uid);
    }
}

/// The time a pod has to end: what was said at its deletion, or else in its spec.
fn grace(pod: &Pod) -> Duration {
    let asked = pod.metadata.deletion_grace_period_seconds;
    let usual = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    let seconds = asked.or(usual).and_then(|seconds| u64::try_from(seconds).ok());
    Duration::from_secs(seconds.unwrap_or(GRACE))
}
