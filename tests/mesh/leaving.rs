//! Real traffic through the egress gateway: of each sort of port, where there is no other way.

use anyhow::ensure;
use serde_json::{Value, json};
use tarbet_testbed::{ControlPlane, Lease, MeshLab, eventually};

use super::{SOON, answered, export, federation, join, planes, rules, unanswered};

/// The identity of the gateway, and that of the caller.
const GATEWAY: &str = "spiffe://east.local/ns/istio-system/sa/federation-egress-gateway";
const CALLER: &str = "east.local/ns/shop/sa/caller";

fn leaving() -> Value {
    let (label, value) = MeshLab::EGRESS_LABEL;
    let mut leaving = federation("east", "west", &[MeshLab::GATEWAY]);
    leaving["spec"]["local"]["egress"] = json!({ "gateway": { "selector": { label: value } } });
    leaving
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_leave_through_the_egress_gateway_where_there_is_no_other_way() {
    let (east, west, _turn) = planes().await;
    let mut lab = MeshLab::start(east, west).await.unwrap();
    lab.start_egress(east).await.unwrap();
    let doors = Lease::block(1).unwrap();
    let server = west.server().rsplit(':').next().and_then(|port| port.parse().ok()).unwrap();
    lab.serve_vault(west, server, doors.port(0)).await.unwrap();
    let there = [federation("west", "east", &["192.0.2.2"]), rules("east")];
    let joined = join((east, [leaving(), rules("west")]), (west, there)).await;
    export(&west.kubectl(), true).await;
    answered(&lab, GATEWAY).await;
    lab.cut_direct_way().unwrap();
    answered(&lab, GATEWAY).await;
    // Under each name by which a sidecar knows the service.
    for name in ["pay.shop", "pay.shop.svc", "pay.shop:80", "pay.shop.svc.cluster.local:80"] {
        let short = || async {
            let (status, body) = lab.call(name).await?;
            ensure!(status == 200 && body.ends_with(GATEWAY), "{name}: {status}: {body}");
            Ok(())
        };
        eventually(SOON, "an answer under a short name", short).await.unwrap();
    }
    sealed(&lab, west, doors.port(0)).await;
    export(&west.kubectl(), false).await;
    unanswered(&lab).await;
    lab.no_vault(west).await.unwrap();
    joined.part([east, west]).await;
}

/// Ports that speak no HTTP to proxies: what passes the gateway is still the caller's own.
async fn sealed(lab: &MeshLab, west: &ControlPlane, entrance: u16) {
    // Nobody on the way reads it, so nobody says who called.
    let plain = || async {
        let (status, body) = lab.call_at(MeshLab::VAULT, 5432).await?;
        ensure!(status == 200 && body == "pay of west, called by nobody", "{status}: {body}");
        Ok(())
    };
    eventually(SOON, "an answer at a port of plain TCP", plain).await.unwrap();
    let client = reqwest::Client::builder()
        .tls_certs_only(reqwest::Certificate::from_pem_bundle(west.authority().pem().as_bytes()).unwrap())
        .tls_danger_accept_invalid_hostnames(true)
        .resolve(MeshLab::VAULT, ([127, 0, 0, 1], entrance).into())
        .build()
        .unwrap();
    let encrypted = || async {
        let url = format!("https://{}:{entrance}/version", MeshLab::VAULT);
        let answer = client.get(url).send().await?;
        ensure!(answer.headers().contains_key("audit-id"), "{answer:?}");
        Ok(())
    };
    eventually(SOON, "west's server behind a port of TLS", encrypted).await.unwrap();

    // Who may call is west's to say, and it is the caller that is judged.
    let policy = |principal: &str| {
        json!({ "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
            "metadata": { "name": "vault", "namespace": "shop" },
            "spec": { "selector": { "matchLabels": { "app": "pay" } }, "action": "DENY", "rules": [{
                "from": [{ "source": { "notPrincipals": [principal] } }],
                "to": [{ "operation": { "ports": ["9000"] } }],
            }] } })
    };
    west.kubectl().apply(&policy(GATEWAY.trim_start_matches("spiffe://"))).await.unwrap();
    let refused = || async {
        ensure!(plain().await.is_err(), "the caller is still admitted");
        Ok(())
    };
    eventually(SOON, "the caller to be refused", refused).await.unwrap();
    west.kubectl().apply(&policy(CALLER)).await.unwrap();
    eventually(SOON, "the caller to be admitted", plain).await.unwrap();
    let gone = ["delete", "authorizationpolicies.security.istio.io", "vault", "-n", "shop"];
    west.kubectl().run(&gone).await.unwrap();
}
