//! The record of who asked for what: a local file in which every line seals the ones before it.
//!
//! Each record carries the hash of itself and of its predecessor, so that an edited, inserted or
//! removed record breaks the chain from there on. Beside the file lies its head, the number and
//! hash of the last record, so that a shortened file is noticed too. A copy of the head kept on
//! another machine (it is in the process's log) proves the file against everybody who may write it.
//!
//! A request that goes on to a site has two lines: one when it begins, which is in the file before the
//! request goes on, and one when it ends, which names the first. Readers see one record, with its end if
//! there was one.
//!
//! Start from [`AuditLog::open`] to write and from [`verify`] to check.

mod chain;
mod log;
mod tape;

pub use chain::{Broken, Entry, Event, Head, NotAHead, Verified, verify};
pub use log::{AuditConfig, AuditError, AuditLog, Writer, read_head, tail};
