//! The work of a controller: keys to look at, each by one worker at a time.
//!
//! A key carries no payload: a reconcile reads the present state itself, so a lost or doubled key
//! costs time and never correctness. A key added while it is being worked on is worked on once
//! more afterwards. Failures are tried again with growing pauses, each key for itself.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// The first pause after a failure.
const FIRST: Duration = Duration::from_millis(50);
/// The longest pause: a cluster that came back is noticed within this time.
const LONGEST: Duration = Duration::from_secs(15);

/// What came of one look at a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing more until the key is added again.
    Done,
    /// Look again after this time.
    Again(Duration),
    /// Try again soon, then later and later.
    Failed,
}

/// Keys waiting to be worked on. Cheap to clone.
pub struct Queue<K> {
    state: Arc<Mutex<State<K>>>,
    wake: Arc<Notify>,
}

struct State<K> {
    ready: VecDeque<K>,
    listed: HashSet<K>,
    active: HashSet<K>,
    // Added while active.
    dirty: HashSet<K>,
    later: BTreeMap<(Instant, u64), K>,
    // The one waiting time of a key, so that a key is not in `later` twice.
    due: HashMap<K, (Instant, u64)>,
    failures: HashMap<K, u32>,
    turn: u64,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state), wake: Arc::clone(&self.wake) }
    }
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        let state = State {
            ready: VecDeque::new(),
            listed: HashSet::new(),
            active: HashSet::new(),
            dirty: HashSet::new(),
            later: BTreeMap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            turn: 0,
        };
        Self { state: Arc::new(Mutex::new(state)), wake: Arc::new(Notify::new()) }
    }
}

impl<K: Clone + Eq + Hash + Send + 'static> Queue<K> {
    /// Asks for a look at the key, as soon as a worker is free.
    pub fn add(&self, key: K) {
        self.lock().add(key);
        self.wake.notify_one();
    }

    /// Asks for a look at the key after some time, or earlier if it was asked for earlier.
    pub fn add_after(&self, key: K, pause: Duration) {
        self.lock().add_at(key, Instant::now() + pause);
        self.wake.notify_one();
    }

    /// Keys that wait for a worker now.
    pub fn depth(&self) -> usize {
        self.lock().ready.len()
    }

    /// Works until `stop`, with up to `workers` keys at once, then lets those in work finish.
    ///
    /// Dropping the future instead drops what is in work and puts its keys back in line, for whoever runs the
    /// queue next. A reconcile that panics counts as failed.
    pub async fn run<F, T>(&self, workers: usize, stop: CancellationToken, reconcile: F)
    where
        F: Fn(K) -> T,
        T: Future<Output = Outcome> + Send + 'static,
    {
        let mut taken = Taken { queue: self, keys: HashMap::new() };
        // Told to end before the keys are in line again.
        let mut tasks = JoinSet::new();
        loop {
            let next_due = {
                let mut state = self.lock();
                state.ripen(Instant::now());
                while tasks.len() < workers && !stop.is_cancelled() {
                    let Some(key) = state.take() else { break };
                    let task = tasks.spawn(reconcile(key.clone()));
                    taken.keys.insert(task.id(), key);
                }
                state.later.first_key_value().map(|((at, _), _)| *at)
            };
            if stop.is_cancelled() && tasks.is_empty() {
                return;
            }
            let due = async {
                match next_due {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.wake.notified(), if !stop.is_cancelled() => {}
                () = due, if !stop.is_cancelled() => {}
                () = stop.cancelled(), if !stop.is_cancelled() => {}
                Some(ended) = tasks.join_next_with_id() => {
                    let (id, outcome) = match ended {
                        Ok((id, outcome)) => (id, outcome),
                        Err(error) => {
                            tracing::error!(cause = %error, "A reconcile panicked.");
                            (error.id(), Outcome::Failed)
                        }
                    };
                    if let Some(key) = taken.keys.remove(&id) {
                        self.lock().finish(key, outcome, Instant::now());
                    }
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The keys in work by one run of the queue.
struct Taken<'a, K: Clone + Eq + Hash> {
    queue: &'a Queue<K>,
    keys: HashMap<Id, K>,
}

impl<K: Clone + Eq + Hash> Drop for Taken<'_, K> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, key) in self.keys.drain() {
            state.active.remove(&key);
            state.dirty.remove(&key);
            state.add(key);
        }
        drop(state);
        self.queue.wake.notify_one();
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn add(&mut self, key: K) {
        if self.active.contains(&key) {
            self.dirty.insert(key);
        } else if self.listed.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn add_at(&mut self, key: K, at: Instant) {
        if let Some(known) = self.due.get(&key).copied() {
            if known.0 <= at {
                return;
            }
            self.later.remove(&known);
        }
        self.turn += 1;
        self.due.insert(key.clone(), (at, self.turn));
        self.later.insert((at, self.turn), key);
    }

    /// Moves what is due into the line.
    fn ripen(&mut self, now: Instant) {
        while let Some(entry) = self.later.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let key = entry.remove();
            self.due.remove(&key);
            self.add(key);
        }
    }

    fn take(&mut self) -> Option<K> {
        let key = self.ready.pop_front()?;
        self.listed.remove(&key);
        self.active.insert(key.clone());
        Some(key)
    }

    fn finish(&mut self, key: K, outcome: Outcome, now: Instant) {
        self.active.remove(&key);
        let dirty = self.dirty.remove(&key);
        match outcome {
            Outcome::Failed => {
                let failures = self.failures.entry(key.clone()).or_default();
                let pause = FIRST.saturating_mul(1 << (*failures).min(12)).min(LONGEST);
                *failures += 1;
                self.add_at(key, now + pause.mul_f64(rand::random_range(0.75..1.0)));
                return;
            }
            Outcome::Again(pause) => {
                self.failures.remove(&key);
                self.add_at(key.clone(), now + pause);
            }
            Outcome::Done => {
                self.failures.remove(&key);
            }
        }
        if dirty {
            self.add(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test(start_paused = true)]
    async fn failures_are_tried_again_later_and_later_and_panics_are_failures() {
        let queue = Queue::default();
        let stop = CancellationToken::new();
        let times = Arc::new(Mutex::new(Vec::new()));
        queue.add("key");
        let (seen, end) = (Arc::clone(&times), stop.clone());
        let start = Instant::now();
        queue
            .run(4, stop, move |_| {
                let (seen, end) = (Arc::clone(&seen), end.clone());
                async move {
                    let count = {
                        let mut seen = seen.lock().unwrap();
                        seen.push(start.elapsed());
                        seen.len()
                    };
                    assert!(count != 2, "the second look panics");
                    if count == 12 {
                        end.cancel();
                        return Outcome::Done;
                    }
                    Outcome::Failed
                }
            })
            .await;
        let times = times.lock().unwrap();
        let pauses: Vec<Duration> = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
        assert!(pauses[0] <= FIRST && pauses[5] > pauses[1], "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= LONGEST), "{pauses:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_key_is_worked_on_by_one_worker_at_a_time_and_never_forgotten() {
        let queue: Queue<u8> = Queue::default();
        let stop = CancellationToken::new();
        let active: Arc<Vec<AtomicUsize>> = Arc::new((0..4).map(|_| AtomicUsize::new(0)).collect());
        let looks: Arc<Vec<AtomicUsize>> = Arc::new((0..4).map(|_| AtomicUsize::new(0)).collect());
        let (now_active, counts, again, end) = (active, Arc::clone(&looks), queue.clone(), stop.clone());
        for key in 0..4 {
            queue.add(key);
            queue.add(key);
        }
        queue
            .run(3, stop, move |key| {
                let (active, looks, queue, end) =
                    (Arc::clone(&now_active), Arc::clone(&counts), again.clone(), end.clone());
                async move {
                    let index = usize::from(key);
                    assert_eq!(active[index].fetch_add(1, Ordering::SeqCst), 0);
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    let look = looks[index].fetch_add(1, Ordering::SeqCst) + 1;
                    if look < 5 {
                        // Added while active: must come again.
                        queue.add(key);
                    }
                    active[index].fetch_sub(1, Ordering::SeqCst);
                    if looks.iter().all(|count| count.load(Ordering::SeqCst) >= 5) {
                        end.cancel();
                    }
                    Outcome::Done
                }
            })
            .await;
        assert!(looks.iter().all(|count| count.load(Ordering::SeqCst) == 5));
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_in_work_when_a_run_was_dropped_is_taken_up_by_the_next() {
        let queue = Queue::default();
        let begun = Arc::new(Notify::new());
        queue.add("key");
        let told = Arc::clone(&begun);
        let cut_off = queue.run(1, CancellationToken::new(), move |_| {
            told.notify_one();
            std::future::pending()
        });
        tokio::select! {
            () = cut_off => unreachable!("it never ends by itself"),
            () = begun.notified() => {}
        }
        let stop = CancellationToken::new();
        let end = stop.clone();
        queue
            .run(1, stop, move |_| {
                end.cancel();
                async { Outcome::Done }
            })
            .await;
        assert_eq!(queue.depth(), 0);
    }

    proptest! {
        #[test]
        fn the_earliest_time_wins(pauses in proptest::collection::vec(0u64..100, 1..10)) {
            let now = Instant::now();
            let mut state = Queue::<u8>::default();
            let inner = Arc::get_mut(&mut state.state).unwrap().get_mut().unwrap();
            for pause in &pauses {
                inner.add_at(1, now + Duration::from_secs(*pause));
            }
            prop_assert_eq!(inner.later.len(), 1);
            let earliest = pauses.iter().min().copied().unwrap();
            prop_assert_eq!(inner.later.first_key_value().unwrap().0.0, now + Duration::from_secs(earliest));
        }
    }
}
