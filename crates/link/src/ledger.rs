//! Which streams of a link are left unread, and which of them have to go.
//!
//! HTTP/2 lets a peer send a window's worth on every stream. A few readers that stopped reading
//! are harmless; many of them together would fill the window of the connection and stop everybody.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::lane::{Lane, lock};

/// How much a stream holds that nobody read, and for how long nobody did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Load {
    pub(crate) unread: usize,
    pub(crate) stalled_for: Option<Duration>,
}

/// The streams to reset: the longest-stalled ones, until what is left fits the budget.
pub(crate) fn victims(loads: &[Load], budget: usize, grace: Duration) -> Vec<usize> {
    let mut total: usize = loads.iter().map(|load| load.unread).sum();
    if total <= budget {
        return Vec::new();
    }
    let stalled = |index: &usize| loads[*index].stalled_for.filter(|age| *age >= grace);
    let mut order: Vec<usize> = (0..loads.len()).filter(|index| stalled(index).is_some()).collect();
    order.sort_by_key(|index| std::cmp::Reverse((stalled(index), loads[*index].unread)));
    let mut chosen = Vec::new();
    for index in order {
        if total <= budget {
            break;
        }
        total -= loads[index].unread;
        chosen.push(index);
    }
    chosen
}

#[derive(Default)]
pub(crate) struct Ledger(Mutex<HashMap<u32, Weak<Lane>>>);

impl Ledger {
    pub(crate) fn add(&self, id: u32, lane: &Arc<Lane>) {
        lock(&self.0).insert(id, Arc::downgrade(lane));
    }

    pub(crate) fn remove(&self, id: u32) {
        lock(&self.0).remove(&id);
    }

    /// Looks at every stream and resets those that have to go. Tells how many went and how much was
    /// unread.
    pub(crate) fn sweep(&self, now: Instant, budget: usize, grace: Duration) -> (usize, usize) {
        let lanes: Vec<Arc<Lane>> = lock(&self.0).values().filter_map(Weak::upgrade).collect();
        let loads: Vec<Load> = lanes.iter().map(|lane| lane.inspect(now)).collect();
        let gone = victims(&loads, budget, grace);
        for index in &gone {
            lanes[*index].evict();
        }
        (gone.len(), loads.iter().map(|load| load.unread).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn load() -> impl Strategy<Value = Load> {
        (0usize..1000, prop::option::of(0u64..10))
            .prop_map(|(unread, secs)| Load { unread, stalled_for: secs.map(Duration::from_secs) })
    }

    proptest! {
        #[test]
        fn takes_no_more_than_needed_and_the_longest_stalled_first(
            loads in prop::collection::vec(load(), 0..30), budget in 0usize..8000,
        ) {
            let grace = Duration::from_secs(2);
            let gone = victims(&loads, budget, grace);
            let total: usize = loads.iter().map(|load| load.unread).sum();
            let freed: usize = gone.iter().map(|index| loads[*index].unread).sum();
            for index in &gone {
                prop_assert!(loads[*index].stalled_for >= Some(grace));
            }
            if let Some((last, before)) = gone.split_last() {
                let without_last: usize = before.iter().map(|index| loads[*index].unread).sum();
                prop_assert!(total - without_last > budget, "one too many");
                for (index, load) in loads.iter().enumerate() {
                    if !gone.contains(&index) {
                        prop_assert!(load.stalled_for <= loads[*last].stalled_for);
                    }
                }
            }
            let could_go = |load: &&Load| load.stalled_for >= Some(grace);
            let all: usize = loads.iter().filter(could_go).map(|load| load.unread).sum();
            prop_assert!(total - freed <= budget || freed == all);
        }
    }
}
