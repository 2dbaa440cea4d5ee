//! Slurm as a batch system: sbatch, squeue, scancel and srun, never through a shell.

pub mod flags;
mod offer;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use tokio::process::Command;
use tokio::time::timeout;

use crate::batch::{BatchSystem, Job, JobSeen, SubmitError, is_ours, states::job_state};
use crate::error::RunError;
use crate::wire::PingReply;

/// A controller under load takes its time; beyond this it counts as away.
const PATIENCE: Duration = Duration::from_secs(25);
/// The columns that are asked for, each ended by a bar, which no value of ours contains.
const COLUMNS: &str = "JobID:|,Name:|,StateCompact:|,exit_code:|,Reason:|";

/// Where Slurm's programs are.
#[derive(Debug, Clone)]
pub struct SlurmConfig {
    /// sbatch.
    pub sbatch: PathBuf,
    /// scancel.
    pub scancel: PathBuf,
    /// squeue.
    pub squeue: PathBuf,
    /// srun, for commands in running jobs.
    pub srun: PathBuf,
    /// sinfo, for the summary of machines.
    pub sinfo: PathBuf,
    /// A program that writes the answer to a ping, instead of what sinfo says of machines.
    pub resources: Option<PathBuf>,
    /// Variables that Slurm's programs need, such as `SLURM_CONF`; nothing else of the plugin's
    /// environment reaches a job.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether jobs of all users are ours to see, as when the plugin runs as root.
    pub all_users: bool,
}

/// Slurm.
#[derive(Debug, Clone)]
pub struct Slurm {
    config: SlurmConfig,
}

impl Slurm {
    /// Slurm with these programs.
    pub fn new(config: SlurmConfig) -> Self {
        Self { config }
    }

    async fn run(&self, program: &PathBuf, words: &[&str]) -> Result<Output, RunError> {
        let mut command = Command::new(program);
        command.args(words).env_clear().envs(self.config.environment.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).kill_on_drop(true);
        let away = |reason: String| RunError::Away { runtime: "Slurm", reason };
        let output = timeout(PATIENCE, command.output()).await;
        let output =
            output.map_err(|_| away(format!("{} did not end in {PATIENCE:?}", program.display())))?;
        output.map_err(|error| away(format!("{} cannot be run: {error}", program.display())))
    }
}

#[async_trait]
impl BatchSystem for Slurm {
    fn name(&self) -> &'static str {
        "Slurm"
    }

    async fn submit(&self, job: &Job) -> Result<String, SubmitError> {
        let script = job.script.display().to_string();
        // NONE: the job gets a fresh environment of its user, nothing of the plugin's.
        let mut words = vec!["--parsable", "--export=NONE", "--input=/dev/null"];
        let after = job.after.as_ref().map(|id| format!("--dependency=after:{id}"));
        words.extend(after.as_deref());
        words.push(&script);
        let output = self
            .run(&self.config.sbatch, &words)
            .await
            .map_err(|error| SubmitError::Unclear(error.to_string()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if let Some(id) = job_id(&text) {
            return Ok(id);
        }
        // No connection was made, so nothing was sent.
        if complaint.contains("(connect failure)") {
            return Err(SubmitError::Away(complaint));
        }
        // The controller may have taken the job although the answer was lost.
        let lost =
            ["timed out", "Unable to contact", "onnection", "ommunication", "Zero Bytes", "temporarily"];
        if output.status.success()
            || output.status.code().is_none()
            || lost.iter().any(|word| complaint.contains(word))
        {
            Err(SubmitError::Unclear(complaint))
        } else {
            Err(SubmitError::Refused(complaint))
        }
    }

    async fn list(&self) -> Result<Vec<JobSeen>, RunError> {
        let whose = if self.config.all_users { "--all" } else { "--me" };
        let output =
            self.run(&self.config.squeue, &["--noheader", whose, "--states=all", "-O", COLUMNS]).await?;
        let away = |reason: String| RunError::Away { runtime: "Slurm", reason };
        if !output.status.success() {
            return Err(away(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        parse_jobs(&String::from_utf8_lossy(&output.stdout)).map_err(|line| {
            away(format!("squeue wrote something that is not a job: `{}`", line.escape_debug()))
        })
    }

    async fn cancel(&self, name: &str, _id: Option<&str>, _grace: Duration) -> Result<bool, RunError> {
        // By name: after a lost answer there may be more jobs than the one whose id is known.
        let output = self.run(&self.config.scancel, &["--quiet", &format!("--name={name}")]).await?;
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        // A job that has ended, or is forgotten, is cancelled already.
        let over =
            complaint.contains("Invalid job id") || complaint.contains("already completing or completed");
        if output.status.success() || over {
            // It has been told; how long it takes is the script's affair, and Slurm's.
            return Ok(false);
        }
        Err(RunError::Away { runtime: "Slurm", reason: complaint })
    }

    async fn summary(&self) -> Option<Result<String, RunError>> {
        let asked = self.run(&self.config.sinfo, &["-s"]).await;
        Some(asked.and_then(|output| {
            if output.status.success() {
                return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
            }
            let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(RunError::Away { runtime: "Slurm", reason })
        }))
    }

    fn changes_user(&self) -> bool {
        true
    }

    async fn offer(&self) -> Option<Result<PingReply, RunError>> {
        Some(self.ask_offer().await)
    }

    fn inside(&self, id: &str, terminal: bool) -> Result<Command, RunError> {
        let mut command = Command::new(if terminal { "setsid".as_ref() } else { self.config.srun.as_path() });
        if terminal {
            command.arg("--ctty").arg(&self.config.srun).arg("--pty");
        }
        command.env_clear().envs(self.config.environment.iter().map(|(k, v)| (k, v)));
        command.args([
            &format!("--jobid={id}"),
            "--overlap",
            "--ntasks=1",
            "--mem=0",
            "--quiet",
            "--export=NONE",
            "--",
        ]);
        Ok(command)
    }

    fn has_terminals(&self) -> bool {
        true
    }
}

/// The id in sbatch's answer: `4`, or `4;cluster`.
fn job_id(text: &str) -> Option<String> {
    let id = text.lines().last()?.trim().split(';').next()?;
    (!id.is_empty() && id.bytes().all(|b| b.is_ascii_digit())).then(|| id.to_owned())
}

/// The jobs in squeue's answer. Lines of others' jobs may be odd, as their names and reasons are; where not one line
/// makes sense the first is given back.
pub(crate) fn parse_jobs(text: &str) -> Result<Vec<JobSeen>, String> {
    let (mut jobs, mut odd) = (Vec::new(), None);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        match parse_job(line) {
            Some(job) => jobs.push(job),
            None => odd = odd.or(Some(line)),
        }
    }
    match odd {
        Some(line) if jobs.is_empty() => Err(line.to_owned()),
        _ => Ok(jobs),
    }
}

fn parse_job(line: &str) -> Option<JobSeen> {
    let fields: Vec<&str> = line.split('|').map(str::trim).collect();
    let (id, name, state, raw, reason) = match fields.as_slice() {
        // Our names hold no bars; what follows one of them is read from there.
        [id, name, state, raw, reason @ .., ""] if is_ours(name) && !reason.is_empty() => {
            (id, (*name).to_owned(), state, raw, reason.join("|"))
        }
        // A name of somebody else's job may hold bars.
        [id, middle @ .., state, raw, reason, ""] if !middle.is_empty() => {
            (id, middle.join("|"), state, raw, (*reason).to_owned())
        }
        _ => return None,
    };
    let state_word = !state.is_empty() && state.len() <= 4 && state.bytes().all(|b| b.is_ascii_uppercase());
    if !id.starts_with(|c: char| c.is_ascii_digit()) || !state_word {
        return None;
    }
    Some(JobSeen { id: (*id).to_owned(), name, state: job_state(state, raw.parse().ok()?, &reason) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::batch::states::JobState;

    #[test]
    fn reads_what_slurm_writes() {
        let text = "1|wrap|F|1792|NonZeroExitCode|\n2|cf9e6237-0c5f-47c2-a6d8-912b12f93a20|R|0|None|\n3_[1-4]|a|b|PD|0|Resources|\n";
        let jobs = parse_jobs(text).unwrap();
        assert_eq!(jobs[0].state, JobState::Ended(1792));
        assert_eq!(
            (jobs[1].name.as_str(), &jobs[1].state),
            ("cf9e6237-0c5f-47c2-a6d8-912b12f93a20", &JobState::Running)
        );
        assert_eq!((jobs[2].name.as_str(), &jobs[2].state), ("a|b", &JobState::Pending("Resources".into())));
        assert_eq!(job_id("4\n").as_deref(), Some("4"));
        assert_eq!(job_id("warning\n4;cluster\n").as_deref(), Some("4"));
        assert_eq!(job_id("Submitted batch job 4"), None);
    }

    #[test]
    fn odd_lines_of_others_hide_no_job_of_ours() {
        let uid = "cf9e6237-0c5f-47c2-a6d8-912b12f93a20";
        let text = format!("7|two\nlines|R|0|None|\n2|{uid}|PD|0|Nodes|required|for job|\n8|x|R|0|a|b|\n");
        let jobs = parse_jobs(&text).unwrap();
        let ours: Vec<&JobSeen> = jobs.iter().filter(|job| job.name == uid).collect();
        let state = JobState::Pending("Nodes|required|for job".into());
        assert_eq!(ours, [&JobSeen { id: "2".into(), name: uid.into(), state }]);
    }

    #[test]
    fn garbage_is_not_an_empty_queue() {
        for text in ["slurm_load_jobs error: x", "<html>", "1|a|R|x|None|", "|||||", "1|R|0|None|"] {
            assert!(parse_jobs(text).is_err(), "{text}");
        }
        assert_eq!(parse_jobs("").unwrap(), []);
    }

    proptest! {
        #[test]
        fn never_panics(text in "[0-9a-zA-Z|\n ]{0,80}") {
            let _ = parse_jobs(&text);
        }
    }
}
