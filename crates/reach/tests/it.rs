//! Reach seen from outside.

mod it {
    mod kas;
}
