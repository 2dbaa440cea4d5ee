//! What can be measured without a clock.

#[cfg(test)]
mod it {
    mod counts;
}
