//! Reach: agents in private places dial out, replicated gateways route any request to them.
//!
//! Start from [`gateway::Gateway`] for the public side and [`agent`] for the private one. A
//! gateway decides where a request goes and never what a site permits: that is the agent's
//! [`policy`](agent::policy), and nothing a gateway says widens it.

pub mod agent;
pub mod audit;
pub mod client;
pub mod config;
pub mod dial;
pub mod directory;
mod forward;
pub mod gateway;
mod guarded;
pub mod kas;
mod known;
mod lent;
pub mod listen;
pub mod local;
pub mod metrics;
pub mod names;
pub mod peers;
pub mod quota;
pub mod registry;
#[cfg(test)]
mod rig;
pub mod route;
pub mod story;
pub mod vouch;
