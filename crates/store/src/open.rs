//! From settings to a store.

use crate::backend::{Memory, Redb, Redis};
use crate::backup;
use crate::clock::Clock;
use crate::config::StoreConfig;
use crate::error::{Error, Retry};
use crate::store::Store;

/// Opens a store. Inside a tokio runtime.
///
/// A file that is locked, broken or too new is an error. A Redis that does not answer is not: calls fail
/// with a clear error until it does. One that answers no, or holds a half-finished restore, is.
pub async fn open(config: &StoreConfig, clock: Clock) -> Result<Store, Error> {
    let store = open_for_restore(config, clock).await?;
    match backup::is_half_restored(&store).await {
        Ok(false) => Ok(store),
        Ok(true) => Err(Error::HalfRestored { at: place(config).into() }),
        Err(error) if error.class().retry == Retry::Later => {
            tracing::warn!(%error, "The store does not answer yet; carrying on without it.");
            Ok(store)
        }
        Err(error) => Err(error),
    }
}

/// Opens a store that may hold a half-finished restore, to restore it again.
pub async fn open_for_restore(config: &StoreConfig, clock: Clock) -> Result<Store, Error> {
    match config {
        StoreConfig::Memory {} => Ok(Store::new(Memory::new(clock))),
        StoreConfig::Redis(config) => Ok(Store::new(Redis::open(config)?)),
        StoreConfig::Redb(config) => {
            // After a crash it may have to be repaired, which takes a while.
            let (config, path) = (config.clone(), config.path.clone());
            match tokio::task::spawn_blocking(move || Redb::open(&config, clock)).await {
                Ok(opened) => opened.map(Store::new),
                Err(stopped) => {
                    Err(Error::File { operation: "open", path, cause: std::sync::Arc::new(stopped) })
                }
            }
        }
    }
}

fn place(config: &StoreConfig) -> String {
    match config {
        StoreConfig::Memory {} => "memory".into(),
        StoreConfig::Redb(config) => config.path.display().to_string(),
        StoreConfig::Redis(config) => config.address(),
    }
}
