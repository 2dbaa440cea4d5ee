//! The roles a process can play, and what they all share.

pub mod agent;
pub mod cloud;
pub mod gateway;
pub mod interlink;
pub mod jobs;
pub mod listeners;
pub mod mesh;
pub mod nets;
pub mod node;
pub mod plugin;
pub mod pods_here;
pub mod process;
mod reload;
pub mod site;
pub mod store;
pub mod tags;
pub mod up;
