//! Istio is whole: istioctl judges, istiod reads a plane and gets ready.

use serde_json::json;
use tarbet_testbed::{ControlPlane, Istioctl, Istiod};

#[tokio::test]
async fn istioctl_takes_what_is_right_and_names_what_is_wrong() {
    let istioctl = Istioctl::find().await.unwrap();
    let entry = |resolution: &str| {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": "ServiceEntry",
            "metadata": { "name": "a", "namespace": "b" },
            "spec": { "hosts": ["x.example"], "location": "MESH_INTERNAL", "resolution": resolution,
                "ports": [{ "name": "http", "number": 80, "protocol": "HTTP" }],
                "endpoints": [{ "address": "192.0.2.1" }] },
        })
    };
    istioctl.validate(&[entry("STATIC")]).await.unwrap();
    istioctl.analyze(&[entry("STATIC")]).await.unwrap();
    let said = istioctl.validate(&[entry("SOMEHOW")]).await.unwrap_err().to_string();
    assert!(said.contains("SOMEHOW"), "{said}");
}

#[tokio::test]
async fn istiod_gets_ready_on_a_bare_plane() {
    let plane = ControlPlane::start("istio").await.unwrap();
    plane.kubectl().run(&["create", "namespace", "istio-system"]).await.unwrap();
    Istiod::install_kinds(&plane).await.unwrap();
    let istiod = Istiod::start(&plane, "cluster.local").await.unwrap();
    assert!(istiod.config_dump("nobody.nowhere").await.is_err(), "only a connected proxy has a dump");
}
