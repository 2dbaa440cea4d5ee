//! What `tarbet up --kubeconfig` puts into clusters. It is noted before it is made, and apart from what the
//! running process tells, so that `tarbet down` finds it also after a kill or an interrupt.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tarbet_cluster::{Class, Client, Source, class, describe};
use tarbet_identity::files;

use crate::roles::jobs::connect;

/// The file of the notes in the state folder.
pub const FILE: &str = "clusters.json";
/// How long a cluster is given: one that is gone for good must not keep `tarbet down` from the rest.
const PATIENCE: Duration = Duration::from_secs(10);

/// One cluster that was served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// How it is reached.
    pub kubeconfig: PathBuf,
    /// The virtual node, if pods were offered.
    pub node: Option<String>,
    /// Whether federation ran.
    pub mesh: bool,
}

impl Served {
    /// What `tarbet down` would do there.
    pub fn planned(&self) -> Vec<String> {
        let at = self.kubeconfig.display();
        let node = self.node.iter().map(|node| format!("delete the node {node} of the cluster of {at}"));
        node.chain(self.left()).collect()
    }

    /// What is left to its owners, because it may serve other meshes still.
    pub fn left(&self) -> Option<String> {
        let at = self.kubeconfig.display();
        let told = || {
            format!(
                "What federation made in the cluster of {at} stays; `tarbet mesh cleanup --kubeconfig {at} --plan` lists it."
            )
        };
        self.mesh.then(told)
    }

    /// Deletes the node and its lease, and says so or why not; nothing if there was no node.
    pub async fn remove_node(&self) -> Option<Result<String, String>> {
        let (node, at) = (self.node.as_deref()?, self.kubeconfig.display());
        let removed = tokio::time::timeout(PATIENCE, remove(&self.kubeconfig, node)).await;
        let cause = match removed {
            Ok(Ok(())) => return Some(Ok(format!("Deleted the node {node} of the cluster of {at}."))),
            Ok(Err(cause)) => cause,
            Err(_) => format!("it did not answer within {} s", PATIENCE.as_secs()),
        };
        Some(Err(format!(
            "The node {node} of the cluster of {at} stays: {cause}. `kubectl --kubeconfig {at} delete node {node}` deletes it."
        )))
    }
}

/// The clusters that were served from this folder.
pub fn read(folder: &Path) -> Vec<Served> {
    let bytes = std::fs::read(folder.join(FILE)).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// Notes one more.
pub fn note(folder: &Path, served: Served) -> std::io::Result<()> {
    write(folder, &with(read(folder), served))
}

/// Notes which are still to be cleaned.
pub fn write(folder: &Path, served: &[Served]) -> std::io::Result<()> {
    if served.is_empty() {
        return match std::fs::remove_file(folder.join(FILE)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    files::replace(&folder.join(FILE), serde_json::to_string_pretty(served)?.as_bytes(), files::PRIVATE)
}

/// The same cluster is noted once for each node; federation that ran there once counts.
fn with(mut known: Vec<Served>, now: Served) -> Vec<Served> {
    let same = known.iter_mut().find(|old| old.kubeconfig == now.kubeconfig && old.node == now.node);
    match same {
        Some(old) => old.mesh |= now.mesh,
        None => known.push(now),
    }
    known
}

async fn remove(kubeconfig: &Path, node: &str) -> Result<(), String> {
    let client =
        connect(&Source::file(kubeconfig.to_owned())).await.map_err(|problem| problem.to_string())?;
    delete(&client, &format!("/api/v1/nodes/{node}")).await?;
    // It has no owner if it was there before the node was.
    delete(&client, &format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}")).await
}

/// Deletes an object that may be gone already.
async fn delete(client: &Client, path: &str) -> Result<(), String> {
    let request = http::Request::delete(path).body(Vec::new()).map_err(|error| error.to_string())?;
    match client.request::<Value>(request).await {
        Err(error) if class(&error) == Class::Missing => Ok(()),
        answer => answer.map(drop).map_err(|error| describe(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(node: &str, mesh: bool) -> Served {
        Served { kubeconfig: "/home/ann/east.yaml".into(), node: Some(node.into()), mesh }
    }

    #[test]
    fn a_cluster_is_noted_once_for_each_node_and_forgotten_when_it_is_clean() {
        let folder = tempfile::tempdir().unwrap();
        for (node, mesh) in [("a", true), ("b", false), ("a", false)] {
            note(folder.path(), served(node, mesh)).unwrap();
        }
        assert_eq!(read(folder.path()), [served("a", true), served("b", false)]);
        for _ in 0..2 {
            write(folder.path(), &[]).unwrap();
            assert!(read(folder.path()).is_empty() && !folder.path().join(FILE).exists());
        }
    }

    #[test]
    fn a_plan_names_the_node_and_what_federation_leaves() {
        let plan = served("edge", true).planned();
        assert!(
            plan[0].contains("delete the node edge") && plan[1].contains("tarbet mesh cleanup"),
            "{plan:?}"
        );
        assert_eq!(served("edge", false).planned().len(), 1);
    }

    #[tokio::test]
    async fn a_cluster_that_is_gone_is_told_with_what_to_do_there() {
        let kept = served("edge", false).remove_node().await.unwrap().unwrap_err();
        assert!(kept.contains("kubectl --kubeconfig /home/ann/east.yaml delete node edge"), "{kept}");
    }
}
