//! Reach seen from outside.

#[cfg(test)]
mod it {
    mod flaky;
    mod gateways;
    mod kas;
    mod lab;
    mod net;
    mod proofs;
    mod simulation;
}
