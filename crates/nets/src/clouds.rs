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
mod pages;
pub mod rest;
mod ways;

pub use gcp::{Gcp, GcpConfig};
pub use ibm::{Ibm, IbmConfig};

use serde_json::Value;

/// A field taken out of what a cloud or a person wrote; nothing if it is not there. Indexing to change would
/// panic on what is no object.
fn taken(from: &mut Value, field: &str) -> Value {
    from.get_mut(field).map(Value::take).unwrap_or_default()
}

/// For clouds whose filters know no source ports: which rules are kept in the permit list alone.
fn tell_ways_back(cloud: &str, rules: &[crate::model::Rule]) {
    for rule in rules.iter().filter(|rule| crate::plan::rule::is_way_back(rule)) {
        tracing::info!(
            cloud,
            rule = rule.name,
            "The rule is for replies, which this cloud lets pass by itself: it opens nothing."
        );
    }
}
