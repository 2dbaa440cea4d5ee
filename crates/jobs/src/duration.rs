//! Durations as Go writes them: `1h30m0s`, `1.5h`, `300ms`.

use std::time::Duration;

/// Reads a duration; none is negative.
pub fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut total = 0f64;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        total += number
            * match &rest[..unit] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" | "μs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    // Go holds durations in 63 bits of nanoseconds.
    (total < 9.2e9).then(|| Duration::from_secs_f64(total))
}

/// Writes whole seconds as Go does.
pub(crate) fn format(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_callers_send() {
        for (text, seconds) in [
            ("1h0m0s", 3600.0),
            ("0h55m0s", 3300.0),
            ("90s", 90.0),
            ("1.5h", 5400.0),
            ("300ms", 0.3),
            ("0", 0.0),
        ] {
            assert_eq!(parse(text), Some(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["", "abc", "1", "1d", "-1h", "h", "1h ", "1..2h", "1h-5m", "９s", "1e3s", "9999999999h"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(seconds in 0u64..1_000_000) {
            let duration = Duration::from_secs(seconds);
            prop_assert_eq!(parse(&format(duration)), Some(duration));
        }

        #[test]
        fn any_text_is_read_without_panic(text in "\\PC{0,40}") {
            let _ = parse(&text);
        }
    }
}
