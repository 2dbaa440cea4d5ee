//! HTTP through tunnels.

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tarbet_link::{Body, Caller, LinkError, Upgraded};
use tarbet_reach::kas::Prefix;
use tarbet_reach::kas::kubernetes::Impersonation;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tonic::Code;

use super::*;

/// A body that is fed by hand.
fn fed() -> (mpsc::UnboundedSender<&'static str>, Body) {
    let (sender, receiver) = mpsc::unbounded_channel::<&'static str>();
    let frames = futures::stream::unfold(receiver, |mut receiver| async move {
        let text = receiver.recv().await?;
        Some((Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(text))), receiver))
    });
    (sender, Body::new(StreamBody::new(frames)))
}

#[tokio::test]
async fn a_request_arrives_as_it_was_meant_over_every_carrier_and_prefix() {
    for (over, prefix) in [
        (Over::Tcp, Prefix::Gitlab),
        (Over::Tcp, Prefix::Plural),
        (Over::WebSocket, Prefix::Gitlab),
        (Over::Tls, Prefix::Gitlab),
        (Over::TlsWebSocket, Prefix::Plural),
    ] {
        let (gateway, _agent, _site) = connected(over, prefix).await;
        let mut caller = gateway.caller(7);
        caller.options.impersonation =
            Some(Impersonation { username: "ada".into(), groups: vec!["g".into()], ..Default::default() });
        let request = Request::builder()
            .method(Method::PATCH)
            .uri("/api/v1/x%2Fy?b=2&a=1&b=3")
            .header("authorization", "Bearer ci:7:secret")
            .header("cookie", "_gitlab_kas=secret")
            .header("connection", "keep-alive, x-hop")
            .header("x-hop", "gone")
            .header("x-many", "1")
            .header("x-many", "2")
            .header("content-type", "application/json")
            .body(Body::from("{}"))
            .unwrap();
        let response = within("a response", caller.send(request)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers().get_all("via").iter().count(), 2);
        let seen = text(response).await;
        assert!(seen.starts_with("PATCH /api/v1/x/y?a=1&b=2&b=3\n"), "{seen}");
        for present in
            ["x-many: 1\nx-many: 2\n", "impersonate-user: ada\n", "impersonate-group: g\n", "via: gRPC/1.0"]
        {
            assert!(seen.contains(present), "{present} in {seen}");
        }
        assert!(
            !seen.contains("secret") && !seen.contains("x-hop") && !seen.contains("keep-alive"),
            "{seen}"
        );
    }
}

#[tokio::test]
async fn bodies_of_all_sizes_cross_both_ways() {
    let (gateway, _agent, _site) = connected(Over::Tcp, Prefix::Gitlab).await;
    let caller = gateway.caller(7);
    for size in [0, 1, 32 << 10, (32 << 10) + 1, 3_000_000] {
        let request = Request::post("/sum").body(Body::from(vec![7u8; size])).unwrap();
        assert_eq!(text(caller.send(request).await.unwrap()).await, size.to_string());
        let response = caller.send(get(&format!("/bytes/{size}"))).await.unwrap();
        assert_eq!(text(response).await.len(), size);
    }
    assert_eq!(text(caller.send(get("/chunks/500")).await.unwrap()).await.len(), 500_000);
    let response = caller.send(get("/status/418")).await.unwrap();
    assert_eq!(response.status(), StatusCode::IM_A_TEAPOT);
    let head = Request::head("/bytes/100").body(Body::empty()).unwrap();
    let response = caller.send(head).await.unwrap();
    assert_eq!(response.headers()["content-length"], "100");
    assert_eq!(text(response).await, "");
}

#[tokio::test]
async fn the_response_begins_before_the_request_ends() {
    let (gateway, _agent, _site) = connected(Over::Tcp, Prefix::Gitlab).await;
    let (feed, body) = fed();
    let request = Request::post("/duplex").body(body).unwrap();
    let response = within("the head", gateway.caller(7).send(request)).await.unwrap();
    let mut body = response.into_body();
    for word in ["one", "two", "three"] {
        feed.send(word).unwrap();
        let frame = within(word, body.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), word);
    }
    drop(feed);
    assert!(within("the end", body.frame()).await.is_none());
}

#[tokio::test]
async fn a_stream_is_delivered_as_it_comes_and_stops_when_its_reader_leaves() {
    let (gateway, _agent, site) = connected(Over::WebSocket, Prefix::Gitlab).await;
    let response = within("the head", gateway.caller(7).send(get("/trickle"))).await.unwrap();
    let mut body = response.into_body();
    for count in 0..3 {
        site.seen.gate.add_permits(1);
        let frame = within("a tick", body.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), format!("tick {count}\n"));
    }
    drop(body);
    until("the site to notice", || {
        site.seen.gate.add_permits(1);
        site.left() == 1
    })
    .await;
    until("the tunnel to come back", || gateway.tunnels(7).1 == 0).await;
}

#[tokio::test]
async fn a_caller_that_leaves_ends_the_call_at_the_site() {
    let (gateway, _agent, site) = connected(Over::Tcp, Prefix::Gitlab).await;
    let caller = gateway.caller(7);
    let waiting = tokio::spawn(async move { caller.send(get("/hold")).await.map(drop) });
    until("the request to arrive", || site.held() == 1).await;
    assert_eq!(site.left(), 0);
    waiting.abort();
    until("the request to be given up", || site.left() == 1).await;
    until("the tunnel to be replaced", || gateway.tunnels(7).1 == 0 && gateway.tunnels(7).0 >= 2).await;
    // And a request whose body breaks off is not taken for a whole one.
    let broken =
        futures::stream::iter([Ok(Frame::data(Bytes::from("part"))), Err(std::io::Error::other("gone"))]);
    let request = Request::post("/sum").body(Body::new(StreamBody::new(broken))).unwrap();
    assert!(within("a failure", gateway.caller(7).send(request)).await.is_err());
}

#[tokio::test]
async fn an_upgrade_gives_a_stream_both_ways() {
    for over in [Over::Tcp, Over::WebSocket] {
        let (gateway, _agent, _site) = connected(over, Prefix::Gitlab).await;
        let request = Request::post("/upgrade")
            .header("connection", "Upgrade")
            .header("upgrade", "SPDY/3.1")
            .body(Body::empty())
            .unwrap();
        let mut response = within("the head", gateway.caller(7).send(request)).await.unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(response.headers()["upgrade"], "SPDY/3.1");
        let mut stream = Upgraded::take(&mut response).unwrap();
        stream.write_all(b"hello").await.unwrap();
        let mut word = [0; 5];
        within("an echo", stream.read_exact(&mut word)).await.unwrap();
        assert_eq!(&word, b"hello");
        let (mut from, mut to) = tokio::io::split(stream);
        let bulk: Vec<u8> = (0..1_000_000u32).map(|n| n as u8).collect();
        let sent = bulk.clone();
        let writing = tokio::spawn(async move {
            to.write_all(&sent).await.unwrap();
            to.shutdown().await.unwrap();
            to
        });
        let mut back = Vec::new();
        within("all of it", from.read_to_end(&mut back)).await.unwrap();
        assert!(back == bulk);
        drop(writing.await.unwrap());
        until("the call to end", || gateway.tunnels(7).1 == 0).await;
    }
}

#[tokio::test]
async fn an_upgrade_that_is_declined_is_a_plain_response() {
    let (gateway, _agent, _site) = connected(Over::Tcp, Prefix::Gitlab).await;
    let request = Request::get("/status/403")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .body(Body::empty())
        .unwrap();
    let mut response = within("the head", gateway.caller(7).send(request)).await.unwrap();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert!(Upgraded::take(&mut response).is_none());
    assert_eq!(text(response).await, "");
    until("the call to end", || gateway.tunnels(7).1 == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_at_once() {
    let (gateway, agent, site) = connected(Over::Tcp, Prefix::Gitlab).await;
    for round in 1..=effort() {
        let caller = Arc::new(gateway.caller(7));
        let calls: Vec<_> = (0..500)
            .map(|_| {
                let caller = Arc::clone(&caller);
                tokio::spawn(async move { text(caller.send(get("/hold")).await.unwrap()).await })
            })
            .collect();
        until("all of them to be at the site", || site.held() == 500 * round).await;
        assert_eq!(agent.status.borrow().busy, 500);
        site.seen.gate.add_permits(500);
        for call in calls {
            assert_eq!(within("an answer", call).await.unwrap(), "held");
        }
        until("all tunnels to be idle", || gateway.tunnels(7).1 == 0).await;
    }
}

#[tokio::test]
async fn failures_keep_their_status() {
    let (gateway, _agent, site) = connected(Over::Tcp, Prefix::Gitlab).await;
    let response = gateway.caller(7).send(get("/forbidden")).await.unwrap();
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    let refusal = text(response).await;
    assert!(refusal.contains("\"kind\":\"Status\"") && refusal.contains("TB-1201"), "{refusal}");

    // A site whose API server is not there.
    let mut nowhere = site.clone();
    nowhere.address = "127.0.0.1:1".parse().unwrap();
    let other = Gateway::start(Over::Tcp, Prefix::Gitlab, Desk::with(&[("t", 7)])).await;
    let _agent = run_agent(agent_config(&other, Over::Tcp, "t"), &nowhere);
    let status = within("a failure", other.caller(7).send(get("/"))).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().starts_with("gRPC -> HTTP:"), "{status}");
    let error = within("a failure", other.caller(7).call(get("/"))).await.unwrap_err();
    let LinkError::Denied(denial) = error else { panic!("{error}") };
    assert_eq!((denial.status, &denial.code[..]), (StatusCode::BAD_GATEWAY, "TB-1202"));

    // Metadata and headers that frames cannot carry are refused before anything is sent.
    let odd = Request::get("/").header("x-latin", http::HeaderValue::from_bytes(b"\xe9").unwrap());
    let status = other.caller(7).send(odd.body(Body::empty()).unwrap()).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}
