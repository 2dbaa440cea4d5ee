//! What Tarbet says about itself: logs, metrics, traces, health and the one form of an error.
//!
//! Every crate of the product may use it; it uses none of them. It decides nothing about the
//! work being done: it only carries the facts out. Start from [`Problem`] for anything a person
//! or an API will read, and from [`Supervisor`] for the life of a process.

pub mod codes;
pub mod health;
pub mod intake;
pub mod log;
pub mod metrics;
pub mod observe;
pub mod problem;
pub mod request;
pub mod supervisor;
pub mod trace;

pub use codes::{Code, Whose};
pub use health::Health;
pub use metrics::Metrics;
pub use problem::{Coded, Problem};
pub use request::RequestId;
pub use supervisor::{Stage, Supervisor};
