//! Where a test runs: one fresh store of each kind, and a way to let time pass.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use tarbet_identity::SecretFile;
use tarbet_store::backend::{Memory, Redb, Redis};
use tarbet_store::{Key, ManualClock, Prefix, RedbConfig, RedisConfig, Store, TableName};
use tarbet_testbed::eventually;

/// A store that tests may open more than once.
pub(crate) trait Place: Sized {
    /// A fresh one.
    async fn new() -> Self;
    /// A handle. Where several processes can share a store, each handle is like one of them.
    fn open(&self) -> Store;
    /// Lets this much of the store's time pass.
    async fn pass(&self, time: Duration);
}

pub(crate) struct InMemory {
    hand: ManualClock,
    store: Store,
}

impl Place for InMemory {
    async fn new() -> Self {
        let hand = ManualClock::new();
        let store = Store::new(Memory::new(hand.clock()));
        Self { hand, store }
    }

    fn open(&self) -> Store {
        self.store.clone()
    }

    async fn pass(&self, time: Duration) {
        self.hand.advance(time);
    }
}

pub(crate) struct InFile {
    hand: ManualClock,
    store: Store,
    _folder: tempfile::TempDir,
}

impl Place for InFile {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let hand = ManualClock::new();
        let config = RedbConfig::at(folder.path().join("store.redb"));
        let store = Store::new(Redb::open(&config, hand.clock()).unwrap());
        Self { hand, store, _folder: folder }
    }

    fn open(&self) -> Store {
        self.store.clone()
    }

    async fn pass(&self, time: Duration) {
        self.hand.advance(time);
    }
}

pub(crate) struct InRedis {
    server: tarbet_testbed::Redis,
}

impl Place for InRedis {
    async fn new() -> Self {
        Self { server: tarbet_testbed::Redis::start().await.unwrap() }
    }

    fn open(&self) -> Store {
        Store::new(Redis::open(&config(&self.server)).unwrap())
    }

    async fn pass(&self, time: Duration) {
        let now = async || -> Duration {
            let answer = self.server.command(&["TIME"]).await.unwrap();
            let (seconds, micros) = answer.split_once('\n').unwrap();
            Duration::from_secs(seconds.parse().unwrap()) + Duration::from_micros(micros.parse().unwrap())
        };
        let end = now().await + time;
        let passed = || async { now().await > end };
        eventually(time + Duration::from_secs(30), "time to pass", passed).await.unwrap();
    }
}

/// Settings for a server of the test bed, patient enough for a busy machine.
pub(crate) fn config(server: &tarbet_testbed::Redis) -> RedisConfig {
    let scheme = if server.tls().is_some() { "rediss" } else { "redis" };
    let url = format!("{scheme}://127.0.0.1:{}", server.port());
    RedisConfig { deadline: Duration::from_secs(15), ..RedisConfig::at(url.parse().unwrap()) }
}

/// A file that holds a secret, for its owner only.
pub(crate) fn secret(folder: &Path, name: &str, content: &str) -> SecretFile {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().parse().unwrap()
}

pub(crate) fn table(name: &str) -> TableName {
    TableName::new(name).unwrap()
}

/// A key in the table `t`.
pub(crate) fn key(bytes: impl Into<Vec<u8>>) -> Key {
    table("t").key(bytes.into())
}

/// A prefix in the table `t`.
pub(crate) fn prefix(bytes: impl Into<Vec<u8>>) -> Prefix {
    table("t").prefix(bytes.into())
}

/// The value at a key, as text.
pub(crate) async fn text(store: &Store, key: &Key) -> Option<String> {
    store.get(key).await.unwrap().map(|entry| String::from_utf8(entry.value.to_vec()).unwrap())
}
