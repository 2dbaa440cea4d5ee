//! Links and agents that are replaced, and those who use them meanwhile.

use std::collections::HashSet;
use std::time::Duration;

use tarbet_link::Dialer;
use tarbet_reach::audit::AuditLog;
use tarbet_reach::config::GatewayConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::lab::{Echo, Lab, ask, open_door, request, target, until};

// Ages are told by the clock on the wall, so this one cannot run in paused time.
#[tokio::test]
async fn old_links_are_replaced_while_requests_and_streams_go_on() {
    let lab = Lab::new().await;
    let config =
        GatewayConfig { max_connection_age: Some(Duration::from_millis(250)), ..GatewayConfig::default() };
    let gateway = lab.gateway("one", config, AuditLog::none());
    let token = lab.add_site("lab").await;
    let mut agent = lab.agent("host", &token, &["one"], open_door(&Echo::named("lab")), 1);
    agent.up(2).await;
    let way = lab.remote("one", "lab");
    let mut stream = way.open(target("echo")).await.unwrap();
    let mut greeting = [0; 4];
    stream.read_exact(&mut greeting).await.unwrap();
    let first: HashSet<_> = gateway.node.links().all().iter().map(|held| held.id).collect();

    let mut seen = first.clone();
    while seen.len() < 8 {
        assert_eq!(ask(&way, request("POST", "/", "hello")).await.unwrap(), "lab:hello");
        // The stream began on a link that is asked to go, and goes on until its own end.
        stream.write_all(b"on").await.unwrap();
        let mut echoed = [0; 2];
        stream.read_exact(&mut echoed).await.unwrap();
        seen.extend(gateway.node.links().all().iter().map(|held| held.id));
    }
    stream.shutdown().await.unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    // With its last stream the old link ends as well.
    until("the first links to end", async || {
        !gateway.node.links().all().iter().any(|held| first.contains(&held.id))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_goes_on_while_its_agent_is_replaced_and_is_told_when_it_dies() {
    let lab = Lab::new().await;
    let _one = lab.gateway("one", GatewayConfig::default(), AuditLog::none());
    let _two = lab.gateway("two", GatewayConfig::default(), AuditLog::none());
    let token = lab.add_site("lab").await;
    let mut old = lab.agent("host-a", &token, &["one", "two"], open_door(&Echo::named("a")), 1);
    old.up(2).await;
    let way = lab.remote("one", "lab");
    let mut stream = way.open(target("echo")).await.unwrap();
    let mut echoed = [0; 2];
    stream.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"a:");

    let mut new = lab.agent("host-b", &token, &["one", "two"], open_door(&Echo::named("b")), 2);
    new.up(2).await;
    old.stop();
    // Some time later nothing new goes to the one that leaves; nothing fails meanwhile.
    let mut from_new = 0;
    while from_new < 20 {
        let answer = ask(&way, request("POST", "/", "")).await.unwrap();
        from_new = if answer == "b:" { from_new + 1 } else { 0 };
    }
    stream.write_all(b"on").await.unwrap();
    stream.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"on", "what runs at the old agent goes on");

    lab.net.kill("host-a");
    old.abort();
    let mut rest = Vec::new();
    let told = tokio::time::timeout(Duration::from_mins(1), stream.read_to_end(&mut rest)).await;
    assert!(told.is_ok(), "the end of the old agent is noticed");
    let mut again = way.open(target("echo")).await.unwrap();
    again.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"b:");
}
