//! Coming, going, waiting and being sent away.

use std::time::Duration;

use tarbet_reach::kas::agent::Sizes;
use tarbet_reach::kas::{MethodPath, PoolEvent, Prefix, Rpc};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Code;

use super::raw::Peer;
use super::*;

fn make_request() -> MethodPath {
    MethodPath::of(Rpc::MakeRequest, Prefix::Gitlab)
}

#[tokio::test]
async fn an_agent_is_reported_registers_is_configured_and_leaves() {
    let site = Site::start().await;
    let mut gateway = Gateway::start(Over::Tcp, Prefix::Gitlab, Desk::with(&[("t", 7)])).await;
    let mut agent = run_agent(agent_config(&gateway, Over::Tcp, "t"), &site);
    let known = match gateway.event().await {
        PoolEvent::Connected(agent) => agent,
        PoolEvent::Gone(_) => panic!("gone before it came"),
    };
    assert_eq!((known.id, &known.name[..]), (7, "site-7"));
    until("the registration", || gateway.desk.heard("7 registered 77 v1.2.3")).await;
    let configuration =
        within("a configuration", agent.configuration.wait_for(Option::is_some)).await.unwrap();
    assert_eq!(configuration.as_ref().unwrap().agent_id, 7);
    drop(configuration);
    until("two idle tunnels", || gateway.tunnels(7) == (2, 0, 0)).await;
    assert!(gateway.pool.holds(7));

    agent.stop.cancel();
    within("the agent to stop", agent.task).await.unwrap();
    assert!(gateway.desk.heard("7 unregistered 77"));
    assert_eq!(gateway.event().await, PoolEvent::Gone(known));
    assert!(!gateway.pool.holds(7) && gateway.pool.agents().is_empty());
}

/// Agents that are older than the call for it register by asking for their configuration.
#[tokio::test]
async fn an_agent_is_registered_while_it_holds_the_stream_of_its_configuration() {
    let gateway = Gateway::start(Over::Tcp, Prefix::Gitlab, Desk::with(&[("t", 7)])).await;
    let ask = async |skip_register: bool, version: &str| {
        let mut peer = Peer::call(&gateway, Rpc::GetConfiguration, "t", false).await;
        let meta = entity::AgentMeta { version: version.into(), ..Default::default() };
        let (agent_meta, commit_id) = (Some(meta), String::new());
        let request = agent_configuration::ConfigurationRequest { commit_id, agent_meta, skip_register };
        let mut buffer = bytes::BytesMut::new();
        tarbet_reach::kas::frame::put(&mut buffer, &request);
        peer.bytes(&buffer);
        peer.next().await.unwrap();
        peer
    };
    let words = || gateway.desk.said.lock().unwrap().clone();
    // Newer ones say that they register otherwise.
    let _newer = ask(true, "v16.4.0").await;
    let (one, two) = (ask(false, "v15.8.0").await, ask(false, "v15.8.0").await);
    until("two streams to be registered", || words().len() == 2).await;
    let numbers: Vec<String> = words()
        .iter()
        .map(|word| {
            let number = word.strip_prefix("7 registered ").unwrap().strip_suffix(" v15.8.0").unwrap();
            assert!(number.parse::<i64>().unwrap() > 0);
            number.to_owned()
        })
        .collect();
    assert_ne!(numbers[0], numbers[1]);
    drop((one, two));
    for number in &numbers {
        until("its registration to be taken back", || {
            gateway.desk.heard(&format!("7 unregistered {number}"))
        })
        .await;
    }
    assert_eq!(words().len(), 4);
}

#[tokio::test]
async fn the_pool_of_an_agent_grows_when_it_is_used() {
    let (gateway, agent, site) = connected(Over::Tcp, Prefix::Gitlab).await;
    let caller = gateway.caller(7);
    let call = tokio::spawn(async move { text(caller.send(get("/hold")).await.unwrap()).await });
    // One is busy, one was left, ten came.
    until("ten more", || gateway.tunnels(7) == (11, 1, 0)).await;
    assert_eq!((agent.status.borrow().idle, agent.status.borrow().busy), (11, 1));
    site.seen.gate.add_permits(1);
    assert_eq!(within("the answer", call).await.unwrap(), "held");
    until("all idle", || gateway.tunnels(7) == (12, 0, 0)).await;
}

#[tokio::test]
async fn surplus_tunnels_retire_when_they_would_be_reopened() {
    let site = Site::start().await;
    let gateway = Gateway::start(Over::Tcp, Prefix::Gitlab, Desk::with(&[("t", 7)])).await;
    let mut config = agent_config(&gateway, Over::Tcp, "t");
    config.sizes = Sizes { retire: Duration::ZERO, ..Sizes::default() };
    let agent = run_agent(config, &site);
    text(gateway.caller(7).send(get("/")).await.unwrap()).await;
    until("ten more", || agent.status.borrow().idle >= 11).await;
    gateway.ask_to_move();
    until("only the needed to be left", || {
        agent.status.borrow().idle == 2 && gateway.tunnels(7) == (2, 0, 0)
    })
    .await;
}

#[tokio::test]
async fn callers_wait_for_an_agent_and_are_served_in_their_order() {
    let site = Site::start().await;
    let gateway = Gateway::start(Over::Tcp, Prefix::Gitlab, Desk::with(&[("t", 7)])).await;
    let (done, mut order) = mpsc::unbounded_channel();
    for number in 0..20 {
        let (caller, done) = (gateway.caller(7), done.clone());
        tokio::spawn(async move {
            let answer = text(caller.send(get("/")).await.unwrap()).await;
            done.send((number, answer)).unwrap();
        });
        until("the caller to be in the queue", || gateway.tunnels(7).2 == number + 1).await;
    }
    // One tunnel: one after the other.
    let mut config = agent_config(&gateway, Over::Tcp, "t");
    config.sizes = Sizes { min_idle: 1, step: 1, max: 1, ..Sizes::default() };
    let _agent = run_agent(config, &site);
    for number in 0..20 {
        let (served, answer) = within("an answer", order.recv()).await.unwrap();
        assert_eq!(served, number);
        assert!(answer.starts_with("GET /"));
    }
}

#[tokio::test]
async fn who_waits_in_vain_is_told_why() {
    let (gateway, _agent, _site) = connected(Over::Tcp, Prefix::Gitlab).await;
    let soon = || Instant::now() + Duration::from_millis(20);
    let status = gateway.pool.find(8, &make_request(), soon()).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.message().contains("did not connect in time"), "{status}");
    let other = MethodPath::parse("/no.such.Service/Method").unwrap();
    let status = gateway.pool.find(7, &other, soon()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);

    // All tunnels taken and none to come back.
    let held = [
        gateway.pool.try_find(7, &make_request()).unwrap(),
        gateway.pool.try_find(7, &make_request()).unwrap(),
    ];
    assert!(gateway.pool.try_find(7, &make_request()).is_none());
    let status = gateway.pool.find(7, &make_request(), soon()).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert!(status.message().contains("stayed busy"), "{status}");
    // Unused, they go back and still work.
    drop(held);
    assert_eq!(gateway.tunnels(7), (2, 0, 0));
    let response = gateway.caller(7).send(get("/bytes/3")).await.unwrap();
    assert_eq!(text(response).await, "xxx");
}

#[tokio::test]
async fn thousands_may_wait_for_a_site_that_is_not_there() {
    let site = Site::start().await;
    let gateway = Gateway::start(Over::Tcp, Prefix::Gitlab, Desk::with(&[("t", 7)])).await;
    let count = 1000 * effort();
    let mut calls = Vec::new();
    for number in 0..count {
        let caller = gateway.caller(7);
        let call = tokio::spawn(async move { text(caller.send(get("/bytes/1")).await.unwrap()).await });
        // Every tenth gives up again.
        if number % 10 == 0 { calls.push((call, true)) } else { calls.push((call, false)) }
    }
    until("everybody to wait", || gateway.tunnels(7).2 == count).await;
    for (call, leaves) in &calls {
        if *leaves {
            call.abort();
        }
    }
    until("those to have left", || gateway.tunnels(7).2 == count - count.div_ceil(10)).await;
    let _agent = run_agent(agent_config(&gateway, Over::Tcp, "t"), &site);
    for (call, leaves) in calls {
        if !leaves {
            assert_eq!(within("an answer", call).await.unwrap(), "x");
        }
    }
    until("nothing to be left over", || gateway.tunnels(7).1 == 0 && gateway.tunnels(7).2 == 0).await;
}

#[tokio::test]
async fn an_agent_that_is_asked_to_move_reconnects_and_nothing_fails() {
    for over in [Over::Tcp, Over::WebSocket] {
        let (gateway, agent, site) = connected(over, Prefix::Gitlab).await;
        let caller = gateway.caller(7);
        let running = tokio::spawn(async move { text(caller.send(get("/hold")).await.unwrap()).await });
        until("the request to arrive", || site.held() == 1).await;
        gateway.ask_to_move();
        // Requests keep being served while the agent moves.
        for _ in 0..50 {
            let response = within("a response", gateway.caller(7).send(get("/bytes/2"))).await.unwrap();
            assert_eq!(text(response).await, "xx");
        }
        // The call that was running is not cut off.
        site.seen.gate.add_permits(1);
        assert_eq!(within("the running call", running).await.unwrap(), "held");
        until("idle tunnels again", || gateway.tunnels(7).0 >= 2).await;
        assert_eq!(agent.status.borrow().trouble, None);
    }
}

#[tokio::test]
async fn old_connections_are_replaced_without_anybody_noticing() {
    let site = Site::start().await;
    let config = ServerConfig {
        max_connection_age: Duration::from_secs(2),
        drain_pause: Duration::from_millis(20),
        ..ServerConfig::default()
    };
    let gateway = Gateway::start_with(Over::Tcp, config, Desk::with(&[("t", 7)])).await;
    let agent = run_agent(agent_config(&gateway, Over::Tcp, "t"), &site);
    within("three connections", async {
        while gateway.accepted.load(Ordering::SeqCst) < 3 {
            let response = gateway.caller(7).send(get("/bytes/2")).await.unwrap();
            assert_eq!(text(response).await, "xx");
        }
    })
    .await;
    assert_eq!(agent.status.borrow().trouble, None);
}

#[tokio::test]
async fn an_agent_keeps_as_many_connections_as_it_is_told() {
    let site = Site::start().await;
    let gateway = Gateway::start(Over::Tcp, Prefix::Gitlab, Desk::with(&[("t", 7)])).await;
    let mut config = agent_config(&gateway, Over::Tcp, "t");
    config.connections = 3;
    let agent = run_agent(config, &site);
    until("three connections", || agent.status.borrow().connections == 3).await;
    assert_eq!(gateway.accepted.load(Ordering::SeqCst), 3);
    let response = within("a response", gateway.caller(7).send(get("/bytes/2"))).await.unwrap();
    assert_eq!(text(response).await, "xx");
}

#[tokio::test]
async fn a_pool_that_closes_sends_everybody_away() {
    let (mut gateway, agent, site) = connected(Over::Tcp, Prefix::Gitlab).await;
    assert!(matches!(gateway.event().await, PoolEvent::Connected(_)));
    let caller = gateway.caller(7);
    let running = tokio::spawn(async move { text(caller.send(get("/hold")).await.unwrap()).await });
    until("the request to arrive", || site.held() == 1).await;
    let (pool, method) = (gateway.pool.clone(), make_request());
    let waiting =
        tokio::spawn(async move { pool.find(9, &method, Instant::now() + PATIENCE).await.map(drop) });
    until("somebody to wait", || gateway.tunnels(9).2 == 1).await;
    gateway.pool.close();
    let status = within("the waiting to be told", waiting).await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(matches!(gateway.event().await, PoolEvent::Gone(_)));
    let status = gateway.caller(7).send(get("/")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    site.seen.gate.add_permits(1);
    assert_eq!(within("the running call", running).await.unwrap(), "held");
    agent.stop.cancel();
    within("the agent to stop", agent.task).await.unwrap();
}

#[tokio::test]
async fn a_stopped_agent_finishes_its_calls() {
    let (gateway, agent, site) = connected(Over::Tcp, Prefix::Gitlab).await;
    let caller = gateway.caller(7);
    let running = tokio::spawn(async move { text(caller.send(get("/hold")).await.unwrap()).await });
    until("the request to arrive", || site.held() == 1).await;
    agent.stop.cancel();
    until("idle tunnels to be gone", || gateway.tunnels(7) == (0, 1, 0)).await;
    assert!(!agent.task.is_finished());
    site.seen.gate.add_permits(1);
    assert_eq!(within("the running call", running).await.unwrap(), "held");
    within("the agent to stop", agent.task).await.unwrap();
}

#[tokio::test]
async fn a_revoked_token_ends_a_live_connection() {
    let (mut gateway, agent, site) = connected(Over::Tcp, Prefix::Gitlab).await;
    assert!(matches!(gateway.event().await, PoolEvent::Connected(_)));
    let caller = gateway.caller(7);
    let running = tokio::spawn(async move { caller.send(get("/hold")).await.map(drop) });
    until("the request to arrive", || site.held() == 1).await;
    gateway.desk.revoke("t");
    assert!(within("the call to be cut", running).await.unwrap().is_err());
    assert!(matches!(gateway.event().await, PoolEvent::Gone(_)));
    until("the agent to know", || {
        agent.status.borrow().trouble.as_deref().is_some_and(|trouble| trouble.contains("token is not known"))
    })
    .await;
}

#[tokio::test]
async fn a_wrong_token_opens_nothing() {
    let site = Site::start().await;
    let gateway = Gateway::start(Over::Tcp, Prefix::Gitlab, Desk::with(&[("t", 7)])).await;
    let agent = run_agent(agent_config(&gateway, Over::Tcp, "wrong"), &site);
    until("the agent to know", || agent.status.borrow().trouble.is_some()).await;
    assert!(gateway.pool.agents().is_empty());
}

#[tokio::test]
async fn a_kas_that_cannot_prove_its_name_is_not_joined() {
    let site = Site::start().await;
    let gateway = Gateway::start(Over::Tls, Prefix::Gitlab, Desk::with(&[("t", 7)])).await;
    let agent = run_agent(agent_config(&gateway, Over::Tls, "t"), &site);
    until("the agent to say why", || {
        agent.status.borrow().trouble.as_deref().is_some_and(|trouble| trouble.contains("TLS"))
    })
    .await;
    assert!(gateway.pool.agents().is_empty());
}

#[tokio::test]
async fn one_that_presents_no_token_is_not_kept() {
    let config = ServerConfig { admission_timeout: Duration::from_millis(30), ..ServerConfig::default() };
    let gateway = Gateway::start_with(Over::Tcp, config, Desk::with(&[])).await;
    let mut stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
    let mut rest = Vec::new();
    let end =
        within("the connection to be closed", tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest))
            .await;
    // Closed or reset, it is the same to us.
    let _ = end;
}

#[tokio::test]
async fn a_gateway_that_vanishes_is_found_again() {
    let site = Site::start().await;
    let first = Gateway::start(Over::Tcp, Prefix::Gitlab, Desk::with(&[("t", 7)])).await;
    let agent = run_agent(agent_config(&first, Over::Tcp, "t"), &site);
    until("two idle tunnels", || first.tunnels(7).0 == 2).await;
    let address = first.address;
    drop(first);
    until("the agent to notice", || agent.status.borrow().connections == 0).await;
    // Another takes the same address.
    let listener = within("the address", async {
        loop {
            if let Ok(listener) = TcpListener::bind(address).await {
                return listener;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let pool = TunnelPool::new(PoolConfig::default(), |_| {});
    let server = KasServer::new(ServerConfig::default(), pool.clone(), Desk::with(&[("t", 7)]));
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        server.serve(stream, Carrier::Plain, CancellationToken::new()).await;
    });
    until("the agent to be back", || pool.holds(7)).await;
}
