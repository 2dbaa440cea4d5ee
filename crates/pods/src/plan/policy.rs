//! What a host allows pods to do. Nothing a caller says widens it.

use std::path::{Component, Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::PlanError;

/// What pods may ask for beyond the ordinary; empty allows nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "PascalCase", deny_unknown_fields)]
pub struct Policy {
    /// Privileged containers.
    pub allow_privileged: bool,
    /// The network of the host instead of the pod's own.
    pub allow_host_network: bool,
    /// Folders of the host that may be mounted, each with all below it.
    pub allowed_host_paths: Vec<PathBuf>,
    /// Linux capabilities that may be added.
    pub allowed_capabilities: Vec<String>,
    /// Annotations whose text becomes shell or raw options by design, such as
    /// `slurm-job.vk.io/pre-exec`; any other is refused when a pod carries it.
    pub allowed_annotations: Vec<String>,
    /// Users that a pod may have its job run as by `runAsUser`, where the plugin for Slurm runs as
    /// root; for any other the flavour and the site decide.
    pub allowed_users: Vec<u32>,
    /// Options of sbatch that pods may set by `slurm-job.vk.io/flags`, without dashes; empty
    /// allows a small harmless set.
    pub allowed_slurm_flags: Vec<String>,
}

/// Annotations that are run by a shell or handed over raw.
const SHELL_ANNOTATIONS: &[&str] = &[
    "slurm-job.vk.io/pre-exec",
    "job.vk.io/pre-exec",
    "slurm-job.vk.io/singularity-mounts",
    "slurm-job.vk.io/singularity-options",
    "slurm-job.vk.io/enroot-mounts",
    "slurm-job.vk.io/enroot-options",
    "interlink.eu/wstunnel-client-commands",
];

/// Annotations that interLink writes or reads and that have no effect there either.
const WITHOUT_EFFECT: &[&str] =
    &["slurm-job.vk.io/mpi-flags", "docker-options.vk.io/flags", "interlink.eu/wireguard-client-snippet"];

/// The annotations of a pod that change nothing, for the log.
pub(super) fn without_effect<'a>(keys: impl Iterator<Item = &'a str>) -> Vec<String> {
    keys.filter(|key| WITHOUT_EFFECT.contains(key)).map(|key| format!("the annotation `{key}`")).collect()
}

impl Policy {
    /// Refuses shell-by-design annotations that are not named.
    pub fn check_annotations<'a>(&self, keys: impl Iterator<Item = &'a str>) -> Result<(), PlanError> {
        for key in keys {
            if SHELL_ANNOTATIONS.contains(&key) && !self.allowed_annotations.iter().any(|named| named == key)
            {
                return Err(PlanError::Refused {
                    what: format!("the annotation `{key}`, which is run as it is written"),
                    setting: "Policy.AllowedAnnotations",
                });
            }
        }
        Ok(())
    }

    /// Refuses folders of the host that are not below a named one.
    pub fn check_host_path(&self, path: &str) -> Result<PathBuf, PlanError> {
        let refused = || PlanError::Refused {
            what: format!("the host folder `{}`", path.escape_debug()),
            setting: "Policy.AllowedHostPaths",
        };
        let wanted = Path::new(path);
        let plain = wanted.is_absolute()
            && !path.contains([':', ',', '"', '\\'])
            && !path.contains(char::is_control)
            && wanted.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        // Where links lead decides, not what they are called.
        let real = if plain { wanted.canonicalize().map_err(|_| refused())? } else { return Err(refused()) };
        let allowed = self.allowed_host_paths.iter().filter_map(|path| path.canonicalize().ok());
        if allowed.into_iter().any(|allowed| real.starts_with(allowed)) { Ok(real) } else { Err(refused()) }
    }

    /// Refuses capabilities that are not named.
    pub fn check_capability(&self, name: &str) -> Result<String, PlanError> {
        let bare = |name: &str| name.trim_start_matches("CAP_").to_ascii_uppercase();
        if self.allowed_capabilities.iter().any(|allowed| bare(allowed) == bare(name)) {
            Ok(bare(name))
        } else {
            Err(PlanError::Refused {
                what: format!("the capability `{}`", name.escape_debug()),
                setting: "Policy.AllowedCapabilities",
            })
        }
    }

    /// Refuses privileged containers unless they are allowed.
    pub fn check_privileged(&self) -> Result<(), PlanError> {
        if self.allow_privileged {
            return Ok(());
        }
        Err(PlanError::Refused { what: "privileged containers".into(), setting: "Policy.AllowPrivileged" })
    }
}
