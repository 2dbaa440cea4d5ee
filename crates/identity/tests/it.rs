//! The crate from outside: real sockets, real files, hostile input.

#[cfg(test)]
mod it {
    mod authority;
    mod canary;
    mod corpus;
    mod fuzzing;
    mod handshake;
    mod interop;
    mod kas;
    mod pinned;
    mod provider;
    mod rotation;
    mod scene;
    mod turns;
    mod workload;
}
