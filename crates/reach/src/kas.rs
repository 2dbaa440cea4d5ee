//! The kas and agentk protocols, in both roles.
//!
//! A gateway serves agents that speak this protocol with [`server::KasServer`] and calls them through
//! one [`pool::TunnelPool`]; an agent joins a kas with [`agent::KasAgent`]. HTTP for the Kubernetes API
//! crosses with the two halves of [`kubernetes`], calls of any other service with [`grpc`]. Replicas of
//! both kinds find each other with [`private`] and [`redis`].
//!
//! Everything here is a mechanism: who may connect, who may call and what a site allows is decided by
//! what the gateway and the agent plug in. Nothing here opens a listener.

pub mod agent;
pub mod call;
pub mod config;
pub mod descriptor;
pub mod frame;
pub mod fuzz;
pub mod gitlab;
pub mod grpc;
pub mod gzip;
pub mod hpack;
pub mod inbox;
pub mod kubernetes;
pub mod mend;
pub mod meta;
pub mod order;
pub mod outbox;
pub mod pool;
pub mod prefix;
pub mod private;
pub mod proto;
pub mod redis;
pub mod server;
pub mod status;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use call::{Call, Part};
pub use pool::{Agent, PoolConfig, PoolEvent, TunnelPool};
pub use prefix::{MethodPath, Prefix, Rpc};

/// Locks, whatever happened to whoever held it before: the books below are consistent at every step.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
