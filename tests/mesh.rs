//! Two meshes with real traffic: `tarbet mesh` beside real istiods, requests through real Envoys.

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};
use tarbet_testbed::product::{Agent, Product};
use tarbet_testbed::{ControlPlane, Folder, Istiod, Kubectl, Lease, MeshLab, eventually, shared_pair};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

pub(crate) const SOON: Duration = Duration::from_secs(90);
const RULES: &str = "federationservicerules";

/// The two planes with the kinds of ours and of Istio, for one test at a time: east and west.
pub(crate) async fn planes() -> (&'static ControlPlane, &'static ControlPlane, MutexGuard<'static, ()>) {
    static READY: OnceCell<()> = OnceCell::const_new();
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    let pair = shared_pair().await.unwrap();
    let prepare = || async {
        for plane in [&pair.public, &pair.private] {
            install_kinds(plane).await.unwrap();
            Istiod::install_kinds(plane).await.unwrap();
        }
    };
    READY.get_or_init(prepare).await;
    (&pair.public, &pair.private, turn)
}

async fn install_kinds(plane: &ControlPlane) -> Result<()> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/crds");
    for kind in ["meshfederations", RULES, "importedservices"] {
        let file = format!("{folder}/{kind}.federation.openshift-service-mesh.io.yaml");
        plane.kubectl().run(&["apply", "--server-side", "--force-conflicts", "-f", &file]).await?;
    }
    for kind in ["meshfederations", RULES, "importedservices"] {
        eventually(SOON, kind, || async { plane.kubectl().run(&["get", kind, "-A"]).await }).await?;
    }
    Ok(())
}

pub(crate) fn federation(local: &str, remote: &str, addresses: &[&str]) -> Value {
    let (label, value) = MeshLab::GATE_LABEL;
    json!({
        "apiVersion": "federation.openshift-service-mesh.io/v1alpha1", "kind": "MeshFederation",
        "metadata": { "name": "default" },
        "spec": {
            "local": { "id": local, "network": local, "trustDomain": format!("{local}.local"),
                "ingress": { "gateway": { "selector": { label: value } } } },
            "remote": [{ "id": remote, "network": remote,
                "identity": { "trustDomain": format!("{remote}.local") },
                "ingress": { "addresses": addresses, "port": 15443 } }],
        },
    })
}

pub(crate) fn rules(import: &str) -> Value {
    json!({
        "apiVersion": "federation.openshift-service-mesh.io/v1alpha1", "kind": "FederationServiceRules",
        "metadata": { "name": "default", "namespace": "istio-system" },
        "spec": {
            "export": { "serviceSelectors": [{ "matchLabels": { "export": "true" } }] },
            "import": [{ "meshID": import }],
        },
    })
}

/// Marks west's service as exported, or as not.
pub(crate) async fn export(west: &Kubectl, yes: bool) {
    let label = if yes { "export=true" } else { "export-" };
    west.run(&["label", "service", "pay", "-n", "shop", "--overwrite", label]).await.unwrap();
}

/// Waits until calls are answered, and gives the answer.
pub(crate) async fn answered(lab: &MeshLab, by: &str) -> String {
    let look = || async {
        let (status, body) = lab.call(MeshLab::PAY).await?;
        ensure!(status == 200 && body.ends_with(by), "{status}: {body}");
        Ok(body)
    };
    eventually(SOON, "an answer from the other mesh", look).await.unwrap()
}

/// Waits until calls are not answered any more.
pub(crate) async fn unanswered(lab: &MeshLab) {
    let look = || async {
        match lab.call(MeshLab::PAY).await {
            Ok((200, body)) => Err(anyhow!("{body}")),
            _ => Ok(()),
        }
    };
    eventually(SOON, "the other mesh to be out of reach", look).await.unwrap();
}

/// Waits until a mesh hears its peer.
pub(crate) async fn connected(kubectl: &Kubectl) {
    let look = || async {
        let federation = kubectl.json(&["get", "meshfederation", "default"]).await?;
        ensure!(federation["status"]["connected"] == "1/1", "{}", federation["status"]);
        Ok(())
    };
    eventually(SOON, "the meshes to hear each other", look).await.unwrap();
}

/// A controller of one mesh whose peer's discovery is at this port.
async fn controller(product: &Product, plane: &ControlPlane, mesh: &str, at: u16, peer: &str, peer_at: u16) -> Agent {
    let kubeconfig = plane.kubeconfig().display().to_string();
    let (listen, discovery) = (format!("127.0.0.1:{at}"), format!("{peer}=127.0.0.1:{peer_at}"));
    let args = ["mesh", "--kubeconfig", &kubeconfig, "--listen", &listen, "--discovery", &discovery];
    product.role(&format!("mesh-{mesh}"), &args, &[("POD_NAMESPACE", "istio-system")]).await.unwrap()
}

/// Everything federation made is gone from a cluster.
pub(crate) async fn clean(product: &Product, plane: &ControlPlane) {
    let kubeconfig = plane.kubeconfig().display().to_string();
    let (code, said) = product.command(&["mesh", "cleanup", "--kubeconfig", &kubeconfig, "--yes"]).await.unwrap();
    assert_eq!(code, Some(0), "{said}");
    let kinds = "meshfederations,federationservicerules,importedservices,gateways.networking.istio.io,\
        serviceentries.networking.istio.io,virtualservices.networking.istio.io,authorizationpolicies.security.istio.io";
    let left = plane.kubectl().run(&["get", kinds, "-A", "-o", "name"]).await.unwrap();
    assert_eq!(left, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_crosses_two_envoys_only_while_its_service_is_exported() {
    let (east, west, _turn) = planes().await;
    let mut lab = MeshLab::start(east, west).await.unwrap();
    let (here, there) = (east.kubectl(), west.kubectl());
    here.apply(&federation("east", "west", &[MeshLab::GATEWAY])).await.unwrap();
    here.apply(&rules("west")).await.unwrap();
    there.apply(&federation("west", "east", &["192.0.2.2"])).await.unwrap();
    there.apply(&rules("east")).await.unwrap();
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
    let ports = Lease::block(2).unwrap();
    let (east_at, west_at) = (ports.port(0), ports.port(1));
    let mut controllers = [
        controller(&product, east, "east", east_at, "west", west_at).await,
        controller(&product, west, "west", west_at, "east", east_at).await,
    ];
    connected(&here).await;
    connected(&there).await;

    // Not exported: unknown to the caller, and no other way to the pod.
    unanswered(&lab).await;
    assert!(!lab.reaches_pod().await.unwrap());
    assert_eq!(lab.count("gate", "downstream_cx_total").await.unwrap(), 0);

    // Exported: answered, and the service sees the very identity of the caller.
    export(&there, true).await;
    let caller = "spiffe://east.local/ns/shop/sa/caller";
    answered(&lab, caller).await;
    assert!(lab.count("gate", "upstream_cx_total").await.unwrap() > 0, "not through the gateway");
    let kubeconfig = east.kubeconfig().display().to_string();
    let (code, said) = product.command(&["mesh", "status", "--kubeconfig", &kubeconfig, "-o", "json"]).await.unwrap();
    assert_eq!(code, Some(0), "{said}");
    let status: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(status["remotes"][0]["imported"], 1, "{status}");

    // A person tries it step by step; only the name is not known outside a pod.
    let (folder, door) = (Folder::new("identity").unwrap(), Lease::block(1).unwrap());
    lab.callers_identity(&folder).unwrap();
    lab.cable_to_gate(door.port(0)).await.unwrap();
    let (identity, gateway) = (folder.path().display().to_string(), format!("127.0.0.1:{}", door.port(0)));
    let trial = |service: &'static str| {
        let words =
            ["mesh", "test", "--to", service, "--kubeconfig", &kubeconfig, "--identity", &identity, "--gateway", &gateway];
        product.command(&words)
    };
    let (code, said) = trial("pay.shop").await.unwrap();
    let row = |step: &str| said.lines().find(|line| line.starts_with(step)).unwrap_or("").to_owned();
    assert!(row("mtls").contains("true") && row("mtls").contains("spiffe://west.local/ns/shop/sa/pay"), "{said}");
    assert!(row("http").contains("true") && row("http").contains("200 OK"), "{said}");
    assert!(row("dns").contains("false") && row("dns").contains("DNS_CAPTURE") && code == Some(1), "{said}");
    assert_eq!(trial("unknown.shop").await.unwrap().0, Some(3));

    // The controllers die: traffic does not notice. They come back and write nothing.
    for controller in &mut controllers {
        controller.process.kill9().unwrap();
    }
    answered(&lab, caller).await;
    for controller in &mut controllers {
        controller.process.restart().await.unwrap();
        controller.ready().await.unwrap();
    }
    let settled = || async {
        for controller in &controllers {
            ensure!(controller.metric("tarbet_mesh_reconcile_seconds_count").await? >= 2.0, "not looked yet");
            ensure!(controller.metric("tarbet_mesh_peer_connected").await? >= 1.0, "not connected yet");
        }
        Ok(())
    };
    eventually(SOON, "the controllers to look around", settled).await.unwrap();
    for controller in &controllers {
        assert!(controller.metric("tarbet_mesh_writes_total").await.unwrap() < 0.5, "nothing changed");
    }
    answered(&lab, caller).await;

    // Through the gateway of the way out, once there is one; the direct way is gone.
    lab.start_egress(east).await.unwrap();
    let (label, value) = MeshLab::EGRESS_LABEL;
    let mut leaving = federation("east", "west", &[MeshLab::GATEWAY]);
    leaving["spec"]["local"]["egress"] = json!({ "gateway": { "selector": { label: value } } });
    here.apply(&leaving).await.unwrap();
    answered(&lab, "spiffe://east.local/ns/istio-system/sa/federation-egress-gateway").await;
    lab.cut_direct_way().unwrap();
    answered(&lab, "spiffe://east.local/ns/istio-system/sa/federation-egress-gateway").await;

    // No longer exported: gone, at the gateway too.
    export(&there, false).await;
    unanswered(&lab).await;
    for plane in [east, west] {
        clean(&product, plane).await;
    }
}
