//! The store from outside: one conformance suite for all back ends, then what is special to each.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where something unexpected happens"
)]

#[path = "it/backups.rs"]
mod backups;
#[path = "it/conformance.rs"]
mod conformance;
#[path = "it/crash.rs"]
mod crash;
#[path = "it/embedded.rs"]
mod embedded;
#[path = "it/faults.rs"]
mod faults;
#[path = "it/lost.rs"]
mod lost;
#[path = "it/model.rs"]
mod model;
#[path = "it/place.rs"]
mod place;
#[path = "it/relay.rs"]
mod relay;
#[path = "it/sentinel.rs"]
mod sentinel;
#[path = "it/shared.rs"]
mod shared;

/// How often to repeat: the environment variable `EFFORT`, one if it is not set.
fn effort() -> u32 {
    u32::try_from(tarbet_testbed::effort()).unwrap()
}
