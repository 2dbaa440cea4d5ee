//! Redis restarted, killed, paused, emptied, or cut off in the middle: clear errors, nothing twice,
//! nothing late, and recovery without help.

use std::time::Duration;

use tarbet_store::backend::Redis;
use tarbet_store::{Change, Error, LeaseError, RedisConfig, Retry, Store, StoreConfig, Watch};
use tarbet_telemetry::Coded;
use tarbet_testbed::{Persistence, RedisOptions, eventually, verified};

use crate::effort;
use crate::place::{config, key, prefix, text};
use crate::relay::Relay;

const PATIENCE: Duration = Duration::from_mins(1);

/// A store for what must fail: it gives up soon, so that a test of a long pause need not be long.
fn hasty(server: &tarbet_testbed::Redis) -> Store {
    let config = RedisConfig { deadline: Duration::from_millis(600), ..config(server) };
    Store::new(Redis::open(&config).unwrap())
}

/// A store for what must work, on a busy machine too.
fn patient(server: &tarbet_testbed::Redis) -> Store {
    Store::new(Redis::open(&config(server)).unwrap()).with_reread(Duration::from_millis(100))
}

async fn durable() -> tarbet_testbed::Redis {
    let options = RedisOptions { persistence: Persistence::AppendOnly, ..RedisOptions::default() };
    tarbet_testbed::Redis::start_with(options).await.unwrap()
}

/// Waits until the store works again, without doing anything about it.
async fn recovered(store: &Store) {
    eventually(PATIENCE, "recovery", || store.ping()).await.unwrap();
}

/// The next changes, past any failed looks.
async fn changes(watch: &mut Watch) -> Vec<Change> {
    let next = async {
        loop {
            match watch.next().await {
                Ok(changes) => return changes,
                Err(error) => assert_eq!(error.class().retry, Retry::Later, "{error:?}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, next).await.expect("changes in time")
}

#[tokio::test]
async fn a_restart_is_survived() {
    let mut server = durable().await;
    let store = patient(&server);
    let before = store.put(key("k"), "v").await.unwrap();
    let mut watch = store.watch(prefix(""));
    assert_eq!(changes(&mut watch).await.len(), 1);
    for _ in 0..effort() {
        server.restart().await.unwrap();
        recovered(&store).await;
        assert_eq!(store.get(&key("k")).await.unwrap().unwrap().revision, before);
    }
    // Scripts are gone after a restart and come back by themselves; hints too.
    assert!(store.put(key("l"), "w").await.unwrap() > before);
    let seen = changes(&mut watch).await;
    assert!(matches!(&seen[..], [Change::Put(entry)] if entry.key == key("l")), "{seen:?}");
    verified("restarts of Redis under a store: nothing lost, and it goes on by itself", effort() as usize);
}

#[tokio::test]
async fn a_dead_server_gives_clear_errors_until_it_is_back() {
    let mut server = durable().await;
    let (store, hurried) = (patient(&server), hasty(&server));
    for _ in 0..effort() {
        dies_and_comes_back(&mut server, &store, &hurried).await;
    }
    verified("kill -9 of Redis under a store: clear errors, nothing lost", effort() as usize);
}

async fn dies_and_comes_back(server: &mut tarbet_testbed::Redis, store: &Store, hurried: &Store) {
    let last = store.put(key("k"), "v").await.unwrap();
    recovered(hurried).await;
    server.kill9().unwrap();
    let error = hurried.get(&key("k")).await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { operation: "read", .. }), "{error:?}");
    assert_eq!(error.class().retry, Retry::Later);
    let problem = error.problem();
    assert_eq!(problem.code, "TB-0301");
    assert!(
        problem.hop.contains(&server.port().to_string()) && problem.cause.contains("refused"),
        "{problem:?}"
    );
    let error = hurried.put(key("k"), "w").await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { operation: "commit", .. }), "nothing was sent: {error:?}");
    // A store may be opened while its server is away.
    let settings = RedisConfig { deadline: Duration::from_millis(600), ..config(server) };
    let opened =
        tarbet_store::open(&StoreConfig::Redis(Box::new(settings)), tarbet_store::Clock::system()).await;
    let late = opened.unwrap();
    assert!(late.ping().await.is_err());
    server.restart().await.unwrap();
    for store in [store, hurried, &late] {
        recovered(store).await;
    }
    assert_eq!(store.get(&key("k")).await.unwrap().unwrap().revision, last);
    let read = || async { late.get(&key("k")).await.map(|found| found.map(|entry| entry.revision)) };
    assert_eq!(eventually(PATIENCE, "the late one to read it", read).await.unwrap(), Some(last));
}

#[tokio::test]
async fn a_pause_is_survived_and_nothing_given_up_on_is_done_later() {
    let server = tarbet_testbed::Redis::start().await.unwrap();
    let (store, hurried) = (patient(&server), hasty(&server));
    store.put(key("k"), "before").await.unwrap();
    let mut watch = store.watch(prefix(""));
    changes(&mut watch).await;
    // It has a connection by which to send.
    recovered(&hurried).await;
    server.pause().unwrap();
    for i in 0..3 * effort() {
        let error = hurried.put(key(format!("late{i}")), "must not appear").await.unwrap_err();
        assert!(matches!(error, Error::Uncertain { .. } | Error::Unavailable { .. }), "{error:?}");
        assert!(i > 0 || matches!(error, Error::Uncertain { .. }), "the first was sent: {error:?}");
        let error = hurried.get(&key("k")).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    }
    server.resume().unwrap();
    recovered(&hurried).await;
    recovered(&store).await;
    store.put(key("m"), "after").await.unwrap();
    let seen = changes(&mut watch).await;
    assert!(matches!(&seen[..], [Change::Put(entry)] if entry.key == key("m")), "{seen:?}");
    // The server has worked off what lay in its sockets by the time new connections are served.
    for _ in 0..20 {
        store.put(key("m"), "again").await.unwrap();
    }
    assert_eq!(store.list(&prefix("late")).await.unwrap(), []);
    assert_eq!(text(&store, &key("k")).await.as_deref(), Some("before"));
    verified("writes given up while Redis stands still: none is made later", 3 * effort() as usize);
}

#[tokio::test]
async fn an_emptied_server_is_noticed_and_filled_again() {
    for _ in 0..effort() {
        is_emptied().await;
    }
    verified("Redis emptied under a store: noticed, and no fencing token twice", effort() as usize);
}

async fn is_emptied() {
    let server = tarbet_testbed::Redis::start().await.unwrap();
    let store = patient(&server);
    let mut lease = store.try_lease(key("lease"), "me", Duration::from_mins(5)).await.unwrap().unwrap();
    store.put(key("k"), "v").await.unwrap();
    let mut watch = store.watch(prefix(""));
    assert_eq!(changes(&mut watch).await.len(), 2);
    server.flush().await.unwrap();
    let gone = changes(&mut watch).await;
    assert_eq!(gone, [Change::Deleted(key("k")), Change::Deleted(key("lease"))]);
    assert!(matches!(lease.renew().await, Err(LeaseError::Lost { .. })));
    // Tokens of the emptied store are never given out again.
    let again = store.try_lease(key("lease"), "you", Duration::from_mins(5)).await.unwrap().unwrap();
    assert!(again.token() > lease.token());
    store.create(key("k"), "v").await.unwrap();
    server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
    assert_eq!(text(&store, &key("k")).await.as_deref(), Some("v"));
    let back = changes(&mut watch).await;
    assert!(matches!(back[0], Change::Put(_)), "{back:?}");
}

fn through(relay: &Relay, server: &tarbet_testbed::Redis) -> Store {
    let config = RedisConfig { url: Some(relay.url().parse().unwrap()), ..config(server) };
    Store::new(Redis::open(&config).unwrap())
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_not_made_twice() {
    let server = tarbet_testbed::Redis::start().await.unwrap();
    let relay = Relay::to(server.port()).await;
    let store = through(&relay, &server);
    let rounds = 10 * effort();
    for i in 0..rounds {
        relay.cut_after_next_commit();
        // Made twice it would meet its own first result.
        let revision = store.create(key(i.to_be_bytes()), "v").await.unwrap();
        assert_eq!(store.get(&key(i.to_be_bytes())).await.unwrap().unwrap().revision, revision);
    }
    assert_eq!(relay.cuts(), rounds, "every commit lost its first answer");
    verified("commits to Redis whose answer is lost: none is made twice", rounds as usize);
}

#[tokio::test]
async fn a_commit_that_was_told_to_conflict_is_not_made_when_it_arrives_late() {
    let server = tarbet_testbed::Redis::start().await.unwrap();
    let relay = Relay::to(server.port()).await;
    let (slow, direct) = (through(&relay, &server), Store::new(Redis::open(&config(&server)).unwrap()));
    slow.ping().await.unwrap();
    direct.put(key("k"), "in the way").await.unwrap();
    relay.hold_next_commit();
    // The first attempt is on its way for long enough to be tried again on another connection.
    let error = slow.create(key("k"), "late").await.unwrap_err();
    assert!(error.is_conflict(), "{error:?}");
    direct.delete(key("k")).await.unwrap();
    relay.release().await;
    assert_eq!(text(&direct, &key("k")).await, None);
}

#[tokio::test]
async fn a_lost_hint_costs_time_and_nothing_else() {
    let server = tarbet_testbed::Redis::start().await.unwrap();
    let store = hasty(&server);
    let mut watch = store.watch(prefix(""));
    changes(&mut watch).await;
    // From now on nobody hears of anything.
    server.command(&["ACL", "SETUSER", "default", "resetchannels"]).await.unwrap();
    server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await.unwrap();
    server.command(&["HSET", "tarbet:values:t", "k", "1 put behind its back"]).await.unwrap();
    server.command(&["ZADD", "tarbet:index:t", "0", "k"]).await.unwrap();
    assert_eq!(changes(&mut watch).await.len(), 1);
}
