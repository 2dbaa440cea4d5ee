//! The queue, seen by one question for all jobs, and the files of pods for those who watch.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::pod::Pod;
use super::script::Share;
use super::states::JobView;
use super::system::{JobSeen, Whose, believed};
use super::{Batch, aside};
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
            let mut pods = self.all();
            pods.retain(|pod| !pod.job_ids().is_empty());
            if aside(move || pods.iter().any(|pod| !pod.is_over())).await {
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
                let pods = self.all();
                let by_name = {
                    let pods: Vec<_> = pods.iter().map(|pod| (Arc::clone(pod), self.whose(pod))).collect();
                    aside(move || by_name(&pods, jobs)).await
                };
                for pod in &pods {
                    for share in pod.shares() {
                        let (noted, seen) = (pod.job_of(share), by_name.get(&share.job_name(&pod.id.uid)));
                        if let (Some(noted), Some(job)) = (noted, seen)
                            && noted != job.id
                        {
                            tracing::info!(pod = %pod.id, noted, job = job.id, "Another job runs the pod.");
                            if let Err(error) = self.note_job(pod, share, &job.id).await {
                                tracing::warn!(pod = %pod.id, error = %error, "It could not be noted.");
                            }
                        }
                    }
                    take_look(pod, &by_name);
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
            let pods = self.all();
            let states = self.statuses(pods.clone()).await;
            for (pod, state) in pods.into_iter().zip(states) {
                let words = serde_json::to_string(&state).unwrap_or_default();
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
            return JobView::Unsent(pod.lock().trouble.clone());
        }
        match queue.jobs.get(&share.job_name(&pod.id.uid)) {
            Some(job) => JobView::Seen(job.state.clone()),
            None if queue.failing.is_none() && pod.lock().missing >= MISSING => JobView::Forgotten,
            None => JobView::Unknown,
        }
    }
}

/// For each name that we give the one job that counts.
fn by_name(pods: &[(Arc<Pod>, Whose)], jobs: Vec<JobSeen>) -> HashMap<String, JobSeen> {
    let mut all: HashMap<String, Vec<JobSeen>> = HashMap::new();
    for job in jobs.into_iter().filter(|job| is_ours(&job.name)) {
        all.entry(job.name.clone()).or_default().push(job);
    }
    let mut chosen = HashMap::new();
    for (pod, whose) in pods {
        for share in pod.shares() {
            let Some((name, mut jobs)) = all.remove_entry(&share.job_name(&pod.id.uid)) else { continue };
            jobs.retain(|job| whose.has(job));
            let noted = pod.job_of(share);
            // Nearly always there is one, and it is the one that was submitted: no file is read for that.
            let alone = jobs.len() == 1 && jobs.first().map(|job| &job.id) == noted.as_ref();
            let claimed = if alone { None } else { pod.claimed(share) };
            let job = believed(&jobs, claimed.as_deref(), noted.as_deref());
            chosen.extend(job.map(|job| (name, job.clone())));
        }
    }
    chosen
}

fn take_look(pod: &Pod, by_name: &HashMap<String, JobSeen>) {
    let (shares, sent): (Vec<Share>, bool) = (pod.shares().collect(), pod.is_sent());
    let seen = |share: &Share| by_name.get(&share.job_name(&pod.id.uid));
    let there = shares.iter().all(|share| seen(share).is_some());
    let mut inner = pod.lock();
    inner.missing = if there || !sent { 0 } else { inner.missing.saturating_add(1) };
    let missing = inner.missing >= MISSING;
    let over = |share: &Share| seen(share).map_or(missing, |job| job.state.is_over());
    inner.over = shares.iter().filter(|share| over(share)).map(|share| share.place()).collect();
}

/// Whether a job's name is one that we give: a UID, perhaps with a number.
pub(crate) fn is_ours(name: &str) -> bool {
    let (uid, number) = name.split_once('.').unwrap_or((name, "0"));
    is_uid(uid) && number.parse::<u16>().is_ok()
}
