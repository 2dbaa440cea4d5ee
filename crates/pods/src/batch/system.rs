//! What runs jobs, and what it says of them.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use tokio::process::Command;

use super::states::JobState;
use crate::error::RunError;
use crate::wire::PingReply;

/// What runs jobs.
#[async_trait]
pub trait BatchSystem: Send + Sync + 'static {
    /// Its name for people.
    fn name(&self) -> &'static str;
    /// Submits a job and gives its id.
    async fn submit(&self, job: &Job) -> Result<String, SubmitError>;
    /// All jobs it knows, running and ended, by one question.
    async fn list(&self) -> Result<Vec<JobSeen>, RunError>;
    /// Ends a job, and says whether it has certainly ended.
    async fn cancel(&self, job: &Unwanted, grace: Duration) -> Result<bool, RunError>;
    /// A summary of its machines for people, where it has one.
    async fn summary(&self) -> Option<Result<String, RunError>> {
        None
    }
    /// Whether jobs may run as another user than the plugin.
    fn changes_user(&self) -> bool {
        false
    }
    /// What it can take, as a ping tells it, where it knows.
    async fn offer(&self) -> Option<Result<PingReply, RunError>> {
        None
    }
    /// The beginning of a command that runs where the job runs. One that has a terminal for its streams
    /// makes it that of a new session.
    fn inside(&self, id: &str, terminal: bool) -> Result<Command, RunError>;
    /// Whether commands inside get a terminal there, so that the one here only passes on what comes.
    fn has_terminals(&self) -> bool {
        false
    }
}

/// A job to submit.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its name: the pod's UID.
    pub name: String,
    /// Its script.
    pub script: PathBuf,
    /// The pod's folder.
    pub folder: PathBuf,
    /// The job that must have begun before.
    pub after: Option<String>,
}

/// A job to end, with all others of its name: after a lost answer there may be more than the one that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unwanted {
    /// Its name.
    pub name: String,
    /// Its id, where that is known.
    pub id: Option<String>,
    /// The user it runs as; jobs of others are none of ours, whatever their names.
    pub user: u32,
}

/// A job that the batch system knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSeen {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The user it runs as, where others have jobs as well.
    pub user: Option<u32>,
    /// How it is.
    pub state: JobState,
}

/// A job that was not submitted, or perhaps was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// It was not.
    #[error("{0}")]
    Refused(String),
    /// It was not, since nobody was there to take it.
    #[error("{0}")]
    Away(String),
    /// It may have been.
    #[error("{0}")]
    Unclear(String),
}

/// Whose jobs may be those of a pod: anybody can give a job the name of one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// Those of the plugin's own user, and of the one as whom the pod runs.
    Users(u32, Option<u32>),
    /// Nobody can say any more.
    Anybody,
}

impl Whose {
    pub(super) fn has(self, job: &JobSeen) -> bool {
        match (self, job.user) {
            (Self::Users(own, other), Some(user)) => user == own || Some(user) == other,
            (Self::Anybody, _) | (_, None) => true,
        }
    }
}

/// Of the jobs of one name the one that is the pod's. After a lost answer there may be two: whichever begins first
/// claims the pod's folder, and the other ends at once without having done anything.
pub(super) fn believed<'a>(
    jobs: impl IntoIterator<Item = &'a JobSeen>,
    claimed: Option<&str>,
    noted: Option<&str>,
) -> Option<&'a JobSeen> {
    let mut jobs = jobs.into_iter();
    if claimed.is_some() {
        return jobs.find(|job| Some(job.id.as_str()) == claimed);
    }
    jobs.max_by_key(|job| {
        let alive = !job.state.is_over();
        // As long as nobody has begun, the one that was noted is as good as any that may still run.
        (alive, alive && Some(job.id.as_str()) == noted, job.state == JobState::Running)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::batch::states::job_state;

    fn job(id: &str, compact: &str, raw: i32) -> JobSeen {
        JobSeen { id: id.into(), name: "n".into(), user: None, state: job_state(compact, raw, "") }
    }

    fn id<'a>(jobs: &'a [JobSeen], claimed: Option<&str>, noted: Option<&str>) -> Option<&'a str> {
        believed(jobs, claimed, noted).map(|job| job.id.as_str())
    }

    #[test]
    fn the_job_that_runs_the_pod_is_believed_and_not_its_twin() {
        // Slurm lists what failed after what runs.
        let twins = [job("1", "R", 0), job("2", "F", 75 << 8)];
        assert_eq!(id(&twins, Some("1"), Some("2")), Some("1"));
        assert_eq!(id(&twins, None, Some("2")), Some("1"), "the claim may not be seen yet");
        let waiting = [job("1", "PD", 0), job("2", "PD", 0)];
        assert_eq!(id(&waiting, None, Some("1")), Some("1"));
        assert_eq!(id(&waiting, None, Some("2")), Some("2"));
        let over = [job("1", "TO", 0), job("2", "F", 75 << 8)];
        assert_eq!(id(&over, Some("1"), Some("2")), Some("1"));
        // The one that ran is forgotten: what became of the other says nothing.
        assert_eq!(id(&over[1..], Some("1"), Some("2")), None);
    }

    proptest! {
        #[test]
        fn in_any_order_nothing_that_lives_is_taken_for_over(
            states in proptest::collection::vec(prop_oneof![Just("PD"), Just("R"), Just("F"), Just("CA"), Just("XX")], 1..5),
            noted in 0usize..6,
        ) {
            let jobs: Vec<JobSeen> = states.iter().enumerate().map(|(n, state)| job(&n.to_string(), state, 0)).collect();
            let noted = noted.to_string();
            let one = believed(&jobs, None, Some(&noted)).unwrap();
            let other = believed(jobs.iter().rev(), None, Some(&noted)).unwrap();
            for chosen in [one, other] {
                prop_assert_eq!(chosen.state.is_over(), jobs.iter().all(|job| job.state.is_over()));
                if let Some(own) = jobs.iter().find(|job| job.id == noted && !job.state.is_over()) {
                    prop_assert_eq!(&chosen.id, &own.id);
                }
            }
        }
    }
}
