//! Control groups of our own. The kernel keeps the empty folders of what was killed inside, so they are removed
//! here, and those of dead owners at the next start.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result};

use crate::ProcessId;

/// Where control groups are: those of version 1 in one folder for each controller, those of version 2 in
/// `unified` beside them, or here where there are no others.
const ROOT: &str = "/sys/fs/cgroup";
const PREFIX: &str = "tarbet-testbed-";

/// A name for control groups of one part.
#[derive(Debug)]
pub(crate) struct Cgroup {
    name: String,
}

impl Cgroup {
    pub(crate) fn new() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let me = ProcessId::of(std::process::id()).context("read this process's own entry in /proc")?;
        for (path, name) in groups() {
            let owner = name.rsplit_once('.').and_then(|(owner, _)| owner.parse::<ProcessId>().ok());
            if owner.is_some_and(|owner| !owner.is_alive()) {
                remove(&path);
            }
        }
        Ok(Self { name: format!("{PREFIX}{me}.{}", COUNT.fetch_add(1, Ordering::Relaxed)) })
    }

    /// What the groups are called.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Makes the one of version 2, and says where a process is put into it.
    pub(crate) fn unified(&self) -> Result<PathBuf> {
        let beside = Path::new(ROOT).join("unified");
        let group = if beside.is_dir() { beside } else { PathBuf::from(ROOT) }.join(&self.name);
        fs::create_dir(&group).with_context(|| format!("make the control group {}", group.display()))?;
        Ok(group.join("cgroup.procs"))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for (path, name) in groups() {
            if self.name.strip_prefix(PREFIX) == Some(name.as_str()) {
                remove(&path);
            }
        }
    }
}

/// Our groups, each with its name without the prefix.
fn groups() -> Vec<(PathBuf, String)> {
    let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let above: Vec<PathBuf> = folders(Path::new(ROOT)).collect();
    let within: Vec<PathBuf> = above.iter().flat_map(|controller| folders(controller)).collect();
    let named = |group: PathBuf| {
        let name = group.file_name()?.to_str()?.strip_prefix(PREFIX)?.to_owned();
        Some((group, name))
    };
    above.into_iter().chain(within).filter_map(named).collect()
}

/// Removes a control group and those in it; files in it are the kernel's and stay behind.
fn remove(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let _ = fs::remove_dir(group);
}
