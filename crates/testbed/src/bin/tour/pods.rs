//! Pods: ordinary pods that a virtual node runs on a Docker host.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use tarbet_testbed::product::Agent;
use tarbet_testbed::{Dockerd, Kubectl, Lease, Subject, eventually};

use crate::reach::Scene;
use crate::steps::{Tour, chapter};

const SOON: Duration = Duration::from_mins(2);

/// What the chapter leaves running.
pub(crate) struct Edge {
    pub(crate) docker: Dockerd,
    _roles: [Agent; 3],
    _ports: Lease,
}

pub(crate) async fn walk(tour: &mut Tour, scene: &Scene) -> Result<Edge> {
    chapter("Pods: a node of the cluster whose pods run on a Docker host");
    let (plane, product) = (&scene.plane, &scene.product);
    let docker = tour
        .step(
            "A Docker daemon of its own, with an image made from local files",
            "(the test bed starts it)",
            async {
                let docker = Dockerd::start().await?;
                docker.shell_image("shell:1").await?;
                Ok((docker, "image shell:1".to_owned()))
            },
        )
        .await?;

    let ports = Lease::block(2)?;
    let at = |port: u16| format!("127.0.0.1:{port}");
    let (plugin_at, api_at, kubelet_at) = (at(ports.port(0)), at(scene.interlink_port()), at(ports.port(1)));
    let roots = product.folder().path().join("pods");
    let files = plane.authority().issue_files(
        &Subject::loopback("system:node:edge"),
        product.folder().path(),
        "kubelet",
    )?;
    let roles = tour
        .step("Plugin, API server and virtual node, each also exchangeable for interLink's own", "", async {
            let (plugin_root, api_root) =
                (roots.join("plugin").display().to_string(), roots.join("api").display().to_string());
            let plugin = ["plugin", "docker", "--listen", &plugin_at, "--data-root", &plugin_root];
            let plugin = product.role("plugin-docker", &plugin, &[("DOCKER_HOST", &docker.url())]).await?;
            let sidecar = ports.port(0).to_string();
            let variables = [("SIDECARURL", "http://127.0.0.1"), ("SIDECARPORT", sidecar.as_str())];
            let api = ["interlink", "--listen", &api_at, "--data-root", &api_root];
            let api = product.role("interlink", &api, &variables).await?;
            let (url, kubeconfig) = (format!("http://{api_at}"), plane.kubeconfig().display().to_string());
            let cert = format!("node.KubeletCertFile={}", files.certificate.display());
            let key = format!("node.KubeletKeyFile={}", files.key.display());
            let node = [
                "node",
                "--nodename",
                "edge",
                "--interlink-url",
                &url,
                "--kubeconfig",
                &kubeconfig,
                "--kubelet-listen",
                &kubelet_at,
                "--set",
                &cert,
                "--set",
                &key,
            ];
            let node = product.role("node", &node, &[]).await?;
            let nodes = plane.kubectl().run(&["get", "nodes"]).await?;
            Ok(([plugin, api, node], nodes))
        })
        .await?;

    let kubectl = plane.kubectl();
    tour.step(
        "An ordinary pod, scheduled to that node, really runs",
        "kubectl apply -f pod.yaml\nkubectl get pods -o wide",
        async {
            run(&kubectl).await?;
            Ok(((), kubectl.run(&["get", "pods", "-o", "wide"]).await?))
        },
    )
    .await?;
    tour.step("Its log is read through the API server, as on any node", "kubectl logs busy", async {
        let log = eventually(SOON, "the log", || async {
            let log = kubectl.run(&["logs", "busy"]).await?;
            ensure!(log.contains("carried across"), "{log}");
            Ok(log)
        })
        .await?;
        Ok(((), log))
    })
    .await?;
    tour.step(
        "So is a command inside it",
        "kubectl exec busy -- sh -c 'echo I am process $$ and see $(ls / | wc -l) folders'",
        async {
            let said = kubectl
                .run(&[
                    "exec",
                    "busy",
                    "--",
                    "sh",
                    "-c",
                    "echo I am process $$ and see $(ls / | wc -l) folders",
                ])
                .await?;
            Ok(((), said))
        },
    )
    .await?;
    tour.step(
        "Deleting the pod removes its containers",
        "kubectl delete pod busy --wait=true --grace-period=1",
        async {
            kubectl.run(&["delete", "pod", "busy", "--wait=true", "--grace-period=1"]).await?;
            let left = eventually(SOON, "the containers to go", || async {
                let left = docker.docker(&["ps", "--all", "--quiet"]).await?;
                ensure!(left.trim().is_empty(), "containers: {left}");
                Ok(left)
            })
            .await?;
            Ok(((), format!("containers left: {}", left.lines().count())))
        },
    )
    .await?;
    Ok(Edge { docker, _roles: roles, _ports: ports })
}

/// Makes the pod and waits until it runs.
pub(crate) async fn run(kubectl: &Kubectl) -> Result<()> {
    kubectl.apply(&pod()).await?;
    eventually(SOON, "the pod to run", || async {
        let phase = kubectl.run(&["get", "pod", "busy", "-o", "jsonpath={.status.phase}"]).await?;
        ensure!(phase == "Running", "it is {phase}");
        Ok(())
    })
    .await
}

fn pod() -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "busy", "namespace": "default"},
        "spec": {
            "nodeName": "edge",
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": "shell:1", "imagePullPolicy": "Never",
                "command": ["sh", "-c", "echo carried across; while true; do sleep 1; done"],
            }],
        },
    })
}
