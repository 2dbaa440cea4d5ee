//! The end of single containers of a job that goes on.

use std::time::Duration;

use tokio::process::Command;

use super::inside::end_script;
use super::pod::Pod;
use super::{Batch, Container, Plan};
use crate::error::RunError;

/// What the way to a job may take beyond the container's own grace.
const MARGIN: Duration = Duration::from_mins(1);

impl Batch {
    /// A command that runs a script where a job of the pod runs. The script removes itself.
    pub(super) fn inside(
        &self,
        pod: &Pod,
        job: &str,
        script: &str,
        terminal: bool,
    ) -> Result<Command, RunError> {
        let name = format!("exec-{}.sh", uuid::Uuid::new_v4());
        self.write_for_job(pod, &name, script.as_bytes(), 0o700)?;
        let mut command = self.system.inside(job, terminal)?;
        if let Some(user) = self.other_user(&pod.known().plan)? {
            // Only who owns a job may enter it. Its group is the one that the job itself has.
            let made = pod.shares().find_map(|share| pod.folder.owner(&format!("{}.lock", share.stem())));
            let Some((_, group)) = made.filter(|(owner, _)| *owner == user) else {
                let reason = format!("the job of user {user} has not begun");
                return Err(RunError::Refused {
                    runtime: self.system.name(),
                    what: "run a command".into(),
                    reason,
                });
            };
            command.uid(user).gid(group);
        }
        command.arg(&self.config.script.bash).arg(pod.folder.path().join(&name));
        Ok(command)
    }

    /// Ends one container, if it runs.
    pub(super) async fn end_one(
        &self,
        pod: &Pod,
        container: &Container,
        grace: Duration,
    ) -> Result<(), RunError> {
        let known = pod.known();
        let marks = pod.marks(container, known.plan.is_init(&container.name));
        let job = pod.job_of(pod.share_of(container));
        let Some(job) = job.filter(|_| marks.started.is_some() && marks.ended.is_none()) else {
            return Ok(());
        };
        let text =
            end_script(&known.stem(container), grace.as_secs(), &self.config.script, pod.folder.path());
        let mut command = self.inside(pod, &job, &text, false)?;
        command.stdin(std::process::Stdio::null()).kill_on_drop(true);
        let away = |reason: String| RunError::Away { runtime: self.system.name(), reason };
        match tokio::time::timeout(grace + MARGIN, command.output()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(away(error.to_string())),
            Err(_) => Err(away("a container could not be ended in time".into())),
        }
    }

    /// Ends containers whose image changed. A job keeps the images it began with, so nothing takes
    /// their place; for those who change an image to end a container that is what they want.
    pub(super) async fn end_changed(&self, pod: &Pod, new: &Plan) -> Result<(), RunError> {
        let known = pod.known();
        for container in &known.plan.containers {
            let changed = new.container(&container.name).is_some_and(|new| new.image != container.image);
            let mark = format!("{}.stop", known.stem(container));
            if !changed || pod.folder.has(&mark) {
                continue;
            }
            // Not to be started again, whatever the restart policy.
            pod.folder.touch(&mark, 0o600).map_err(RunError::folder("note the end of a container"))?;
            let grace = known.plan.grace.min(self.config.script.kill_wait);
            self.end_one(pod, container, grace).await?;
        }
        Ok(())
    }
}
