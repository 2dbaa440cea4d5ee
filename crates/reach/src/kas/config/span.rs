//! Durations as kas writes them: seconds, such as `5s` or `0.25s`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

/// A duration in a kas file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(Duration);

impl Span {
    /// Of whole seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    /// The duration itself.
    pub const fn get(self) -> Duration {
        self.0
    }

    /// Reads `5s`, `5.5s` or `.5s` exactly.
    pub fn parse(text: &str) -> Option<Self> {
        let number = text.strip_suffix('s')?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole)
            || !digits(fraction)
            || fraction.len() > 9
            || (whole.is_empty() && fraction.is_empty())
        {
            return None;
        }
        let seconds = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        // The protocol's durations end at ten thousand years.
        if seconds > 315_576_000_000 {
            return None;
        }
        let nanos = format!("{fraction:0<9}").parse().ok()?;
        Some(Self(Duration::new(seconds, nanos)))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong =
            || de::Error::invalid_value(de::Unexpected::Other("text"), &"a duration in seconds such as `5s`");
        Self::parse(&text).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn seconds_and_parts_of_them() {
        for (text, millis) in
            [("5s", 5000), ("0s", 0), ("0.25s", 250), (".5s", 500), ("1.s", 1000), ("86400s", 86_400_000)]
        {
            assert_eq!(Span::parse(text).unwrap().get(), Duration::from_millis(millis), "{text}");
        }
        for text in
            ["", "s", "5", "5m", "-5s", "+5s", ".s", "1.0000000001s", "1e3s", "99999999999999s", " 5s"]
        {
            assert_eq!(Span::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[0-9.s]{0,20}") {
            let _ = Span::parse(&text);
        }

        #[test]
        fn exact_to_the_nanosecond(seconds in 0u64..300_000_000_000, nanos in 0u32..1_000_000_000) {
            let text = format!("{seconds}.{nanos:09}s");
            prop_assert_eq!(Span::parse(&text).unwrap().get(), Duration::new(seconds, nanos));
        }
    }
}
