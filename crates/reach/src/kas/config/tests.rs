use proptest::prelude::*;

use tarbet_store::{RedisConfig as RedisConfigOfStore, StoreConfig};

use super::*;
use crate::config::GatewayConfig;

const FULL: &str = r"
gitlab:
  address: https://gitlab.example.org
  external_url: https://gitlab.example.org
  authentication_secret_file: /secrets/gitlab
  ca_certificate_file: /certs/ca.pem
  api_rate_limit: { refill_rate_per_second: 50, bucket_size: 250 }
agent:
  listen:
    network: tcp4
    address: 0.0.0.0:8150
    websocket: true
    certificate_file: /certs/tls.crt
    key_file: /certs/tls.key
    connections_per_token_per_minute: 100
    max_connection_age: 1800s
    listen_grace_period: 0.5s
  configuration: { poll_period: 300s, max_configuration_file_size: 131072 }
  gitops: { poll_period: 20s }
  kubernetes_api:
    listen:
      network: tcp
      address: 0.0.0.0:8154
      listen_grace_period: 5s
      shutdown_grace_period: 3600s
    url_path_prefix: /-/kubernetes-agent/k8s-proxy/
    allowed_agent_cache_ttl: 60s
    allowed_agent_cache_error_ttl: 10s
  remote_development: { poll_period: 15s }
  info_cache_ttl: 60s
  info_cache_error_ttl: 60s
  redis_conn_info_ttl: 300s
  redis_conn_info_refresh: 240s
  redis_conn_info_gc: 600s
observability:
  usage_reporting_period: 60s
  listen: { network: tcp, address: 127.0.0.1:8151 }
  prometheus: { url_path: /metrics }
  tracing: { otlp_endpoint: 'https://otlp.example.org', otlp_token_secret_file: /secrets/otlp, otlp_ca_certificate_file: /certs/otlp.pem }
  sentry: { dsn: x, environment: y }
  logging: { level: debug, grpc_level: error }
  google_profiler: { enabled: false }
  liveness_probe: { url_path: /liveness }
  readiness_probe: { url_path: /readiness }
gitaly:
  global_api_rate_limit: { refill_rate_per_second: 30, bucket_size: 70 }
  per_server_api_rate_limit: { refill_rate_per_second: 15, bucket_size: 40 }
redis:
  sentinel: { master_name: m, addresses: ['a:1', 'b:2'], sentinel_password_file: /secrets/sentinel }
  dial_timeout: 5s
  write_timeout: 3s
  key_prefix: mine
  username: u
  password_file: /secrets/redis
  network: tcp
  tls: { enabled: true, certificate_file: /a, key_file: /b, ca_certificate_file: /c }
  database_index: 2
  pool_size: 5
  read_timeout: 1s
  idle_timeout: 50s
api:
  listen:
    network: tcp
    address: 127.0.0.1:8153
    authentication_secret_file: /secrets/api
    certificate_file: /a
    key_file: /b
    max_connection_age: 7200s
    listen_grace_period: 5s
private_api:
  listen:
    network: tcp
    address: 127.0.0.1:8155
    authentication_secret_file: /secrets/private
    certificate_file: /a
    key_file: /b
    ca_certificate_file: /c
    max_connection_age: 7200s
    listen_grace_period: 5s
";

#[test]
fn every_key_is_known_and_the_unused_are_named() {
    let config = KasConfig::parse(FULL).unwrap();
    assert_eq!(config.agent.listen.network, Network::Tcp4);
    assert_eq!(config.agent.listen.listen_grace_period.get().as_millis(), 500);
    assert_eq!(config.redis.as_ref().unwrap().sentinel.as_ref().unwrap().addresses, ["a:1", "b:2"]);
    assert_eq!(config.observability.logging.level, LogLevel::Debug);
    assert_eq!(config.prefix(), Prefix::Gitlab);
    let warnings = config.warnings();
    for key in [
        "gitaly",
        "gitlab.api_rate_limit",
        "agent.configuration",
        "agent.gitops",
        "agent.remote_development",
        "observability.usage_reporting_period",
        "observability.sentry",
        "observability.google_profiler",
        "observability.logging.grpc_level",
        "redis.pool_size",
        "redis.idle_timeout",
        "api.listen.max_connection_age",
        "private_api.listen.max_connection_age",
    ] {
        assert!(warnings.contains(&format!("`{key}` has no effect here")), "{key} in {warnings:?}");
    }
    let tracing =
        warnings.iter().find(|warning| warning.contains("`observability.tracing` has no effect here"));
    assert!(tracing.is_some_and(|tracing| tracing.contains("observability.otlp_endpoint")), "{warnings:?}");
    let grace = "`agent.listen.listen_grace_period` is taken as 5s, the longest of all";
    assert!(warnings.contains(&grace.to_owned()), "{warnings:?}");
    assert_eq!(warnings.len(), 15, "{warnings:?}");
    let odd = "
plural_url: https://console.example.org
agent:
  listen: { websocket: false }
  info_cache_ttl: 60s
  info_cache_error_ttl: 30s
  kubernetes_api: { allowed_agent_cache_ttl: 120s }
redis: { server: { address: 'r:6379' }, tls: { ca_certificate_file: /c } }
";
    let warnings = KasConfig::parse(odd).unwrap().warnings();
    for part in ["plural_url", "websocket", "info_cache_error_ttl", "allowed_agent_cache_ttl", "redis.tls"] {
        assert!(warnings.iter().any(|warning| warning.contains(part)), "{part} in {warnings:?}");
    }
}

#[test]
fn a_file_becomes_a_gateway_and_a_store() {
    let config = KasConfig::parse(FULL).unwrap();
    let mut gateway = GatewayConfig::default();
    config.apply(&mut gateway).unwrap();
    assert!(gateway.mistakes().is_empty(), "{:?}", gateway.mistakes());
    assert_eq!(gateway.agents.listen.to_string(), "0.0.0.0:8150");
    assert_eq!(gateway.agents.tls.unwrap().key_file.unwrap(), std::path::Path::new("/certs/tls.key"));
    assert_eq!(gateway.kas.calls_per_minute, 100);
    assert_eq!(gateway.listen_grace.as_secs(), 5);
    assert_eq!(config.shutdown_deadline().unwrap().as_secs(), 3605);
    assert_eq!(gateway.kas.url_path_prefix, "/-/kubernetes-agent/k8s-proxy/");
    assert_eq!(gateway.kas.api_secret_file.unwrap(), std::path::Path::new("/secrets/api"));
    assert_eq!(gateway.private.secret_file.unwrap(), std::path::Path::new("/secrets/private"));
    assert!(gateway.serve_kubernetes);
    let gitlab = gateway.kas.gitlab.unwrap();
    assert_eq!((gitlab.cache.as_secs(), gitlab.refusal_cache.as_secs()), (60, 10));
    let Some(StoreConfig::Redis(redis)) = config.store().unwrap() else { panic!() };
    assert_eq!((redis.prefix.as_str(), redis.database), ("mine:tarbet", 2));
    assert_eq!(redis.sentinel.unwrap().addresses.len(), 2);
    assert!(config.observability_tls().is_none());
    let secured = "observability: {listen: {certificate_file: /a, key_file: /b}}";
    let files = KasConfig::parse(secured).unwrap().observability_tls().unwrap();
    assert_eq!(files.cert_file.as_deref(), Some(std::path::Path::new("/a")));

    // The last slash may be left out, and so may the whole of it.
    for (text, meant) in [("/k8s-proxy", "/k8s-proxy/"), ("''", "/"), ("/", "/"), ("/a/b/", "/a/b/")] {
        let text = format!("agent: {{kubernetes_api: {{url_path_prefix: {text}}}}}");
        let mut gateway = GatewayConfig::default();
        KasConfig::parse(&text).unwrap().apply(&mut gateway).unwrap();
        assert_eq!(gateway.kas.url_path_prefix, meant, "{text}");
        assert!(gateway.mistakes().is_empty(), "{:?}", gateway.mistakes());
    }

    let alone = KasConfig::parse("agent: {listen: {address: ':8150', network: tcp6}}").unwrap();
    alone.apply(&mut GatewayConfig::default()).unwrap();
    let mut gateway = GatewayConfig::default();
    alone.apply(&mut gateway).unwrap();
    assert_eq!(gateway.agents.listen.to_string(), "[::]:8150");
    assert!(!gateway.serve_kubernetes && alone.store().unwrap().is_none());
    let unset = KasConfig::parse("agent: {listen: {connections_per_token_per_minute: 0}}").unwrap();
    unset.apply(&mut gateway).unwrap();
    assert_eq!(gateway.kas.calls_per_minute, 1_000_000);
    let quick = "agent: {redis_conn_info_ttl: 50s, redis_conn_info_refresh: 40s, redis_conn_info_gc: 100s}
redis: {server: {address: 'r:6379'}}";
    let quick = KasConfig::parse(quick).unwrap();
    assert_eq!(quick.warnings().iter().filter(|warning| warning.contains("redis")).count(), 0);
    let times = quick.beside().unwrap().unwrap();
    let times = [times.entry_ttl, times.entry_refresh, times.entry_tidy];
    assert_eq!(times.map(|time| time.as_secs()), [50, 40, 100]);
    let relative = "redis: {server: {address: 'r:6379'}, password_file: redis.password}";
    assert!(KasConfig::parse(relative).unwrap().store().unwrap().is_some());
    let server = KasConfig::parse("redis: {server: {address: 'r:6379'}}").unwrap();
    let Some(StoreConfig::Redis(redis)) = server.store().unwrap() else { panic!() };
    assert_eq!(
        (redis.url.unwrap().to_string().as_str(), redis.prefix.as_str()),
        ("redis://r:6379", "gitlab-kas:tarbet")
    );
    assert_eq!(redis.deadline, RedisConfigOfStore::at("redis://r".parse().unwrap()).deadline);
    let slow =
        "redis: {server: {address: /run/redis.sock}, network: unix, dial_timeout: 2s, write_timeout: 1s}";
    let Some(StoreConfig::Redis(slow)) = KasConfig::parse(slow).unwrap().store().unwrap() else { panic!() };
    assert_eq!(slow.deadline.as_secs(), 6, "each attempt has a third of it");
    assert_eq!(slow.url.unwrap().to_string(), "unix:///run/redis.sock");
    for bad in ["{network: unix, address: here}", "{address: nowhere}", "{address: ':x'}"] {
        let config = KasConfig::parse(&format!("agent: {{listen: {bad}}}")).unwrap();
        assert!(config.apply(&mut GatewayConfig::default()).is_err(), "{bad}");
    }
}

#[test]
fn a_listener_may_be_a_socket() {
    let text = "
agent:
  listen: {network: unix, address: /run/kas/agents.sock}
  kubernetes_api: {listen: {network: unix, address: /run/kas/kubernetes.sock}}
api: {listen: {network: unix, address: /run/kas/api.sock, authentication_secret_file: s}}
private_api: {listen: {network: unix, address: /run/kas/private.sock, authentication_secret_file: s}}
observability: {listen: {network: unix, address: ./probes.sock}}
";
    let mut gateway = GatewayConfig::default();
    let config = KasConfig::parse(text).unwrap();
    config.apply(&mut gateway).unwrap();
    for (place, path) in [
        (gateway.agents.place(), "/run/kas/agents.sock"),
        (gateway.kubernetes.place(), "/run/kas/kubernetes.sock"),
        (gateway.api.place(), "/run/kas/api.sock"),
        (gateway.private.place(), "/run/kas/private.sock"),
    ] {
        assert_eq!(place.to_string(), path);
    }
    assert_eq!(config.observability().unwrap(), (None, Some("./probes.sock".into())));
    assert!(KasConfig::parse("observability: {listen: {network: unix}}").unwrap().observability().is_err());
    // Without one, the address that is meant is listened on again.
    KasConfig::parse("agent: {}").unwrap().apply(&mut gateway).unwrap();
    assert_eq!(gateway.agents.place().to_string(), "127.0.0.1:8150");
}

#[test]
fn an_almost_empty_file_has_the_usual_values() {
    let config = KasConfig::parse("agent: {}\n").unwrap();
    assert_eq!(config.agent.listen.address, "127.0.0.1:8150");
    assert_eq!(config.agent.listen.connections_per_token_per_minute, 1_000_000);
    assert!(config.agent.kubernetes_api.is_none() && config.gitlab.is_none());
    let warnings = config.warnings();
    assert!(warnings[0].contains("embedded store"), "{warnings:?}");
    assert!(warnings[1].contains("60s"), "{warnings:?}");
    let fork = KasConfig::parse("plural_url: https://console.example.org\n").unwrap();
    assert_eq!(fork.prefix(), Prefix::Plural);
}

#[test]
fn one_secret_for_two_doors_is_a_warning() {
    let text = "
api: { listen: { authentication_secret_file: /s } }
private_api: { listen: { authentication_secret_file: /s } }
";
    let warnings = KasConfig::parse(text).unwrap().warnings();
    assert!(warnings.iter().any(|warning| warning.contains("share one secret")), "{warnings:?}");
}

#[test]
fn what_the_original_refuses_is_refused() {
    for text in [
        "agnet: {}",
        "agent: { listen: { adress: x } }",
        "agent: { info_cache_ttl: 5m }",
        "gitlab: { address: x }",
        "redis: {}",
        "redis: { server: { address: a }, sentinel: { master_name: m, addresses: [] } }",
        "agent: { redis_conn_info_ttl: 10s, redis_conn_info_refresh: 10s }",
        "agent: { listen: { certificate_file: /a } }",
        "agent: { kubernetes_api: { url_path_prefix: x/ } }",
        "api: { listen: {} }",
        "gitlab: { address: x, authentication_secret_file: y }\nplural_url: z",
        "agent: { listen: { network: udp } }",
        "- x",
        "{",
    ] {
        assert!(KasConfig::parse(text).is_err(), "{text}");
    }
}

#[test]
fn what_is_wrong_is_told_and_no_value_with_it() {
    for (text, told) in [
        ("redis:\n  password_file: /a\n  pasword: hunter2", "line 3, column 3: `pasword` is no key of kas"),
        ("redis: {pasword:hunter2}", "a key that kas does not have"),
        ("redis: hunter2", "line 1, column 8: expected"),
        ("agent: {info_cache_ttl: hunter2}", "a duration in seconds such as `5s`"),
        ("agent: {listen: {network: hunter2}}", "expected one of tcp"),
        ("agent: {listen: {max_connections_per_token: hunter2}}", ""),
        ("agent: {listen: {websocket: hunter2}}", ""),
        ("gitlab: {address: 'http://u:hunter2@gitlab'}", "`authentication_secret_file` is missing"),
        ("agent: {listen: hunter2", "line 1"),
        ("agent: *hunter2", "line 1"),
        ("agent: !hunter2 {}\nredis: \"hunter2", "line"),
        ("hunter2", "line 1"),
        ("redis: {server: {address: a}}\nredis: hunter2", "line 2"),
    ] {
        let error = KasConfig::parse(text).unwrap_err();
        let said = format!("{error} {error:?} {}", tarbet_telemetry::problem::chain(&error));
        assert!(said.contains(told), "{text}: {said}");
        assert!(!said.contains("hunter2"), "{text}: {said}");
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "[a-z_:{}\\[\\]\n \"'*&-]{0,80}") {
        let _ = KasConfig::parse(&text);
    }
}
