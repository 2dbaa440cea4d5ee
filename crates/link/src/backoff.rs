//! How long to wait before the next try. Pure: randomness comes in.

use std::time::Duration;

/// Growing pauses between tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The first pause at most; it doubles with each failure.
    pub first: Duration,
    /// No pause is longer.
    pub longest: Duration,
    /// A link that lived this long starts the count anew when it is lost.
    pub stable: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(500),
            // A gateway that restarts has all its agents back within half a minute.
            longest: Duration::from_secs(15),
            stable: Duration::from_secs(30),
        }
    }
}

impl Backoff {
    /// The pause after `failures` failures in a row, with `random` from 0 to 1: half of the full
    /// pause at least, so that nobody hurries, and spread over the other half, so that many
    /// agents do not come at once.
    pub fn delay(&self, failures: u32, random: f64) -> Duration {
        let doubled = self.first.checked_mul(1u32.checked_shl(failures).unwrap_or(u32::MAX));
        let full = doubled.unwrap_or(self.longest).min(self.longest);
        full.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stays_within_bounds_and_never_shrinks(failures in any::<u32>(), random in 0.0f64..=1.0) {
            let backoff = Backoff::default();
            let delay = backoff.delay(failures, random);
            prop_assert!(delay >= backoff.first / 2 && delay <= backoff.longest);
            prop_assert!(backoff.delay(failures.saturating_add(1), random) >= delay);
        }

        #[test]
        fn odd_random_values_do_no_harm(failures in any::<u32>(), random in any::<f64>()) {
            prop_assume!(!random.is_nan());
            prop_assert!(Backoff::default().delay(failures, random) <= Backoff::default().longest);
        }
    }
}
