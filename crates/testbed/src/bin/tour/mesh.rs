//! Mesh: two control planes federated, a call through two Envoys, and its end.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use tarbet_testbed::product::{Agent, Gateway, Product};
use tarbet_testbed::{ControlPlane, Istiod, Kubectl, Lease, MeshLab, Pair, eventually};

use crate::steps::{Tour, chapter, typed};

const SOON: Duration = Duration::from_mins(2);
const KINDS: [&str; 3] = ["meshfederations", "federationservicerules", "importedservices"];

/// What the chapter leaves running.
pub(crate) struct Meshes {
    _roles: Vec<Agent>,
    _gateway: Gateway,
    _lab: MeshLab,
    pair: Pair,
    _ports: Lease,
}

impl Meshes {
    /// The cluster that imports.
    pub(crate) fn east(&self) -> &ControlPlane {
        &self.pair.public
    }
}

pub(crate) async fn walk(tour: &mut Tour, binary: &Path) -> Result<Meshes> {
    chapter("Mesh: services of one Istio mesh, called by name in another");
    let (pair, mut lab) = tour
        .step(
            "Two clusters with Istio, Envoys in network namespaces, one root of trust, no other way between them",
            "(the test bed starts them)",
            async {
                let pair = Box::pin(Pair::start()).await?;
                for plane in [&pair.public, &pair.private] {
                    install(&plane.kubectl()).await?;
                    Istiod::install_kinds(plane).await?;
                }
                let lab = Box::pin(MeshLab::start(&pair.public, &pair.private)).await?;
                ensure!(!lab.reaches_pod().await?, "the caller reaches the pod without a gateway");
                Ok(((pair, lab), "east: a caller with its sidecar; west: a gateway, and pay with its sidecar".to_owned()))
            },
        )
        .await?;
    let (east, west) = (&pair.public, &pair.private);

    let (product, ports) = (Product::new(binary)?.telling(typed), Lease::block(4)?);
    let controllers = tour
        .step(
            "Two objects in each mesh, and a controller that hears the other; nobody gets the other's kubeconfig",
            "kubectl apply -f federation.yaml -f rules.yaml",
            async {
                declare(&east.kubectl(), "east", "west", MeshLab::GATEWAY).await?;
                declare(&west.kubectl(), "west", "east", "192.0.2.2").await?;
                let controllers = [
                    controller(&product, east, ports.port(0), "west", ports.port(1)).await?,
                    controller(&product, west, ports.port(1), "east", ports.port(0)).await?,
                ];
                eventually(SOON, "both to hear each other", || async {
                    for plane in [east, west] {
                        let federation = plane.kubectl().json(&["get", "meshfederation", "default"]).await?;
                        ensure!(federation["status"]["connected"] == "1/1", "{}", federation["status"]);
                    }
                    Ok(())
                })
                .await?;
                Ok((controllers, east.kubectl().run(&["get", "meshfederations"]).await?))
            },
        )
        .await?;

    tour.step(
        "Nothing is exported that was not named: the caller gets no answer",
        "curl http://pay.shop.svc.cluster.local/        # in the caller's pod",
        async {
            match lab.call(MeshLab::PAY).await {
                Ok((200, body)) => bail!("answered: {body}"),
                Ok((status, _)) => Ok(((), format!("HTTP {status}"))),
                Err(error) => Ok(((), format!("{error}"))),
            }
        },
    )
    .await?;
    tour.step(
        "A label in west exports the service; the call in east passes two Envoys and west's gateway, mutual TLS end to end",
        "kubectl --context west label service pay -n shop export=true\ncurl http://pay.shop.svc.cluster.local/",
        async {
            let body = exported_and_answered(west, &lab).await?;
            let imported = east.kubectl().run(&["get", "importedservices", "-A"]).await?;
            Ok(((), format!("{body}\n{imported}")))
        },
    )
    .await?;
    tour.step(
        "No longer exported: gone here, closed there",
        "kubectl --context west label service pay -n shop export-\ncurl http://pay.shop.svc.cluster.local/",
        async {
            west.kubectl().run(&["label", "service", "pay", "-n", "shop", "export-"]).await?;
            let gone = eventually(SOON, "the end of it", || async {
                match lab.call(MeshLab::PAY).await {
                    Ok((200, body)) => bail!("still answered: {body}"),
                    Ok((status, _)) => Ok(format!("HTTP {status}")),
                    Err(error) => Ok(format!("{error}")),
                }
            })
            .await?;
            Ok(((), gone))
        },
    )
    .await?;
    let [here, there] = controllers;
    drop(here);
    let (gateway, agent, here) =
        Box::pin(through_the_link(tour, &product, (east, west), &mut lab, &ports)).await?;
    Ok(Meshes { _roles: vec![here, there, agent], _gateway: gateway, _lab: lab, pair, _ports: ports })
}

/// The crossing: west has no way in, but a site whose agent dials out.
async fn through_the_link(
    tour: &mut Tour,
    product: &Product,
    (east, west): (&ControlPlane, &ControlPlane),
    lab: &mut MeshLab,
    ports: &Lease,
) -> Result<(Gateway, Agent, Agent)> {
    let [east_at, west_at, door, entry] = [0, 1, 2, 3].map(|index| ports.port(index));
    let made = tour
        .step(
            "The wire to west's gateway is cut; discovery and calls go through west's site instead, whose agent dials out",
            "",
            async {
                lab.cut_direct_way()?;
                lab.cable_to_gate(door).await?;
                let inside = format!("{}:15443", MeshLab::EGRESS_SIDE);
                lab.cable_in(inside.parse()?, entry)?;
                let gateway = product.gateway("neck", "{kind: memory}", &[]).await?;
                let site: Value =
                    serde_json::from_str(&product.run(&gateway, &["site", "add", "lab", "-o", "json"]).await?)?;
                let policy = format!("tcp:\n  - {{host: 127.0.0.1, ports: [{west_at}, {door}]}}\n");
                let policy = product.folder().write("lab-policy.yaml", &policy)?.display().to_string();
                let token = site["token"]["token"].as_str().unwrap_or_default();
                let agent = product.agent("lab-agent", token, &[&gateway], &["--policy", &policy]).await?;
                let patch = json!([{ "op": "replace", "path": "/spec/remote/0/ingress", "value": {} }]).to_string();
                let patch = ["patch", "meshfederation", "default", "--type=json", "-p", &patch];
                east.kubectl().run(&patch).await?;
                let (kubeconfig, listen) = (east.kubeconfig().display().to_string(), format!("127.0.0.1:{east_at}"));
                let discovery = format!("west=127.0.0.1:{west_at}");
                let carry = format!(
                    "mesh.carry={{west: {{listen: '127.0.0.1:{entry}', advertise: '{inside}', gateway: '127.0.0.1:{door}'}}}}"
                );
                let words = [
                    "mesh", "--kubeconfig", &kubeconfig, "--listen", &listen, "--via-site", "west=lab",
                    "--discovery", &discovery, "--set", &carry, "--leader-elect=false",
                ];
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
                let here = product.role("mesh-via-site", &words, &environment).await?;
                let list = product.run(&gateway, &["site", "list"]).await?;
                Ok(((gateway, agent, here), list))
            },
        )
        .await?;
    tour.step(
        "Exported again, the service answers through the link, and still sees the caller's own identity",
        "kubectl --context west label service pay -n shop export=true\ncurl http://pay.shop.svc.cluster.local/",
        async {
            let body = exported_and_answered(west, lab).await?;
            Ok(((), body))
        },
    )
    .await?;
    Ok(made)
}

/// Exports west's service and waits until a call from east is answered.
async fn exported_and_answered(west: &ControlPlane, lab: &MeshLab) -> Result<String> {
    west.kubectl().run(&["label", "service", "pay", "-n", "shop", "export=true"]).await?;
    eventually(SOON, "the answer", || async {
        let (status, body) = lab.call(MeshLab::PAY).await?;
        ensure!(status == 200, "{status}: {body}");
        Ok(body)
    })
    .await
}

async fn install(kubectl: &Kubectl) -> Result<()> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/crds");
    for kind in KINDS {
        let file = format!("{folder}/{kind}.federation.openshift-service-mesh.io.yaml");
        kubectl.run(&["apply", "--server-side", "-f", &file]).await?;
    }
    for kind in KINDS {
        eventually(SOON, kind, || async { kubectl.run(&["get", kind, "-A"]).await }).await?;
    }
    Ok(())
}

async fn declare(kubectl: &Kubectl, local: &str, remote: &str, address: &str) -> Result<()> {
    let (label, value) = MeshLab::GATE_LABEL;
    let group = "federation.openshift-service-mesh.io/v1alpha1";
    let federation: Value = json!({
        "apiVersion": group, "kind": "MeshFederation", "metadata": { "name": "default" },
        "spec": {
            "local": { "id": local, "network": local, "trustDomain": format!("{local}.local"),
                "ingress": { "gateway": { "selector": { label: value } } } },
            "remote": [{ "id": remote, "network": remote, "identity": { "trustDomain": format!("{remote}.local") },
                "ingress": { "addresses": [address], "port": 15443 } }],
        },
    });
    let rules: Value = json!({
        "apiVersion": group, "kind": "FederationServiceRules",
        "metadata": { "name": "default", "namespace": "istio-system" },
        "spec": { "export": { "serviceSelectors": [{ "matchLabels": { "export": "true" } }] },
            "import": [{ "meshID": remote }] },
    });
    kubectl.apply(&federation).await?;
    kubectl.apply(&rules).await?;
    Ok(())
}

async fn controller(
    product: &Product,
    plane: &ControlPlane,
    at: u16,
    peer: &str,
    peer_at: u16,
) -> Result<Agent> {
    let kubeconfig = plane.kubeconfig().display().to_string();
    let (listen, discovery) = (format!("127.0.0.1:{at}"), format!("{peer}=127.0.0.1:{peer_at}"));
    let words = ["mesh", "--kubeconfig", &kubeconfig, "--listen", &listen, "--discovery", &discovery];
    product.role(&format!("mesh-{at}"), &words, &[("POD_NAMESPACE", "istio-system")]).await
}
