//! Parts of pods as processes of their own, to be killed without a word.
//!
//! Each is this very program, told by a variable what it is.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tarbet_cluster::{Connect, Reached, Source, connect};
use tarbet_pods::edge::{self, EdgeConfig, Environment};
use tarbet_pods::node::{self, NodeConfig};
use tarbet_telemetry::{Health, Metrics, Supervisor};
use tokio::process::{Child, Command};

const ROLE: &str = "TARBET_PODS_TEST_PART";
/// Where it kills itself, as JSON.
const DEATH: &str = "TARBET_PODS_TEST_DEATH";

/// A point that a part passes, and at which time it is meant.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Point<'a>(pub(crate) &'a str, pub(crate) usize);

/// What a process is to be.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Part {
    Docker(Box<EdgeConfig>),
    Process(Box<EdgeConfig>),
    Slurm { config: Box<EdgeConfig>, conf: PathBuf },
    Interlink(Box<EdgeConfig>),
    Node { config: Box<NodeConfig>, kubeconfig: PathBuf },
}

/// The part, when this program is started as one; otherwise nothing.
#[tokio::test]
async fn the_part_itself() {
    let Ok(text) = std::env::var(ROLE) else { return };
    tarbet_identity::tls::install_default_provider();
    let (supervisor, metrics, health) =
        (Supervisor::default(), Metrics::new("part", "test"), Health::default());
    let mut environment = Environment::new();
    let (part, config) = match serde_json::from_str(&text).unwrap() {
        Part::Docker(config) => (edge::Part::Docker, config),
        Part::Process(config) => (edge::Part::Process, config),
        Part::Slurm { config, conf } => {
            environment.insert("SLURM_CONF".into(), conf.display().to_string());
            environment.insert("PATH".into(), std::env::var("PATH").unwrap());
            (edge::Part::Slurm, config)
        }
        Part::Interlink(config) => (edge::Part::Interlink, config),
        Part::Node { config, kubeconfig } => {
            let source = Source::file(&kubeconfig);
            let client = connect(&source).await.unwrap();
            let carrier = Connect::network();
            let parts =
                node::Parts { client, source, carrier, metrics, health, supervisor: supervisor.clone() };
            node::start_telling(*config, parts, reached()).await.unwrap();
            supervisor.run(Duration::from_secs(1), std::future::pending::<()>).await.unwrap();
            return;
        }
    };
    let reached = reached();
    edge::start_telling(part, *config, &environment, &supervisor, &metrics, &health, reached).await.unwrap();
    supervisor.run(Duration::from_secs(1), std::future::pending::<()>).await.unwrap();
}

/// Dies where it is told to, as by a signal that nobody can catch.
fn reached() -> Reached {
    let Ok(text) = std::env::var(DEATH) else { return Reached::default() };
    let passed = AtomicUsize::new(0);
    Reached::telling(move |point| {
        let Point(name, time) = serde_json::from_str(&text).unwrap();
        if point == name && passed.fetch_add(1, Ordering::SeqCst) + 1 == time {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    })
}

/// A part that runs.
pub(crate) struct Running {
    part: Part,
    child: Child,
}

impl Running {
    pub(crate) fn start(part: Part) -> Self {
        Self::start_until(part, None)
    }

    /// One that dies at this point, if there is one.
    pub(crate) fn start_until(part: Part, death: Option<Point<'_>>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "it::part::the_part_itself", "--nocapture"])
            .env(ROLE, serde_json::to_string(&part).unwrap())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        if let Some(death) = death {
            command.env(DEATH, serde_json::to_string(&death).unwrap());
        }
        let child = command.spawn().unwrap();
        Self { part, child }
    }

    /// Waits until it has died by itself.
    pub(crate) async fn died(&mut self) {
        let status = self.child.wait().await.unwrap();
        assert_eq!(status.signal(), Some(9), "{status}");
    }

    /// Starts another in the place of one that has died.
    pub(crate) fn revive(&mut self) {
        *self = Self::start(self.part.clone());
    }

    /// Kills it with the signal that nobody can catch.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    /// Kills it and starts another.
    pub(crate) async fn replace(&mut self) {
        self.kill().await;
        *self = Self::start(self.part.clone());
    }
}
