//! The jobs of a pod: one, or one for each container; each submitted once, whatever is cut off.
//!
//! A pod whose jobs are not all known to be submitted is *owed*, as is the removal of one that a crash cut off.
//! What is owed is tried again until it is done, and none waits for another.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join_all;

use super::pod::Pod;
use super::script::Share;
use super::system::{JobSeen, believed};
use super::{Batch, JOB_ID, Job, SubmitError, Unwanted, aside};
use crate::error::RunError;

/// How soon what is owed is tried again, at first and at last.
const SOON: Duration = Duration::from_millis(500);
const LATE: Duration = Duration::from_secs(30);
/// How many of them are tried at once: each is a program or two.
const AT_ONCE: usize = 4;

/// A pod with whom something is to be finished.
pub(super) struct Owed {
    pub(super) pod: Arc<Pod>,
    /// Whether it is to go, rather than to be submitted.
    pub(super) deleted: bool,
}

/// A pod that is being submitted. Unless that is known to be over it is owed, also where the caller leaves.
pub(super) struct Submission<'a> {
    batch: &'a Batch,
    pod: Option<Arc<Pod>>,
}

impl<'a> Submission<'a> {
    pub(super) fn of(batch: &'a Batch, pod: &Arc<Pod>) -> Self {
        Self { batch, pod: Some(Arc::clone(pod)) }
    }

    /// It is known what became of it.
    pub(super) fn over(mut self) {
        self.pod = None;
    }
}

impl Drop for Submission<'_> {
    fn drop(&mut self) {
        if let Some(pod) = self.pod.take() {
            self.batch.owe([Owed { pod, deleted: false }]);
        }
    }
}

impl Batch {
    fn owed(&self) -> MutexGuard<'_, Vec<Owed>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has something finished later.
    pub(super) fn owe(&self, more: impl IntoIterator<Item = Owed>) {
        self.owed().extend(more);
        self.owing.notify_one();
    }

    /// Finishes what is owed, as long as the plugin runs.
    pub(super) async fn finish(self: Arc<Self>) {
        let mut wait = SOON;
        loop {
            let round = std::mem::take(&mut *self.owed());
            let left = self.finish_some(round).await;
            let pause = async {
                if left.is_empty() {
                    self.owing.notified().await;
                    wait = SOON;
                } else {
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(LATE);
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = pause => {}
            }
            self.owed().extend(left);
        }
    }

    /// Tries each once, and gives back what is not done.
    async fn finish_some(&self, round: Vec<Owed>) -> Vec<Owed> {
        // One look for all of them.
        let asked = round.iter().any(|owed| !owed.deleted);
        let seen = if asked { self.system.list().await } else { Ok(Vec::new()) };
        let seen = seen.map_err(|error| error.to_string());
        let mut left = Vec::new();
        let mut round = round.into_iter().peekable();
        while round.peek().is_some() {
            let some: Vec<Owed> = round.by_ref().take(AT_ONCE).collect();
            let done = join_all(some.iter().map(|owed| self.finish_one(owed, &seen))).await;
            for (owed, done) in some.into_iter().zip(done) {
                if let Err(error) = done {
                    tracing::warn!(pod = %owed.pod.id, error = %error, "A pod waits.");
                    left.push(owed);
                }
            }
        }
        left
    }

    async fn finish_one(&self, owed: &Owed, seen: &Result<Vec<JobSeen>, String>) -> Result<(), RunError> {
        let Owed { pod, deleted } = owed;
        if *deleted {
            return self.remove(pod, None).await;
        }
        if self.is_deleted(&pod.id.uid).await {
            // Somebody removes it right now, and may have looked for its jobs before the last one was taken.
            return self.cancel_all(pod).await;
        }
        let done = match seen {
            Ok(seen) => self.settle(pod, seen).await,
            Err(reason) => Err(self.away(reason.clone())),
        };
        if let Err(error) = &done {
            pod.lock().trouble = error.to_string();
        }
        done
    }

    pub(super) fn away(&self, reason: String) -> RunError {
        RunError::Away { runtime: self.system.name(), reason }
    }

    /// Makes sure that a recorded pod has its jobs: those that are there, and new ones for the rest.
    async fn settle(&self, pod: &Arc<Pod>, seen: &[JobSeen]) -> Result<(), RunError> {
        for share in pod.shares() {
            if pod.job_of(share).is_some() {
                continue;
            }
            let (begun, claimed, given_up) = {
                let pod = Arc::clone(pod);
                let given_up = move |pod: &Pod| pod.folder.text(&format!("{}.failed", share.stem()));
                aside(move || (pod.has_begun(share), pod.claimed(share), given_up(&pod))).await
            };
            let name = share.job_name(&pod.id.uid);
            let whose = self.whose(pod);
            let ours = seen.iter().filter(|job| job.name == name && whose.has(job));
            let there = believed(ours, claimed.as_deref(), None);
            if let Some(job) = there {
                self.note_job(pod, share, &job.id).await?;
            } else if begun {
                // Its script has begun although the queue has forgotten it.
                self.note_job(pod, share, claimed.as_deref().unwrap_or("0")).await?;
            } else if let Some(words) = given_up {
                // That was cut off.
                return self.end_unsent(pod, &words).await;
            } else {
                let sent = self.submit_one(pod, share).await;
                if self.is_deleted(&pod.id.uid).await {
                    // Whoever removes it may have looked for its jobs before this one was there.
                    return self.cancel_all(pod).await;
                }
                match sent {
                    Ok(()) => {}
                    Err(SubmitError::Away(reason) | SubmitError::Unclear(reason)) => {
                        return Err(self.away(reason));
                    }
                    Err(SubmitError::Refused(reason)) => return self.give_up(pod, &reason).await,
                }
            }
        }
        Ok(())
    }

    /// Ends a pod whose job is refused: nobody waits for the answer of its create any more.
    async fn give_up(&self, pod: &Arc<Pod>, reason: &str) -> Result<(), RunError> {
        tracing::warn!(pod = %pod.id, reason, "A pod has ended, since its job is refused.");
        self.end_unsent(pod, &format!("{} refused to take the job: {reason}", self.system.name())).await
    }

    async fn end_unsent(&self, pod: &Arc<Pod>, words: &str) -> Result<(), RunError> {
        let unsent: Vec<Share> = pod.shares().filter(|share| pod.job_of(*share).is_none()).collect();
        // First: a job that was taken although nobody heard of it finds that it comes too late.
        for &share in &unsent {
            let (of, text) = (Arc::clone(pod), format!("{words}\n"));
            let wrote =
                aside(move || of.folder.write(&format!("{}.failed", share.stem()), text.as_bytes(), 0o600));
            wrote.await.map_err(RunError::folder("note the end of the pod"))?;
        }
        self.cancel_all(pod).await?;
        for share in unsent {
            self.note_job(pod, share, "0").await?;
        }
        Ok(())
    }

    /// Ends a job of a pod, and says whether it has certainly ended.
    pub(super) async fn cancel(&self, pod: &Pod, share: Share, grace: Duration) -> Result<bool, RunError> {
        // One that the settings no longer name is ended by its id.
        let other = self.other_user(&pod.known().plan).unwrap_or_default();
        let job = Unwanted {
            name: share.job_name(&pod.id.uid),
            id: pod.job_of(share).filter(|id| id != "0"),
            user: other.unwrap_or_else(|| rustix::process::geteuid().as_raw()),
        };
        self.system.cancel(&job, grace).await
    }

    /// Ends all jobs of a pod, also those that are not known to be there.
    async fn cancel_all(&self, pod: &Pod) -> Result<(), RunError> {
        let grace = pod.known().plan.grace.min(self.config.script.kill_wait);
        for share in pod.shares() {
            self.cancel(pod, share, grace).await?;
        }
        Ok(())
    }

    /// Ends the jobs of a pod that were taken.
    async fn cancel_sent(&self, pod: &Pod) -> Result<(), RunError> {
        for share in pod.shares().filter(|share| pod.job_of(*share).is_some()) {
            self.cancel(pod, share, Duration::ZERO).await?;
        }
        Ok(())
    }

    /// Submits all jobs of a new pod. After a failure none of them is left. False if some were taken, or may have
    /// been, and the rest has to be done later: the pod's folder must then stay, since a job that begins claims it.
    pub(super) async fn submit(&self, pod: &Arc<Pod>) -> Result<bool, RunError> {
        for share in pod.shares() {
            match self.submit_one(pod, share).await {
                Ok(()) => {}
                Err(SubmitError::Refused(reason)) => {
                    if let Err(error) = self.cancel_sent(pod).await {
                        return Ok(put_off(pod, error.to_string()));
                    }
                    let (runtime, what) = (self.system.name(), "take the job".into());
                    return Err(RunError::Refused { runtime, what, reason });
                }
                // Those that were taken may run before it is back.
                Err(SubmitError::Away(reason)) if pod.shares().any(|share| pod.job_of(share).is_some()) => {
                    return Ok(put_off(pod, reason));
                }
                Err(SubmitError::Away(reason)) => return Err(self.away(reason)),
                Err(SubmitError::Unclear(reason)) => {
                    // It may be there all the same: the name tells.
                    let name = share.job_name(&pod.id.uid);
                    let jobs = self.system.list().await.unwrap_or_default();
                    let whose = self.whose(pod);
                    let ours = jobs.iter().filter(|job| job.name == name && whose.has(job));
                    let Some(job) = believed(ours, None, None) else {
                        return Ok(put_off(pod, reason));
                    };
                    self.note_job(pod, share, &job.id).await?;
                }
            }
        }
        Ok(true)
    }

    async fn submit_one(&self, pod: &Arc<Pod>, share: Share) -> Result<(), SubmitError> {
        let path = pod.folder.path();
        let job = Job {
            name: share.job_name(&pod.id.uid),
            script: path.join(format!("{}.sh", share.stem())),
            folder: path.to_owned(),
            // The first one also runs what comes before all containers.
            after: pod.shares().next().filter(|first| *first != share).and_then(|first| pod.job_of(first)),
        };
        let id = self.system.submit(&job).await?;
        self.reached().at("job submitted");
        let noted = self.note_job(pod, share, &id).await;
        noted.map_err(|error| SubmitError::Unclear(error.to_string()))
    }

    pub(super) async fn note_job(&self, pod: &Arc<Pod>, share: Share, id: &str) -> Result<(), RunError> {
        let text = {
            let mut inner = pod.lock();
            if let Some(slot) = inner.jobs.get_mut(share.place()) {
                *slot = Some(id.to_owned());
            }
            let ids = inner.jobs.iter().map(|job| job.clone().unwrap_or_default());
            ids.collect::<Vec<_>>().join(",")
        };
        let of = Arc::clone(pod);
        let kept = aside(move || of.folder.keep(JOB_ID, text.as_bytes(), 0o600)).await;
        let place = pod.folder.path().display();
        kept.map_err(RunError::folder(format!("record the job's id in {place}")))?;
        self.reached().at("job noted");
        self.ask.notify_one();
        Ok(())
    }
}

/// Leaves the rest of a pod's jobs for later.
fn put_off(pod: &Pod, reason: String) -> bool {
    tracing::warn!(pod = %pod.id, reason, "The jobs of a pod are not all known to be taken.");
    pod.lock().trouble = reason;
    false
}
