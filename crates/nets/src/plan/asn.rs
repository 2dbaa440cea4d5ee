//! Private autonomous system numbers.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// The private numbers of two bytes, then those of four.
const RANGES: [RangeInclusive<u32>; 2] = [64512..=65534, 4_200_000_000..=4_294_967_294];

/// The lowest private number that nobody uses.
pub fn lowest_unused(used: &BTreeSet<u32>) -> Option<u32> {
    RANGES.into_iter().find_map(|range| {
        let mut candidate = *range.start();
        for &taken in used.range(range.clone()) {
            if taken != candidate {
                break;
            }
            candidate = candidate.checked_add(1)?;
        }
        range.contains(&candidate).then_some(candidate)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_gaps_then_moves_on_to_the_long_numbers() {
        assert_eq!(lowest_unused(&BTreeSet::new()), Some(64512));
        assert_eq!(lowest_unused(&BTreeSet::from([1, 64512, 64513, 64515])), Some(64514));
        let short: BTreeSet<u32> = (64512..=65534).collect();
        assert_eq!(lowest_unused(&short), Some(4_200_000_000));
        let more: BTreeSet<u32> = short.into_iter().chain([4_200_000_000]).collect();
        assert_eq!(lowest_unused(&more), Some(4_200_000_001));
    }
}
