//! The jobs of a pod: one, or one for each container; each submitted once, whatever is cut off.

use std::sync::Arc;
use std::time::Duration;

use super::pod::Pod;
use super::script::Share;
use super::{Batch, JOB_ID, Job, SubmitError};
use crate::error::RunError;

impl Batch {
    /// Finishes what a crash cut off: submissions without an id, and removals.
    pub(super) async fn finish(self: Arc<Self>, unfinished: Vec<(Arc<Pod>, bool)>) {
        for (pod, deleted) in unfinished {
            let mut wait = Duration::from_millis(500);
            loop {
                let done = if deleted {
                    self.remove(&pod, None).await
                } else {
                    let turn = self.intake.lock().await;
                    if self.records.is_deleted(&pod.id.uid) {
                        // Somebody removes it right now.
                        break;
                    }
                    let done = self.settle(&pod).await;
                    drop(turn);
                    done
                };
                match done {
                    Ok(()) => break,
                    Err(error) => tracing::warn!(pod = %pod.id, error = %error, "A pod waits."),
                }
                tokio::select! {
                    () = self.stop.cancelled() => return,
                    () = tokio::time::sleep(wait) => wait = (wait * 2).min(Duration::from_secs(30)),
                }
            }
        }
    }

    /// Makes sure that a recorded pod has its jobs: those that are there, and new ones for the rest.
    async fn settle(&self, pod: &Pod) -> Result<(), RunError> {
        let seen = self.system.list().await?;
        for share in pod.shares() {
            if pod.job_of(share).is_some() {
                continue;
            }
            let name = share.job_name(&pod.id.uid);
            if let Some(job) = seen.iter().find(|job| job.name == name) {
                self.note_job(pod, share, &job.id)?;
            } else if pod.has_begun(share) {
                // Its script has begun although the queue has forgotten it.
                self.note_job(pod, share, "0")?;
            } else {
                self.submit_one(pod, share).await.map_err(|error| {
                    let (SubmitError::Refused(reason) | SubmitError::Unclear(reason)) = error;
                    RunError::Away { runtime: self.system.name(), reason }
                })?;
            }
        }
        Ok(())
    }

    /// Submits all jobs of a new pod. After a failure none of them is left.
    pub(super) async fn submit(&self, pod: &Pod) -> Result<(), RunError> {
        let name = self.system.name();
        for share in pod.shares() {
            let failure = match self.submit_one(pod, share).await {
                Ok(()) => continue,
                Err(SubmitError::Refused(reason)) => {
                    RunError::Refused { runtime: name, what: "take the job".into(), reason }
                }
                Err(SubmitError::Unclear(reason)) => {
                    // It may be there all the same: the name tells.
                    match self.find(&share.job_name(&pod.id.uid)).await {
                        Ok(Some(id)) => {
                            self.note_job(pod, share, &id)?;
                            continue;
                        }
                        _ => RunError::Away { runtime: name, reason },
                    }
                }
            };
            for share in pod.shares() {
                if let Some(id) = pod.job_of(share) {
                    self.system.cancel(&share.job_name(&pod.id.uid), Some(&id), Duration::ZERO).await?;
                }
            }
            return Err(failure);
        }
        Ok(())
    }

    /// The id of the job of this name, asked now.
    async fn find(&self, name: &str) -> Result<Option<String>, RunError> {
        let jobs = self.system.list().await?;
        Ok(jobs.into_iter().find(|job| job.name == name).map(|job| job.id))
    }

    async fn submit_one(&self, pod: &Pod, share: Share) -> Result<(), SubmitError> {
        let path = pod.folder.path();
        let job = Job {
            name: share.job_name(&pod.id.uid),
            script: path.join(format!("{}.sh", share.stem())),
            folder: path.to_owned(),
            // The first one also runs what comes before all containers.
            after: pod.shares().next().filter(|first| *first != share).and_then(|first| pod.job_of(first)),
        };
        let id = self.system.submit(&job).await?;
        self.note_job(pod, share, &id).map_err(|error| SubmitError::Unclear(error.to_string()))
    }

    fn note_job(&self, pod: &Pod, share: Share, id: &str) -> Result<(), RunError> {
        let text = {
            let mut inner = pod.lock();
            if let Some(slot) = inner.jobs.get_mut(share.place()) {
                *slot = Some(id.to_owned());
            }
            let ids = inner.jobs.iter().map(|job| job.clone().unwrap_or_default());
            ids.collect::<Vec<_>>().join(",")
        };
        pod.folder.write(JOB_ID, text.as_bytes(), 0o600).map_err(RunError::folder("record the job's id"))?;
        self.ask.notify_one();
        Ok(())
    }
}
