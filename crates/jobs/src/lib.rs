//! Private pipelines on request: a public cluster asks, the private side alone decides and runs.
//!
//! The controller watches `InternalRequest` objects on one or more remote clusters and runs
//! Pipelines of its own cluster for them. It refuses whatever its `InternalServicesConfig` does
//! not name, passes parameters on byte for byte or not at all, and makes at most one run for a
//! request, whatever dies in between.
//!
//! `policy` judges, `plan` chooses the next step, `machine` says what is written, `fair` whose
//! turn it is: all pure. `observe` watches the private cluster, `remote` the others, and `apply` takes
//! the steps.

mod adopt;
mod apply;
pub mod client;
mod config;
mod controller;
pub mod crd;
pub mod duration;
mod error;
pub mod fair;
pub mod fuzz;
mod logs;
pub mod machine;
mod metrics;
pub mod names;
mod observe;
pub mod params;
pub mod plan;
pub mod policy;
mod redact;
mod remote;
pub mod request;
pub mod run;
mod scope;
mod signal;
pub mod tekton;
mod tenant;

pub use config::{Config, LeaderElection, LogConfig, Mistake, RemoteConfig};
pub use controller::{Controller, Reached, Remote};
pub use metrics::JobMetrics;
pub use redact::Redactor;
