//! What a plugin remembers of its pods on disk, so that a crash loses and repeats nothing.
//!
//! A pod is recorded before anything is made for it and forgotten after everything is removed.
//! A deleted UID leaves an empty file behind for a day: a create that was late on its way must
//! not bring the pod back.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tarbet_cluster::Reached;

use crate::error::RunError;
use crate::folder::{self, Folder, part, remove_tree};
use crate::plan::{Policy, plan};
use crate::runner::Known;
use crate::wire::{RetrievedPod, is_uid, read};

const RECORD: &str = "pod.json";
/// What the names of folders begin with that are being removed.
const GONE: &str = ".gone-";
/// How long a deleted UID is remembered.
const REMEMBER: Duration = Duration::from_hours(24);
/// How often those are looked for whose time is over.
const SWEEP: Duration = Duration::from_hours(1);
/// The length of a UID.
const UID: usize = 36;
/// No pod comes near this.
const MAX_RECORD: u64 = 256 * 1024 * 1024;

/// The records below one data root.
#[derive(Debug, Clone)]
pub struct Records {
    root: PathBuf,
    /// When old marks of deletions were last removed by whoever made a new one.
    swept: Arc<Mutex<Option<Instant>>>,
    reached: Reached,
}

#[derive(Serialize, Deserialize)]
struct Record {
    pod: RetrievedPod,
    /// How often each container was replaced.
    #[serde(default)]
    generations: HashMap<String, u32>,
}

/// A pod as it was found on disk.
#[derive(Debug)]
pub struct Found {
    /// The pod.
    pub known: Known,
    /// Its folder.
    pub folder: Folder,
    /// How often each container was replaced.
    pub generations: HashMap<String, u32>,
    /// Whether its removal had begun.
    pub deleted: bool,
}

impl Records {
    /// Opens a data root, making it.
    pub fn open(root: &Path) -> Result<Self, RunError> {
        let failed = |error| RunError::folder(format!("use the data root {}", root.display()))(error);
        Folder::create(root).and_then(|folder| folder.child(&part(".deleted"), 0o700)).map_err(failed)?;
        let root = root.canonicalize().map_err(failed)?;
        Ok(Self { root, swept: Arc::default(), reached: Reached::default() })
    }

    /// The same, telling which points it passes.
    pub(crate) fn telling(self, reached: Reached) -> Self {
        Self { reached, ..self }
    }

    /// Who is told of the points that are passed.
    pub(crate) fn reached(&self) -> &Reached {
        &self.reached
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of a pod, made if it is not there.
    pub fn folder(&self, known: &Known) -> Result<Folder, RunError> {
        let folder = folder::pod_folder(&self.root, &known.id().folder())
            .map_err(RunError::folder(format!("make the pod's folder in {}", self.root.display())))?;
        self.reached.at("folder made");
        Ok(folder)
    }

    /// Records a pod, over what was recorded of it before.
    pub fn save(
        &self,
        folder: &Folder,
        known: &Known,
        generations: &HashMap<String, u32>,
    ) -> Result<(), RunError> {
        let record = Record { pod: known.retrieved.clone(), generations: generations.clone() };
        let keep = || -> io::Result<()> {
            let text = serde_json::to_vec(&record)?;
            folder.keep(RECORD, &text, 0o600)?;
            // The folder itself may be new.
            Folder::open(&self.root)?.sync()
        };
        keep().map_err(RunError::folder(format!("record the pod in {}", folder.path().display())))?;
        self.reached.at("pod recorded");
        Ok(())
    }

    /// Whether a UID was deleted here.
    pub fn is_deleted(&self, uid: &str) -> bool {
        is_uid(uid) && self.root.join(".deleted").join(uid).symlink_metadata().is_ok()
    }

    /// Remembers that a UID is being deleted.
    pub fn mark_deleted(&self, uid: &str) -> Result<(), RunError> {
        let mark = || -> io::Result<()> {
            let marks = Folder::open(&self.root.join(".deleted"))?;
            marks.touch(uid, 0o600)?;
            marks.sync()
        };
        mark().map_err(RunError::folder(format!("remember the deletion in {}", self.root.display())))?;
        self.reached.at("deletion marked");
        let due = {
            let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
            let due = swept.is_none_or(|at| at.elapsed() > SWEEP);
            if due {
                *swept = Some(Instant::now());
            }
            due
        };
        if due {
            self.sweep_marks();
        }
        Ok(())
    }

    /// Removes the folder of a pod.
    pub fn forget(&self, known: &Known) -> Result<(), RunError> {
        self.remove(&known.id().folder())
    }

    /// Removes what a create left that was cut off before it recorded the pod: nothing else knows of it.
    pub fn forget_unrecorded(&self, uid: &str) -> Result<(), RunError> {
        for name in self.unrecorded().filter(|name| uid_in(name) == Some(uid)) {
            self.remove(&name)?;
        }
        Ok(())
    }

    /// The names of the folders that hold no record and may be those of pods.
    fn unrecorded(&self) -> impl Iterator<Item = String> {
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let is_pod = !name.starts_with('.') && uid_in(&name).is_some();
            let folder = Folder::open(&entry.path()).ok().filter(|_| is_pod)?;
            (!folder.has(RECORD)).then_some(name)
        })
    }

    fn remove(&self, name: &str) -> Result<(), RunError> {
        let failed =
            || RunError::folder(format!("remove the pod's folder {}", self.root.join(name).display()));
        // Out of the way first: what is still ending there finds nothing to write to.
        let gone = self.root.join(format!("{GONE}{name}"));
        match std::fs::rename(self.root.join(name), &gone) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => return Err(failed()(error)),
            // An earlier removal was cut off.
            Err(_) => {
                remove_tree(&self.root.join(name)).map_err(failed())?;
            }
            Ok(()) => {}
        }
        self.reached.at("folder set aside");
        remove_tree(&gone).map_err(failed())?;
        self.reached.at("folder removed");
        Ok(())
    }

    /// All pods on disk. What cannot be read is left alone and reported in the log.
    pub fn load(&self, policy: &Policy) -> Result<Vec<Found>, RunError> {
        self.sweep();
        let entries = std::fs::read_dir(&self.root).map_err(RunError::folder("read the data root"))?;
        let mut found = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            match self.load_one(&entry.path(), policy) {
                Ok(Some(pod)) => found.push(pod),
                Ok(None) => {}
                Err(reason) => tracing::warn!(folder = %name, %reason, "A pod's record cannot be used."),
            }
        }
        Ok(found)
    }

    fn load_one(&self, path: &Path, policy: &Policy) -> Result<Option<Found>, String> {
        let folder = Folder::open(path).map_err(|error| error.to_string())?;
        if !folder.has(RECORD) {
            return Ok(None);
        }
        if !folder.is_own(RECORD) {
            // The user of a job may write into its folder; what is believed is what we wrote.
            return Err("its record was written by somebody else".into());
        }
        let text = folder.read(RECORD, MAX_RECORD).map_err(|error| error.to_string())?;
        let record: Record = read(&text, "a record").map_err(|error| error.to_string())?;
        let plan = plan(&record.pod, policy).map_err(|error| error.to_string())?;
        let deleted = self.is_deleted(&plan.id.uid);
        let known = Known { retrieved: record.pod, plan };
        Ok(Some(Found { known, folder, generations: record.generations, deleted }))
    }

    fn sweep(&self) {
        for entry in std::fs::read_dir(&self.root).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(GONE)
                && let Err(error) = remove_tree(&entry.path())
            {
                tracing::warn!(error = %error, "What is left of a removed pod could not be removed.");
            }
        }
        for name in self.unrecorded().filter(|name| uid_in(name).is_some_and(|uid| self.is_deleted(uid))) {
            if let Err(error) = self.remove(&name) {
                tracing::warn!(error = %error, "What is left of a pod that was never made could not be removed.");
            }
        }
        self.sweep_marks();
    }

    /// Removes marks of deletions that nobody needs any more.
    fn sweep_marks(&self) {
        for mark in std::fs::read_dir(self.root.join(".deleted")).into_iter().flatten().flatten() {
            let age =
                mark.metadata().and_then(|meta| meta.modified()).ok().and_then(|time| time.elapsed().ok());
            if age.is_some_and(|age| age > REMEMBER) {
                let _ = std::fs::remove_file(mark.path());
            }
        }
    }
}

/// The UID at the end of the name of a pod's folder.
fn uid_in(name: &str) -> Option<&str> {
    let (_, uid) = name.split_at_checked(name.len().checked_sub(UID)?)?;
    is_uid(uid).then_some(uid)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_plugin_that_never_restarts_forgets_old_deletions_too() {
        let root = tempfile::tempdir().unwrap();
        let records = Records::open(root.path()).unwrap();
        let (old, new) = (uuid::Uuid::new_v4().to_string(), uuid::Uuid::new_v4().to_string());
        let mark = std::fs::File::create(root.path().join(".deleted").join(&old)).unwrap();
        mark.set_modified(SystemTime::now() - 2 * REMEMBER).unwrap();
        assert!(records.is_deleted(&old));
        records.mark_deleted(&new).unwrap();
        assert!(!records.is_deleted(&old) && records.is_deleted(&new));
    }
}
