//! Nets from outside: real stores, real sockets, real packets.

#[cfg(test)]
mod it {
    mod bed;
    mod crash;
    mod local;
    mod orchestrator;
    mod tags;
}
