//! Nets from outside: real stores, real sockets, real packets.

#[cfg(test)]
mod it {
    mod bed;
    mod crash;
    mod local;
    mod orchestrator;
    #[expect(dead_code, reason = "the stand-ins of clouds come next")]
    mod sim;
    mod tags;
}
