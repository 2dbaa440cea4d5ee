//! The real kubectl, bound to one control plane and one user.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tokio::{io::AsyncWriteExt, process::Command, time::timeout};

/// No command may hang a test: `kubectl wait` is given shorter limits by its caller.
const LIMIT: Duration = Duration::from_mins(2);

/// Runs kubectl as one user of one control plane.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    cache: PathBuf,
}

impl Kubectl {
    pub(crate) fn new(program: &Path, kubeconfig: PathBuf, cache: PathBuf) -> Self {
        Self { program: program.to_owned(), kubeconfig, cache }
    }

    /// The program whose first word `kubectl` makes it that.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The kubeconfig it uses.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs it and returns its output without the last newline; fails with its error output.
    pub async fn run(&self, args: &[&str]) -> Result<String> {
        self.run_with_input(args, "").await
    }

    /// Runs it with `input` on standard input, for `-f -`.
    pub async fn run_with_input(&self, args: &[&str], input: &str) -> Result<String> {
        let what = || format!("kubectl {}", args.join(" "));
        let mut command = Command::new(&self.program);
        command.arg("kubectl").arg("--kubeconfig").arg(&self.kubeconfig).arg("--cache-dir").arg(&self.cache);
        command
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().with_context(what)?;
        let stdin = child.stdin.take();
        let feed = async {
            if let Some(mut stdin) = stdin {
                // It may end without reading: then its own error says why.
                let _ = stdin.write_all(input.as_bytes()).await;
            }
        };
        let both = async { tokio::join!(feed, child.wait_with_output()).1 };
        let output = timeout(LIMIT, both).await.with_context(|| format!("{} took over {LIMIT:?}", what()))?;
        let output = output.with_context(what)?;
        if !output.status.success() {
            bail!("{}: {}", what(), String::from_utf8_lossy(&output.stderr).trim_end());
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }

    /// Runs it with `-o json` and returns the object.
    pub async fn json(&self, args: &[&str]) -> Result<Value> {
        let text = self.run(&[args, &["-o", "json"]].concat()).await?;
        serde_json::from_str(&text).with_context(|| format!("read the answer of kubectl {}", args.join(" ")))
    }

    /// Creates or changes the object (or the objects of a `List`).
    pub async fn apply(&self, object: &Value) -> Result<String> {
        self.run_with_input(&["apply", "-f", "-"], &object.to_string()).await
    }
}
