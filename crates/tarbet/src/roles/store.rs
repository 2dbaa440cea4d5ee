//! Opening the store for a role, and telling the truth about it.

use std::time::Duration;

use tarbet_store::{Clock, Store, StoreConfig};
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Coded, Problem, Stage};

use super::process::Process;

/// How often the store is asked whether it is there: soon enough for a probe to notice.
const CHECK: Duration = Duration::from_secs(5);

/// Opens the store and watches over it for as long as the process lives.
pub async fn open(process: &Process, config: &StoreConfig) -> Result<Store, Problem> {
    let store = tarbet_store::open(config, Clock::system()).await.map_err(|error| error.problem())?;
    let (part, watched) = (process.health.part("store"), store.clone());
    part.ready();
    process.supervisor.spawn(Stage::Observe, "store health", |stop| async move {
        let mut timer = tokio::time::interval(CHECK);
        loop {
            tokio::select! {
                _ = timer.tick() => {}
                () = stop.cancelled() => return Ok(()),
            }
            match watched.ping().await {
                Ok(()) => part.ready(),
                Err(error) => part.failing(chain(&error)),
            }
        }
    });
    Ok(store)
}

/// Whether other processes may share it.
pub fn is_shared(config: &StoreConfig) -> bool {
    matches!(config, StoreConfig::Redis(_))
}
