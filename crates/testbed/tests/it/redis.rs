//! Redis answers, keeps what it should keep, and can be broken and mended.

use tarbet_testbed::{Persistence, ProcessId, Redis, RedisOptions, TlsMode};

fn keeping(persistence: Persistence) -> RedisOptions {
    RedisOptions { persistence, ..RedisOptions::default() }
}

#[tokio::test]
async fn answers_ping() {
    let redis = Redis::start().await.unwrap();
    assert_eq!(redis.command(&["PING"]).await.unwrap(), "PONG");
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{}", redis.port()));
    assert!(redis.command(&["NONSENSE"]).await.is_err());
}

#[tokio::test]
async fn an_append_only_file_survives_a_crash() {
    let mut redis = Redis::start_with(keeping(Persistence::AppendOnly)).await.unwrap();
    redis.command(&["SET", "key", "kept"]).await.unwrap();
    let port = redis.port();
    redis.kill9().unwrap();
    redis.restart().await.unwrap();
    assert_eq!(redis.port(), port);
    assert_eq!(redis.command(&["GET", "key"]).await.unwrap(), "kept");
    redis.restart().await.unwrap();
    assert_eq!(redis.command(&["GET", "key"]).await.unwrap(), "kept");
    redis.flush().await.unwrap();
    assert_eq!(redis.command(&["DBSIZE"]).await.unwrap(), "0");
}

#[tokio::test]
async fn a_snapshot_survives_a_restart_and_nothing_else_does() {
    for (persistence, left) in [(Persistence::Snapshot, "1"), (Persistence::Off, "0")] {
        let mut redis = Redis::start_with(keeping(persistence)).await.unwrap();
        redis.command(&["SET", "key", "value"]).await.unwrap();
        redis.restart().await.unwrap();
        assert_eq!(redis.command(&["DBSIZE"]).await.unwrap(), left, "{persistence:?}");
    }
}

#[tokio::test]
async fn a_password_over_tls_is_asked_for() {
    let options = RedisOptions {
        password: Some("opensesame".to_owned()),
        tls: TlsMode::Made,
        ..RedisOptions::default()
    };
    let redis = Redis::start_with(options).await.unwrap();
    assert_eq!(redis.url(), format!("rediss://:opensesame@127.0.0.1:{}", redis.port()));
    assert_eq!(redis.command(&["PING"]).await.unwrap(), "PONG");
    assert!(redis.tls().unwrap().authority.exists());
    let cli = tokio::process::Command::new("redis-cli")
        .args(["-e", "-p", &redis.port().to_string(), "--tls", "--cacert"])
        .arg(&redis.tls().unwrap().authority)
        .arg("PING")
        .output();
    let output = cli.await.unwrap();
    assert!(!output.status.success(), "{output:?}");
}

#[tokio::test]
async fn a_paused_server_goes_on_where_it_was() {
    let redis = Redis::start().await.unwrap();
    redis.command(&["SET", "key", "value"]).await.unwrap();
    redis.pause().unwrap();
    let short = std::time::Duration::from_millis(200);
    assert!(tokio::time::timeout(short, redis.command(&["PING"])).await.is_err());
    redis.resume().unwrap();
    assert_eq!(redis.command(&["GET", "key"]).await.unwrap(), "value");
}

#[tokio::test]
async fn the_folder_and_the_process_go_with_the_value() {
    let redis = Redis::start().await.unwrap();
    let process = ProcessId::of(redis.pid()).unwrap();
    assert!(process.is_alive());
    drop(redis);
    assert!(!process.is_alive());
}
