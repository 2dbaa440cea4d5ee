//! The example of the guide, as it stands there.

#[path = "../../../../docs/examples/greeter.rs"]
#[expect(unreachable_pub, reason = "it offers what a crate of its own would offer")]
mod greeter;

use std::sync::Arc;

use tarbet_reach::agent::policy::{Policy, ServiceRule};
use tarbet_reach::agent::{Dispatcher, Door};
use tarbet_reach::audit::AuditLog;
use tarbet_reach::config::GatewayConfig;

use super::hostile::plain_http;
use super::lab::Lab;

#[tokio::test(start_paused = true)]
async fn a_service_and_an_api_that_the_tunnel_does_not_know() {
    let lab = Lab::new().await;
    let one = lab.gateway("one", GatewayConfig::default(), AuditLog::none());
    let two = lab.gateway("two", GatewayConfig::default(), AuditLog::none());
    for gateway in [&one, &two] {
        gateway.node.mount(Arc::new(greeter::Greetings));
    }
    let token = lab.add_site("lab").await;
    let policy = Policy { services: vec![ServiceRule::Name("greeter".into())], ..Policy::default() };
    let door = Door::of_links(Arc::new(Dispatcher::new(vec![Arc::new(greeter::Greeter)], policy)));
    let mut agent = lab.agent("host", &token, &["two"], door, 1);
    agent.up(1).await;
    for gateway in ["one", "two"] {
        let asked = |token: &str| {
            format!(
                "GET /v1/modules/greeter/lab?name=Ann HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
            )
        };
        let answer = plain_http(&lab, &format!("{gateway}:8153"), &asked(lab.admin.expose())).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("Hello, Ann!"), "{answer}");
        let refused = plain_http(&lab, &format!("{gateway}:8153"), &asked("tbu_nobody")).await;
        assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
    }
}
