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
//! Start from [`Redis::start`], `ControlPlane::start` or `shared_pair`, and wait for
//! things with [`eventually`].

mod certs;
mod eventually;
mod folder;
mod ports;
mod process;
mod redis;

pub use certs::{Authority, CertificateFiles, Issued, Subject};
pub use eventually::{Outcome, eventually, wait_for};
pub use folder::{Folder, sweep};
pub use ports::Lease;
pub use process::{Process, ProcessId, Program};
pub use redis::{Persistence, Redis, RedisOptions, TlsMode};
