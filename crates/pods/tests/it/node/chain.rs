//! Node, API server and plugin as three processes, any of which is killed at any moment.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use rand::Rng;
use serde_json::{Value, json};
use tarbet_pods::edge::EdgeConfig;
use tarbet_pods::node::NodeConfig;
use tarbet_testbed::{ControlPlane, Kubectl, Lease, Subject, eventually, shared_pair, verified};

use super::shell;
use crate::it::docker::daemon;
use crate::it::part::{Part, Running};
use crate::it::pods::{PATIENCE, effort};
use crate::it::slurm::cluster;

/// What runs the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Docker,
    Slurm,
}

/// What must come of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It runs and goes on.
    Lives,
    /// It ends by itself, with this code.
    Ends(i64),
    /// Somebody deleted it.
    Deleted,
}

struct Chain {
    place: Place,
    plane: &'static ControlPlane,
    namespace: String,
    node: String,
    /// Plugin, API server and node.
    parts: [Running; 3],
    pods: BTreeMap<String, (String, Fate)>,
    folder: tempfile::TempDir,
    _ports: Lease,
}

impl Chain {
    async fn start(place: Place) -> Result<Self> {
        tarbet_identity::tls::install_default_provider();
        let (plane, folder, ports) = (&shared_pair().await?.public, tempfile::tempdir()?, Lease::block(3)?);
        let namespace = plane.unique_namespace("chain").await?;
        let node = format!("chain-{}-{}", format!("{place:?}").to_lowercase(), std::process::id());
        std::fs::create_dir(folder.path().join("out"))?;
        let plugin = EdgeConfig {
            sidecar_port: ports.port(0).to_string(),
            data_root_folder: folder.path().join("data"),
            container_runtime: "process".into(),
            shared_fs: true,
            status_seconds: 1,
            policy: tarbet_pods::plan::Policy {
                allowed_host_paths: vec![folder.path().join("out")],
                ..Default::default()
            },
            ..Default::default()
        };
        let plugin = match place {
            Place::Docker => {
                let (docker_host, docker_network) = (daemon().await.url(), "none".into());
                Part::Docker(Box::new(EdgeConfig { docker_host, docker_network, ..plugin }))
            }
            Place::Slurm => {
                Part::Slurm { config: Box::new(plugin), conf: cluster().await.config().to_owned() }
            }
        };
        let api = EdgeConfig {
            interlink_port: ports.port(1).to_string(),
            sidecar_url: "http://127.0.0.1".into(),
            sidecar_port: ports.port(0).to_string(),
            data_root_folder: folder.path().join("api"),
            ..Default::default()
        };
        let serving = Subject::loopback(&format!("system:node:{node}"));
        let files = plane.authority().issue_files(&serving, folder.path(), "kubelet")?;
        let virtual_node = NodeConfig {
            node_name: node.clone(),
            interlink_url: format!("http://127.0.0.1:{}", ports.port(1)),
            kubelet_listen: SocketAddr::from(([127, 0, 0, 1], ports.port(2))),
            kubelet_cert_file: Some(files.certificate),
            kubelet_key_file: Some(files.key),
            ..Default::default()
        };
        let parts = [
            Running::start(plugin),
            Running::start(Part::Interlink(Box::new(api))),
            Running::start(Part::Node { config: Box::new(virtual_node), kubeconfig: plane.kubeconfig() }),
        ];
        Ok(Self { place, plane, namespace, node, parts, pods: BTreeMap::new(), folder, _ports: ports })
    }

    fn kubectl(&self) -> Kubectl {
        self.plane.kubectl()
    }

    /// A pod that leaves a line each time it begins, where no restart of anything can wipe it away.
    async fn add(&mut self, fate: Fate) -> Result<()> {
        let name = format!("pod-{}", self.pods.len());
        let out = self.folder.path().join("out");
        let line = match fate {
            Fate::Ends(code) => format!("echo ran >> /out/{name}; sleep 0.5; exit {code}"),
            _ => format!("echo ran >> /out/{name}; while :; do sleep 1; done"),
        };
        let mut main = shell("main", &line);
        main["volumeMounts"] = json!([{"name": "out", "mountPath": "/out"}]);
        let mut containers = vec![main];
        if fate == Fate::Lives {
            containers.push(shell("other", "while :; do sleep 1; done"));
        }
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "nodeName": self.node, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                "containers": containers, "volumes": [{"name": "out", "hostPath": {"path": out}}],
            },
        });
        self.kubectl().apply(&object).await?;
        let uid = self.get(&name).await?["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        self.pods.insert(name, (uid, fate));
        Ok(())
    }

    async fn get(&self, name: &str) -> Result<Value> {
        self.kubectl().json(&["--namespace", &self.namespace, "get", "pod", name]).await
    }

    /// Deletes one that lives.
    async fn delete_one(&mut self) -> Result<()> {
        let Some((name, (_, fate))) = self.pods.iter_mut().find(|(_, (_, fate))| *fate == Fate::Lives) else {
            return Ok(());
        };
        *fate = Fate::Deleted;
        let name = name.clone();
        self.kubectl()
            .run(&["--namespace", &self.namespace, "delete", "pod", &name, "--wait=false"])
            .await
            .map(drop)
    }

    /// How often something was made for a pod that is still there: containers, or jobs that have not ended.
    async fn made(&self, uid: &str, ended: bool) -> Result<usize> {
        if self.place == Place::Slurm {
            let (name, states) =
                (format!("--name={uid}"), if ended { "--states=all" } else { "--states=R,PD,CG" });
            let words = ["--noheader", "-a", states, &name, "-o", "%A"];
            return Ok(cluster()
                .await
                .run("squeue", &words)
                .await?
                .lines()
                .filter(|line| !line.is_empty())
                .count());
        }
        let filter = format!("label=dev.tarbet.pod.uid={uid}");
        Ok(daemon().await.docker(&["ps", "-aq", "--filter", &filter]).await?.lines().count())
    }

    fn written(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join("out").join(name)).unwrap_or_default()
    }

    async fn check(&self, name: &str, uid: &str, fate: Fate) -> Result<()> {
        eventually(PATIENCE * 2, &format!("{name}, whose fate is {fate:?}"), || async {
            if fate == Fate::Deleted {
                let gone = self.get(name).await.is_err_and(|error| error.to_string().contains("NotFound"));
                let left = self.made(uid, false).await?;
                ensure!(gone && left == 0, "gone: {gone}, left: {left}");
                return Ok(());
            }
            let pod = self.get(name).await?;
            ensure!(pod["metadata"]["uid"] == uid && pod["metadata"]["deletionTimestamp"].is_null(), "{pod}");
            let phase = pod["status"]["phase"].as_str().unwrap_or_default();
            match fate {
                Fate::Ends(code) => {
                    let end = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
                    let wanted = if code == 0 { "Succeeded" } else { "Failed" };
                    ensure!(phase == wanted && end["exitCode"] == code, "{}", pod["status"]);
                }
                _ => ensure!(phase == "Running", "{}", pod["status"]),
            }
            // One job each. Of containers, two share a network that a third holds; what runs alone and once
            // holds its own.
            let wanted = if fate == Fate::Lives && self.place == Place::Docker { 3 } else { 1 };
            let made = self.made(uid, true).await?;
            ensure!(made == wanted, "{made} were made");
            // It is called running before its shell has written anything.
            ensure!(!self.written(name).is_empty(), "it has written nothing");
            anyhow::Ok(())
        })
        .await?;
        let ran = self.written(name);
        match fate {
            // It may have been deleted before it could begin.
            Fate::Deleted if ran.is_empty() => Ok(()),
            _ if ran == "ran\n" => Ok(()),
            _ => bail!("{name} ran {} times", ran.lines().count()),
        }
    }
}

#[tokio::test]
async fn whichever_part_is_killed_no_pod_is_doubled_lost_or_deleted() -> Result<()> {
    storm(Place::Docker).await
}

#[tokio::test]
async fn whichever_part_is_killed_no_job_is_doubled_lost_or_deleted() -> Result<()> {
    storm(Place::Slurm).await
}

async fn storm(place: Place) -> Result<()> {
    let mut chain = Chain::start(place).await?;
    for _ in 0..3 {
        chain.add(Fate::Lives).await?;
    }
    let (rounds, mut kills) = (effort(12), [0_u32; 3]);
    for round in 0..rounds {
        match round % 6 {
            0 | 3 => chain.add(Fate::Lives).await?,
            1 => chain.add(Fate::Ends(i64::from(round % 4))).await?,
            4 => chain.delete_one().await?,
            _ => {}
        }
        let pause = Duration::from_millis(rand::rng().random_range(0..1000));
        // Where the kill falls is the point of it: before, into or after whatever is being done.
        let _ = tokio::time::timeout(pause, std::future::pending::<()>()).await;
        let victim = rand::rng().random_range(0..3);
        chain.parts[victim].replace().await;
        kills[victim] += 1;
    }
    for (name, (uid, fate)) in &chain.pods {
        chain.check(name, uid, *fate).await?;
    }
    let listed = chain.kubectl().json(&["--namespace", &chain.namespace, "get", "pods"]).await?;
    let kept = chain.pods.values().filter(|(_, fate)| *fate != Fate::Deleted).count();
    ensure!(listed["items"].as_array().is_some_and(|items| items.len() == kept), "{kept} pods are kept");
    // What is left ends with its pods.
    chain
        .kubectl()
        .run(&["--namespace", &chain.namespace, "delete", "pods", "--all", "--timeout=120s"])
        .await?;
    for (uid, _) in chain.pods.values() {
        eventually(PATIENCE, "nothing to be left", || async {
            let left = chain.made(uid, false).await?;
            ensure!(left == 0, "{uid} left {left} behind");
            anyhow::Ok(())
        })
        .await?;
    }
    for part in &mut chain.parts {
        part.kill().await;
    }
    for (part, kills) in ["plugin", "API server", "node"].into_iter().zip(kills) {
        let on = if place == Place::Docker { "pods" } else { "pods on Slurm" };
        let what = format!("kill -9 of the {part} with live {on}: none doubled, lost or deleted");
        verified(&what, kills as usize);
    }
    Ok(())
}
