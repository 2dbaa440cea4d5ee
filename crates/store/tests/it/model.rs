//! Random histories: every back end does what a few lines of obvious code do.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tarbet_store::backend::Redis;
use tarbet_store::{Commit, Condition, Error, Expect, Key, Operation, Prefix, RedisConfig, Revision, Store};

use crate::effort;
use crate::place::{InFile, InMemory, Place, config, table};

/// One step of a history. Revisions are named by how many commits ago they were made.
#[derive(Clone, Debug)]
enum Step {
    Commit { conditions: Vec<(u8, Want)>, operations: BTreeMap<u8, Do> },
    Range { prefix: Option<u8>, limit: usize },
    Pass(u64),
}

#[derive(Clone, Debug)]
enum Want {
    Absent,
    Present,
    Current,
    Ago(usize),
}

#[derive(Clone, Debug)]
enum Do {
    Put(Vec<u8>, Option<u64>),
    Delete,
    Refresh(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = 0..8_u8;
    let seconds = prop_oneof![1..5_u64, Just(3600)];
    let want = prop_oneof![
        1 => Just(Want::Absent),
        1 => Just(Want::Present),
        4 => Just(Want::Current),
        1 => (0..4_usize).prop_map(Want::Ago),
    ];
    let act = prop_oneof![
        4 => (any::<Vec<u8>>(), prop::option::of(seconds.clone())).prop_map(|(value, ttl)| Do::Put(value, ttl)),
        1 => Just(Do::Delete),
        1 => seconds.prop_map(Do::Refresh),
    ];
    let commit = (
        prop::collection::vec((name.clone(), want), 0..3),
        prop::collection::btree_map(name.clone(), act, 1..4),
    )
        .prop_map(|(conditions, operations)| Step::Commit { conditions, operations });
    let range =
        (prop::option::of(0..4_u8), 1..6_usize).prop_map(|(prefix, limit)| Step::Range { prefix, limit });
    let step = prop_oneof![6 => commit, 2 => range, 1 => (1..4_u64).prop_map(Step::Pass)];
    prop::collection::vec(step, 1..40)
}

/// Eight names: four in each of two tables, with a zero byte and a longer one among them.
fn name(number: u8) -> Key {
    let bytes: &[u8] = [&b"\0"[..], b"a", b"a\0", b"ab"][usize::from(number % 4)];
    table(if number < 4 { "t" } else { "u" }).key(bytes.to_vec())
}

#[derive(Clone, Debug, PartialEq)]
struct Known {
    value: Vec<u8>,
    revision: Revision,
    expires: Option<u64>,
}

/// The obvious code.
#[derive(Default)]
struct Model {
    now: u64,
    entries: BTreeMap<Key, Known>,
    history: Vec<Revision>,
}

impl Model {
    fn live(&self, key: &Key) -> Option<&Known> {
        self.entries.get(key).filter(|known| known.expires.is_none_or(|at| at > self.now))
    }

    fn expect(&self, key: &Key, want: &Want) -> Expect {
        match want {
            Want::Absent => Expect::Absent,
            Want::Present => Expect::Present,
            Want::Current => self.live(key).map_or(Expect::Absent, |known| Expect::At(known.revision)),
            Want::Ago(ago) => {
                let past = self.history.iter().rev().nth(*ago);
                Expect::At(past.copied().unwrap_or(Revision::new(1)))
            }
        }
    }

    fn conflict(&self, conditions: &[Condition]) -> Option<Key> {
        let broken = conditions.iter().find(|condition| {
            let found = self.live(&condition.key).map(|known| known.revision);
            match condition.expect {
                Expect::Absent => found.is_some(),
                Expect::Present => found.is_none(),
                Expect::At(revision) => found != Some(revision),
            }
        });
        broken.map(|condition| condition.key.clone())
    }

    fn apply(&mut self, operations: &BTreeMap<u8, Do>, revision: Revision) {
        self.history.push(revision);
        for (number, act) in operations {
            let key = name(*number);
            match act {
                Do::Put(value, ttl) => {
                    let expires = ttl.map(|ttl| self.now + ttl);
                    self.entries.insert(key, Known { value: value.clone(), revision, expires });
                }
                Do::Delete => drop(self.entries.remove(&key)),
                Do::Refresh(ttl) => {
                    if let Some(known) = self.live(&key).cloned() {
                        self.entries.insert(key, Known { expires: Some(self.now + ttl), ..known });
                    }
                }
            }
        }
    }
}

/// How the time of a store can be handled.
#[derive(Clone, Copy, PartialEq)]
enum Time {
    /// It stands still until moved, so every expiry is exact.
    Ours,
    /// It moves by itself; only far expiries are used.
    Theirs,
}

async fn check(place: &impl Place, store: &Store, steps: &[Step], time: Time) {
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Pass(_) if time == Time::Theirs => {}
            Step::Pass(seconds) => {
                place.pass(Duration::from_secs(*seconds)).await;
                model.now += seconds;
            }
            Step::Commit { conditions, operations } => {
                commit(store, &mut model, conditions, operations, time).await;
            }
            Step::Range { prefix, limit } => {
                let prefix = prefix.map_or_else(Prefix::everything, |number| {
                    let key = name(number);
                    key.table.prefix(key.bytes)
                });
                compare(store, &model, &prefix, *limit, time).await;
            }
        }
    }
    compare(store, &model, &Prefix::everything(), 3, time).await;
    for number in 0..8 {
        let found = store.get(&name(number)).await.unwrap();
        let expected = model.live(&name(number));
        assert_eq!(
            found.map(|entry| (entry.value.to_vec(), entry.revision)),
            expected.map(|known| (known.value.clone(), known.revision))
        );
    }
}

fn seconds(ttl: u64, time: Time) -> Duration {
    Duration::from_secs(if time == Time::Ours { ttl } else { ttl + 36_000 })
}

async fn commit(
    store: &Store,
    model: &mut Model,
    conditions: &[(u8, Want)],
    operations: &BTreeMap<u8, Do>,
    time: Time,
) {
    let conditions: Vec<Condition> = conditions
        .iter()
        .map(|(number, want)| Condition { key: name(*number), expect: model.expect(&name(*number), want) })
        .collect();
    let raw = operations.iter().map(|(number, act)| match act {
        Do::Put(value, ttl) => Operation::Put {
            key: name(*number),
            value: value.clone().into(),
            ttl: ttl.map(|ttl| seconds(ttl, time)),
        },
        Do::Delete => Operation::Delete { key: name(*number) },
        Do::Refresh(ttl) => Operation::Refresh { key: name(*number), ttl: seconds(*ttl, time) },
    });
    let commit = Commit { conditions: conditions.clone(), operations: raw.collect(), ..Commit::new() };
    match (store.commit(commit).await, model.conflict(&conditions)) {
        (Ok(revision), None) => {
            assert!(model.history.last().is_none_or(|last| *last < revision));
            model.apply(operations, revision);
        }
        (Err(Error::Conflict { key }), Some(expected)) => assert_eq!(key, expected),
        (result, expected) => panic!("{result:?}, expected {expected:?}"),
    }
}

async fn compare(store: &Store, model: &Model, prefix: &Prefix, limit: usize, time: Time) {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = store.range(prefix, after.as_ref(), limit).await.unwrap();
        assert!(page.entries.len() <= limit);
        found.extend(page.entries);
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let live = model.entries.keys().filter(|key| prefix.contains(key));
    let expected: Vec<_> =
        live.filter_map(|key| model.live(key).map(|known| (key.clone(), known.clone()))).collect();
    let found: Vec<_> = found
        .into_iter()
        .map(|entry| {
            let expires = match (time, entry.expires_in, model.entries.get(&entry.key)) {
                (Time::Ours, left, _) => left.map(|left| model.now + left.as_secs()),
                // Only whether it expires can be compared with a clock that moves by itself.
                (Time::Theirs, Some(_), Some(known)) => known.expires.or(Some(0)),
                (Time::Theirs, _, _) => None,
            };
            (entry.key, Known { value: entry.value.to_vec(), revision: entry.revision, expires })
        })
        .collect();
    assert_eq!(found, expected);
}

fn run(cases: u32, check: impl Fn(Vec<Step>)) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let run = TestRunner::new(config).run(&steps(), |steps| {
        check(steps);
        Ok(())
    });
    run.unwrap();
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn memory_does_what_the_model_does() {
    let runtime = runtime();
    run(100 * effort(), |steps| {
        runtime.block_on(async {
            let place = InMemory::new().await;
            check(&place, &place.open(), &steps, Time::Ours).await;
        });
    });
}

#[test]
fn redb_does_what_the_model_does() {
    let runtime = runtime();
    run(20 * effort(), |steps| {
        runtime.block_on(async {
            let place = InFile::new().await;
            check(&place, &place.open(), &steps, Time::Ours).await;
        });
    });
}

#[test]
fn redis_does_what_the_model_does() {
    let runtime = runtime();
    let server = runtime.block_on(tarbet_testbed::Redis::start()).unwrap();
    let count = std::cell::Cell::new(0);
    run(30 * effort(), |steps| {
        runtime.block_on(async {
            count.set(count.get() + 1);
            let config = RedisConfig { prefix: format!("case-{}", count.get()), ..config(&server) };
            let store = Store::new(Redis::open(&config).unwrap());
            check(&InMemory::new().await, &store, &steps, Time::Theirs).await;
        });
    });
}
