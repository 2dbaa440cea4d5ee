//! A master chosen by Sentinels, and replicas that confirm.

use std::time::Duration;

use tarbet_store::backend::Redis;
use tarbet_store::{Change, Durability, Error, RedisConfig, SentinelConfig, Store, StoreConfig, TlsConfig};
use tarbet_testbed::{SentinelOptions, Sentinels, eventually, verified};

use crate::effort;
use crate::place::{key, prefix, secret, text};

const PATIENCE: Duration = Duration::from_mins(1);

fn settings(sentinels: &Sentinels) -> RedisConfig {
    let address =
        |url: String| url.split("://").nth(1).unwrap().rsplit('@').next().unwrap().to_owned().try_into();
    let addresses = sentinels.urls().into_iter().map(|url| address(url).unwrap()).collect();
    RedisConfig {
        url: None,
        sentinel: Some(SentinelConfig {
            master: sentinels.master_name().into(),
            addresses,
            username: None,
            password_file: None,
        }),
        tls: sentinels
            .tls()
            .map(|files| TlsConfig { ca_file: Some(files.authority.clone()), ..TlsConfig::default() }),
        deadline: Duration::from_secs(12),
        ..RedisConfig::at("redis://127.0.0.1".parse().unwrap())
    }
}

#[tokio::test]
async fn a_failover_is_followed() {
    let mut sentinels = Sentinels::start().await.unwrap();
    let settings = RedisConfig { replicas: 1, ..settings(&sentinels) };
    let store = Store::new(Redis::open(&settings).unwrap()).with_reread(Duration::from_millis(200));
    // Confirmed by the replica, so a failover cannot lose it.
    let put = || store.put(key("k"), "w");
    let confirmed = eventually(PATIENCE, "a connected replica", put).await.unwrap();
    let found = tarbet_store::durability(&StoreConfig::Redis(Box::new(settings.clone()))).await.unwrap();
    assert!(matches!(found, Durability::Redis { replicas: 1, awaited: 1, .. }), "{found:?}");
    let greedy = Store::new(Redis::open(&RedisConfig { replicas: 2, ..settings.clone() }).unwrap());
    let error = greedy.put(key("greedy"), "v").await.unwrap_err();
    assert!(matches!(error, Error::Uncertain { .. }), "{error:?}");
    greedy.put_for(key("brief"), "need not be confirmed", PATIENCE).await.unwrap();

    let mut watch = store.watch(prefix("k"));
    assert_eq!(watch.next().await.unwrap().len(), 1);
    let before = sentinels.master_port().await.unwrap();
    let after = sentinels.kill_master().await.unwrap();
    assert_ne!(before, after);
    eventually(PATIENCE, "the new master", || store.ping()).await.unwrap();
    assert_eq!(store.get(&key("k")).await.unwrap().unwrap().revision, confirmed);
    // Nobody is left to confirm lasting changes, but others are made.
    let brief = || store.put_for(key("k2"), "x", PATIENCE);
    let later = eventually(PATIENCE, "a write", brief).await.unwrap();
    assert!(later > confirmed);
    let next = async {
        loop {
            if let Ok(changes) = watch.next().await {
                return changes;
            }
        }
    };
    let changes = tokio::time::timeout(PATIENCE, next).await.unwrap();
    assert!(matches!(&changes[..], [Change::Put(entry)] if entry.key == key("k2")), "{changes:?}");

    sentinels.revive().await.unwrap();
    let more = effort().min(5);
    for n in 0..more {
        let value = format!("x{n}");
        eventually(PATIENCE, "a replica again", || store.put(key("k"), value.clone())).await.unwrap();
        sentinels.failover().await.unwrap();
        let brief = || store.put_for(key("k3"), "y", PATIENCE);
        eventually(PATIENCE, "another failover", brief).await.unwrap();
        assert_eq!(text(&store, &key("k")).await, Some(value));
    }
    verified("failovers of Redis that a store follows: no confirmed write is lost", 1 + more as usize);
}

#[tokio::test]
async fn sentinels_with_tls_and_a_password() {
    let options =
        SentinelOptions { tls: true, password: Some("hunter2".into()), ..SentinelOptions::default() };
    let sentinels = Sentinels::start_with(options).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let good =
        RedisConfig { password_file: Some(secret(folder.path(), "p", "hunter2")), ..settings(&sentinels) };
    let store = Store::new(Redis::open(&good).unwrap());
    store.put(key("k"), "v").await.unwrap();
    assert_eq!(text(&store, &key("k")).await.as_deref(), Some("v"));
    let plain = Store::new(
        Redis::open(&RedisConfig { tls: None, deadline: Duration::from_millis(600), ..good }).unwrap(),
    );
    assert!(plain.ping().await.is_err());
}

#[tokio::test]
async fn sentinels_that_want_a_login_of_their_own() {
    let sentinels = Sentinels::start().await.unwrap();
    let mut direct =
        redis::Client::open(&*sentinels.urls()[0]).unwrap().get_multiplexed_async_connection().await.unwrap();
    let login = ["SETUSER", "gateway", "on", ">hunter2", "+@all", "allkeys", "allchannels"];
    redis::cmd("ACL").arg(&login).exec_async(&mut direct).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let open = |password: &str| {
        let mut config = settings(&sentinels);
        if let Some(sentinel) = &mut config.sentinel {
            sentinel.username = Some("gateway".into());
            sentinel.password_file = Some(secret(folder.path(), password, password));
        }
        Store::new(Redis::open(&config).unwrap())
    };
    open("hunter2").put(key("k"), "v").await.unwrap();
    let error = open("wrong").ping().await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
}
