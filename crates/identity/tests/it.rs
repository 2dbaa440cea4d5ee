//! The crate from outside: real sockets, real files, hostile input.
