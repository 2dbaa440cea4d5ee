//! Private pipelines on request: a public cluster asks, the private side alone decides and runs.
//!
//! The controller watches `InternalRequest` objects on one or more remote clusters and runs
//! Pipelines of its own cluster for them. It refuses whatever its `InternalServicesConfig` does
//! not name, passes parameters on byte for byte or not at all, and makes at most one run for a
//! request, whatever dies in between.
//!
//! `policy` judges, `plan` chooses the next step, `machine` says what is written, `fair` whose
//! turn it is: all pure. `observe` watches both clusters and `apply` takes the steps.

pub mod crd;
mod duration;
pub mod fair;
pub mod machine;
pub mod names;
pub mod params;
pub mod plan;
pub mod policy;
pub mod request;
pub mod run;
pub mod tekton;
