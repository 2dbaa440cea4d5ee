//! Requests through one gateway and through two, what limits them, and what is told of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;
use tarbet_link::{Body, Dialer};
use tarbet_reach::audit::{self, AuditLog};
use tarbet_reach::config::GatewayConfig;
use tarbet_reach::quota::{PrincipalLimits, QuotaConfig, SiteLimits};
use tarbet_telemetry::Health;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use super::lab::{Echo, Lab, ask, code, open_door, request, target, until};

fn config(quotas: QuotaConfig) -> GatewayConfig {
    GatewayConfig { quotas, ..GatewayConfig::default() }
}

#[tokio::test(start_paused = true)]
async fn requests_and_streams_cross_one_gateway_and_two() {
    let lab = Lab::new().await;
    let (_one, _two) = (
        lab.gateway("one", GatewayConfig::default(), AuditLog::none()),
        lab.gateway("two", GatewayConfig::default(), AuditLog::none()),
    );
    let token = lab.add_site("far").await;
    let echo = Echo::named("far");
    let mut agent = lab.agent("host", &token, &["two"], open_door(&echo), 1);
    agent.up(2).await;
    for gateway in ["one", "two"] {
        let far = lab.remote(gateway, "far");
        assert_eq!(ask(&far, request("POST", "/", "hello")).await.unwrap(), "far:hello");
        let mut stream = far.open(target("echo")).await.unwrap();
        stream.write_all(b"bytes").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "far:bytes");
    }
    let refused = ask(&lab.remote("one", "nowhere"), request("GET", "/", "")).await.unwrap_err();
    assert_eq!(code(&refused), "TB-1101");
}

#[tokio::test(start_paused = true)]
async fn a_link_that_is_cut_under_a_read_is_replaced_and_under_a_write_is_told() {
    let lab = Lab::new().await;
    let _one = lab.gateway("one", GatewayConfig::default(), AuditLog::none());
    let two = lab.gateway("two", GatewayConfig::default(), AuditLog::none());
    let token = lab.add_site("far").await;
    let echo = Echo::named("far");
    let mut agent = lab.agent("host", &token, &["two", "one"], open_door(&echo), 1);
    agent.up(2).await;
    // Only what crosses the second gateway breaks, so ask until each kind has met it.
    let far = lab.remote("one", "far");
    let asked: Vec<_> = ["GET", "POST"]
        .into_iter()
        .map(|method| {
            let far = far.clone();
            tokio::spawn(async move { ask(&far, request(method, "/sleep/2000", "")).await })
        })
        .collect();
    until("both requests to arrive", async || echo.open.load(SeqCst) == 2).await;
    two.kill(&lab.net);
    for (method, asked) in ["GET", "POST"].into_iter().zip(asked) {
        match asked.await.unwrap() {
            Ok(answer) => assert_eq!(answer, "far:", "{method}"),
            Err(error) => assert_eq!((method, code(&error)), ("POST", "TB-1104")),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_site_and_a_caller_have_limits_that_are_named_and_given_back() {
    let lab = Lab::new().await;
    let quotas = QuotaConfig {
        site: SiteLimits { streams: Some(2), ..SiteLimits::default() },
        principal: PrincipalLimits {
            links: Some(1),
            requests_per_second: Some(5),
            ..PrincipalLimits::default()
        },
    };
    let gateway = lab.gateway("one", config(quotas), AuditLog::none());
    let token = lab.add_site("lab").await;
    let echo = Echo::named("lab");
    let mut agent = lab.agent("host", &token, &["one"], open_door(&echo), 1);
    agent.up(2).await;
    let client = lab.client("one", &lab.admin);
    let way = client.site("lab".parse().unwrap());

    // Streams: two may be open, and the third may come when one has gone.
    let (first, _second) = (way.open(target("echo")).await.unwrap(), way.open(target("echo")).await.unwrap());
    let refused = way.open(target("echo")).await.unwrap_err();
    assert_eq!(code(&refused), "TB-1401");
    assert!(refused.to_string().contains("limit of 2 requests under way"), "{refused}");
    drop(first);
    until("the third to be let in", async || way.open(target("echo")).await.is_ok()).await;

    // Requests a second.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut answers = Vec::new();
    for _ in 0..8 {
        answers.push(ask(&way, request("GET", "/", "")).await);
    }
    let refused: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
    assert!(!refused.is_empty() && refused.len() <= 4, "{answers:?}");
    assert!(refused.iter().all(|error| code(error) == "TB-1401"), "{refused:?}");

    // Connections.
    let another = lab.client("one", &lab.admin).site("lab".parse().unwrap());
    let refused = ask(&another, request("GET", "/", "")).await.unwrap_err();
    assert!(format!("{refused:?}").contains("limit of 1 connections"), "{refused:?}");
    let page = gateway.metrics.render().unwrap();
    for limit in ["site.streams", "principal.requests_per_second", "principal.links"] {
        assert!(page.contains(&format!("tarbet_quota_refusals_total{{limit=\"{limit}\"}}")), "{page}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_site_may_have_so_many_links() {
    let lab = Lab::new().await;
    let quotas =
        QuotaConfig { site: SiteLimits { links: 1, ..SiteLimits::default() }, ..QuotaConfig::default() };
    let gateway = lab.gateway("one", config(quotas), AuditLog::none());
    let token = lab.add_site("lab").await;
    let mut agent = lab.agent("host", &token, &["one"], open_door(&Echo::named("lab")), 1);
    agent.up(1).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(gateway.node.links().all().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_story_of_a_request_is_told_by_every_gateway_it_crossed() {
    let lab = Lab::new().await;
    let one = lab.gateway("one", GatewayConfig::default(), AuditLog::none());
    let _two = lab.gateway("two", GatewayConfig::default(), AuditLog::none());
    let token = lab.add_site("far").await;
    let mut agent = lab.agent("host", &token, &["two"], open_door(&Echo::named("far")), 1);
    agent.up(2).await;
    let id = tarbet_telemetry::RequestId::fresh();
    let mut asked = request("GET", "/", "");
    asked.headers_mut().insert("traceparent", id.traceparent().parse().unwrap());
    ask(&lab.remote("one", "far"), asked).await.unwrap();

    let get = async |path: String, token: &str| {
        let request = http::Request::get(path).header("authorization", format!("Bearer {token}"));
        let request = request.body(axum::body::Body::empty()).unwrap();
        let answer = tower::ServiceExt::oneshot(one.node.api(), request).await.unwrap();
        let status = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (status, serde_json::from_slice::<serde_json::Value>(&body).unwrap())
    };
    let (status, told) = get(format!("/v1/requests/{id}"), lab.admin.expose()).await;
    assert_eq!(status, 200, "{told}");
    let gateways: Vec<_> =
        told.as_array().unwrap().iter().map(|story| story["gateway"].as_str().unwrap()).collect();
    assert_eq!(gateways, ["one", "two"], "{told}");
    assert!(told[0]["steps"][0]["what"].as_str().unwrap().contains("two:8155"), "{told}");
    assert_eq!(told[1]["principal"], "admin");
    let (_, newest) = get("/v1/requests".into(), lab.admin.expose()).await;
    assert_eq!(newest[0]["id"], id.to_string());

    // Somebody without a role on the site learns nothing.
    let stranger = tarbet_reach::directory::Principal { name: "eve".into(), admin: false, roles: [].into() };
    let token = lab.directory().add_principal(&stranger, jiff::Timestamp::now()).await.unwrap();
    let (status, told) = get(format!("/v1/requests/{id}"), token.text().expose()).await;
    assert_eq!((status, told["code"].as_str()), (404, Some("TB-1106")));
    let (status, _) = get("/v1/requests/xyz".into(), lab.admin.expose()).await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn every_request_leaves_one_record_whatever_becomes_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    let (log, writer) = AuditLog::open(&file).unwrap();
    let stop = CancellationToken::new();
    let writing = tokio::spawn(writer.run(stop.clone(), Health::default().part("audit")));
    let lab = Lab::new().await;
    let quotas = QuotaConfig {
        site: SiteLimits { streams: Some(1), ..SiteLimits::default() },
        ..QuotaConfig::default()
    };
    let _gateway = lab.gateway("one", config(quotas), log);
    let token = lab.add_site("lab").await;
    let echo = Echo::named("lab");
    let mut agent = lab.agent("host", &token, &["one"], open_door(&echo), 1);
    agent.up(1).await;
    let way = lab.remote("one", "lab");
    ask(&way, request("POST", "/answered", "")).await.unwrap();
    ask(&lab.remote("one", "nowhere"), request("GET", "/unknown", "")).await.unwrap_err();
    let hanging = tokio::spawn({
        let way = way.clone();
        async move { ask(&way, request("GET", "/hang", "")).await }
    });
    while echo.open.load(SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    ask(&way, request("GET", "/too-many", "")).await.unwrap_err();
    hanging.abort();
    let mut opened = way.open(target("echo")).await;
    while opened.is_err() {
        tokio::task::yield_now().await;
        opened = way.open(target("echo")).await;
    }
    stop.cancel();
    writing.await.unwrap();

    let lines = std::io::BufReader::new(std::fs::File::open(&file).unwrap());
    let whole = audit::verify(lines, audit::read_head(&file).unwrap()).unwrap();
    let entries = audit::tail(&file, 1000).unwrap();
    assert_eq!(whole.records, entries.len() as u64, "how it began and how it ended is one record");
    let outcome = |path: &str| {
        let found: Vec<_> = entries.iter().filter(|entry| entry.event.wants.ends_with(path)).collect();
        assert_eq!(found.len(), 1, "{path}: {entries:?}");
        let event = &found[0].event;
        assert_eq!(event.principal.as_deref(), Some("admin"));
        (event.outcome.clone(), event.status, event.code.clone())
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(outcome("/answered"), ("answered".into(), Some(200), None));
    assert_eq!(outcome("/unknown"), ("refused".into(), None, text("TB-1101")));
    assert_eq!(outcome("/too-many"), ("refused".into(), None, text("TB-1401")));
    assert_eq!(outcome("/hang"), ("abandoned".into(), None, None));
    assert!(entries.iter().any(|entry| entry.event.outcome == "opened"));
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_leaves_finishes_what_runs_and_its_agents_go_elsewhere() {
    let lab = Lab::new().await;
    let (one, two) = (
        lab.gateway("one", GatewayConfig::default(), AuditLog::none()),
        lab.gateway("two", GatewayConfig::default(), AuditLog::none()),
    );
    let token = lab.add_site("far").await;
    let echo = Echo::named("far");
    let mut agent = lab.agent("host", &token, &["two", "one"], open_door(&echo), 1);
    agent.up(2).await;
    let through: Vec<_> = ["one", "two"]
        .into_iter()
        .flat_map(|name| (0..4).map(move |_| name))
        .map(|gateway| {
            let far = lab.remote(gateway, "far");
            tokio::spawn(async move { ask(&far, request("POST", "/sleep/3000", "x")).await })
        })
        .collect();
    until("all requests to arrive", async || echo.open.load(SeqCst) == through.len()).await;
    two.leave(&lab.net).await;
    for answer in through {
        assert_eq!(answer.await.unwrap().unwrap(), "far:x");
    }
    assert_eq!(ask(&lab.remote("one", "far"), request("POST", "/", "y")).await.unwrap(), "far:y");
    let registry = one.node.registry().unwrap();
    assert!(registry.colleagues().await.unwrap().is_empty());
    assert!(registry.everywhere().await.unwrap().iter().all(|listed| listed.gateway == "one"));
    assert_eq!(echo.open.load(SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_site_without_an_agent_is_waited_for_at_every_gateway() {
    let lab = Lab::new().await;
    let gateways: Vec<_> = ["one", "two", "three"]
        .map(|name| lab.gateway(name, GatewayConfig::default(), AuditLog::none()))
        .into();
    let token = lab.add_site("late").await;
    let waiting: Vec<_> = (0..60)
        .map(|i| {
            let late = lab.remote(["one", "two", "three"][i % 3], "late");
            tokio::spawn(async move { ask(&late, request("POST", "/", &i.to_string())).await })
        })
        .collect();
    let waits = || {
        let awaited = gateways.iter().flat_map(|gateway| gateway.node.links().awaited());
        awaited.map(|(_, count)| count).sum::<usize>()
    };
    until("all to wait", async || waits() == 60).await;
    let echo = Echo::named("late");
    let _agent = lab.agent("host", &token, &["two"], open_door(&echo), 1);
    for (i, answer) in waiting.into_iter().enumerate() {
        assert_eq!(answer.await.unwrap().unwrap(), format!("late:{i}"));
    }
    assert_eq!((waits(), Arc::clone(&echo).open.load(SeqCst)), (0, 0));
}

/// A body that is made piece by piece as it is asked for, and how much of it was made.
fn endless(pieces: usize) -> (Arc<AtomicUsize>, Body) {
    let made = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&made);
    let frames = (0..pieces).map(move |_| {
        counting.fetch_add(PIECE, SeqCst);
        Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(vec![b'x'; PIECE])))
    });
    (made, Body::new(http_body_util::StreamBody::new(futures::stream::iter(frames))))
}

const PIECE: usize = 64 * 1024;
const MIB: usize = 1024 * 1024;

/// A request whose body comes as above.
fn upload(body: Body) -> http::Request<Body> {
    let (mut parts, _) = request("POST", "/gated", "").into_parts();
    parts.headers.insert("content-type", "application/octet-stream".parse().unwrap());
    http::Request::from_parts(parts, body)
}

#[tokio::test(start_paused = true)]
async fn a_large_upload_crosses_two_gateways_as_fast_as_it_is_read_and_no_faster() {
    let lab = Lab::new().await;
    let gateways: Vec<_> =
        ["one", "two"].map(|name| lab.gateway(name, GatewayConfig::default(), AuditLog::none())).into();
    let token = lab.add_site("late").await;
    let (far, whole) = (lab.remote("one", "late"), 256 * MIB);
    let (made, body) = endless(whole / PIECE);
    let asked = tokio::spawn({
        let far = far.clone();
        async move { ask(&far, upload(body)).await }
    });
    // Nobody is there yet.
    until("it to wait", async || !gateways[0].node.links().awaited().is_empty()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let waiting = made.load(SeqCst);
    assert!(waiting <= 4 * MIB, "{waiting}");
    let echo = Echo::named("late");
    let _agent = lab.agent("host", &token, &["two"], open_door(&echo), 1);
    until("it to arrive", async || echo.begun.load(SeqCst) == 1).await;
    // Somebody is, and does not read.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let unread = made.load(SeqCst);
    assert!(unread > waiting && unread <= 16 * MIB, "{unread}");
    echo.gate.notify_one();
    assert_eq!(asked.await.unwrap().unwrap(), format!("late:{whole}"));
    assert_eq!((made.load(SeqCst), echo.begun.load(SeqCst)), (whole, 1));
}

#[tokio::test(start_paused = true)]
async fn a_stream_through_a_gateway_that_leaves_goes_on_to_its_own_end() {
    let lab = Lab::new().await;
    let (_one, two) = (
        lab.gateway("one", GatewayConfig::default(), AuditLog::none()),
        lab.gateway("two", GatewayConfig::default(), AuditLog::none()),
    );
    let token = lab.add_site("far").await;
    let mut agent = lab.agent("host", &token, &["two", "one"], open_door(&Echo::named("far")), 1);
    agent.up(2).await;
    // One whose client is still there, and one whose client is not.
    let kept = lab.remote("two", "far");
    let mut streams = vec![kept.open(target("echo")).await.unwrap()];
    streams.push(lab.remote("two", "far").open(target("echo")).await.unwrap());
    for stream in &mut streams {
        let mut name = [0; 4];
        stream.read_exact(&mut name).await.unwrap();
    }
    let net = lab.net.clone();
    let leaving = tokio::spawn(async move { two.leave(&net).await });
    for pause in [0, 1, 5, 50, 1000, 5000, 5000] {
        tokio::time::sleep(Duration::from_millis(pause)).await;
        for (i, stream) in streams.iter_mut().enumerate() {
            stream.write_all(b"still").await.unwrap_or_else(|error| panic!("stream {i}: {error}"));
            let mut word = [0; 5];
            stream.read_exact(&mut word).await.unwrap_or_else(|error| panic!("stream {i}: {error}"));
            assert_eq!(&word, b"still");
        }
        assert!(!leaving.is_finished());
    }
    for mut stream in streams {
        stream.shutdown().await.unwrap();
        stream.read_to_end(&mut Vec::new()).await.unwrap();
    }
    leaving.await.unwrap();
}
