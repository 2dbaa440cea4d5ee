//! Services across meshes: an administrator writes two objects in each mesh, and the services that
//! they name can be called in the others.
//!
//! [`crd`] holds the objects; [`plan::plan`] decides, purely, which Istio objects follow from them,
//! from the Services of the cluster and from what peers offer; [`fds`] tells peers and hears them;
//! a [`Controller`] makes the cluster so. [`offline`] renders the same plan from files.
//!
//! It refuses to believe a peer more than [`vet`] allows, to export what no rule names, and to
//! withdraw what a silent peer offered before its time is over.

mod apply;
mod callee;
mod carry;
mod cleanup;
mod config;
mod controller;
pub mod crd;
mod error;
pub mod fds;
pub mod fuzz;
mod live;
mod metrics;
pub mod model;
mod names;
mod observe;
pub mod offline;
pub mod peers;
pub mod plan;
mod report;
mod select;
mod status;
pub mod still;
pub mod vet;
mod ways;

pub use callee::{Callee, callee};
pub use carry::Carrier;
pub use cleanup::{cleanup, cleanup_plan};
pub use config::{CarryConfig, MeshConfig};
pub use controller::Controller;
pub use error::MeshError;
pub use metrics::MeshMetrics;
pub use report::{Declaration, Report, report};
