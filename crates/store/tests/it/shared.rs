//! What is special to Redis: who may connect, what is kept apart, what the server is asked about itself.

use std::collections::BTreeMap;
use std::time::Duration;

use tarbet_store::backend::Redis;
use tarbet_store::{
    Commit, Durability, Error, Prefix, RedisConfig, Retry, Revision, Store, StoreConfig, TlsConfig,
};
use tarbet_testbed::{Authority, Persistence, RedisOptions, Subject, TlsMode};

use crate::place::{config, key, prefix, secret, text};

fn open(config: &RedisConfig) -> Store {
    Store::new(Redis::open(config).unwrap())
}

#[tokio::test]
async fn prefixes_and_databases_keep_stores_apart() {
    let server = tarbet_testbed::Redis::start().await.unwrap();
    let base = config(&server);
    let stores = [
        open(&base),
        open(&RedisConfig { prefix: "tarbet:x".into(), ..base.clone() }),
        open(&RedisConfig { database: 3, ..base.clone() }),
    ];
    for (number, store) in stores.iter().enumerate() {
        store.create(key("k"), number.to_string()).await.unwrap();
    }
    for (number, store) in stores.iter().enumerate() {
        assert_eq!(text(store, &key("k")).await, Some(number.to_string()));
        assert_eq!(store.list(&Prefix::everything()).await.unwrap().len(), 1);
    }
    let keys = server.command(&["KEYS", "*"]).await.unwrap();
    assert!(keys.lines().all(|key| key.starts_with("tarbet:")), "{keys}");
}

#[tokio::test]
async fn a_password_is_needed_read_from_its_file_and_may_change() {
    let options = RedisOptions { password: Some("first".into()), ..RedisOptions::default() };
    let server = tarbet_testbed::Redis::start_with(options).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = secret(folder.path(), "password", "first\n");
    let good = RedisConfig { password_file: Some(file), ..config(&server) };
    let store = open(&good);
    store.put(key("k"), "v").await.unwrap();

    for bad in [None, Some(secret(folder.path(), "wrong", "hunter2"))] {
        let error = open(&RedisConfig { password_file: bad, ..good.clone() }).ping().await.unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert_eq!(error.class().retry, Retry::No);
        let told = tarbet_telemetry::problem::chain(&error);
        assert!(!told.contains("hunter2") && !format!("{error:?}").contains("hunter2"), "{told}");
    }
    let refused = StoreConfig::Redis(Box::new(RedisConfig { password_file: None, ..good.clone() }));
    assert!(
        tarbet_store::open(&refused, tarbet_store::Clock::system()).await.is_err(),
        "waiting would not help"
    );
    let missing = "/nowhere/password".parse().ok();
    let error = Redis::open(&RedisConfig { password_file: missing, ..good.clone() }).unwrap_err();
    assert!(matches!(error, Error::Setting { setting: "password_file", .. }), "{error:?}");

    // Rotation: the server gets a new one, the file too, and connections made from now on use it.
    server.command(&["CONFIG", "SET", "requirepass", "second"]).await.unwrap();
    secret(folder.path(), "password", "second");
    open(&good).put(key("k"), "w").await.unwrap();
    assert_eq!(text(&store, &key("k")).await.as_deref(), Some("w"));
}

#[tokio::test]
async fn a_user_with_only_its_own_keys_is_enough() {
    let server = tarbet_testbed::Redis::start().await.unwrap();
    let rights = ["ACL", "SETUSER", "gateway", "on", ">hunter2", "~tarbet:*", "~tarbet", "&tarbet:*"];
    let commands = [
        "+@read",
        "+@write",
        "+@scripting",
        "+@pubsub",
        "+@connection",
        "+time",
        "+publish",
        "+info",
        "-@dangerous",
    ];
    server.command(&[&rights[..], &commands].concat()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let password_file = Some(secret(folder.path(), "password", "hunter2"));
    let own = RedisConfig { username: Some("gateway".into()), password_file, ..config(&server) };
    let store = open(&own);
    let mut watch = open(&own).with_reread(Duration::from_hours(1)).watch(prefix(""));
    assert_eq!(watch.next().await.unwrap(), []);
    store.put_for(key("k"), "v", Duration::from_mins(1)).await.unwrap();
    assert_eq!(watch.next().await.unwrap().len(), 1);
    let error = open(&RedisConfig { prefix: "other".into(), ..own }).put(key("k"), "v").await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
}

#[tokio::test]
async fn tls_with_our_own_authority_and_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("authority of the test").unwrap();
    let files = authority.issue_files(&Subject::loopback("redis"), folder.path(), "redis").unwrap();
    let client = authority.issue_files(&Subject::client("gateway", None), folder.path(), "gateway").unwrap();
    let options = RedisOptions {
        tls: TlsMode::Files(files.clone()),
        config: vec!["tls-auth-clients yes".into()],
        ..RedisOptions::default()
    };
    // The server wants a certificate of ours, which the test bed's own probe does not have.
    let relaxed = RedisOptions { config: Vec::new(), ..options.clone() };
    let server = tarbet_testbed::Redis::start_with(relaxed).await.unwrap();
    server.command(&["CONFIG", "SET", "tls-auth-clients", "yes"]).await.unwrap();
    let tls = TlsConfig {
        ca_file: Some(files.authority.clone()),
        cert_file: Some(client.certificate.clone()),
        key_file: Some(client.key.to_str().unwrap().parse().unwrap()),
    };
    let good = RedisConfig { tls: Some(tls.clone()), ..config(&server) };
    let store = open(&good);
    store.put(key("k"), "v").await.unwrap();
    let mut watch = open(&good).with_reread(Duration::from_hours(1)).watch(prefix(""));
    assert_eq!(watch.next().await.unwrap().len(), 1);
    store.put(key("l"), "v").await.unwrap();
    assert_eq!(watch.next().await.unwrap().len(), 1);

    // Time enough for a handshake on a busy machine.
    let hasty = RedisConfig { deadline: Duration::from_secs(9), ..good.clone() };
    let anonymous = TlsConfig { cert_file: None, key_file: None, ..tls.clone() };
    let error = open(&RedisConfig { tls: Some(anonymous), ..hasty.clone() }).ping().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let stranger = Authority::new("a stranger").unwrap();
    let other = stranger.issue_files(&Subject::loopback("x"), folder.path(), "x").unwrap();
    let fooled = TlsConfig { ca_file: Some(other.authority), ..tls };
    let error = open(&RedisConfig { tls: Some(fooled), ..hasty }).ping().await.unwrap_err();
    let told = tarbet_telemetry::problem::chain(&error);
    assert!(told.contains("certificate"), "{told}");
    let missing = TlsConfig { ca_file: Some("/nowhere/ca.pem".into()), ..TlsConfig::default() };
    let error = Redis::open(&RedisConfig { tls: Some(missing), ..good }).unwrap_err();
    assert!(matches!(error, Error::Setting { setting: "tls.ca_file", .. }), "{error:?}");
}

#[tokio::test]
async fn a_newer_layout_is_refused_and_left_alone() {
    let server = tarbet_testbed::Redis::start().await.unwrap();
    let store = open(&config(&server));
    store.put(key("k"), "v").await.unwrap();
    server.command(&["SET", "tarbet:schema", "99"]).await.unwrap();
    let error = store.put(key("k"), "w").await.unwrap_err();
    assert!(matches!(error, Error::Schema { found: 99, .. }), "{error:?}");
    let error = open(&config(&server)).get(&key("k")).await.unwrap_err();
    assert!(matches!(error, Error::Schema { found: 99, .. }), "{error:?}");
    server.command(&["SET", "tarbet:schema", "1"]).await.unwrap();
    assert_eq!(text(&store, &key("k")).await.as_deref(), Some("v"));
}

#[tokio::test]
async fn foreign_data_under_the_prefix_is_an_error_and_not_a_panic() {
    let server = tarbet_testbed::Redis::start().await.unwrap();
    let store = open(&config(&server));
    server.command(&["HSET", "tarbet:values:t", "k", "no revision"]).await.unwrap();
    server.command(&["ZADD", "tarbet:index:t", "0", "k"]).await.unwrap();
    assert!(matches!(store.get(&key("k")).await, Err(Error::Refused { .. })));
    assert!(matches!(store.list(&prefix("")).await, Err(Error::Refused { .. })));
    server.command(&["SET", "tarbet:values:u", "a string"]).await.unwrap();
    let elsewhere = crate::place::table("u").key("k");
    assert!(matches!(store.put(elsewhere, "v").await, Err(Error::Refused { .. })));
    server.command(&["PUBLISH", "tarbet:0:changed", "\u{1}nonsense"]).await.unwrap();
    store.put(key("k"), "v").await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_full_says_so() {
    let options = RedisOptions { config: vec!["maxmemory 1500kb".into()], ..RedisOptions::default() };
    let server = tarbet_testbed::Redis::start_with(options).await.unwrap();
    let store = open(&config(&server));
    let mut result = Ok(());
    for i in 0..20_u8 {
        result = store.put(key([i]), vec![i; 500_000]).await.map(drop);
        if result.is_err() {
            break;
        }
    }
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(tarbet_telemetry::problem::chain(&error).contains("OOM"), "{error:?}");
}

#[tokio::test]
async fn a_server_is_asked_what_it_survives() {
    let careless = tarbet_testbed::Redis::start().await.unwrap();
    let found = tarbet_store::durability(&StoreConfig::Redis(Box::new(config(&careless)))).await.unwrap();
    assert!(matches!(found, Durability::Redis { append_only: false, evicts: false, .. }), "{found:?}");
    assert!(found.warnings()[0].contains("appendonly"), "{:?}", found.warnings());
    let options = RedisOptions { persistence: Persistence::AppendOnly, ..RedisOptions::default() };
    let mut careful = tarbet_testbed::Redis::start_with(options).await.unwrap();
    let hasty = RedisConfig { deadline: Duration::from_millis(600), ..config(&careful) };
    let settings = StoreConfig::Redis(Box::new(hasty));
    let found = tarbet_store::durability(&StoreConfig::Redis(Box::new(config(&careful)))).await.unwrap();
    assert_eq!(found.warnings(), Vec::<&str>::new(), "{found:?}");
    careful.stop().await.unwrap();
    assert!(matches!(tarbet_store::durability(&settings).await, Err(Error::Unavailable { .. })));
}

/// How often each command was run since the counts were set back, also those that scripts run.
async fn commands(server: &tarbet_testbed::Redis) -> BTreeMap<String, u64> {
    let told = server.command(&["INFO", "commandstats"]).await.unwrap();
    let counted = told.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    });
    counted.collect()
}

#[tokio::test]
async fn a_change_is_one_call_and_the_server_is_asked_no_more_than_it_takes() {
    let server = tarbet_testbed::Redis::start().await.unwrap();
    let store = open(&config(&server));
    let hour = Duration::from_hours(1);
    let change = |number: u64, counter: Revision| {
        let (new, logged) = (key(format!("new-{number}")), key(format!("log-{number}")));
        Commit::new()
            .at(key("counter"), counter)
            .put(new, "v")
            .put(key("counter"), "n")
            .put_for(logged, "changes", hour)
    };
    let first = store.put(key("counter"), "n").await.unwrap();
    let second = store.commit(change(1, first)).await.unwrap();
    server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    store.commit(change(2, second)).await.unwrap();
    let run = commands(&server).await;
    assert_eq!(run.get("evalsha"), Some(&1), "{run:?}");
    let asides = ["evalsha", "info", "config|resetstat", "ping", "hello", "client|setinfo", "subscribe"];
    let inner: u64 = run.iter().filter(|(name, _)| !asides.contains(&name.as_str())).map(|(_, n)| n).sum();
    // The time, what was decided, the condition, what expired, the revision, three entries, the decision, the hint.
    assert!(inner <= 17, "{inner}: {run:?}");
    // An entry that was to expire and is written for good does not.
    store.put(key("log-2"), "kept").await.unwrap();
    let kept = store.get(&key("log-2")).await.unwrap().unwrap();
    assert_eq!((&kept.value[..], kept.expires_in), (&b"kept"[..], None));
    assert_eq!(store.list(&Prefix::everything()).await.unwrap().len(), 5, "each is listed once");
}
