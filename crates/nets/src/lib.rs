//! Nets: one controller for the networks of many clouds.
//!
//! People say who may talk to whom, by name; addresses, permit lists, peerings and VPNs follow in
//! every cloud. Decisions are pure and stand in [`plan`]; what acts on the outside is thin.
//! It refuses what it was not told to open: every resource begins with all traffic denied, and a
//! request that names another namespace's resource fails before any cloud is called.
//! Start from [`plan`] for what is decided, and from [`wire`] for how it is spoken.

pub mod cloud;
pub mod clouds;
pub mod config;
pub mod controller;
pub mod error;
pub mod fuzz;
pub mod grpc;
pub mod local;
pub mod metrics;
pub mod model;
pub mod orchestrator;
pub mod plan;
mod refusal;
pub mod role;
pub mod tags;
pub mod trust;
mod turns;
pub mod values;
pub mod wire;

pub use config::NetsConfig;
pub use error::Error;
pub use orchestrator::Orchestrator;
