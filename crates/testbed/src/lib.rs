//! The real outside world for tests and the demo: Redis, Sentinel sets and whole Kubernetes
//! control planes, on loopback only.
//!
//! One call starts a part on leased ports, waits until it answers, and dropping it takes it
//! down by its own process id. Children die with the process that started them, whatever
//! ends it; what they leave on disk goes with them or at the next start.
//!
//! It refuses to skip: a program that is not there is an error that names the command which
//! installs it. Nothing here stands in for our own code.
//!
//! Start from [`Redis::start`], [`ControlPlane::start`] or [`shared_pair`], and wait for
//! things with [`eventually`].

mod certs;
mod control_plane;
mod etcd;
mod eventually;
mod folder;
mod kubeconfig;
mod kubectl;
mod pair;
mod ports;
mod process;
mod redis;
mod sentinel;
mod tools;

pub use certs::{Authority, CertificateFiles, Issued, Subject};
pub use control_plane::{ClientConfig, ControlPlane};
pub use etcd::Etcd;
pub use eventually::{Outcome, eventually, wait_for};
pub use folder::{Folder, sweep};
pub use kubectl::Kubectl;
pub use pair::{Pair, shared_pair};
pub use ports::Lease;
pub use process::{Process, ProcessId, Program};
pub use redis::{Persistence, Redis, RedisOptions, TlsMode};
pub use sentinel::{SentinelOptions, Sentinels};
