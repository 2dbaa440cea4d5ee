//! How hard tests try.

/// How often to repeat what is worth repeating: the environment variable `EFFORT`, 1 without it, which is
/// what `make test` has; `make verify` has 10.
pub fn effort() -> usize {
    let wanted = std::env::var("EFFORT").ok().and_then(|text| text.parse().ok());
    wanted.filter(|effort| *effort > 0).unwrap_or(1)
}
