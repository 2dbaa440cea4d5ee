//! Reach seen from outside.

#[cfg(test)]
mod it {
    mod ageing;
    mod far;
    mod flaky;
    mod gateways;
    mod hostile;
    mod kas;
    mod lab;
    mod listeners;
    mod net;
    mod principals;
    mod proofs;
    mod sample;
    mod simulation;
    mod takeover;
}
