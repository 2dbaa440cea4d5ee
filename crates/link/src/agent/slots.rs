//! Which gateway each of an agent's links goes to. Pure.

/// Picks a gateway out of `count`: not the one to avoid, then the one fewest other links go to,
/// then the next in turn from `start`.
pub(super) fn choose(count: usize, others: &[usize], start: usize, avoid: Option<usize>) -> Option<usize> {
    let load = |place: usize| others.iter().filter(|other| **other == place).count();
    (0..count).min_by_key(|place| {
        let turn = (place + count - start % count) % count;
        (avoid == Some(*place), load(*place), turn)
    })
}

/// Whether a link shares its gateway with another link while some gateway has none.
/// Of links that share, the first stays.
pub(super) fn doubled(count: usize, places: &[Option<usize>], me: usize) -> bool {
    let Some(Some(mine)) = places.get(me) else { return false };
    let shares = places[..me].contains(&Some(*mine));
    shares && (0..count).any(|place| !places.contains(&Some(place)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_links_go_to_two_gateways_and_stay_there() {
        assert_eq!(choose(2, &[], 0, None), Some(0));
        assert_eq!(choose(2, &[0], 1, None), Some(1));
        // The first gateway is dead: its link keeps trying, and does not crowd the second.
        assert_eq!(choose(2, &[1], 1, None), Some(0));
        // With a third one it moves on.
        assert_eq!(choose(3, &[1], 1, None), Some(2));
        // A draining gateway is left for one that already has a link.
        assert_eq!(choose(2, &[1], 0, Some(0)), Some(1));
        assert_eq!(choose(1, &[0], 1, Some(0)), Some(0));
        assert_eq!(choose(0, &[], 0, None), None);
    }

    #[test]
    fn only_a_link_too_many_moves_back() {
        assert!(doubled(2, &[Some(1), Some(1)], 1));
        assert!(!doubled(2, &[Some(1), Some(1)], 0));
        assert!(!doubled(1, &[Some(0), Some(0)], 1));
        assert!(!doubled(2, &[Some(0), Some(1)], 1));
        assert!(!doubled(2, &[Some(0), None], 1));
    }

    proptest! {
        #[test]
        fn a_free_gateway_is_always_taken(
            count in 1usize..6, others in prop::collection::vec(0usize..6, 0..5), start in 0usize..20,
        ) {
            let place = choose(count, &others, start, None).unwrap();
            prop_assert!(place < count);
            if (0..count).any(|free| !others.contains(&free)) {
                prop_assert!(!others.contains(&place));
            }
        }

        #[test]
        fn every_free_gateway_gets_its_turn(count in 1usize..6) {
            let mut seen: Vec<usize> = Vec::new();
            let mut start = 0;
            for _ in 0..count {
                let place = choose(count, &[], start, None).unwrap();
                seen.push(place);
                start = place + 1;
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..count).collect::<Vec<_>>());
        }
    }
}
