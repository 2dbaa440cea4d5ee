//! The roles a process can play, and what they all share.

pub mod agent;
pub mod gateway;
pub mod process;
pub mod store;
pub mod up;
