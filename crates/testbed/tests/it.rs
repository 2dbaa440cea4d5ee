//! The parts of the test bed, each proven to be the real thing.

mod it {
    mod redis;
}
