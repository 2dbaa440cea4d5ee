//! Plugins for public clouds, each a client of the cloud's own REST API.
//!
//! They keep nothing themselves: what a call made is found by the next one by names and tags in the cloud,
//! whoever makes it, so a plugin that stopped anywhere goes on by being asked again.
//! [`rest`] is how all of them talk, [`pace`] how long they wait, [`auth`] how they say who they are.

pub mod auth;
pub mod aws;
pub mod azure;
pub mod gcp;
pub mod ibm;
pub mod pace;
pub mod rest;

pub use gcp::{Gcp, GcpConfig};
pub use ibm::{Ibm, IbmConfig};
