//! Plain processes of this machine as a batch system, for hosts that have neither Docker nor Slurm.
//!
//! A pod's script runs in a session of its own and outlives the plugin. It is known by its
//! process id and start time, which no other process ever shares.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;

use crate::batch::{BatchSystem, Job, JobSeen, SubmitError, Unwanted, states::JobState};
use crate::error::RunError;
use crate::folder::Folder;
use crate::wire::is_uid;

/// What a script may take to clean up after its containers were killed.
const CLEANING: Duration = Duration::from_secs(3);

/// Processes of this machine.
#[derive(Debug, Clone)]
pub struct Processes {
    root: PathBuf,
    bash: String,
}

impl Processes {
    /// Runs scripts of pods below this data root with this shell.
    pub fn new(root: PathBuf, bash: String) -> Self {
        Self { root, bash }
    }

    /// The UIDs of pods that have begun, with the ids of their processes.
    fn ids(&self) -> Result<Vec<(String, String)>, RunError> {
        let entries = fs::read_dir(&self.root).map_err(RunError::folder("read the data root"))?;
        let mut ids = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(uid) = name.get(name.len().saturating_sub(36)..).filter(|uid| is_uid(uid)) else {
                continue;
            };
            let Ok(folder) = Folder::open(&entry.path()) else { continue };
            ids.extend(running_id(&folder).map(|id| (uid.to_owned(), id)));
        }
        Ok(ids)
    }
}

#[async_trait]
impl BatchSystem for Processes {
    fn name(&self) -> &'static str {
        "the machine"
    }

    async fn submit(&self, job: &Job) -> Result<String, SubmitError> {
        let refused = |what: &str| {
            let what = what.to_owned();
            move |error: std::io::Error| SubmitError::Refused(format!("{what}: {error}"))
        };
        let path = job.folder.join("job.out");
        let unwritable = || refused(&format!("cannot write {}", path.display()));
        let output = fs::File::create(&path).map_err(unwritable())?;
        let mut command = Command::new("setsid");
        command.arg(&self.bash).arg(&job.script).current_dir("/");
        // Where the plugin itself is a job of Slurm, its processes are none.
        command.env_remove("SLURM_JOB_ID");
        command.stdin(Stdio::null()).stdout(output.try_clone().map_err(unwritable())?).stderr(output);
        // No group of its own yet: `setsid` would then go on in another process than the one we know.
        let mut child = command.spawn().map_err(refused("cannot run setsid"))?;
        let id = child.id().and_then(identity).unwrap_or_else(|| "0-0".into());
        // Waited for, or it would stay a zombie until the plugin ends.
        tokio::spawn(async move { child.wait().await });
        Ok(id)
    }

    async fn list(&self) -> Result<Vec<JobSeen>, RunError> {
        let mut jobs = Vec::new();
        for (uid, id) in self.ids()? {
            let alive = id.split_once('-').and_then(|(pid, _)| pid.parse().ok()).and_then(identity)
                == Some(id.clone());
            let state = if alive { JobState::Running } else { JobState::Killed(137, "ProcessLost") };
            jobs.push(JobSeen { id, name: uid, user: None, state });
        }
        Ok(jobs)
    }

    async fn cancel(&self, job: &Unwanted, grace: Duration) -> Result<bool, RunError> {
        // The plugin may have died before it noted the id; the script has noted it itself.
        let found = match job.id {
            Some(_) => None,
            None => self.ids()?.into_iter().find(|(uid, _)| *uid == job.name).map(|(_, id)| id),
        };
        let Some(id) = job.id.as_deref().or(found.as_deref()) else { return Ok(true) };
        let alive = || {
            id.split_once('-').and_then(|(pid, _)| pid.parse().ok()).and_then(identity).as_deref() == Some(id)
        };
        let group = id.split_once('-').and_then(|(pid, _)| pid.parse().ok()).and_then(Pid::from_raw);
        let Some(group) = group.filter(|_| alive()) else { return Ok(true) };
        let _ = kill_process_group(group, Signal::TERM);
        let end = tokio::time::Instant::now() + grace + CLEANING;
        while alive() && tokio::time::Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if alive() {
            let _ = kill_process_group(group, Signal::KILL);
        }
        Ok(true)
    }

    fn inside(&self, _id: &str, terminal: bool) -> Result<Command, RunError> {
        if !terminal {
            return Ok(Command::new("env"));
        }
        let mut command = Command::new("setsid");
        command.arg("--ctty");
        Ok(command)
    }
}

/// The id as it was recorded, or as the script itself noted it when the plugin died in between.
fn running_id(folder: &Folder) -> Option<String> {
    folder
        .text("JobID.jid")
        .or_else(|| folder.text("job.pid").and_then(|pid| pid.parse().ok()).and_then(identity))
}

/// A process beyond doubt: its id and when it started. `None` if it has ended.
fn identity(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    // The name, in parentheses, may itself hold blanks and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    Some(format!("{pid}-{}", fields.nth(18)?))
}
