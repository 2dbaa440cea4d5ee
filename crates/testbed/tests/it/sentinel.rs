//! Sentinels move the master, asked or not.

use tarbet_testbed::{SentinelOptions, Sentinels};

async fn write(set: &mut Sentinels, port: u16, value: &str) {
    let node = set.nodes().iter_mut().find(|node| node.port() == port).unwrap();
    node.command(&["SET", "key", value]).await.unwrap();
    assert_eq!(node.command(&["WAIT", "1", "10000"]).await.unwrap(), "1");
}

async fn read(set: &mut Sentinels, port: u16) -> String {
    let node = set.nodes().iter_mut().find(|node| node.port() == port).unwrap();
    node.command(&["GET", "key"]).await.unwrap()
}

#[tokio::test]
async fn a_failover_moves_the_master_there_and_back() {
    let mut set = Sentinels::start().await.unwrap();
    let first = set.master_port().await.unwrap();
    write(&mut set, first, "kept").await;
    let second = set.failover().await.unwrap();
    assert_ne!(first, second);
    assert_eq!(read(&mut set, second).await, "kept");
    assert_eq!(set.failover().await.unwrap(), first);
}

#[tokio::test]
async fn three_sentinels_replace_a_dead_master_over_tls() {
    let options = SentinelOptions { sentinels: 3, password: Some("opensesame".to_owned()), tls: true };
    let mut set = Sentinels::start_with(options).await.unwrap();
    assert_eq!(set.urls().len(), 3);
    let first = set.master_port().await.unwrap();
    write(&mut set, first, "kept").await;
    let second = set.kill_master().await.unwrap();
    assert_ne!(first, second);
    assert_eq!(read(&mut set, second).await, "kept");
    set.revive().await.unwrap();
    write(&mut set, second, "again").await;
}
