//! A node dies after each single effect on the cluster or on interLink, and is started again: nothing is doubled,
//! lost or left.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::coordination::v1::Lease as NodeLease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{DeleteParams, LogParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tarbet_cluster::{Source, connect, merge};
use tarbet_pods::edge::EdgeConfig;
use tarbet_pods::node::NodeConfig;
use tarbet_testbed::{ControlPlane, Lease, Subject, eventually, shared_pair, verified};

use super::shell;
use crate::it::crash::config;
use crate::it::part::{Part, Point, Running};
use crate::it::pods::PATIENCE;
use crate::it::points::processes;

/// Nodes at once: each waits more than it works.
const AT_ONCE: usize = 4;

/// What becomes of a pod, and what the node is doing about it when it dies.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Life {
    /// It is sent, and goes on.
    Lives,
    /// It is sent, and deleted before the node is back.
    Dropped,
    /// It cannot run there.
    Refused,
    /// Its end is told.
    Ends,
    /// A change of it is told.
    Changes,
    /// It is deleted while it runs.
    Removed,
    /// It ends where finished pods do not stay.
    Discarded,
}

const CASES: [(Life, &[Point<'_>]); 7] = [
    (
        Life::Lives,
        &[
            Point("node made", 1),
            Point("node described", 1),
            Point("node told", 1),
            Point("lease made", 1),
            Point("contents read", 1),
            Point("status written", 1),
            Point("intent noted", 1),
            Point("pod sent", 1),
            Point("status written", 2),
        ],
    ),
    (Life::Dropped, &[Point("intent noted", 1), Point("pod sent", 1), Point("status written", 2)]),
    (
        Life::Refused,
        &[Point("intent noted", 1), Point("pod sent", 1), Point("event told", 1), Point("status written", 2)],
    ),
    (Life::Ends, &[Point("status written", 1)]),
    (Life::Changes, &[Point("change told", 1)]),
    (Life::Removed, &[Point("pod removed", 1), Point("status written", 1), Point("pod let go", 1)]),
    (Life::Discarded, &[Point("pod removed", 1), Point("pod let go", 1)]),
];

/// A plugin and an API server for all, which do not die.
struct Ground {
    plane: &'static ControlPlane,
    client: Client,
    namespace: String,
    folder: tempfile::TempDir,
    ports: Lease,
    parts: [Running; 2],
}

impl Ground {
    async fn new() -> Result<Self> {
        tarbet_identity::tls::install_default_provider();
        let (plane, folder, ports) = (&shared_pair().await?.public, tempfile::tempdir()?, Lease::block(2)?);
        fs::create_dir(folder.path().join("out"))?;
        let api = EdgeConfig {
            interlink_port: ports.port(1).to_string(),
            sidecar_url: "http://127.0.0.1".into(),
            sidecar_port: ports.port(0).to_string(),
            data_root_folder: folder.path().join("api"),
            ..Default::default()
        };
        let parts = [
            Running::start(Part::Process(Box::new(config(folder.path(), ports.port(0))))),
            Running::start(Part::Interlink(Box::new(api))),
        ];
        let client = connect(&Source::file(plane.kubeconfig())).await?;
        let namespace = plane.unique_namespace("points").await?;
        let words = json!({"metadata": {"name": "words"}, "data": {"word": "ran"}});
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
        maps.create(&PostParams::default(), &serde_json::from_value(words)?).await?;
        Ok(Self { plane, client, namespace, folder, ports, parts })
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn out(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join("out").join(name)).unwrap_or_default()
    }

    /// A node of this name, whose kubelet has this port.
    fn node(&self, name: &str, port: u16, discards: bool) -> Result<Part> {
        let serving = Subject::loopback(&format!("system:node:{name}"));
        let files = self.plane.authority().issue_files(&serving, self.folder.path(), name)?;
        let config = NodeConfig {
            node_name: name.to_owned(),
            interlink_url: format!("http://127.0.0.1:{}", self.ports.port(1)),
            kubelet_listen: SocketAddr::from(([127, 0, 0, 1], port)),
            kubelet_cert_file: Some(files.certificate),
            kubelet_key_file: Some(files.key),
            remove_finished_pods: discards,
            ..Default::default()
        };
        Ok(Part::Node { config: Box::new(config), kubeconfig: self.plane.kubeconfig() })
    }

    /// Makes a pod that leaves a line of a file of its own, shows a word of its own, and goes on until it is told to
    /// end. Gives its UID.
    async fn make(&self, name: &str, life: Life) -> Result<String> {
        let line = format!(
            "cat /words/word >> /out/{name}; echo >> /out/{name}; \
             until [ -e /out/{name}.go ]; do cat /about/word > /out/{name}.word; sleep 0.1; done"
        );
        let mut main = shell("main", &line);
        main["volumeMounts"] = json!([
            {"name": "out", "mountPath": "/out"}, {"name": "words", "mountPath": "/words"},
            {"name": "about", "mountPath": "/about"},
        ]);
        let elsewhere = self.folder.path().join("data");
        let out = if life == Life::Refused { elsewhere } else { self.folder.path().join("out") };
        let word = json!({"path": "word", "fieldRef": {"fieldPath": "metadata.annotations['word']"}});
        let pod = json!({
            "metadata": {"name": name, "annotations": {"word": "before"}},
            "spec": {
                "nodeName": name, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": false, "containers": [main],
                "volumes": [
                    {"name": "out", "hostPath": {"path": out}}, {"name": "words", "configMap": {"name": "words"}},
                    {"name": "about", "downwardAPI": {"items": [word]}},
                ],
            },
        });
        let made = self.pods().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        made.metadata.uid.context("a pod without a UID")
    }

    /// Waits until a pod has this phase, and gives its status.
    async fn phase(&self, name: &str, phase: &str, when: &str) -> Result<Value> {
        eventually(PATIENCE, &format!("the pod to be {phase}: {when}"), || async {
            let status = json!(self.pods().get(name).await?.status);
            ensure!(status["phase"] == phase, "{status}");
            Ok(status)
        })
        .await
    }

    async fn runs(&self, name: &str, when: &str) -> Result<()> {
        self.phase(name, "Running", when).await?;
        eventually(PATIENCE, &format!("its line: {when}"), || async { !self.out(name).is_empty() }).await
    }

    /// Waits until the node tells the log of a pod. One that has ended goes from the cluster the moment it is deleted,
    /// and a node that is not there then never hears of it.
    async fn known(&self, name: &str, when: &str) -> Result<()> {
        eventually(PATIENCE, &format!("the node to know of the pod: {when}"), || async {
            self.pods().logs(name, &LogParams::default()).await
        })
        .await
        .map(drop)
    }

    /// Lets a pod end.
    fn go(&self, name: &str) -> Result<()> {
        Ok(fs::write(self.folder.path().join("out").join(format!("{name}.go")), "")?)
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.pods().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    async fn gone(&self, name: &str, uid: &str, when: &str) -> Result<()> {
        eventually(PATIENCE, &format!("nothing to be left: {when}"), || async {
            let pod = self.pods().get_opt(name).await?;
            ensure!(pod.is_none(), "{}", json!(pod));
            let folders = fs::read_dir(self.folder.path().join("data"))?;
            let names = folders.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
            let left: Vec<String> = names.filter(|name| name.contains(uid)).collect();
            ensure!(left.is_empty(), "{left:?}");
            let left = processes(uid);
            ensure!(left.is_empty(), "{left:?}");
            Ok(())
        })
        .await
    }

    /// The node says that it is there, and its sign of life goes with it.
    async fn stands(&self, name: &str, when: &str) -> Result<()> {
        eventually(PATIENCE, &format!("the node: {when}"), || async {
            let node = json!(Api::<Node>::all(self.client.clone()).get(name).await?);
            let conditions = node["status"]["conditions"].as_array().context("no conditions")?;
            let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
            ensure!(ready.is_some_and(|ready| ready["status"] == "True"), "{node}");
            ensure!(node["spec"]["taints"][0]["key"].is_string(), "{node}");
            let leases: Api<NodeLease> = Api::namespaced(self.client.clone(), "kube-node-lease");
            let lease = json!(leases.get(name).await?);
            let owners = &lease["metadata"]["ownerReferences"];
            ensure!(owners[0]["uid"] == node["metadata"]["uid"], "{lease} is not of {node}");
            Ok(())
        })
        .await
    }
}

async fn run(ground: &Ground, life: Life, point: Point<'_>, number: usize) -> Result<()> {
    let when = format!("{life:?} after {point:?}");
    let name = format!("doomed-{}-{number}", std::process::id());
    let port = Lease::block(1)?;
    let part = ground.node(&name, port.port(0), life == Life::Discarded)?;
    let make = || ground.make(&name, life);
    let running = matches!(life, Life::Ends | Life::Changes | Life::Removed);
    let mut uid = String::new();
    if running {
        let mut first = Running::start(part.clone());
        uid = make().await?;
        ground.runs(&name, &when).await?;
        first.kill().await;
    }
    let mut node = Running::start_until(part, Some(point));
    match life {
        Life::Lives | Life::Dropped | Life::Refused => uid = make().await?,
        Life::Discarded => {
            uid = make().await?;
            ground.go(&name)?;
        }
        Life::Ends => ground.go(&name)?,
        Life::Changes => {
            let word = json!({"metadata": {"annotations": {"word": "after"}}});
            merge(&ground.pods(), &name, &word).await?;
        }
        Life::Removed => ground.delete(&name).await?,
    }
    if tokio::time::timeout(PATIENCE, node.died()).await.is_err() {
        bail!("it never comes there: {when}");
    }
    if life == Life::Dropped {
        ground.delete(&name).await?;
    }
    node.revive();
    if life == Life::Changes {
        let shown = || async { ground.out(&format!("{name}.word")).trim() == "after" };
        eventually(PATIENCE, &format!("the change: {when}"), shown).await?;
    }
    if matches!(life, Life::Lives | Life::Changes) {
        ground.runs(&name, &when).await?;
        ground.stands(&name, &when).await?;
        ground.go(&name)?;
    }
    match life {
        Life::Lives | Life::Changes | Life::Ends => {
            let status = ground.phase(&name, "Succeeded", &when).await?;
            let end = &status["containerStatuses"][0]["state"]["terminated"];
            ensure!(end["exitCode"] == 0, "{when}: {status}");
            ground.known(&name, &when).await?;
            ground.delete(&name).await?;
        }
        Life::Refused => {
            let status = ground.phase(&name, "Failed", &when).await?;
            ensure!(status["reason"] == "ProviderFailed", "{when}: {status}");
            ground.delete(&name).await?;
        }
        Life::Dropped | Life::Removed | Life::Discarded => {}
    }
    ground.gone(&name, &uid, &when).await?;
    node.kill().await;
    let ran = ground.out(&name);
    let never = ran.is_empty() && matches!(life, Life::Dropped | Life::Refused);
    ensure!(never || (ran == "ran\n" && life != Life::Refused), "{when}: {ran:?}");
    Api::<Node>::all(ground.client.clone()).delete(&name, &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test]
async fn pods_are_sent_once_told_and_removed_wherever_the_node_dies() -> Result<()> {
    let mut ground = Ground::new().await?;
    let cases = CASES.iter().flat_map(|(life, points)| points.iter().map(|point| (*life, *point)));
    let cases: Vec<_> = cases.enumerate().collect();
    let count = cases.len();
    let runs = cases.into_iter().map(|(number, (life, point))| run(&ground, life, point, number));
    stream::iter(runs).buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
    for part in &mut ground.parts {
        part.kill().await;
    }
    verified("kill -9 of a node after each effect: no pod is doubled, lost or left", count);
    Ok(())
}
