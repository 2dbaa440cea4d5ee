//! A real Envoy, for gateways and sidecars.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::{Folder, Process, Program, http, tools};

/// Generous: compilers may share the cores.
const READY: Duration = Duration::from_mins(1);

/// A running Envoy; it goes when dropped.
#[derive(Debug)]
pub struct Envoy {
    process: Process,
    admin: PathBuf,
    _folder: Folder,
}

impl Envoy {
    /// Starts it with this bootstrap, to which only the administration address is added, and waits
    /// until it has all it needs to serve.
    pub async fn start(name: &str, bootstrap: Value) -> Result<Self> {
        Self::start_as(Program::new(tools::envoy().await?), name, bootstrap).await
    }

    /// The same inside a network namespace.
    /// A file of host names takes the place of the machine's own.
    pub(crate) async fn start_in(
        netns: &str,
        name: &str,
        bootstrap: Value,
        names: Option<&Path>,
    ) -> Result<Self> {
        let mut program = Program::new("nsenter").arg(format!("--net=/run/netns/{netns}"));
        if let Some(names) = names {
            let script = format!("mount --bind {} /etc/hosts && exec \"$@\"", names.display());
            program = program.args(["unshare", "--mount", "sh", "-c", &script, "sh"]);
        }
        let program = program.arg(tools::envoy().await?);
        Self::start_as(program, name, bootstrap).await
    }

    async fn start_as(program: Program, name: &str, mut bootstrap: Value) -> Result<Self> {
        let folder = Folder::new(&format!("envoy-{name}"))?;
        // A file can be asked from every network namespace.
        let admin = folder.path().join("admin.sock");
        bootstrap["admin"] = json!({ "address": { "pipe": { "path": admin } } });
        let config = folder.write("envoy.json", &bootstrap.to_string())?;
        let program = program
            .arg("--config-path")
            .arg(config)
            .args(["--concurrency", "1", "--log-level", "warning"])
            .args(["--drain-time-s", "1", "--disable-hot-restart"])
            .grace(Duration::from_secs(2));
        let mut process = Process::start(&folder, name, program)?;
        process.ready(READY, || http::get_at(&admin, "/ready")).await?;
        Ok(Self { process, admin, _folder: folder })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// A page of its administration, such as `/clusters` or `/config_dump`.
    pub async fn admin(&self, path: &str) -> Result<String> {
        if !self.process.is_running() {
            bail!("envoy has ended\n{}", self.process.log_tail());
        }
        http::get_at(&self.admin, path).await
    }
}
