//! How hard the property tests try: `EFFORT` times 64 cases each.

pub(crate) fn cases() -> proptest::test_runner::Config {
    let effort = std::env::var("EFFORT").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    proptest::test_runner::Config::with_cases(64 * effort)
}
