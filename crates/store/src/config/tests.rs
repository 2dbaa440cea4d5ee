use super::*;

fn read(text: &str) -> Result<StoreConfig, String> {
    let config: StoreConfig = serde_json::from_str(text).map_err(|error| error.to_string())?;
    config.validate().map_err(|report| report.to_string())?;
    Ok(config)
}

#[test]
fn each_kind_is_read_and_written_back() {
    for text in [
        r#"{"kind":"memory"}"#,
        r#"{"kind":"redb","path":"/var/lib/tarbet/store.redb"}"#,
        r#"{"kind":"redb","path":"/var/lib/tarbet/store.redb","sync":"each"}"#,
        r#"{"kind":"redis","url":"redis://cache:6379","database":0,"prefix":"tarbet","deadline":"3s","replicas":0}"#,
    ] {
        let config = read(text).unwrap();
        let written = serde_json::to_string(&config).unwrap();
        assert_eq!(written, text);
    }
}

#[test]
fn everything_at_once() {
    let config = read(
        r#"{"kind":"redis","sentinel":{"master":"m","addresses":["a:26379","[::1]:26380"],"password_file":"/p"},
            "username":"u","password_file":"/p","database":3,"prefix":"a:b","deadline":"1500ms","replicas":1,
            "tls":{"ca_file":"/ca","cert_file":"/crt","key_file":"/key"}}"#,
    )
    .unwrap();
    let StoreConfig::Redis(config) = config else { panic!() };
    assert_eq!(config.deadline, Duration::from_millis(1500));
    assert_eq!(config.sentinel.unwrap().addresses[1].host, "::1");
}

#[test]
fn mistakes_are_named() {
    for (text, expected) in [
        (r#"{"kind":"memory","path":"/x"}"#, "unknown field `path`"),
        (r#"{"kind":"redb","path":"/x","fsync":true}"#, "unknown field `fsync`"),
        (
            r#"{"kind":"redb","path":"/x","sync":"never"}"#,
            "unknown variant `never`, expected `soon` or `each`",
        ),
        (r#"{"kind":"etcd"}"#, "unknown variant `etcd`"),
        (r#"{"kind":"redis"}"#, "either url or sentinel"),
        (
            r#"{"kind":"redis","url":"redis://a","sentinel":{"master":"m","addresses":["a:1"]}}"#,
            "either url or sentinel",
        ),
        (r#"{"kind":"redis","url":"redis://a/3"}"#, "database in their own settings"),
        (r#"{"kind":"redis","url":"http://a"}"#, "rediss://"),
        (r#"{"kind":"redis","url":"redis://a","tls":{}}"#, "rediss:// url"),
        (r#"{"kind":"redis","url":"rediss://a","tls":{"cert_file":"/c"}}"#, "together"),
        (r#"{"kind":"redis","url":"redis://a","prefix":"a b"}"#, "letters"),
        (r#"{"kind":"redis","url":"redis://a","deadline":"1ms"}"#, "between"),
        (r#"{"kind":"redis","sentinel":{"master":"m","addresses":["a"]}}"#, "host:port"),
    ] {
        let message = read(text).unwrap_err();
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn a_password_in_the_url_is_refused_without_repeating_it() {
    let message = read(r#"{"kind":"redis","url":"redis://:hunter2@cache"}"#).unwrap_err();
    assert!(!message.contains("hunter2"), "{message}");
    let message = read(r#"{"kind":"redis","url":"redis://cache","password_file":"hunter2"}"#).unwrap_err();
    assert!(!message.contains("hunter2"), "{message}");
}
