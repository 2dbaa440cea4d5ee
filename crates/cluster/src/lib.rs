//! Kubernetes for every capability: clients, watches, writes and leadership.
//!
//! A [`Source`] says how a cluster is reached and [`connect`] gives a plain `kube::Client` that
//! follows a rotated kubeconfig by itself; [`connect_through`] does the same over any byte stream.
//! [`Mirror`] keeps a trimmed copy of what a watch tells, [`Queue`] runs one reconcile per object
//! at a time, [`Election`] lets one replica work and stops it before its lease can be taken.
//!
//! It decides nothing about any kind of object, and it never reads and writes back a whole object
//! it does not own: writes are server-side apply, or patches that name what they change.

mod apply;
mod client;
pub mod conditions;
mod connector;
mod error;
mod events;
pub mod finalizer;
pub mod fuzz;
mod lease;
mod mirror;
mod proxy;
mod queue;
mod reached;

pub use apply::{apply, merge, merge_status};
pub use client::{Place, Source, connect, connect_by, connect_through, place};
pub use connector::{Connect, Stream};
pub use error::{Class, ClusterError, class, describe};
pub use events::{Events, Severity};
pub use lease::{Election, Term, Timings};
pub use mirror::{Change, Mirror, Newer, Watch, watch};
pub use queue::{Outcome, Queue};
pub use reached::Reached;

pub use kube::Client;
