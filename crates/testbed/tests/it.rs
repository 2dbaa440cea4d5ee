//! The parts of the test bed, each proven to be the real thing.

mod it {
    mod ending;
    mod kube;
    mod ports;
    mod redis;
    mod sentinel;
}
