//! The lab of two meshes carries a call exactly when the objects of Istio say so.

use std::time::Duration;

use serde_json::json;
use tarbet_testbed::{Istiod, MeshLab, eventually, shared_pair};

const SOON: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_call_crosses_by_a_gateway_and_an_entry_and_not_without() {
    let pair = shared_pair().await.unwrap();
    let (east, west) = (&pair.public, &pair.private);
    for plane in [east, west] {
        Istiod::install_kinds(plane).await.unwrap();
    }
    let lab = MeshLab::start(east, west).await.unwrap();
    assert!(!matches!(lab.call(MeshLab::PAY).await, Ok((200, _))));
    assert!(!lab.reaches_pod().await.unwrap());
    let gateway = json!({ "apiVersion": "networking.istio.io/v1", "kind": "Gateway",
        "metadata": { "name": "open", "namespace": "istio-system" },
        "spec": { "selector": { MeshLab::GATE_LABEL.0: MeshLab::GATE_LABEL.1 }, "servers": [{
            "port": { "number": 15443, "name": "tls", "protocol": "TLS" },
            "hosts": [MeshLab::PAY], "tls": { "mode": "AUTO_PASSTHROUGH" } }] } });
    let entry = json!({ "apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
        "metadata": { "name": "pay", "namespace": "istio-system" },
        "spec": { "hosts": [MeshLab::PAY], "location": "MESH_INTERNAL", "resolution": "STATIC",
            "ports": [{ "number": 80, "name": "http", "protocol": "HTTP" }],
            "subjectAltNames": ["spiffe://west.local/ns/shop/sa/pay"],
            "endpoints": [{ "address": MeshLab::GATEWAY, "network": "west", "ports": { "http": 15443 },
                "labels": { "security.istio.io/tlsMode": "istio" } }] } });
    west.kubectl().apply(&gateway).await.unwrap();
    east.kubectl().apply(&entry).await.unwrap();
    let body = eventually(SOON, "an answer", || async {
        let (status, body) = lab.call(MeshLab::PAY).await?;
        anyhow::ensure!(status == 200, "{status}: {body}");
        Ok(body)
    })
    .await
    .unwrap();
    assert_eq!(body, "pay of west, called by spiffe://east.local/ns/shop/sa/caller");
    assert!(lab.count("gate", "upstream_cx_total").await.unwrap() > 0);
    west.kubectl()
        .run(&["delete", "gateways.networking.istio.io", "open", "-n", "istio-system"])
        .await
        .unwrap();
    let closed = || async { !matches!(lab.call(MeshLab::PAY).await, Ok((200, _))) };
    eventually(SOON, "the gateway to close", closed).await.unwrap();
    east.kubectl()
        .run(&["delete", "serviceentries.networking.istio.io", "pay", "-n", "istio-system"])
        .await
        .unwrap();
}
