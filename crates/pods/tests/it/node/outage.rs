//! A cluster that cannot be reached for long, from the node's side.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tarbet_testbed::{Lease, eventually, shared_pair, verified};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::{Bed, shell};
use crate::it::pods::{PATIENCE, effort};

/// The way from the node to the cluster's API, which can be cut.
struct Way {
    at: SocketAddr,
    to: String,
    stop: CancellationToken,
}

impl Way {
    async fn open(at: SocketAddr, to: String) -> Result<Self> {
        let listener = eventually(PATIENCE, "the address", || TcpListener::bind(at)).await?;
        let stop = CancellationToken::new();
        let (target, end) = (to.clone(), stop.clone());
        tokio::spawn(async move {
            loop {
                let accepted = tokio::select! {
                    () = end.cancelled() => return,
                    accepted = listener.accept() => accepted,
                };
                let (Ok((mut near, _)), target, end) = (accepted, target.clone(), end.clone()) else {
                    return;
                };
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(target).await else { return };
                    tokio::select! {
                        () = end.cancelled() => {}
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                    }
                });
            }
        });
        Ok(Self { at, to, stop })
    }

    /// Cuts everything; nobody listens there any more.
    fn cut(&self) {
        self.stop.cancel();
    }

    async fn again(&self) -> Result<Self> {
        Self::open(self.at, self.to.clone()).await
    }
}

#[tokio::test]
async fn a_cluster_that_is_away_for_long_costs_no_pod() -> Result<()> {
    let plane = &shared_pair().await?.public;
    let server = plane.server();
    let to = server.trim_start_matches("https://").to_owned();
    let ports = Lease::block(1)?;
    let way = Way::open(SocketAddr::from(([127, 0, 0, 1], ports.port(0))), to).await?;
    let text = std::fs::read_to_string(plane.kubeconfig())?.replace(&server, &format!("https://{}", way.at));
    let folder = tempfile::tempdir()?;
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, text)?;
    let mut bed = Bed::with(kubeconfig).await?;

    let mut kept = Vec::new();
    for n in 0..4 {
        let name = format!("stays-{n}");
        bed.pod(&name, json!({"containers": [shell("main", "sleep 1000")]})).await?;
        kept.push(name);
    }
    let line = "until [ -e /tmp/end ]; do sleep 0.1; done; exit 6";
    bed.pod("ends", json!({"containers": [shell("main", line)]})).await?;
    bed.pod("leaves", json!({"containers": [shell("main", "sleep 1000")]})).await?;
    let mut before = Vec::new();
    for name in &kept {
        let uid = bed.phase(name, "Running").await?["metadata"]["uid"].as_str().unwrap().to_owned();
        before.push((uid.clone(), bed.containers(&uid).await?));
    }
    let uid = bed.phase("ends", "Running").await?["metadata"]["uid"].as_str().unwrap().to_owned();
    let leaving = bed.phase("leaves", "Running").await?["metadata"]["uid"].as_str().unwrap().to_owned();

    way.cut();
    // The node says so itself.
    eventually(PATIENCE, "the node's word", || async {
        let parts = bed.health.parts();
        if parts.get("pods").is_some_and(|state| !state.is_ready()) {
            Ok(())
        } else {
            Err(format!("{parts:?}"))
        }
    })
    .await?;
    // Meanwhile one ends, and one is deleted in the cluster.
    let docker = crate::it::docker::daemon().await;
    let filter = format!("label=dev.tarbet.pod.uid={uid}");
    let found = docker
        .docker(&["ps", "-q", "--filter", &filter, "--filter", "label=dev.tarbet.container=main"])
        .await?;
    let container = found.lines().next().with_context(|| format!("no container: {found}"))?;
    docker.docker(&["exec", container, "touch", "/tmp/end"]).await?;
    bed.run(&["delete", "pod", "leaves", "--wait=false"]).await?;
    // As long as one likes: ten minutes are no other than this.
    let long = Duration::from_secs(u64::from(effort(5)));
    let _ = tokio::time::timeout(long, std::future::pending::<()>()).await;
    for (uid, containers) in &before {
        ensure!(bed.containers(uid).await? == *containers, "{uid} is not what it was");
    }
    // A node that starts again in the dark takes nothing for gone either.
    bed.stop_node().await;
    ensure!(!bed.containers(&leaving).await?.is_empty(), "nothing is removed on a guess");

    let way = way.again().await?;
    bed.start_node().await?;
    let ended = bed.phase("ends", "Failed").await?;
    let end = &ended["status"]["containerStatuses"][0]["state"]["terminated"];
    ensure!(end["exitCode"] == 6, "{end}");
    eventually(PATIENCE, "the deleted one to go", || async {
        let (left, pod) = (bed.containers(&leaving).await?, bed.get("leaves").await);
        ensure!(left.is_empty() && pod.is_err(), "{left} {pod:?}");
        anyhow::Ok(())
    })
    .await?;
    for (name, (uid, containers)) in kept.iter().zip(&before) {
        let pod = bed.phase(name, "Running").await?;
        ensure!(
            pod["metadata"]["uid"] == uid.as_str() && pod["metadata"]["deletionTimestamp"].is_null(),
            "{pod}"
        );
        ensure!(bed.containers(uid).await? == *containers, "{uid} was made again");
    }
    way.cut();
    verified("pods whose cluster is away: none is doubled or lost", kept.len() + 2);
    Ok(())
}
