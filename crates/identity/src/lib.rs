//! Who is who: secrets, keys, certificates, tokens and the TLS that carries them.
//!
//! This is the only crate that touches rustls, and `aws-lc-rs` is the only crypto library it lets in.
//! It opens no listener, fetches nothing and keeps no state of its own beyond what it is told to load:
//! records go to a store that belongs to somebody else, and time comes in as a value.
//! Start from [`Secret`] for anything that must never be printed.

pub mod secret;

pub use secret::{Secret, SecretBytes, SecretError, SecretFile};
