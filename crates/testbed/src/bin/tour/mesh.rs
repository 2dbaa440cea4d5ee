//! Mesh: two control planes federated, a call through two Envoys, and its end.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use tarbet_testbed::product::{Agent, Product};
use tarbet_testbed::{ControlPlane, Istiod, Kubectl, Lease, MeshLab, Pair, eventually};

use crate::steps::{Tour, chapter};

const SOON: Duration = Duration::from_mins(2);
const KINDS: [&str; 3] = ["meshfederations", "federationservicerules", "importedservices"];

/// What the chapter leaves running.
pub(crate) struct Meshes {
    _controllers: [Agent; 2],
    _lab: MeshLab,
    _pair: Pair,
    _ports: Lease,
}

pub(crate) async fn walk(tour: &mut Tour, binary: &Path) -> Result<Meshes> {
    chapter("Mesh: services of one Istio mesh, called by name in another");
    let (pair, lab) = tour
        .step(
            "Two clusters with Istio, Envoys in network namespaces, one root of trust, no other way between them",
            "(the test bed starts them)",
            async {
                let pair = Pair::start().await?;
                for plane in [&pair.public, &pair.private] {
                    install(&plane.kubectl()).await?;
                    Istiod::install_kinds(plane).await?;
                }
                let lab = MeshLab::start(&pair.public, &pair.private).await?;
                ensure!(!lab.reaches_pod().await?, "the caller reaches the pod without a gateway");
                Ok(((pair, lab), "east: a caller with its sidecar; west: a gateway, and pay with its sidecar".to_owned()))
            },
        )
        .await?;
    let (east, west) = (&pair.public, &pair.private);

    let (product, ports) = (Product::new(binary)?, Lease::block(2)?);
    let controllers = tour
        .step(
            "Two objects in each mesh, and a controller that hears the other; nobody gets the other's kubeconfig",
            "kubectl apply -f federation.yaml -f rules.yaml\n\
             tarbet mesh --kubeconfig east.kubeconfig --discovery west=HOST:15080\n\
             tarbet mesh --kubeconfig west.kubeconfig --discovery east=HOST:15080",
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
            west.kubectl().run(&["label", "service", "pay", "-n", "shop", "export=true"]).await?;
            let body = eventually(SOON, "the answer", || async {
                let (status, body) = lab.call(MeshLab::PAY).await?;
                ensure!(status == 200, "{status}: {body}");
                Ok(body)
            })
            .await?;
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
    Ok(Meshes { _controllers: controllers, _lab: lab, _pair: pair, _ports: ports })
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
