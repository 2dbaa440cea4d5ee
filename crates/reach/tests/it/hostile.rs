//! What must harm nobody: heads without end, forged words of a gateway, readers who do not read.

use http::HeaderValue;
use tarbet_link::{Caller, Dialer};
use tarbet_reach::audit::AuditLog;
use tarbet_reach::config::GatewayConfig;
use tarbet_reach::quota::{PrincipalLimits, QuotaConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::lab::{Echo, Lab, ask, code, effort, open_door, request, target, until};

/// Clients of the original keep a connection for a minute and send the next request on it.
#[tokio::test(start_paused = true)]
async fn a_kubernetes_client_may_pause_between_requests() {
    let lab = Lab::new().await;
    let _gateway = lab.gateway("one", GatewayConfig::default(), AuditLog::none());
    let mut stream = lab.net.connect("client", "one:8154").await.unwrap();
    for pause in [0, 30, 55] {
        tokio::time::advance(std::time::Duration::from_secs(pause)).await;
        stream.write_all(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        assert!(head.starts_with("http/1.1 401"), "{head}");
        let length = head.split("content-length: ").nth(1).unwrap().split('\r').next().unwrap();
        stream.read_exact(&mut vec![0; length.parse().unwrap()]).await.unwrap();
    }
}

/// Sends this text to a listener and gives what comes back.
pub(crate) async fn plain_http(lab: &Lab, address: &str, text: &str) -> String {
    let mut stream = lab.net.connect("client", address).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(start_paused = true)]
async fn heads_without_end_are_cut_off_and_nobody_else_is_disturbed() {
    let lab = Lab::new().await;
    let gateway = lab.gateway("one", GatewayConfig::default(), AuditLog::none());
    let token = lab.add_site("lab").await;
    let mut agent = lab.agent("host", &token, &["one"], open_door(&Echo::named("lab")), 1);
    agent.up(2).await;
    let way = lab.remote("one", "lab");

    let head = "GET /sites/lab/version HTTP/1.1\r\nHost: x\r\n";
    let one_long = format!("{head}X-Long: {}\r\n\r\n", "a".repeat(10_000_000));
    let many = format!("{head}{}\r\n", "X-Many: value\r\n".repeat(700_000));
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let garbage = format!("{preface}{}", "\u{0}".repeat(1_000_000));
    for (port, text) in [
        (8150, &one_long),
        (8150, &garbage),
        (8153, &one_long),
        (8153, &many),
        (8153, &garbage),
        (8154, &one_long),
        (8154, &many),
        (8155, &one_long),
        (8155, &garbage),
    ] {
        let mut stream = lab.net.connect("client", &format!("one:{port}")).await.unwrap();
        // It may hang up long before everything was said.
        let _ = stream.write_all(text.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let told = String::from_utf8_lossy(&answer);
        assert!(!told.contains("200 OK"), "{port}: {told}");
        if port == 8154 {
            assert!(told.starts_with("HTTP/1.1 431"), "{port}: {told}");
        }
        assert_eq!(ask(&way, request("POST", "/", "still")).await.unwrap(), "lab:still", "{port}");
    }
    assert_eq!(gateway.node.links().all().len(), 2, "the agent's links stand");
}

#[tokio::test(start_paused = true)]
async fn words_that_only_a_gateway_may_say_are_not_taken_from_callers() {
    let lab = Lab::new().await;
    let _one = lab.gateway("one", GatewayConfig::default(), AuditLog::none());
    let two = lab.gateway("two", GatewayConfig::default(), AuditLog::none());
    for name in ["lab", "den"] {
        let token = lab.add_site(name).await;
        let mut agent =
            lab.agent(&format!("host-{name}"), &token, &["two"], open_door(&Echo::named(name)), 1);
        agent.up(1).await;
    }
    for gateway in ["one", "two"] {
        let way = lab.remote(gateway, "lab");
        let mut forged = request("POST", "/", "hello");
        let forging = ["tarbet-caller", "tarbet-request-id", "tarbet-target", "tarbet-status", "tarbet-code"];
        for name in forging {
            forged.headers_mut().insert(name, HeaderValue::from_static("den"));
        }
        let response = way.call(forged).await.unwrap();
        assert_eq!(response.headers().get("seen-tarbet-caller").unwrap(), "admin", "not what was forged");

        // To name a link is the privilege of gateways, whoever it belongs to.
        let link = two.node.links().of_site(&super::lab::site("den"))[0].id;
        for name in [format!("via/{link}/echo"), format!("site/den/via/{link}/echo")] {
            let refused = way.open(target(&name)).await.unwrap_err();
            assert_eq!(code(&refused), "TB-1203", "{name}");
        }
        let mut around = request("GET", "/", "");
        around.extensions_mut().insert(target(&format!("via/{link}/echo")));
        assert!(way.call(around).await.is_err(), "a request cannot name a link either");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_does_not_read_stops_none_of_a_thousand_others() {
    let lab = Lab::new().await;
    let _one = lab.gateway("one", GatewayConfig::default(), AuditLog::none());
    let token = lab.add_site("lab").await;
    let mut agent = lab.agent("host", &token, &["one"], open_door(&Echo::named("lab")), 1);
    agent.up(2).await;
    let way = lab.remote("one", "lab");
    let mut stalled = way.open(target("echo")).await.unwrap();
    let stuck = tokio::spawn(async move {
        // Never reads its echo, so that it can write no more after a few windows.
        let block = vec![b'x'; 64 * 1024];
        loop {
            stalled.write_all(&block).await.unwrap();
        }
    });
    let mut others = Vec::new();
    for _ in 0..1000.min(200 * effort() + 800) {
        others.push(way.open(target("echo")).await.unwrap());
    }
    for round in 0..3 {
        for stream in &mut others {
            stream.write_all(b"ping").await.unwrap();
        }
        for (index, stream) in others.iter_mut().enumerate() {
            let expected = if round == 0 { "lab:ping" } else { "ping" };
            let mut echoed = vec![0; expected.len()];
            stream.read_exact(&mut echoed).await.unwrap();
            assert_eq!(echoed, expected.as_bytes(), "stream {index} in round {round}");
        }
    }
    assert!(!stuck.is_finished(), "it waits, and is not cut off either");
    stuck.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_nobody_reads_are_limited_and_the_refusal_says_so() {
    let lab = Lab::new().await;
    let quotas = QuotaConfig {
        principal: PrincipalLimits { bytes_in_flight: Some(500_000), ..PrincipalLimits::default() },
        ..QuotaConfig::default()
    };
    let gateway = lab.gateway("one", GatewayConfig { quotas, ..GatewayConfig::default() }, AuditLog::none());
    let token = lab.add_site("lab").await;
    let mut agent = lab.agent("host", &token, &["one"], open_door(&Echo::named("lab")), 1);
    agent.up(2).await;
    let way = lab.remote("one", "lab");
    // The client's own window fills first, then the gateway's.
    let unread = way.call(request("GET", "/bytes/8000000", "")).await.unwrap();
    let mut refused = None;
    until("a refusal", async || {
        refused = ask(&way, request("GET", "/", "")).await.err();
        refused.is_some()
    })
    .await;
    let refused = refused.unwrap();
    assert_eq!(code(&refused), "TB-1401");
    assert!(refused.to_string().contains("500000 bytes that wait to be read"), "{refused}");
    assert!(gateway.metrics.render().unwrap().contains("limit=\"principal.bytes_in_flight\""));

    // Another limit counts from the next request on.
    gateway.node.reload(&GatewayConfig::default());
    assert!(ask(&way, request("GET", "/", "")).await.is_ok());
    drop(unread);
}
