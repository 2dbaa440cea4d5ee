//! Reach seen from outside.

#[cfg(test)]
mod it {
    mod kas;
}
