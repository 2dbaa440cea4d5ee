//! A virtual kubelet: a node of a cluster whose pods run behind an interLink endpoint.
//!
//! Who starts whom: [`start`] starts the *heart* (pings interLink, keeps the Node object and its
//! Lease), the *watch* of the pods bound to the node, the *feed* (states from the other side, pushed
//! or polled), the *keeper* (one worker per pod at a time: submit, update, remove, write status) and
//! the *kubelet* listener. All of them end by the supervisor's tokens; none ends a pod by ending.
//!
//! It never creates a pod twice, and never ends one because somebody cannot be reached. Start from
//! [`machine::status`] for what a pod's state is and [`plan::next`] for what is done about it.

mod address;
pub mod book;
mod certificate;
pub mod config;
pub mod error;
mod feed;
mod gather;
mod heart;
pub mod interlink;
mod keeper;
mod kubelet;
mod lease;
pub mod machine;
mod metrics;
pub mod object;
mod offer;
pub mod packed;
pub mod plan;
pub mod resolve;
mod setkube;
mod start;
mod turns;

pub(crate) use kubelet::read_any_upgrade;

pub use config::NodeConfig;
pub use error::NodeError;
pub use start::{Parts, start, start_telling};
