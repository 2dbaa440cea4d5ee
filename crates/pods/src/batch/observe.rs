//! The queue, seen by one question for all jobs, and the files of pods for those who watch.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::pod::Pod;
use super::script::Share;
use super::states::{JobState, JobView};
use super::{Batch, JobSeen};
use crate::wire::is_uid;

/// How often files of running pods are looked at for those who watch.
const LOOK: Duration = Duration::from_secs(1);
/// A job must be missing from this many looks before it counts as forgotten.
const MISSING: u32 = 2;
/// How often it is asked what the batch system can take.
const OFFER: Duration = Duration::from_secs(15);

/// The queue as it was seen last.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) jobs: HashMap<String, JobSeen>,
    pub(super) failing: Option<(Instant, String)>,
}

impl Batch {
    /// Looks at the queue as long as something in it matters, never more often than allowed.
    pub(super) async fn watch_queue(self: Arc<Self>) {
        loop {
            if self.lock().values().any(|pod| !pod.job_ids().is_empty() && !pod.is_over()) {
                self.look_at_queue().await;
            }
            let early = async {
                self.ask.notified().await;
                // Many pods may come at once; they share one look.
                tokio::time::sleep(self.config.interval.min(Duration::from_millis(500))).await;
            };
            let pause = tokio::time::sleep(self.config.interval);
            tokio::pin!(pause);
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = &mut pause => continue,
                () = early => {}
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = pause => {}
            }
        }
    }

    async fn look_at_queue(&self) {
        match self.system.list().await {
            Ok(jobs) => {
                let mut by_name: HashMap<String, JobSeen> = HashMap::new();
                for job in jobs.into_iter().filter(|job| is_ours(&job.name)) {
                    by_name.insert(job.name.clone(), job);
                }
                for pod in self.lock().values() {
                    let (mut there, sent) = (pod.shares(), pod.is_sent());
                    let there = there.all(|share| by_name.contains_key(&share.job_name(&pod.id.uid)));
                    let shares: Vec<Share> = pod.shares().collect();
                    let mut inner = pod.lock();
                    inner.missing = if there || !sent { 0 } else { inner.missing.saturating_add(1) };
                    let missing = inner.missing >= MISSING;
                    let over = |share: &Share| match by_name.get(&share.job_name(&pod.id.uid)) {
                        Some(job) => matches!(job.state, JobState::Ended(_) | JobState::Killed(..)),
                        None => missing,
                    };
                    inner.over = shares.into_iter().filter(over).map(Share::place).collect();
                }
                let mut queue = self.queue();
                if queue.failing.take().is_some() {
                    tracing::info!(system = self.system.name(), "The queue can be read again.");
                }
                queue.jobs = by_name;
            }
            Err(error) => {
                let mut queue = self.queue();
                if queue.failing.is_none() {
                    tracing::warn!(system = self.system.name(), error = %error, "The queue cannot be read.");
                }
                let since = queue.failing.take().map_or_else(Instant::now, |(since, _)| since);
                queue.failing = Some((since, error.to_string()));
            }
        }
    }

    /// Asks now and then what the batch system can take: pings come often, and each question is a
    /// process.
    pub(super) async fn watch_offer(self: Arc<Self>) {
        let mut tick = tokio::time::interval(OFFER);
        let mut failing = false;
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            match self.system.offer().await {
                None => return,
                Some(Ok(offer)) => {
                    failing = false;
                    *self.offer.lock().unwrap_or_else(PoisonError::into_inner) = offer;
                }
                // The last word stands: a question without an answer makes no machine go away.
                Some(Err(error)) if !failing => {
                    failing = true;
                    tracing::warn!(system = self.system.name(), error = %error, "What it can take is not known.");
                }
                Some(Err(_)) => {}
            }
        }
    }

    /// Tells those who watch which pods changed.
    pub(super) async fn watch_files(self: Arc<Self>) {
        let mut tick = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            if self.changes.receiver_count() == 0 {
                continue;
            }
            let pods: Vec<Arc<Pod>> = self.lock().values().cloned().collect();
            for pod in pods {
                let words = serde_json::to_string(&self.status_of(&pod)).unwrap_or_default();
                let changed = pod.lock().told != words;
                if changed {
                    pod.lock().told = words;
                    let _ = self.changes.send(pod.id.uid.clone());
                }
            }
        }
    }

    pub(super) fn view(&self, pod: &Pod, share: Share) -> JobView {
        let queue = self.queue();
        if pod.job_of(share).is_none() {
            return JobView::Unsent;
        }
        match queue.jobs.get(&share.job_name(&pod.id.uid)) {
            Some(job) => JobView::Seen(job.state.clone()),
            None if queue.failing.is_none() && pod.lock().missing >= MISSING => JobView::Forgotten,
            None => JobView::Unknown,
        }
    }
}

/// Whether a job's name is one that we give: a UID, perhaps with a number.
fn is_ours(name: &str) -> bool {
    let (uid, number) = name.split_once('.').unwrap_or((name, "0"));
    is_uid(uid) && number.parse::<u16>().is_ok()
}
