//! The links that other gateways hold for one site, as they were looked up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tarbet_link::handshake::Purpose;

use crate::local::LinkId;

/// A link that another gateway holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// The link.
    pub link: LinkId,
    /// The gateway's private listener.
    pub url: Arc<str>,
    /// What the agent opened it for.
    pub purpose: Purpose,
}

/// All of them. Many requests share what was looked up once, and each begins with another link than the last
/// of its purpose did.
#[derive(Debug, Default)]
pub struct Remotes {
    general: Vec<Remote>,
    bulk: Vec<Remote>,
    general_turn: AtomicUsize,
    bulk_turn: AtomicUsize,
}

impl Remotes {
    /// These, and at which turn requests of general and of bulk purpose begin. What is looked up every second
    /// and asked for once a second would give the same link again and again if they all began alike.
    pub fn new(all: impl IntoIterator<Item = Remote>, turns: (u16, u16)) -> Self {
        let (general, bulk) = all.into_iter().partition(|remote| remote.purpose == Purpose::General);
        let [general_turn, bulk_turn] = [turns.0, turns.1].map(|turn| AtomicUsize::new(turn.into()));
        Self { general, bulk, general_turn, bulk_turn }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.general.len() + self.bulk.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, those for this purpose first, and in each call from another one on.
    pub fn in_turn(&self, purpose: Purpose) -> impl Iterator<Item = &Remote> {
        let (first, then, turn) = match purpose {
            Purpose::General => (&self.general, &self.bulk, &self.general_turn),
            Purpose::Bulk => (&self.bulk, &self.general, &self.bulk_turn),
        };
        let turn = turn.fetch_add(1, Ordering::Relaxed);
        from(first, turn).chain(from(then, turn))
    }
}

/// All of a list, from one on and round to it.
fn from(list: &[Remote], turn: usize) -> impl Iterator<Item = &Remote> {
    let (before, after) = list.split_at(turn.checked_rem(list.len()).unwrap_or(0));
    after.iter().chain(before)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn remotes(general: usize, bulk: usize) -> Vec<Remote> {
        let remote = |purpose| Remote { link: LinkId::fresh(), url: "grpc://far".into(), purpose };
        let general = (0..general).map(|_| remote(Purpose::General));
        general.chain((0..bulk).map(|_| remote(Purpose::Bulk))).collect()
    }

    proptest! {
        #[test]
        fn each_is_told_once_and_each_is_first_as_often(
            general in 0usize..8, bulk in 0usize..8, is_bulk: bool, rounds in 1usize..4,
            turns: (u16, u16)
        ) {
            let (purpose, another) =
                if is_bulk { (Purpose::Bulk, Purpose::General) } else { (Purpose::General, Purpose::Bulk) };
            let all = remotes(general, bulk);
            let shared = Remotes::new(all.clone(), turns);
            prop_assert_eq!((shared.len(), shared.is_empty()), (all.len(), all.is_empty()));
            let suiting = if is_bulk { bulk } else { general };
            let leading = if suiting > 0 { suiting } else { all.len() };
            let mut first: HashMap<LinkId, usize> = HashMap::new();
            for _ in 0..rounds * leading {
                // Requests of another purpose have turns of their own.
                let _theirs = shared.in_turn(another);
                let told: Vec<&Remote> = shared.in_turn(purpose).collect();
                let mut links: Vec<LinkId> = told.iter().map(|remote| remote.link).collect();
                prop_assert!(told.iter().take(suiting).all(|remote| remote.purpose == purpose));
                *first.entry(links[0]).or_default() += 1;
                links.sort();
                links.dedup();
                prop_assert_eq!(links.len(), all.len());
            }
            prop_assert!(first.values().all(|count| *count == rounds));
            prop_assert_eq!(first.len(), leading);
        }
    }

    #[test]
    fn each_answer_begins_where_it_is_told_to() {
        let all = remotes(3, 3);
        for turn in 0..3 {
            let shared = Remotes::new(all.clone(), (turn, 2 - turn));
            let first = |purpose| shared.in_turn(purpose).next();
            assert_eq!(first(Purpose::General), all.get(usize::from(turn)));
            assert_eq!(first(Purpose::Bulk), all.get(usize::from(5 - turn)));
        }
    }
}
