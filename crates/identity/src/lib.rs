//! Who is who: secrets, keys, certificates, tokens and the TLS that carries them.
//!
//! This is the only crate that touches rustls, and `aws-lc-rs` is the only crypto library it lets in.
//! It opens no listener, fetches nothing and keeps no state of its own beyond what it is told to load:
//! records go to a store that belongs to somebody else, and time comes in as a value.
//! Start from [`Secret`] for anything that must never be printed, [`tls`] for connections,
//! [`TokenRecord`] for tokens that people carry, [`jwt`] and [`caller`] for signed ones.

pub mod authority;
pub mod caller;
pub mod files;
pub mod fuzz;
pub mod jwt;
pub mod key;
pub mod secret;
pub mod subject;
pub mod tls;
pub mod token;

#[cfg(test)]
mod effort;
mod hash;
mod pem;
mod random;

pub use key::{KeyError, Pin, PinSet, PrivateKey, PublicKey};
pub use pem::PemError;
pub use random::NoEntropy;
pub use secret::{Secret, SecretBytes, SecretError, SecretFile};
pub use subject::{NotASubject, Subject, SubjectKind};
pub use token::{NotAToken, Refusal, Token, TokenHash, TokenKind, TokenRecord, hash_opaque};
