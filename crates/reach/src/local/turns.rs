//! Whose turn it is among the links of one site.
//!
//! Those of one purpose stand in a line. Whoever is picked goes to its end, so it is always the one that has rested
//! longest, and a request looks at no more links than it has tried already, however many there are. A link that has
//! ended leaves the line when somebody comes across it: it never takes requests again.

use std::collections::{BTreeMap, HashMap};

use tarbet_link::handshake::Purpose;

use super::LinkId;

/// Links, or what stands for them, in the order of their turns.
#[derive(Debug)]
pub(super) struct Turns<T> {
    general: Line<T>,
    bulk: Line<T>,
    /// Where each stands.
    places: HashMap<LinkId, (Purpose, u64)>,
    /// The end of the lines.
    end: u64,
}

type Line<T> = BTreeMap<u64, (LinkId, T)>;

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { general: Line::new(), bulk: Line::new(), places: HashMap::new(), end: 0 }
    }
}

impl<T: Clone> Turns<T> {
    /// Puts one at the end of its line.
    pub(super) fn add(&mut self, id: LinkId, purpose: Purpose, thing: T) {
        self.remove(id);
        self.queue(purpose, (id, thing));
    }

    /// Takes one out.
    pub(super) fn remove(&mut self, id: LinkId) {
        if let Some((purpose, place)) = self.places.remove(&id) {
            self.line(purpose).remove(&place);
        }
    }

    /// The one that rested longest of those that were not tried, for this purpose if there is one.
    pub(super) fn pick(
        &mut self,
        purpose: Purpose,
        tried: &[LinkId],
        has_ended: impl Fn(&T) -> bool,
    ) -> Option<T> {
        let other = match purpose {
            Purpose::General => Purpose::Bulk,
            Purpose::Bulk => Purpose::General,
        };
        [purpose, other].into_iter().find_map(|purpose| self.pick_from(purpose, tried, &has_ended))
    }

    fn pick_from(
        &mut self,
        purpose: Purpose,
        tried: &[LinkId],
        has_ended: &impl Fn(&T) -> bool,
    ) -> Option<T> {
        let mut ended = Vec::new();
        let found = self.line(purpose).iter().find_map(|(place, (id, thing))| {
            if has_ended(thing) {
                ended.push(*id);
                return None;
            }
            (!tried.contains(id)).then_some(*place)
        });
        for id in ended {
            self.remove(id);
        }
        let picked = self.line(purpose).remove(&found?)?;
        let thing = picked.1.clone();
        self.queue(purpose, picked);
        Some(thing)
    }

    fn queue(&mut self, purpose: Purpose, (id, thing): (LinkId, T)) {
        let place = self.end;
        self.end += 1;
        self.places.insert(id, (purpose, place));
        self.line(purpose).insert(place, (id, thing));
    }

    fn line(&mut self, purpose: Purpose) -> &mut Line<T> {
        match purpose {
            Purpose::General => &mut self.general,
            Purpose::Bulk => &mut self.bulk,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    /// A link that counts how often it is looked at.
    #[derive(Debug, Clone)]
    struct One {
        id: LinkId,
        purpose: Purpose,
        ended: Rc<Cell<bool>>,
    }

    #[derive(Debug, Clone)]
    enum Step {
        Add(Purpose),
        Remove(prop::sample::Index),
        End(prop::sample::Index),
        Pick(Purpose, Vec<prop::sample::Index>),
    }

    fn purpose() -> impl Strategy<Value = Purpose> {
        prop_oneof![Just(Purpose::General), Just(Purpose::Bulk)]
    }

    fn step() -> impl Strategy<Value = Step> {
        let tried = prop::collection::vec(any::<prop::sample::Index>(), 0..4);
        prop_oneof![
            3 => purpose().prop_map(Step::Add),
            1 => any::<prop::sample::Index>().prop_map(Step::Remove),
            1 => any::<prop::sample::Index>().prop_map(Step::End),
            6 => (purpose(), tried).prop_map(|(purpose, tried)| Step::Pick(purpose, tried)),
        ]
    }

    proptest! {
        /// Beside a list that is searched from its beginning, and the work is bounded: a pick looks at those it
        /// tried, at those that ended since somebody looked, and at one more.
        #[test]
        fn the_one_that_rested_longest_is_picked_and_few_are_looked_at(
            steps in prop::collection::vec(step(), 1..120)
        ) {
            let (mut turns, mut plain) = (Turns::default(), Vec::<One>::new());
            let mut unseen = 0;
            for step in steps {
                match step {
                    Step::Add(purpose) => {
                        let one = One { id: LinkId::fresh(), purpose, ended: Rc::default() };
                        turns.add(one.id, purpose, one.clone());
                        plain.push(one);
                    }
                    Step::Remove(which) if !plain.is_empty() => {
                        let one = plain.remove(which.index(plain.len()));
                        turns.remove(one.id);
                    }
                    Step::End(which) if !plain.is_empty() => {
                        unseen += usize::from(!which.get(&plain).ended.replace(true));
                    }
                    Step::Remove(_) | Step::End(_) => {}
                    Step::Pick(purpose, tried) => {
                        let tried: Vec<LinkId> = match plain.as_slice() {
                            [] => Vec::new(),
                            some => tried.iter().map(|which| which.get(some).id).collect(),
                        };
                        let looked = Cell::new(0);
                        let picked = turns.pick(purpose, &tried, |one: &One| {
                            looked.set(looked.get() + 1);
                            one.ended.get()
                        });
                        let free = |one: &&One| !one.ended.get() && !tried.contains(&one.id);
                        let suits = plain.iter().filter(free).find(|one| one.purpose == purpose);
                        let expected = suits.or_else(|| plain.iter().find(free)).map(|one| one.id);
                        prop_assert_eq!(picked.map(|one| one.id), expected);
                        prop_assert!(looked.get() <= tried.len() + unseen + 1, "{} looks", looked.get());
                        if let Some(at) = plain.iter().position(|one| Some(one.id) == expected) {
                            let one = plain.remove(at);
                            plain.push(one);
                        }
                    }
                }
            }
            let mut left: Vec<LinkId> = turns.places.keys().copied().collect();
            left.extend(plain.iter().filter(|one| one.ended.get()).map(|one| one.id));
            left.sort();
            left.dedup();
            let mut all: Vec<LinkId> = plain.iter().map(|one| one.id).collect();
            all.sort();
            prop_assert_eq!(left, all, "nobody who lives is lost, and nobody who left stays");
        }
    }

    #[test]
    fn everybody_has_a_turn_before_anybody_has_two() {
        let mut turns = Turns::default();
        let mut all: Vec<LinkId> = (0..100).map(|_| LinkId::fresh()).collect();
        for id in &all {
            turns.add(*id, Purpose::General, *id);
        }
        all.sort();
        for purpose in [Purpose::General, Purpose::Bulk] {
            let mut picked: Vec<LinkId> =
                (0..100).filter_map(|_| turns.pick(purpose, &[], |_| false)).collect();
            picked.sort();
            assert_eq!(picked, all);
        }
    }
}
