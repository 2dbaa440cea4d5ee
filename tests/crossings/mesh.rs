//! Meshes through the link: discovery and calls cross where the other mesh has no way in at all.

use serde_json::{Value, json};
use tarbet_testbed::product::Product;
use tarbet_testbed::{Lease, MeshLab};

use crate::mesh::{answered, clean, connected, export, federation, planes, resolving, rules, unanswered};

#[tokio::test(flavor = "multi_thread")]
async fn discovery_and_calls_cross_through_a_site_and_mutual_tls_stays_end_to_end() {
    let (east, west, _turn) = planes().await;
    let mut lab = MeshLab::start(east, west).await.unwrap();
    // No address leads from one mesh to the other.
    lab.cut_direct_way().unwrap();
    let ports = Lease::block(4).unwrap();
    let [east_at, west_at, door, entry] = [0, 1, 2, 3].map(|index| ports.port(index));

    // West's site: an agent that dials out. Its policy permits two hosts, discovery and the gateway,
    // which it reaches from within west's network.
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
    let gateway = product.gateway("neck", "{kind: memory}", &[]).await.unwrap();
    let said = product.run(&gateway, &["site", "add", "lab", "-o", "json"]).await.unwrap();
    let site: Value = serde_json::from_str(&said).unwrap();
    let policy = format!("tcp:\n  - {{host: 127.0.0.1, ports: [{west_at}, {door}]}}\n");
    let policy = product.folder().write("policy.yaml", &policy).unwrap().display().to_string();
    let token = site["token"]["token"].as_str().unwrap();
    let agent = product.agent("lab-agent", token, &[&gateway], &["--policy", &policy]).await.unwrap();
    lab.cable_to_gate(door).await.unwrap();

    // East's controller listens for its own callers, who know it by an address of their network.
    let inside = format!("{}:15443", MeshLab::EGRESS_SIDE);
    lab.cable_in(inside.parse().unwrap(), entry).unwrap();
    let mut here = federation("east", "west", &[]);
    here["spec"]["remote"][0]["ingress"] = json!({});
    east.kubectl().apply(&here).await.unwrap();
    east.kubectl().apply(&rules("west")).await.unwrap();
    west.kubectl().apply(&federation("west", "east", &["192.0.2.2"])).await.unwrap();
    west.kubectl().apply(&rules("east")).await.unwrap();

    let at = |port: u16| format!("127.0.0.1:{port}");
    let kubeconfig = |plane: &tarbet_testbed::ControlPlane| plane.kubeconfig().display().to_string();
    let carry = format!(
        "mesh.carry={{west: {{listen: '127.0.0.1:1', advertise: '{inside}', gateway: '{}'}}}}",
        at(door)
    );
    let (api, token, ca) = (
        gateway.api(),
        product.admin_token().display().to_string(),
        product.authority().display().to_string(),
    );
    let environment = [
        ("POD_NAMESPACE", "istio-system"),
        ("TARBET_SERVER", api.as_str()),
        ("TARBET_TOKEN_FILE", token.as_str()),
        ("TARBET_CA_FILE", ca.as_str()),
    ];
    let (east_config, listener) = (kubeconfig(east), format!("west={}", at(entry)));
    let discovery = format!("west={}", at(west_at));
    let words = [
        "mesh",
        "--kubeconfig",
        &east_config,
        "--listen",
        &at(east_at),
        "--via-site",
        "west=lab",
        "--discovery",
        &discovery,
        "--set",
        &carry,
        // The flag says where to listen, whatever the file says.
        "--carry",
        &listener,
    ];
    let _east = product.role("mesh-east", &words, &environment).await.unwrap();
    let (west_config, back) = (kubeconfig(west), format!("east={}", at(east_at)));
    let words = ["mesh", "--kubeconfig", &west_config, "--listen", &at(west_at), "--discovery", &back];
    let _west = product.role("mesh-west", &words, &environment[..1]).await.unwrap();
    connected(&east.kubectl()).await;

    unanswered(&lab).await;
    export(&west.kubectl(), true).await;
    // The service sees the identity of the caller: nobody between them ended the TLS.
    answered(&lab, "spiffe://east.local/ns/shop/sa/caller").await;
    let entry = [
        "get",
        "serviceentries.networking.istio.io",
        "import-pay-shop-svc-cluster-local",
        "-n",
        "istio-system",
    ];
    let entry = east.kubectl().json(&entry).await.unwrap();
    assert_eq!(entry["spec"]["endpoints"][0]["address"], MeshLab::EGRESS_SIDE);
    assert!(!lab.reaches_pod().await.unwrap());

    // Without its agent there is no way.
    drop(agent);
    unanswered(&lab).await;
    export(&west.kubectl(), false).await;
    for plane in [east, west] {
        clean(&product, plane).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn through_a_site_discovery_and_calls_meet_the_policies_of_the_other_mesh() {
    let (east, west, _turn) = planes().await;
    let mut lab = MeshLab::start(east, west).await.unwrap();
    lab.cut_direct_way().unwrap();
    let ports = Lease::block(5).unwrap();
    let [east_at, west_at, door, entry, number] = [0, 1, 2, 3, 4].map(|index| ports.port(index));
    // West's discovery is a pod of its mesh: it speaks mutual TLS alone, and with its peers alone.
    let host = "federation-discovery-service-west.istio-system.svc.cluster.local";
    let (inside, entrance) = resolving(host, number);
    lab.discovery_through_gateway(west, west_at, entrance).await.unwrap();
    lab.cable_to_gate(door).await.unwrap();
    lab.carrier(entry).unwrap();

    // The agent may reach the gateway and nothing else, not even discovery itself.
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
    let gateway = product.gateway("neck", "{kind: memory}", &[]).await.unwrap();
    let said = product.run(&gateway, &["site", "add", "lab", "-o", "json"]).await.unwrap();
    let site: Value = serde_json::from_str(&said).unwrap();
    let policy = format!("tcp:\n  - {{host: 127.0.0.1, ports: [{door}]}}\n");
    let policy = product.folder().write("policy.yaml", &policy).unwrap().display().to_string();
    let token = site["token"]["token"].as_str().unwrap();
    let _agent = product.agent("lab-agent", token, &[&gateway], &["--policy", &policy]).await.unwrap();

    let mut here = federation("east", "west", &[]);
    here["spec"]["remote"][0]["ingress"] = json!({});
    east.kubectl().apply(&here).await.unwrap();
    east.kubectl().apply(&rules("west")).await.unwrap();
    west.kubectl().apply(&federation("west", "east", &["192.0.2.2"])).await.unwrap();
    let mut nothing = rules("east");
    nothing["spec"]["import"] = json!([]);
    west.kubectl().apply(&nothing).await.unwrap();

    let at = |port: u16| format!("127.0.0.1:{port}");
    let (api, token, ca) = (
        gateway.api(),
        product.admin_token().display().to_string(),
        product.authority().display().to_string(),
    );
    let environment = [
        ("POD_NAMESPACE", "istio-system"),
        ("TARBET_SERVER", api.as_str()),
        ("TARBET_TOKEN_FILE", token.as_str()),
        ("TARBET_CA_FILE", ca.as_str()),
    ];
    let (east_config, west_config) =
        (east.kubeconfig().display().to_string(), west.kubeconfig().display().to_string());
    let words = ["mesh", "--kubeconfig", &west_config, "--listen", &at(west_at)];
    let _west = product.role("mesh-west", &words, &environment[..1]).await.unwrap();
    let carry = format!(
        "mesh.carry={{west: {{listen: '{}', advertise: '{}', gateway: '{}'}}}}",
        at(entry),
        MeshLab::CARRIER,
        at(door)
    );
    let words = [
        "mesh",
        "--kubeconfig",
        &east_config,
        "--listen",
        &at(east_at),
        "--via-site",
        "west=lab",
        "--set",
        &carry,
    ];
    let _east = inside.role("mesh-east", &words, &environment).await.unwrap();
    connected(&east.kubectl()).await;
    export(&west.kubectl(), true).await;
    answered(&lab, "spiffe://east.local/ns/shop/sa/caller").await;
    // East's own proxy lets pass what is carried.
    let strict = ["get", "peerauthentications.security.istio.io", "fds-strict-mtls", "-n", "istio-system"];
    let strict = east.kubectl().json(&strict).await.unwrap();
    assert_eq!(strict["spec"]["portLevelMtls"][entry.to_string()]["mode"], "DISABLE");
    export(&west.kubectl(), false).await;
    unanswered(&lab).await;
    for plane in [east, west] {
        clean(&product, plane).await;
    }
}
