//! Real traffic where meshes share more than a gateway: one network, or one service.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use anyhow::ensure;
use serde_json::{Value, json};
use tarbet_testbed::product::Product;
use tarbet_testbed::{Lease, MeshLab, eventually};

use super::{SOON, answered, clean, connected, export, federation, join, planes, rules, unanswered};

/// The product as in a pod whose proxy resolves this name: a machine's own table of names stands for it.
/// The name is at an address of loopback that nobody else has, and at the port of discovery.
pub(crate) fn resolving(name: &str, number: u16) -> (Product, SocketAddr) {
    let [high, low] = number.to_be_bytes();
    let address = SocketAddr::from(([127, 77, high, low], 15080));
    let product = Product::new("unused").unwrap();
    let folder = product.folder();
    let names = format!("127.0.0.1 localhost\n{} {name}\n", address.ip());
    let names = folder.write("hosts", &names).unwrap();
    let script = format!(
        "#!/bin/sh\nexec unshare --mount sh -c 'mount --bind {} /etc/hosts && exec \"$@\"' sh {} \"$@\"\n",
        names.display(),
        env!("CARGO_BIN_EXE_tarbet")
    );
    let script = folder.write("tarbet", &script).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    (product.with_binary(script), address)
}

#[tokio::test(flavor = "multi_thread")]
async fn in_one_network_discovery_and_calls_go_from_pod_to_pod_under_mutual_tls() {
    let (east, west, _turn) = planes().await;
    let mut lab = MeshLab::start(east, west).await.unwrap();
    let ports = Lease::block(3).unwrap();
    let [east_at, west_at, entrance] = [0, 1, 2].map(|index| ports.port(index));
    let host = "federation-discovery-service-west.istio-system.svc.cluster.local";
    let (product, entrance) = resolving(host, entrance);
    lab.discovery_through_gateway(west, west_at, entrance).await.unwrap();
    lab.one_network().unwrap();
    // No ingress anywhere. Where the other's discovery is, is told by the federation.
    let one = |mut federation: Value| {
        federation["spec"]["local"].as_object_mut().unwrap().remove("ingress");
        federation["spec"]["local"]["network"] = json!("east");
        federation["spec"]["remote"][0]["network"] = json!("east");
        federation["spec"]["remote"][0]["ingress"] = json!({});
        federation
    };
    let mut here = one(federation("east", "west", &[]));
    here["spec"]["remote"][0]["discovery"] = json!({ "address": MeshLab::DISCOVERY });
    east.kubectl().apply(&here).await.unwrap();
    east.kubectl().apply(&rules("west")).await.unwrap();
    west.kubectl().apply(&one(federation("west", "east", &[]))).await.unwrap();
    let mut nothing = rules("east");
    nothing["spec"]["import"] = json!([]);
    west.kubectl().apply(&nothing).await.unwrap();

    let (east_config, west_config) =
        (east.kubeconfig().display().to_string(), west.kubeconfig().display().to_string());
    let at = |port: u16| format!("127.0.0.1:{port}");
    let environment = [("POD_NAMESPACE", "istio-system")];
    let words = ["mesh", "--kubeconfig", &west_config, "--listen", &at(west_at)];
    let _west = product.role("mesh-west", &words, &environment).await.unwrap();
    let words = ["mesh", "--kubeconfig", &east_config, "--listen", &at(east_at)];
    let _east = product.role("mesh-east", &words, &environment).await.unwrap();
    connected(&east.kubectl()).await;

    export(&west.kubectl(), true).await;
    answered(&lab, "spiffe://east.local/ns/shop/sa/caller").await;
    assert_eq!(lab.count("gate", "15443.downstream_cx_total").await.unwrap(), 0, "no gateway is between");
    export(&west.kubectl(), false).await;
    unanswered(&lab).await;
    for plane in [east, west] {
        clean(&product, plane).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_of_both_meshes_answers_from_both_whatever_their_trust_domains() {
    let (east, west, _turn) = planes().await;
    let mut lab = MeshLab::start(east, west).await.unwrap();
    lab.serve_pay_here(east).await.unwrap();
    let here = [federation("east", "west", &[MeshLab::GATEWAY]), rules("west")];
    let there = [federation("west", "east", &["192.0.2.2"]), rules("east")];
    let joined = join((east, here), (west, there)).await;
    let caller = "called by spiffe://east.local/ns/shop/sa/caller";
    answered(&lab, &format!("pay of east, {caller}")).await;
    // The pods of both sides answer by turns, each with its own account and trust domain.
    export(&west.kubectl(), true).await;
    answered(&lab, &format!("pay of west, {caller}")).await;
    answered(&lab, &format!("pay of east, {caller}")).await;
    let workload = ["get", "workloadentries.networking.istio.io", "import-west-pay-0", "-n", "shop"];
    let workload = east.kubectl().json(&workload).await.unwrap();
    assert_eq!(workload["spec"]["address"], MeshLab::GATEWAY);

    // The local pod goes: the other mesh is left, and comes to be the only one that is believed.
    lab.stop_pay_here(east).await.unwrap();
    let rule = ["get", "destinationrules.networking.istio.io", "-n", "shop", "-o", "json"];
    let alone = || async {
        let rules = east.kubectl().json(&rule).await?;
        let tls = &rules["items"][0]["spec"]["trafficPolicy"]["portLevelSettings"][0]["tls"];
        ensure!(tls["subjectAltNames"] == json!(["spiffe://west.local/ns/shop/sa/pay"]), "{tls}");
        Ok(())
    };
    eventually(SOON, "only the other mesh to be believed", alone).await.unwrap();
    answered(&lab, &format!("pay of west, {caller}")).await;

    // No longer exported there: nothing of it is left here.
    export(&west.kubectl(), false).await;
    let only_here = || async {
        let left = "destinationrules.networking.istio.io,workloadentries.networking.istio.io";
        let left = east.kubectl().run(&["get", left, "-n", "shop", "-o", "name"]).await?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    };
    eventually(SOON, "the end of the import", only_here).await.unwrap();
    unanswered(&lab).await;
    lab.no_pay_here(east).await.unwrap();
    joined.part([east, west]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_answered_under_a_name_of_its_own() {
    let (east, west, _turn) = planes().await;
    let lab = MeshLab::start(east, west).await.unwrap();
    let mut named = rules("east");
    let name = json!({ "searchDomain": "mesh.global", "includeNamespace": true });
    named["spec"]["export"]["dnsSettings"] = name;
    let here = [federation("east", "west", &[MeshLab::GATEWAY]), rules("west")];
    let there = [federation("west", "east", &["192.0.2.2"]), named];
    let joined = join((east, here), (west, there)).await;
    export(&west.kubectl(), true).await;
    let called = || async {
        let (status, body) = lab.call("pay.shop.mesh.global").await?;
        ensure!(status == 200 && body.ends_with("spiffe://east.local/ns/shop/sa/caller"), "{status}: {body}");
        Ok(())
    };
    eventually(SOON, "an answer under the name of its own", called).await.unwrap();
    // Under its name within the cluster it is not exported.
    unanswered(&lab).await;
    export(&west.kubectl(), false).await;
    joined.part([east, west]).await;
}
