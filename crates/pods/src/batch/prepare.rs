//! The files of a pod in its folder. Everything here waits for a file system that may be slow.

use std::collections::HashMap;

use super::pod::Pod;
use super::script::{self, Share};
use super::{BatchConfig, FILES, FILES_VERSION};
use crate::error::RunError;
use crate::folder::{lay_out, lay_out_volume};
use crate::plan::{Content, Plan};
use crate::record::{Found, Records};
use crate::runner::Known;
use crate::slurm::flags::flags;
use crate::wire::RetrievedPod;

/// Writes a file that the pod's job reads; `other` is the job's user where it is not the plugin's own.
pub(super) fn write_for(
    pod: &Pod,
    other: Option<u32>,
    name: &str,
    content: &[u8],
    mode: u32,
) -> Result<(), RunError> {
    let wrote = pod.folder.write(name, content, mode);
    wrote
        .and_then(|()| other.map_or(Ok(()), |user| pod.folder.give(name, user)))
        .map_err(RunError::folder("write a file of the pod"))
}

/// Writes the pod's record, files and script.
pub(super) fn prepare(
    config: &BatchConfig,
    records: &Records,
    other: Option<u32>,
    known: Known,
) -> Result<Found, RunError> {
    let shares: Vec<Share> = match known.plan.containers.len() {
        count if config.per_container => (0..count).map(Share::One).collect(),
        _ => vec![Share::Whole],
    };
    let options = |share: Share| flags(&share.part(&known.plan), &known.plan, &config.flags, &config.policy);
    // Before anything is written: what is refused leaves nothing behind.
    shares.iter().try_for_each(|share| options(*share).map(drop))?;
    let folder = records.folder(&known)?;
    let failed = |what: &str| RunError::folder(format!("{what} in {}", folder.path().display()));
    let write = || -> Result<(), RunError> {
        let mut laid = Plan::clone(&known.plan);
        if !config.script.shared {
            // Carried in the script instead.
            laid.volumes.clear();
            laid.init.iter_mut().chain(&mut laid.containers).for_each(|container| container.mounts.clear());
        }
        lay_out(&folder, &laid).map_err(failed("write the pod's files"))?;
        records.reached().at("files written");
        if !config.script.shared && script::follows(&known.plan) {
            let wrote = folder.write(FILES_VERSION, b"0\n", 0o600);
            wrote.map_err(failed("write the pod's files"))?;
        }
        // The first one last: the number of scripts is the number of jobs.
        for &share in shares.iter().rev() {
            let text = script::share(&known.plan, &config.script, folder.path(), &options(share)?, share)?;
            folder
                .write(&format!("{}.sh", share.stem()), text.as_bytes(), 0o700)
                .map_err(failed("write the job's script"))?;
            records.reached().at("script written");
        }
        if let Some(user) = other {
            folder.give_all(user).map_err(RunError::folder(format!("give its files to user {user}")))?;
        }
        records.save(&folder, &known, &HashMap::new())
    };
    match write() {
        Ok(()) => Ok(Found { known, folder, generations: HashMap::new(), deleted: false }),
        Err(error) => {
            let _ = records.forget(&known);
            Err(error)
        }
    }
}

/// Writes the files of a pod anew, as it has changed, and gives what is known of it now.
pub(super) fn rewrite(
    config: &BatchConfig,
    records: &Records,
    other: Option<u32>,
    pod: &Pod,
    (retrieved, new): (RetrievedPod, Plan),
) -> Result<Known, RunError> {
    let failed = || RunError::folder("rewrite the pod's files");
    if pod.folder.has(FILES_VERSION) {
        // The job looks for a new version, now or when it begins.
        let text = script::files_script(&new);
        write_for(pod, other, FILES, text.as_bytes(), 0o600)?;
        let version = format!("{}\n", uuid::Uuid::new_v4());
        write_for(pod, other, FILES_VERSION, version.as_bytes(), 0o600)?;
    } else if config.script.shared {
        for volume in &new.volumes {
            lay_out_volume(&pod.folder, volume).map_err(failed())?;
        }
        if let (Some(user), true) = (other, script::follows(&new)) {
            for volume in new.volumes.iter().filter(|volume| matches!(volume.content, Content::Files(_))) {
                let folder = pod.folder.enter(volume.folder.as_str());
                folder.and_then(|folder| folder.give_all(user)).map_err(failed())?;
            }
        }
    } else if script::follows(&new) {
        let what = "the job was begun by a version whose scripts do not look for changed files";
        return Err(RunError::Unsupported(what.into()));
    }
    let mut known = Known::clone(&pod.known());
    known.retrieved.pod.metadata = retrieved.pod.metadata;
    known.retrieved.containers = retrieved.containers;
    known.plan.volumes = new.volumes;
    records.save(&pod.folder, &known, &HashMap::new())?;
    Ok(known)
}
