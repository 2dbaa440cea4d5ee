//! What a job and its files say about a container.
//!
//! | Slurm | reported |
//! |---|---|
//! | PD CF RQ RH RS RD SE | waiting, with Slurm's reason |
//! | R CG S ST SI SO RV | running once its turn came, else waiting |
//! | CD F | ended, code from its file, else the job's own |
//! | TO DL | ended 143, `SlurmJobTimeout`, unless its file says otherwise |
//! | OOM | ended 137, `OOMKilled` |
//! | CA PR | ended 143, `SlurmJobCancelled`, `SlurmJobPreempted` |
//! | NF BF | ended 137, `SlurmNodeFail`, `SlurmBootFail` |
//! | anything else | as it was |
//! | CD F with 76, or with the signal 53 | ended 76, `DataRootNotVisible` |
//!
//! A file of the container itself always has the last word: it is written by the job at the very
//! moment, and stays when the controller has forgotten the job. Slurm's exit codes are raw wait
//! statuses: 1792 is 7, and 15 is the signal TERM.

use std::time::SystemTime;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::runner::Turn;

/// How a job is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    /// Not begun, and why.
    Pending(String),
    /// Begun.
    Running,
    /// Ended by itself, with a raw wait status.
    Ended(i32),
    /// Ended by something else: the code and the reason to tell.
    Killed(i32, &'static str),
    /// A state we do not know.
    Odd(String),
}

impl JobState {
    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::Killed(..))
    }
}

/// Reads Slurm's compact state, raw wait status and reason.
pub fn job_state(compact: &str, raw: i32, reason: &str) -> JobState {
    match compact {
        "PD" | "CF" | "RQ" | "RH" | "RS" | "RD" | "SE" => JobState::Pending(reason.to_owned()),
        "R" | "CG" | "S" | "ST" | "SI" | "SO" | "RV" => JobState::Running,
        "CD" | "F" => JobState::Ended(raw),
        "TO" | "DL" => JobState::Killed(143, "SlurmJobTimeout"),
        "OOM" => JobState::Killed(137, "OOMKilled"),
        "CA" => JobState::Killed(143, "SlurmJobCancelled"),
        "PR" => JobState::Killed(143, "SlurmJobPreempted"),
        "NF" => JobState::Killed(137, "SlurmNodeFail"),
        "BF" => JobState::Killed(137, "SlurmBootFail"),
        other => JobState::Odd(other.to_owned()),
    }
}

/// The exit code in a raw wait status; a signal counts from 128.
pub fn exit_code(raw: i32) -> i32 {
    match raw & 0x7f {
        0 => (raw >> 8) & 0xff,
        signal => 128 + signal,
    }
}

/// How the script ends where the pod's folder is not to be seen.
const UNSEEN: i32 = 76;
/// The signal by which Slurm tells of a job whose output it could not open; no real one has it.
const NO_OUTPUT: i32 = 53;

/// Whether a job ended since its machine does not see the pod's folder.
fn is_unseen(raw: i32) -> bool {
    exit_code(raw) == UNSEEN || raw & 0x7f == NO_OUTPUT
}

/// What the files of a container say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marks {
    /// When it began.
    pub started: Option<SystemTime>,
    /// Its code, and when it ended.
    pub ended: Option<(i32, SystemTime)>,
    /// Its last message.
    pub message: String,
    /// How often it was started again.
    pub restarts: i32,
    /// The code of the run before.
    pub before: Option<i32>,
    /// It waits to be started again.
    pub waiting: bool,
    /// What the job itself said last, where it has ended without a word of the container.
    pub said: String,
}

/// What is known of the job of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobView {
    /// It was not submitted yet, and why, where that is known.
    Unsent(String),
    /// The batch system says so.
    Seen(JobState),
    /// The batch system does not know it any more.
    Forgotten,
    /// Nobody can say at the moment.
    Unknown,
}

impl JobView {
    /// Whether it has ended, as far as is known.
    pub fn is_over(&self) -> bool {
        match self {
            Self::Seen(state) => state.is_over(),
            Self::Forgotten => true,
            Self::Unsent(_) | Self::Unknown => false,
        }
    }
}

/// The state of a container.
pub fn container_state(marks: &Marks, job: &JobView, turn: Turn) -> ContainerState {
    let time = |time: SystemTime| Timestamp::try_from(time).ok().map(Time);
    let waiting = |reason: &str, message: &str| ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message: (!message.is_empty()).then(|| message.to_owned()),
        }),
        ..Default::default()
    };
    let ended = |code: i32, reason: &str, at: Option<SystemTime>, message: &str| ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: code,
            reason: Some(reason.to_owned()),
            message: (!message.is_empty()).then(|| message.to_owned()),
            started_at: marks.started.and_then(time),
            finished_at: at.and_then(time),
            ..Default::default()
        }),
        ..Default::default()
    };
    if let Some((code, at)) = marks.ended {
        return ended(code, if code == 0 { "Completed" } else { "Error" }, Some(at), &marks.message);
    }
    if turn == Turn::Never {
        return ContainerState { terminated: Some(Turn::never()), ..Default::default() };
    }
    let running = || match marks.started {
        Some(_) if marks.waiting => {
            waiting("CrashLoopBackOff", "it ended and is started again after a while")
        }
        Some(at) => ContainerState {
            running: Some(ContainerStateRunning { started_at: time(at) }),
            ..Default::default()
        },
        None if turn == Turn::Later => waiting("PodInitializing", ""),
        None => waiting("ContainerCreating", ""),
    };
    let told = |what: &str| {
        if marks.said.is_empty() { what.to_owned() } else { format!("{what}: {}", marks.said) }
    };
    match job {
        JobView::Unsent(why) if why.is_empty() => waiting("ContainerCreating", "the job is being submitted"),
        JobView::Unsent(why) => waiting("ContainerCreating", &format!("the job is not submitted yet: {why}")),
        JobView::Unknown | JobView::Seen(JobState::Running | JobState::Odd(_)) => running(),
        // The job has begun, whatever an older look says.
        JobView::Seen(JobState::Pending(_)) if marks.started.is_some() => running(),
        JobView::Seen(JobState::Pending(reason)) => waiting("JobPending", reason),
        JobView::Seen(JobState::Ended(raw)) if marks.started.is_none() && is_unseen(*raw) => ended(
            UNSEEN,
            "DataRootNotVisible",
            None,
            "the machine of the job does not see DataRootFolder, which must be on a file system that jobs share \
             with the plugin even where SharedFS is false",
        ),
        JobView::Seen(JobState::Ended(raw)) => {
            let code = exit_code(*raw);
            // A container whose turn never came did not end well, even if the job did.
            let code = if code == 0 && marks.started.is_none() { 125 } else { code };
            ended(
                code,
                if code == 0 { "Completed" } else { "Error" },
                None,
                &told("the job ended without a word of the container"),
            )
        }
        JobView::Seen(JobState::Killed(code, reason)) => ended(*code, reason, None, &marks.said),
        JobView::Forgotten => {
            ended(137, "JobLost", None, &told("the job is gone and left no word of the container"))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn raw_wait_statuses() {
        assert_eq!(exit_code(1792), 7);
        assert_eq!(exit_code(15), 143);
        assert_eq!(exit_code(9 | 0x80), 137);
        assert_eq!(exit_code(0), 0);
    }

    #[test]
    fn a_starting_job_is_not_a_failed_one() {
        for (compact, reason) in [("CF", "None"), ("PD", "Resources")] {
            let view = JobView::Seen(job_state(compact, 0, reason));
            let state = container_state(&Marks::default(), &view, Turn::Now);
            assert_eq!(state.waiting.unwrap().message.as_deref(), Some(reason));
        }
    }

    #[test]
    fn a_job_that_could_not_see_its_folder_says_so() {
        for raw in [76 << 8, 53] {
            let view = JobView::Seen(job_state("F", raw, "NonZeroExitCode"));
            let end = container_state(&Marks::default(), &view, Turn::Now).terminated.unwrap();
            assert_eq!((end.exit_code, end.reason.as_deref()), (76, Some("DataRootNotVisible")));
        }
        // A second job of the same pod is something else.
        let view = JobView::Seen(job_state("F", 75 << 8, "NonZeroExitCode"));
        let end = container_state(&Marks::default(), &view, Turn::Now).terminated.unwrap();
        assert_eq!((end.exit_code, end.reason.as_deref()), (75, Some("Error")));
    }

    proptest! {
        #[test]
        fn exactly_one_state_and_files_win(
            started in any::<bool>(), code in proptest::option::of(0i32..256),
            compact in prop_oneof![Just("PD"), Just("R"), Just("CD"), Just("F"), Just("TO"), Just("OOM"), Just("XX"), Just("CA")],
            raw in 0i32..65536, early in any::<bool>(), known in 0u8..4,
        ) {
            let now = SystemTime::UNIX_EPOCH;
            let marks = Marks { started: started.then_some(now), ended: code.map(|code| (code, now)), ..Default::default() };
            let view = match known { 0 => JobView::Unsent(String::new()), 1 => JobView::Forgotten, 2 => JobView::Unknown,
                _ => JobView::Seen(job_state(compact, raw, "why")) };
            let state = container_state(&marks, &view, if early { Turn::Later } else { Turn::Now });
            let count = [state.waiting.is_some(), state.running.is_some(), state.terminated.is_some()];
            prop_assert_eq!(count.into_iter().filter(|x| *x).count(), 1);
            if let Some(code) = code {
                prop_assert_eq!(state.terminated.unwrap().exit_code, code);
            } else if matches!(view, JobView::Unknown | JobView::Unsent(_)) {
                prop_assert!(state.terminated.is_none(), "not knowing is not failing");
            }
        }
    }
}
