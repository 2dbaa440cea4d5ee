//! Whose turn it is: per offer a limit, and within it tenant after tenant.
//!
//! Each offer has one line for each tenant, in the order of creation, and goes round the tenants:
//! a tenant with a thousand requests delays another one's single request by one run, not by a
//! thousand. Pure; the owner tells what starts and ends.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;

/// What a request gets when it asks for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It may run, now and until it is released.
    Granted,
    /// It waits; 1 is next.
    Waiting(u32),
}

/// The lines and the runs of all offers.
#[derive(Debug)]
pub struct Turns<K> {
    offers: BTreeMap<String, Line<K>>,
    // Where each key is, whether it runs or waits.
    places: HashMap<K, Place>,
}

#[derive(Debug)]
struct Line<K> {
    running: usize,
    limit: usize,
    waiting: BTreeMap<String, BTreeSet<(i64, K)>>,
    // The tenants that wait, next first.
    round: VecDeque<String>,
}

#[derive(Debug, Clone)]
struct Place {
    offer: String,
    // `None` while it runs.
    waits: Option<(String, i64)>,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self { offers: BTreeMap::new(), places: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash + Ord> Turns<K> {
    /// Asks for a turn of `tenant` at `offer`. Asking again changes nothing but the limit.
    /// `created` orders the line of a tenant.
    pub fn ask(&mut self, key: &K, offer: &str, tenant: &str, created: i64, limit: Option<u32>) -> Turn {
        if self.places.get(key).is_some_and(|place| place.offer != offer) {
            // The configuration changed under it: it joins the other line.
            self.leave(key);
        }
        let line = self.line(offer);
        line.limit = limit.map_or(usize::MAX, |limit| limit as usize);
        match self.places.get(key) {
            Some(Place { waits: None, .. }) => return Turn::Granted,
            Some(_) => {}
            None => {
                let line = self.line(offer);
                line.join(tenant, created, key);
                let place = Place { offer: offer.to_owned(), waits: Some((tenant.to_owned(), created)) };
                self.places.insert(key.clone(), place);
            }
        }
        // Whoever is next gets what is free; the one who asked may be among them or not.
        self.advance(offer);
        match self.places.get(key) {
            Some(Place { waits: Some((tenant, created)), .. }) => {
                let (tenant, created) = (tenant.clone(), *created);
                Turn::Waiting(self.line(offer).position(&tenant, created, key))
            }
            _ => Turn::Granted,
        }
    }

    /// Counts a run that is there already, as after a restart, whatever the limit says.
    pub fn hold(&mut self, key: &K, offer: &str) {
        if self.places.get(key).is_some_and(|place| place.waits.is_none()) {
            return;
        }
        self.leave(key);
        self.line(offer).running += 1;
        self.places.insert(key.clone(), Place { offer: offer.to_owned(), waits: None });
    }

    /// The key no longer runs or waits. Returns those whose turn it is now.
    pub fn release(&mut self, key: &K) -> Vec<K> {
        let Some(offer) = self.places.get(key).map(|place| place.offer.clone()) else { return Vec::new() };
        self.leave(key);
        let next = self.advance(&offer);
        let idle = self.offers.get(&offer).is_some_and(|line| line.running == 0 && line.round.is_empty());
        if idle {
            self.offers.remove(&offer);
        }
        next
    }

    /// How many run.
    pub fn running(&self) -> usize {
        self.offers.values().map(|line| line.running).sum()
    }

    /// Those that wait.
    pub fn waiting(&self) -> Vec<K> {
        self.places.iter().filter(|(_, place)| place.waits.is_some()).map(|(key, _)| key.clone()).collect()
    }

    /// How many wait.
    pub fn waiting_count(&self) -> usize {
        self.offers.values().flat_map(|line| line.waiting.values()).map(BTreeSet::len).sum()
    }

    /// Whether the key runs or waits.
    pub fn knows(&self, key: &K) -> bool {
        self.places.contains_key(key)
    }

    fn line(&mut self, offer: &str) -> &mut Line<K> {
        self.offers.entry(offer.to_owned()).or_insert_with(|| Line {
            running: 0,
            limit: usize::MAX,
            waiting: BTreeMap::new(),
            round: VecDeque::new(),
        })
    }

    fn leave(&mut self, key: &K) {
        let Some(place) = self.places.remove(key) else { return };
        let line = self.line(&place.offer);
        match place.waits {
            None => line.running -= 1,
            Some((tenant, created)) => line.drop_waiting(&tenant, created, key),
        }
    }

    /// Lets in whoever is next while there is room, and returns them.
    fn advance(&mut self, offer: &str) -> Vec<K> {
        let mut granted = Vec::new();
        let Some(line) = self.offers.get_mut(offer) else { return granted };
        while line.running < line.limit {
            let Some(key) = line.next() else { break };
            line.running += 1;
            granted.push(key);
        }
        for key in &granted {
            if let Some(place) = self.places.get_mut(key) {
                place.waits = None;
            }
        }
        granted
    }
}

impl<K: Clone + Ord> Line<K> {
    fn join(&mut self, tenant: &str, created: i64, key: &K) {
        let queue = self.waiting.entry(tenant.to_owned()).or_default();
        if queue.is_empty() {
            self.round.push_back(tenant.to_owned());
        }
        queue.insert((created, key.clone()));
    }

    fn drop_waiting(&mut self, tenant: &str, created: i64, key: &K) {
        if let Some(queue) = self.waiting.get_mut(tenant) {
            queue.remove(&(created, key.clone()));
            if queue.is_empty() {
                self.waiting.remove(tenant);
                self.round.retain(|other| other != tenant);
            }
        }
    }

    fn next(&mut self) -> Option<K> {
        let tenant = self.round.pop_front()?;
        let queue = self.waiting.get_mut(&tenant)?;
        let (_, key) = queue.pop_first()?;
        if queue.is_empty() {
            self.waiting.remove(&tenant);
        } else {
            self.round.push_back(tenant);
        }
        Some(key)
    }

    /// How many turns until this one's, going round as [`Line::next`] does.
    fn position(&self, tenant: &str, created: i64, key: &K) -> u32 {
        let ahead = |queue: &BTreeSet<(i64, K)>| queue.range(..(created, key.clone())).count();
        let own = self.waiting.get(tenant).map_or(0, ahead);
        let my_place = self.round.iter().position(|other| other == tenant).unwrap_or(0);
        let others =
            self.round.iter().enumerate().filter(|(_, other)| *other != tenant).map(|(place, other)| {
                let length = self.waiting.get(other).map_or(0, BTreeSet::len);
                // Those before us in the round go once more than those behind.
                length.min(own + usize::from(place < my_place))
            });
        u32::try_from(own + others.sum::<usize>() + 1).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_crowd_of_one_tenant_delays_another_by_one_run() {
        let mut turns = Turns::default();
        for n in 0..100 {
            turns.ask(&n, "sign", "loud", i64::from(n), Some(1));
        }
        assert_eq!(turns.ask(&1000, "sign", "quiet", 5, Some(1)), Turn::Waiting(2));
        assert_eq!(turns.release(&0), [1]);
        assert_eq!(turns.release(&1), [1000]);
        assert_eq!(turns.release(&1000), [2]);
    }

    #[test]
    fn offers_do_not_wait_for_each_other_and_no_limit_is_no_line() {
        let mut turns = Turns::default();
        assert_eq!(turns.ask(&1, "a", "t", 0, Some(1)), Turn::Granted);
        assert_eq!(turns.ask(&2, "a", "t", 0, Some(1)), Turn::Waiting(1));
        assert_eq!(turns.ask(&3, "b", "t", 0, Some(1)), Turn::Granted);
        for n in 10..50 {
            assert_eq!(turns.ask(&n, "free", "t", 0, None), Turn::Granted);
        }
        // A raised limit is felt at the next asking, and by whoever is next.
        assert_eq!(turns.ask(&2, "a", "t", 0, Some(2)), Turn::Granted);
    }

    #[test]
    fn a_run_found_after_a_restart_counts() {
        let mut turns = Turns::default();
        turns.hold(&1, "a");
        turns.hold(&1, "a");
        assert_eq!(turns.running(), 1);
        assert_eq!(turns.ask(&1, "a", "t", 0, Some(1)), Turn::Granted);
        assert_eq!(turns.ask(&2, "a", "t", 0, Some(1)), Turn::Waiting(1));
        assert_eq!(turns.release(&1), [2]);
    }

    proptest! {
        #[test]
        fn limits_hold_everybody_gets_a_turn_and_positions_are_true(
            limit in 1u32..4,
            asks in proptest::collection::vec((0u8..4, 0i64..5), 1..40),
        ) {
            let mut turns = Turns::default();
            for (n, (tenant, created)) in asks.iter().enumerate() {
                turns.ask(&n, "offer", &tenant.to_string(), *created, Some(limit));
                prop_assert!(turns.running() <= limit as usize);
            }
            // Positions as told now are the order in which turns come.
            let mut told: Vec<(u32, usize)> = turns.waiting().into_iter().map(|key| {
                let (tenant, created) = asks[key];
                let Turn::Waiting(position) = turns.ask(&key, "offer", &tenant.to_string(), created, Some(limit)) else { panic!() };
                (position, key)
            }).collect();
            told.sort_unstable();
            prop_assert!(told.iter().enumerate().all(|(index, (position, _))| *position as usize == index + 1), "{:?}", told);
            let mut running: VecDeque<usize> = (0..asks.len()).filter(|key| !told.iter().any(|(_, waiting)| waiting == key)).collect();
            let mut came = Vec::new();
            while let Some(key) = running.pop_front() {
                let next = turns.release(&key);
                came.extend(next.iter().copied());
                running.extend(next);
                prop_assert!(turns.running() <= limit as usize);
            }
            prop_assert_eq!(came, told.into_iter().map(|(_, key)| key).collect::<Vec<_>>());
            prop_assert_eq!(turns.running(), 0);
            prop_assert!(turns.offers.is_empty() && turns.places.is_empty());
        }
    }
}
