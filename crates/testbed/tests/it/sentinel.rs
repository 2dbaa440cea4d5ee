//! Sentinels move the master, asked or not.

use std::time::Duration;

use tarbet_testbed::{SentinelOptions, Sentinels, eventually};

/// Writes at the master and waits until the replica has it: a failover keeps no more than that.
async fn write(set: &mut Sentinels, master: u16, value: &str) {
    let [a, b] = set.nodes();
    let (master, replica) = if a.port() == master { (a, b) } else { (b, a) };
    master.command(&["SET", "key", value]).await.unwrap();
    let copied = || async { replica.command(&["GET", "key"]).await.is_ok_and(|copy| copy == value) };
    eventually(Duration::from_mins(1), "the replica to copy", copied).await.unwrap();
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
