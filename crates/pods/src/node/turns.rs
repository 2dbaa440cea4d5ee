//! Turns for what only a few may do at once. Whoever finds none free leaves its worker to others, and is looked at
//! again when a turn comes: a worker that waited would keep pods from ending while others are slow to begin.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tarbet_cluster::Queue;

use super::book::Key;

pub(super) struct Turns {
    state: Mutex<State>,
    queue: Queue<Key>,
}

struct State {
    free: usize,
    /// Those who found none, in their order.
    waiting: VecDeque<Key>,
    listed: HashSet<Key>,
}

/// A turn, until it is dropped.
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    /// So many at once; those who wait are added to the queue again.
    pub(super) fn new(free: usize, queue: Queue<Key>) -> Self {
        let state = State { free, waiting: VecDeque::new(), listed: HashSet::new() };
        Self { state: Mutex::new(state), queue }
    }

    /// A turn for a pod, if there is one; else the pod waits in line.
    pub(super) fn take(&self, key: &Key) -> Option<Turn<'_>> {
        let state = &mut *self.lock();
        if state.free == 0 {
            if state.listed.insert(key.clone()) {
                state.waiting.push_back(key.clone());
            }
            return None;
        }
        state.free -= 1;
        if state.listed.remove(key) {
            state.waiting.retain(|other| other != key);
        }
        Some(Turn(self))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let next = {
            let state = &mut *self.0.lock();
            state.free += 1;
            let next = state.waiting.pop_front();
            next.inspect(|key| {
                state.listed.remove(key);
            })
        };
        if let Some(key) = next {
            self.0.queue.add(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("ns".into(), name.into())
    }

    #[test]
    fn whoever_finds_no_turn_is_called_when_there_is_one() {
        let queue = Queue::default();
        let turns = Turns::new(2, queue.clone());
        let mut held: Vec<_> = ["a", "b"].iter().map(|name| turns.take(&key(name)).unwrap()).collect();
        for name in ["c", "d", "c"] {
            assert!(turns.take(&key(name)).is_none());
        }
        assert_eq!(queue.depth(), 0, "nobody is looked at in vain");
        held.pop();
        assert_eq!(queue.depth(), 1);
        // Somebody else comes first; the one who was called waits once more.
        held.push(turns.take(&key("e")).unwrap());
        assert!(turns.take(&key("c")).is_none());
        held.clear();
        assert_eq!((queue.depth(), turns.lock().waiting.len()), (2, 0), "d, and c once more");
        // One that finds a turn by itself is not called as well.
        held.extend(["f", "g"].iter().map(|name| turns.take(&key(name)).unwrap()));
        assert!(turns.take(&key("h")).is_none());
        held.pop();
        held.push(turns.take(&key("h")).unwrap());
        assert!(turns.lock().listed.is_empty());
        held.clear();
        assert_eq!(turns.lock().free, 2);
    }
}
