//! A real Envoy, for gateways and sidecars.

use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::{Folder, Lease, Process, Program, http, tools};

/// Generous: compilers may share the cores.
const READY: Duration = Duration::from_mins(1);

/// A running Envoy; it goes when dropped.
#[derive(Debug)]
pub struct Envoy {
    process: Process,
    admin: u16,
    _lease: Lease,
    _folder: Folder,
}

impl Envoy {
    /// Starts it with this bootstrap, to which only the administration address is added, and waits
    /// until it has all it needs to serve.
    pub async fn start(name: &str, mut bootstrap: Value) -> Result<Self> {
        let (lease, folder) = (Lease::block(1)?, Folder::new(&format!("envoy-{name}"))?);
        let admin = lease.port(0);
        bootstrap["admin"] =
            json!({ "address": { "socket_address": { "address": "127.0.0.1", "port_value": admin } } });
        let config = folder.write("envoy.json", &bootstrap.to_string())?;
        let program = Program::new(tools::envoy().await?)
            .arg("--config-path")
            .arg(config)
            // Shared memory is named after this: two of one number would be one Envoy.
            .args(["--base-id", &admin.to_string(), "--concurrency", "1", "--log-level", "warning"])
            .args(["--drain-time-s", "1", "--disable-hot-restart"])
            .grace(Duration::from_secs(2));
        let mut process = Process::start(&folder, name, program)?;
        process.ready(READY, || http::get(admin, "/ready")).await?;
        Ok(Self { process, admin, _lease: lease, _folder: folder })
    }

    /// A page of its administration, such as `/clusters` or `/config_dump`.
    pub async fn admin(&self, path: &str) -> Result<String> {
        if !self.process.is_running() {
            bail!("envoy has ended\n{}", self.process.log_tail());
        }
        http::get(self.admin, path).await
    }
}
