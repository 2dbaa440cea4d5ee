//! The real Helm, by itself or bound to one control plane.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio::{process::Command, time::timeout};

use crate::{ControlPlane, Folder, tools};

const LIMIT: Duration = Duration::from_mins(2);

/// Runs Helm with folders of its own, so that nothing of the user's is read or written.
#[derive(Debug)]
pub struct Helm {
    program: PathBuf,
    kubeconfig: Option<PathBuf>,
    folder: Folder,
}

impl Helm {
    /// One that knows no cluster, to check and render charts.
    pub async fn alone() -> Result<Self> {
        Ok(Self { program: tools::helm().await?, kubeconfig: None, folder: Folder::new("helm")? })
    }

    /// One that installs on this control plane, as its administrator.
    pub async fn on(plane: &ControlPlane) -> Result<Self> {
        Ok(Self { kubeconfig: Some(plane.kubeconfig()), ..Self::alone().await? })
    }

    /// The program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Runs it and returns its output; fails with its error output.
    pub async fn run(&self, args: &[&str]) -> Result<String> {
        let what = || format!("helm {}", args.join(" "));
        let mut command = Command::new(&self.program);
        command.args(args).stdin(Stdio::null()).kill_on_drop(true);
        for kind in ["CACHE", "CONFIG", "DATA"] {
            command.env(format!("HELM_{kind}_HOME"), self.folder.path().join(kind));
        }
        // Without a cluster it must not find one by chance either.
        let nowhere = self.folder.path().join("no-kubeconfig");
        command.env("KUBECONFIG", self.kubeconfig.as_ref().unwrap_or(&nowhere));
        let output = timeout(LIMIT, command.output()).await;
        let output = output.with_context(|| format!("{} took over {LIMIT:?}", what()))?.with_context(what)?;
        if !output.status.success() {
            bail!("{}: {}", what(), String::from_utf8_lossy(&output.stderr).trim_end());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
