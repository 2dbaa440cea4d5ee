//! Parts of pods as processes of their own, to be killed without a word.
//!
//! Each is this very program, told by a variable what it is.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tarbet_cluster::{Connect, Source, connect};
use tarbet_pods::edge::{self, EdgeConfig, Environment};
use tarbet_pods::node::{self, NodeConfig};
use tarbet_telemetry::{Health, Metrics, Supervisor};
use tokio::process::{Child, Command};

const ROLE: &str = "TARBET_PODS_TEST_PART";

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
            node::start(*config, parts).await.unwrap();
            supervisor.run(Duration::from_secs(1), std::future::pending::<()>).await.unwrap();
            return;
        }
    };
    edge::start(part, *config, &environment, &supervisor, &metrics, &health).await.unwrap();
    supervisor.run(Duration::from_secs(1), std::future::pending::<()>).await.unwrap();
}

/// A part that runs.
pub(crate) struct Running {
    part: Part,
    child: Child,
}

impl Running {
    pub(crate) fn start(part: Part) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "it::part::the_part_itself", "--nocapture"])
            .env(ROLE, serde_json::to_string(&part).unwrap())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self { part, child }
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
