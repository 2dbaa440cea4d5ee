//! Folders of running parts, and the removal of what a dead owner left.
//!
//! Every process has one run folder, named after itself (`PID-STARTTIME`, so the owner is known
//! from the moment the folder exists), with one folder in it for each part. A small watcher
//! removes the run folder when the process ends, however it ends: statics are never dropped,
//! and a killed process drops nothing. [`sweep`] catches the rest.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{self, ChildStdin, Command, Stdio},
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
};

use anyhow::{Context, Result, anyhow};

use crate::process::{ProcessId, spawn_detached};

/// Waits for the end of its input, which is the end of our process; a child that is just
/// dying may still write, so the removal is tried again for a while.
const WATCHER: &str = r#"cat >/dev/null; for try in 1 2 3 4 5 6 7 8 9 10; do rm -rf -- "$0" 2>/dev/null && exit; sleep 0.2; done"#;

/// The folder of one part, removed when dropped.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// A new folder for a part of this name inside the run folder of this process.
    pub fn new(part: &str) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let run = RUN.as_ref().map_err(|error| anyhow!("{error}"))?;
        let path = run.path.join(format!("{part}-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file in it, readable by its owner only, and returns its path.
    pub fn write(&self, name: &str, content: &str) -> Result<PathBuf> {
        write_private(&self.path.join(name), content)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Writes a file only its owner may read: keys, tokens and passwords go through here.
pub(crate) fn write_private(path: &Path, content: &str) -> Result<PathBuf> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(content.as_bytes()))
        .with_context(|| format!("write {}", path.display()))?;
    Ok(path.to_owned())
}

/// A folder of ours in the temporary folder; the user's id keeps two people apart.
pub(crate) fn home(name: &str) -> PathBuf {
    env::temp_dir().join(format!("tarbet-{name}-{}", rustix::process::getuid().as_raw()))
}

/// Where run folders are. Process ids mean nothing outside their namespace, so each has its own:
/// seen from inside another one, every owner out here would look dead.
fn runs() -> PathBuf {
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let digits: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    home("testbed").join(digits)
}

struct Run {
    path: PathBuf,
    // Closed by the kernel when we end, which is what the watcher waits for.
    _watched: Option<ChildStdin>,
}

static RUN: LazyLock<Result<Run, String>> =
    LazyLock::new(|| start_run().map_err(|error| format!("{error:#}")));

fn start_run() -> Result<Run> {
    let home = runs();
    sweep_in(&home)?;
    let me = ProcessId::of(process::id()).context("read this process's own entry in /proc")?;
    let path = home.join(me.to_string());
    fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
    let mut watcher = Command::new("sh");
    watcher
        .args(["-c", WATCHER])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut watcher = spawn_detached(watcher).context("start the watcher of the run folder")?;
    Ok(Run { path, _watched: watcher.stdin.take() })
}

/// Ends the processes and removes the folders of owners that are no longer alive, and returns
/// how many folders went. It runs by itself before the first part of a process starts.
///
/// A process is ended only if both its id and its start time are the recorded ones, so a
/// stranger who got the id later is safe.
pub fn sweep() -> Result<usize> {
    sweep_in(&runs())
}

fn sweep_in(home: &Path) -> Result<usize> {
    let entries = match fs::read_dir(home) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error).with_context(|| format!("read {}", home.display())),
    };
    let mut gone = 0;
    for entry in entries.flatten() {
        let owner: Option<ProcessId> = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if owner.is_some_and(|owner| !owner.is_alive()) {
            end_recorded(&entry.path());
            // The watcher, or another sweep, may be removing it at the same time.
            if fs::remove_dir_all(entry.path()).is_ok() {
                gone += 1;
            }
        }
    }
    Ok(gone)
}

/// Kills what the `*.pid` files in the part folders of `run` name, if it is still the same.
fn end_recorded(run: &Path) {
    let parts = fs::read_dir(run).into_iter().flatten().flatten();
    let files = parts.flat_map(|part| fs::read_dir(part.path()).into_iter().flatten().flatten());
    for file in files.filter(|file| file.path().extension().is_some_and(|end| end == "pid")) {
        let recorded =
            fs::read_to_string(file.path()).ok().and_then(|text| text.trim().parse::<ProcessId>().ok());
        if let Some(recorded) = recorded {
            recorded.kill_group();
        }
    }
}
