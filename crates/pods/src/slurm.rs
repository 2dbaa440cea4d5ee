//! Slurm as a batch system: sbatch, squeue, scancel and srun, never through a shell.

pub mod flags;
mod offer;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::batch::states::{JobState, job_state};
use crate::batch::{BatchSystem, Job, JobSeen, SubmitError, Unwanted, is_ours};
use crate::error::RunError;
use crate::wire::PingReply;

/// A controller under load takes its time; beyond this it counts as away.
const PATIENCE: Duration = Duration::from_secs(25);
/// The columns that are asked for, each ended by a bar, which no value of ours contains.
const COLUMNS: &str = "JobID:|,UserID:|,Name:|,StateCompact:|,exit_code:|,Reason:|";

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

    fn begin(&self, program: &Path, words: &[&str]) -> Result<Child, String> {
        let mut command = Command::new(program);
        command.args(words).env_clear().envs(self.config.environment.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command.spawn().map_err(|error| format!("{} cannot be run: {error}", program.display()))
    }

    async fn run(&self, program: &Path, words: &[&str]) -> Result<Output, RunError> {
        let away = |reason: String| RunError::Away { runtime: "Slurm", reason };
        end_of(program, self.begin(program, words).map_err(away)?).await.map_err(away)
    }

    async fn scancel(&self, words: &[&str]) -> Result<(), RunError> {
        let output = self.run(&self.config.scancel, words).await?;
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        // A job that has ended, or is forgotten, is cancelled already.
        let over =
            complaint.contains("Invalid job id") || complaint.contains("already completing or completed");
        if output.status.success() || over {
            return Ok(());
        }
        Err(RunError::Away { runtime: "Slurm", reason: complaint })
    }
}

async fn end_of(program: &Path, child: Child) -> Result<Output, String> {
    match timeout(PATIENCE, child.wait_with_output()).await {
        Ok(ended) => ended.map_err(|error| format!("{} was not heard: {error}", program.display())),
        Err(_) => Err(format!("{} did not end in {PATIENCE:?}", program.display())),
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
        // What has not begun has sent nothing.
        let sbatch = self.begin(&self.config.sbatch, &words).map_err(SubmitError::Away)?;
        let output = end_of(&self.config.sbatch, sbatch).await.map_err(SubmitError::Unclear)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        job_id(&text).ok_or_else(|| submit_error(output.status.code(), complaint))
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

    async fn cancel(&self, job: &Unwanted, _grace: Duration) -> Result<bool, RunError> {
        let (name, user) = (format!("--name={}", job.name), format!("--user={}", job.user));
        if let Some(id) = &job.id {
            // The name as well: an id may be what a job's user says. Not quietly, or one that has ended would fail
            // without a word.
            self.scancel(&[&name, id]).await?;
        }
        // After a lost answer there may be more jobs than the one whose id is known.
        self.scancel(&["--quiet", &name, &user]).await?;
        // It has been told; how long it takes is the script's affair, and Slurm's.
        Ok(false)
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

/// What became of a job for which sbatch told no id, by its exit code, if it ended by itself, and its words.
fn submit_error(code: Option<i32>, complaint: String) -> SubmitError {
    // No connection was made, so nothing was sent. Of other questions that sbatch asks this says nothing.
    let unsent = |line: &str| line.contains("job submission failed") && line.contains("(connect failure)");
    if complaint.lines().any(unsent) {
        return SubmitError::Away(complaint);
    }
    // The controller may have taken the job although the answer was lost.
    let lost = [
        "timed out",
        "Unable to contact",
        "onnection",
        "onnect failure",
        "ommunication",
        "Zero Bytes",
        "temporarily",
    ];
    if matches!(code, None | Some(0)) || lost.iter().any(|word| complaint.contains(word)) {
        SubmitError::Unclear(complaint)
    } else {
        SubmitError::Refused(complaint)
    }
}

/// The id in sbatch's answer: `4`, or `4;cluster`.
fn job_id(text: &str) -> Option<String> {
    let id = text.lines().last()?.trim().split(';').next()?;
    (!id.is_empty() && id.bytes().all(|b| b.is_ascii_digit())).then(|| id.to_owned())
}

/// The jobs in squeue's answer. Lines of others' jobs may be odd, as their names and reasons are; where not one line
/// makes sense the first is given back, and where the answer was cut off the last.
pub(crate) fn parse_jobs(text: &str) -> Result<Vec<JobSeen>, String> {
    if let Some(cut) = text.lines().last().filter(|line| !line.trim().is_empty() && !text.ends_with('\n')) {
        return Err(cut.to_owned());
    }
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
    let (id, user, rest) = match fields.as_slice() {
        [id, user, rest @ ..] if id.starts_with(|c: char| c.is_ascii_digit()) => (id, user, rest),
        _ => return None,
    };
    let user = Some(user.parse().ok()?);
    let seen = |name: String, state| Some(JobSeen { id: (*id).to_owned(), name, user, state });
    match rest {
        // Our names hold no bars; what follows one of them is read from there. It is our job whatever it says.
        [name, said @ ..] if is_ours(name) => {
            let state = state_of(said).unwrap_or_else(|| JobState::Odd(said.join("|")));
            seen((*name).to_owned(), state)
        }
        // A name of somebody else's job may hold bars.
        [name @ .., state, raw, reason, ""] if !name.is_empty() => {
            seen(name.join("|"), state_of(&[*state, *raw, *reason, ""])?)
        }
        _ => None,
    }
}

/// The state in the columns after the name.
fn state_of(fields: &[&str]) -> Option<JobState> {
    let [state, raw, reason @ .., ""] = fields else { return None };
    let word = !state.is_empty() && state.len() <= 4 && state.bytes().all(|b| b.is_ascii_uppercase());
    if !word || reason.is_empty() {
        return None;
    }
    Some(job_state(state, raw.parse().ok()?, &reason.join("|")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_slurm_writes() {
        let text = "1|0|wrap|F|1792|NonZeroExitCode|\n2|1000|cf9e6237-0c5f-47c2-a6d8-912b12f93a20|R|0|None|\n3_[1-4]|7|a|b|PD|0|Resources|\n";
        let jobs = parse_jobs(text).unwrap();
        assert_eq!((jobs[0].user, &jobs[0].state), (Some(0), &JobState::Ended(1792)));
        assert_eq!(jobs[1].user, Some(1000));
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
    fn only_what_was_surely_not_taken_is_said_not_to_be() {
        let failed = "sbatch: error: Batch job submission failed: ";
        let of = |code, words: &str| submit_error(code, words.to_owned());
        let gone = format!("{failed}Unable to contact slurm controller (connect failure)");
        assert_eq!(of(Some(1), &gone), SubmitError::Away(gone.clone()));
        // Another question of sbatch met nobody, and then the job was sent after all.
        let earlier = format!("sbatch: error: slurm_load_x: (connect failure)\n{failed}Socket timed out");
        for unclear in [earlier, "sbatch: error: slurm_load_x (connect failure)".into()] {
            assert_eq!(of(Some(1), &unclear), SubmitError::Unclear(unclear.clone()));
        }
        let no = format!("{failed}Invalid account or account/partition combination specified");
        assert_eq!(of(Some(1), &no), SubmitError::Refused(no.clone()));
        for ended in [None, Some(0)] {
            assert_eq!(of(ended, &no), SubmitError::Unclear(no.clone()));
        }
    }

    #[tokio::test]
    async fn a_program_that_cannot_be_run_has_submitted_nothing() {
        let nowhere = PathBuf::from("/nowhere/sbatch");
        let config = SlurmConfig {
            sbatch: nowhere.clone(),
            scancel: nowhere.clone(),
            squeue: nowhere.clone(),
            srun: nowhere.clone(),
            sinfo: nowhere,
            resources: None,
            environment: vec![],
            all_users: false,
        };
        let job = Job { name: "n".into(), script: "/s".into(), folder: "/".into(), after: None };
        let error = Slurm::new(config).submit(&job).await.unwrap_err();
        assert!(matches!(&error, SubmitError::Away(words) if words.contains("/nowhere/sbatch")), "{error:?}");
    }

    #[test]
    fn odd_lines_of_others_hide_no_job_of_ours() {
        let uid = "cf9e6237-0c5f-47c2-a6d8-912b12f93a20";
        let text =
            format!("7|0|two\nlines|R|0|None|\n2|0|{uid}|PD|0|Nodes|required|for job|\n8|0|x|R|0|a|b|\n");
        let jobs = parse_jobs(&text).unwrap();
        let ours: Vec<&JobSeen> = jobs.iter().filter(|job| job.name == uid).collect();
        let state = JobState::Pending("Nodes|required|for job".into());
        assert_eq!(ours, [&JobSeen { id: "2".into(), name: uid.into(), user: Some(0), state }]);
    }

    #[test]
    fn a_job_of_ours_that_makes_no_sense_is_there_all_the_same() {
        let uid = "cf9e6237-0c5f-47c2-a6d8-912b12f93a20";
        for said in ["R|x|None|", "R|0|", "", "|||", "running|0|None|", "R|0|None|more"] {
            let jobs = parse_jobs(&format!("1|0|a|R|0|None|\n2|0|{uid}.1|{said}\n")).unwrap();
            let [_, ours] = jobs.as_slice() else { panic!("{jobs:?}") };
            assert_eq!((ours.id.as_str(), ours.name.as_str()), ("2", format!("{uid}.1").as_str()));
            assert!(matches!(ours.state, JobState::Odd(_)), "{said}: {ours:?}");
        }
    }

    #[test]
    fn an_answer_that_is_cut_off_is_none() {
        let text = "1|0|a|R|0|None|\n2|0|cf9e6237-0c5f-47c2-a6d8-912b12f93a20|R|0|None|\n";
        assert_eq!(parse_jobs(text).unwrap().len(), 2);
        for end in (1..text.len()).filter(|end| text.as_bytes()[end - 1] != b'\n') {
            assert!(parse_jobs(&text[..end]).is_err(), "{}", &text[..end]);
        }
    }

    #[test]
    fn garbage_is_not_an_empty_queue() {
        for text in [
            "slurm_load_jobs error: x",
            "<html>",
            "1|0|a|R|x|None|",
            "|||||",
            "1|0|R|0|None|",
            "1|a|R|0|None|",
        ] {
            assert!(parse_jobs(&format!("{text}\n")).is_err(), "{text}");
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
