//! The roles a process can play, and what they all share.

pub mod process;
pub mod up;
