//! Pods that run elsewhere: the interLink protocol, its API server, and plugins that run pods
//! with Docker, with Slurm or as plain processes.
//!
//! It refuses what its host did not allow (privileged containers, host folders, raw options),
//! hands nothing to a shell unquoted, writes nothing outside a pod's own folder, and starts no
//! pod twice. It knows no scheduler: which pod goes where is decided before it is asked.
//!
//! Start from [`wire`] for the words, [`plan::plan`] for what a pod means, and
//! [`Runner`](runner::Runner) for what runs it.

pub mod batch;
pub mod care;
mod connect;
pub mod docker;
pub mod edge;
pub mod error;
pub mod folder;
pub mod fuzz;
pub mod interlink;
mod keys;
mod metrics;
pub mod node;
pub mod plan;
pub mod plugin;
pub mod process;
pub mod record;
pub mod runner;
pub mod serve;
pub mod slurm;
pub mod spdy;
pub mod streams;
pub mod websocket;
pub mod wire;
