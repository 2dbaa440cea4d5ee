//! How many tunnels an agent keeps. Pure.

use std::time::Duration;

/// The size of the pool of tunnels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Idle tunnels to have at all times. A gateway finds at least these after a quiet spell.
    pub min_idle: usize,
    /// How many to open when there are fewer.
    pub step: usize,
    /// Tunnels in all, idle or not: the most calls at one time.
    pub max: usize,
    /// A tunnel unused for so long is not opened again if there are others.
    pub retire: Duration,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { min_idle: 2, step: 10, max: 500, retire: Duration::from_mins(1) }
    }
}

/// Tunnels there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counts {
    pub(super) idle: usize,
    pub(super) busy: usize,
}

impl Sizes {
    /// How many to begin with.
    pub(super) fn at_start(self) -> usize {
        self.min_idle.min(self.max)
    }

    /// How many to open now.
    pub(super) fn to_open(self, counts: Counts) -> usize {
        if counts.idle < self.min_idle {
            self.step.min(self.max.saturating_sub(counts.idle + counts.busy))
        } else {
            0
        }
    }

    /// Whether a tunnel that was not used for `unused` should not be opened again. It is still counted
    /// as idle here.
    pub(super) fn to_retire(self, counts: Counts, unused: Duration) -> bool {
        unused >= self.retire && counts.idle > self.min_idle
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_call_makes_ten_more() {
        let sizes = Sizes::default();
        assert_eq!(sizes.at_start(), 2);
        assert_eq!(sizes.to_open(Counts { idle: 2, busy: 0 }), 0);
        assert_eq!(sizes.to_open(Counts { idle: 1, busy: 1 }), 10);
        assert_eq!(sizes.to_open(Counts { idle: 0, busy: 495 }), 5);
        assert_eq!(sizes.to_open(Counts { idle: 0, busy: 500 }), 0);
    }

    proptest! {
        /// Whatever happens, there are never more than allowed, and there is an idle one unless all are busy.
        #[test]
        fn bounds_hold(events in proptest::collection::vec((0u8..3, 0u64..120), 0..300), min_idle in 1usize..4, step in 1usize..12, extra in 0usize..40) {
            let sizes = Sizes { min_idle, step, max: min_idle + extra, retire: Duration::from_mins(1) };
            let mut counts = Counts { idle: sizes.at_start(), busy: 0 };
            for (event, unused) in events {
                match event {
                    0 if counts.idle > 0 => {
                        counts = Counts { idle: counts.idle - 1, busy: counts.busy + 1 };
                        counts.idle += sizes.to_open(counts);
                    }
                    1 if counts.busy > 0 => counts = Counts { idle: counts.idle + 1, busy: counts.busy - 1 },
                    2 if counts.idle > 0 && sizes.to_retire(counts, Duration::from_secs(unused)) => counts.idle -= 1,
                    _ => {}
                }
                prop_assert!(counts.idle + counts.busy <= sizes.max);
                prop_assert!(counts.idle >= 1 || counts.idle + counts.busy == sizes.max);
            }
        }
    }
}
