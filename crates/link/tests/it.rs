//! Both ends of a link against each other, over memory, TCP and WebSockets.

#[cfg(test)]
mod it {
    mod calls;
    mod carriers;
    mod draining;
    mod handshakes;
    mod liveness;
    mod rig;
    mod stalls;
    mod streams;
    mod uplinks;
    mod world;
}
