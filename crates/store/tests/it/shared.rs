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

/// How many commands the server runs inside the scripts of what is done here, and that there is one script.
async fn inside(server: &tarbet_testbed::Redis, done: impl Future<Output = Revision>) -> (u64, Revision) {
    server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
    let revision = done.await;
    let run = commands(server).await;
    assert_eq!(run.get("evalsha"), Some(&1), "{run:?}");
    let asides = ["evalsha", "info", "config|resetstat", "ping", "hello", "client|setinfo", "subscribe"];
    (run.iter().filter(|(name, _)| !asides.contains(&name.as_str())).map(|(_, n)| n).sum(), revision)
}

#[tokio::test]
async fn a_change_is_one_call_and_the_server_is_asked_no_more_than_it_takes() {
    let server = tarbet_testbed::Redis::start().await.unwrap();
    let store = open(&config(&server));
    let hour = Duration::from_hours(1);
    let change = |number: u64, counter: Revision| {
        let new = key(format!("new-{number}"));
        Commit::new().at(key("counter"), counter).put(new, "v").put(key("counter"), "n")
    };
    let logged = |number: u64, counter: Revision| {
        change(number, counter).put_for(key(format!("log-{number}")), "changes", hour)
    };
    let commit = async |commit| store.commit(commit).await.unwrap();
    let first = store.put(key("counter"), "n").await.unwrap();
    let second = commit(change(1, first)).await;
    // The time, what was decided, the condition and whether that is to expire, the revision, an entry that is new
    // and one that is not, the decision, who listens, and for one in a few what expired.
    let (inner, third) = inside(&server, commit(change(2, second))).await;
    assert!(inner <= 11, "{inner}");
    // What expired, and an entry with its end.
    let (inner, _) = inside(&server, commit(logged(3, third))).await;
    assert!(inner <= 14, "{inner}");
    // An entry that was to expire and is written for good does not.
    store.put(key("log-3"), "kept").await.unwrap();
    let kept = store.get(&key("log-3")).await.unwrap().unwrap();
    assert_eq!((&kept.value[..], kept.expires_in), (&b"kept"[..], None));
    assert_eq!(store.list(&Prefix::everything()).await.unwrap().len(), 5, "each is listed once");
}

#[tokio::test]
async fn who_listens_alone_tells_itself_and_others_are_told() {
    let server = tarbet_testbed::Redis::start().await.unwrap();
    let one = open(&config(&server)).with_reread(Duration::from_hours(1));
    let mut near = one.watch(prefix(""));
    assert_eq!(near.next().await.unwrap(), []);
    one.put(key("a"), "v").await.unwrap();
    assert_eq!(near.next().await.unwrap().len(), 1);
    let quiet = || async {
        one.put(key("b"), "v").await.unwrap();
        server.command(&["CONFIG", "RESETSTAT"]).await.unwrap();
        one.put(key("b"), "w").await.unwrap();
        commands(&server).await.get("publish").map_or(Ok(()), |_| Err("it tells others"))
    };
    tarbet_testbed::eventually(Duration::from_mins(1), "it listens alone", quiet).await.unwrap();
    assert_eq!(near.next().await.unwrap().len(), 1);

    let two = open(&config(&server)).with_reread(Duration::from_hours(1));
    let mut far = two.watch(prefix(""));
    assert_eq!(far.next().await.unwrap().len(), 2);
    one.put(key("c"), "v").await.unwrap();
    assert_eq!((near.next().await.unwrap().len(), far.next().await.unwrap().len()), (1, 1));
    two.put(key("d"), "v").await.unwrap();
    assert_eq!((near.next().await.unwrap().len(), far.next().await.unwrap().len()), (1, 1));
}

#[tokio::test]
async fn what_has_expired_leaves_the_server() {
    let server = tarbet_testbed::Redis::start().await.unwrap();
    let store = open(&config(&server));
    let short = Duration::from_millis(1);
    for round in 0..50_u8 {
        let hundred = (0..100_u8).map(|number| key([round, number]));
        store
            .commit(hundred.fold(Commit::new(), |commit, key| commit.put_for(key, "v", short)))
            .await
            .unwrap();
    }
    // Whatever is written next, even if none of it expires.
    let swept = || async {
        store.put(key("k"), "v").await.unwrap();
        let counts = [["HLEN", "tarbet:values:t"], ["ZCARD", "tarbet:index:t"], ["ZCARD", "tarbet:expiry"]];
        let mut left = Vec::new();
        for count in counts {
            left.push(server.command(&count).await.unwrap().trim().to_owned());
        }
        if left == ["1", "1", "0"] { Ok(()) } else { Err(format!("{left:?}")) }
    };
    tarbet_testbed::eventually(Duration::from_mins(1), "only what lasts is left", swept).await.unwrap();
}

#[tokio::test]
async fn what_an_earlier_program_wrote_is_read_and_goes_on() {
    let server = tarbet_testbed::Redis::start().await.unwrap();
    // As it lies there: without a note of which tables are listed.
    for command in [
        &["SET", "tarbet:schema", "1"][..],
        &["SET", "tarbet:revision", "1700000000000001"],
        &["SADD", "tarbet:tables", "t"],
        &["HSET", "tarbet:values:t", "k", "1700000000000000 v", "gone", "1700000000000001 w"],
        &["ZADD", "tarbet:index:t", "0", "k", "0", "gone"],
        &["EVAL", "return redis.call('ZADD', 'tarbet:expiry', '1700000000000002', 't\\0gone')", "0"],
    ] {
        server.command(command).await.unwrap();
    }
    let store = open(&config(&server));
    assert_eq!(text(&store, &key("gone")).await, None);
    let found = store.get(&key("k")).await.unwrap().unwrap();
    assert_eq!((&found.value[..], found.revision.number()), (&b"v"[..], 1_700_000_000_000_000));
    let other = crate::place::table("u").key("k");
    let replaced = Commit::new().at(key("k"), found.revision).absent(key("gone")).put(key("k"), "w");
    let revision = store.commit(replaced.put(key("gone"), "back").put(other.clone(), "x")).await.unwrap();
    assert!(revision > found.revision);
    // An earlier program beside us adds a table that we then write to.
    for command in [
        &["SADD", "tarbet:tables", "v"][..],
        &["HSET", "tarbet:values:v", "theirs", "1700000000000003 y"],
        &["ZADD", "tarbet:index:v", "0", "theirs"],
    ] {
        server.command(command).await.unwrap();
    }
    store.put(crate::place::table("v").key("ours"), "z").await.unwrap();
    let all: Vec<String> = store
        .list(&Prefix::everything())
        .await
        .unwrap()
        .iter()
        .map(|entry| format!("{}={}", entry.key, String::from_utf8_lossy(&entry.value)))
        .collect();
    assert_eq!(all.len(), 5, "{all:?}");
    assert_eq!(store.get(&key("gone")).await.unwrap().unwrap().expires_in, None);
    assert_eq!(text(&store, &other).await.as_deref(), Some("x"));
}
