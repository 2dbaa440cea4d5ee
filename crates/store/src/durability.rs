//! What a store survives; for `tarbet check`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;

use crate::backend::Dialer;
use crate::config::{RedisConfig, StoreConfig, Sync};
use crate::error::Error;

/// What a store with some settings survives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Durability {
    /// Nothing.
    Memory,
    /// Crashes of the process; those of the machine too, but for what it says here.
    Redb {
        /// The file.
        path: PathBuf,
        /// When a change is on the disk.
        sync: Sync,
    },
    /// Whatever the server is set up for.
    Redis {
        /// Whether each change is appended to a file.
        append_only: bool,
        /// When that file is flushed, if the server tells.
        fsync: Option<String>,
        /// Whether it throws records away when memory is short.
        evicts: bool,
        /// How many replicas are connected.
        replicas: u16,
        /// How many of them must confirm a lasting change.
        awaited: u16,
    },
}

impl Durability {
    /// What a person should know, each with what to do about it.
    pub fn warnings(&self) -> Vec<&'static str> {
        match self {
            Self::Memory => vec!["Records are lost when the process ends; set store.kind to redb or redis."],
            Self::Redb { .. } => Vec::new(),
            Self::Redis { append_only, fsync, evicts, replicas, awaited } => {
                let mut warnings = Vec::new();
                if !append_only {
                    warnings.push("Redis may lose changes when it restarts; set appendonly yes.");
                } else if fsync.as_deref() == Some("no") {
                    warnings.push(
                        "Redis may lose changes when its machine fails; set appendfsync everysec or always.",
                    );
                }
                if *evicts {
                    warnings.push("Redis may throw records away; set maxmemory-policy noeviction.");
                }
                if *replicas > 0 && *awaited == 0 {
                    warnings.push("A failover may lose the last changes; set store.replicas to 1 or more.");
                }
                if awaited > replicas {
                    warnings.push(
                        "Fewer replicas are connected than store.replicas asks for, so lasting changes fail.",
                    );
                }
                warnings
            }
        }
    }
}

/// Finds out what a store with these settings survives. Does not open a redb file.
pub async fn durability(config: &StoreConfig) -> Result<Durability, Error> {
    match config {
        StoreConfig::Memory {} => Ok(Durability::Memory),
        StoreConfig::Redb(config) => Ok(Durability::Redb { path: config.path.clone(), sync: config.sync }),
        StoreConfig::Redis(config) => ask(config).await,
    }
}

async fn ask(config: &RedisConfig) -> Result<Durability, Error> {
    let mut connection = Dialer::new(config)?.connect_plain().await?;
    let at: Arc<str> = config.address().into();
    let asked = tokio::time::timeout(config.deadline, async {
        let info: String = redis::cmd("INFO").query_async(&mut connection).await?;
        // Managed servers often forbid CONFIG; then it stays unknown.
        let fsync = redis::cmd("CONFIG").arg("GET").arg("appendfsync").query_async(&mut connection).await;
        let mut fsync: HashMap<String, String> = fsync.unwrap_or_default();
        Ok::<_, redis::RedisError>(read(&info, fsync.remove("appendfsync"), config.replicas))
    });
    match asked.await {
        Ok(Ok(durability)) => Ok(durability),
        Ok(Err(error)) => Err(Error::Refused { operation: "describe itself", at, cause: Arc::new(error) }),
        Err(elapsed) => {
            let (waited, cause) = (config.deadline, Arc::new(elapsed));
            Err(Error::Unavailable { operation: "describe itself", at, waited, cause })
        }
    }
}

fn read(info: &str, fsync: Option<String>, awaited: u16) -> Durability {
    let fields: HashMap<&str, &str> = info.lines().filter_map(|line| line.trim().split_once(':')).collect();
    let field = |name| fields.get(name).copied().unwrap_or("");
    let limited = field("maxmemory") != "0" && !field("maxmemory").is_empty();
    Durability::Redis {
        append_only: field("aof_enabled") == "1",
        fsync,
        evicts: limited && field("maxmemory_policy") != "noeviction",
        replicas: field("connected_slaves").parse().unwrap_or(0),
        awaited,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_careless_server_is_warned_about_and_a_careful_one_is_not() {
        let careless = "# Memory\r\nmaxmemory:1000\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:0\r\nconnected_slaves:1\r\n";
        assert_eq!(read(careless, None, 0).warnings().len(), 3);
        let careful =
            "maxmemory:1000\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\nconnected_slaves:1\r\n";
        assert_eq!(read(careful, Some("everysec".into()), 1).warnings(), Vec::<&str>::new());
        assert_eq!(read(careful, Some("no".into()), 2).warnings().len(), 2);
    }
}
