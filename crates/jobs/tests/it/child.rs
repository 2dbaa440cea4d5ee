//! The controller as a process of its own, to be killed for good.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tarbet_cluster::Source;
use tarbet_jobs::{Config, Controller, JobMetrics, Remote};
use tarbet_telemetry::{Health, Metrics};
use tarbet_testbed::{Folder, Process, Program};
use tokio_util::sync::CancellationToken;

/// What the child is told, in this variable, as JSON.
const ORDERS: &str = "TARBET_JOBS_CHILD";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Orders {
    pub private: String,
    pub public: String,
    pub namespace: String,
    /// Where it kills itself, at the first time it comes there.
    pub die_at: Option<String>,
}

impl Orders {
    /// Starts this test program again as a controller.
    pub fn start(&self, folder: &Folder, name: &str) -> Process {
        let me = std::env::current_exe().unwrap();
        let program = Program::new(me)
            .args(["--exact", "it::child::the_controller_as_a_process", "--nocapture", "--test-threads=1"])
            .env(ORDERS, serde_json::to_string(self).unwrap());
        Process::start(folder, name, program).unwrap()
    }
}

pub fn path(path: &Path) -> String {
    path.display().to_string()
}

/// Does nothing unless it was started with orders.
#[tokio::test]
async fn the_controller_as_a_process() {
    let Ok(text) = std::env::var(ORDERS) else { return };
    let orders: Orders = serde_json::from_str(&text).unwrap();
    let local = tarbet_cluster::connect(&Source::file(&orders.private)).await.unwrap();
    let remote = tarbet_cluster::connect(&Source::file(&orders.public)).await.unwrap();
    let remotes = vec![Remote { name: orders.namespace.clone(), client: remote }];
    let config = Config { namespace: orders.namespace.clone(), ..Config::default() };
    let metrics = JobMetrics::register(&Metrics::new("jobs", "child"));
    let controller = Controller::new(config, local, remotes, metrics, Health::default(), "child");
    let controller = controller.with_reached(Arc::new(move |point| {
        if orders.die_at.as_deref() == Some(point) {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    }));
    controller.run(CancellationToken::new()).await;
}
