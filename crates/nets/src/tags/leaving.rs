//! Who followed a tag that is deleted: known for a while, because the original's orchestrator asks for them only
//! after it has deleted the tag.

use std::collections::BTreeMap;

use tokio::time::Instant;

use crate::plan::tags::Write;

/// Subscriptions that end, and when.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    ends: BTreeMap<(String, String), Instant>,
    first: Option<Instant>,
}

impl Leaving {
    /// Learns from a write; what retires with it is known until then.
    pub(super) fn learn(&mut self, write: &Write, until: Instant) {
        match write {
            Write::Retire(tag, who) => self.note(tag, who, until),
            Write::Subscribe(tag, who) | Write::Unsubscribe(tag, who) if !self.ends.is_empty() => {
                self.ends.remove(&(tag.clone(), who.clone()));
            }
            _ => {}
        }
    }

    pub(super) fn note(&mut self, tag: &str, who: &str, until: Instant) {
        self.ends.insert((tag.to_owned(), who.to_owned()), until);
        self.first = Some(self.first.map_or(until, |first| first.min(until)));
    }

    /// Who is about to be forgotten as a follower of this tag.
    pub(super) fn of(&self, tag: &str) -> Vec<String> {
        let from = self.ends.range((tag.to_owned(), String::new())..);
        from.take_while(|((of, _), _)| of == tag).map(|((_, who), _)| who.clone()).collect()
    }

    /// Those whose time is over, as what makes it so. They are not told again.
    pub(super) fn over(&mut self, now: Instant) -> Vec<Write> {
        if self.first.is_none_or(|first| now < first) {
            return Vec::new();
        }
        let over: Vec<(String, String)> =
            self.ends.iter().filter(|(_, end)| **end <= now).map(|(key, _)| key.clone()).collect();
        for key in &over {
            self.ends.remove(key);
        }
        self.first = self.ends.values().min().copied();
        over.into_iter().map(|(tag, who)| Write::Unsubscribe(tag, who)).collect()
    }
}
