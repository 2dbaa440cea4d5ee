//! A controller dies beside each single write, and another goes on: nothing is doubled, lost or left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tarbet_cluster::{Reached, Source, connect};
use tarbet_mesh::{Controller, MeshConfig, MeshMetrics};
use tarbet_telemetry::{Health, Metrics};
use tarbet_testbed::{Folder, Process, Program, eventually, verified};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::federation::{condition, federation, rules, service};
use super::weather::imported;
use super::world::{Mesh, SOON, Settings, kinds, two_meshes};

/// What the child is told, in this variable, as JSON.
const ORDERS: &str = "TARBET_MESH_CHILD";

#[derive(Debug, Serialize, Deserialize)]
struct Orders {
    kubeconfig: String,
    port: u16,
    peer: u16,
    /// At which of the points that it passes it kills itself.
    die_at: usize,
}

/// Does nothing unless it was started with orders.
#[tokio::test(flavor = "multi_thread")]
async fn the_controller_as_a_process() {
    let Ok(text) = std::env::var(ORDERS) else { return };
    let Orders { kubeconfig, port, peer, die_at } = serde_json::from_str(&text).unwrap();
    let passed = AtomicUsize::new(0);
    let reached = Reached::telling(move |_| {
        if passed.fetch_add(1, Ordering::SeqCst) + 1 == die_at {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    });
    let config = MeshConfig {
        discovery: BTreeMap::from([("west".to_owned(), format!("127.0.0.1:{peer}"))]),
        leader_election: false,
        ..MeshConfig::default()
    };
    let client = connect(&Source::file(&kubeconfig)).await.unwrap();
    let metrics = MeshMetrics::register(&Metrics::new("mesh", "child"));
    let controller = Controller::new(config, "istio-system", client, metrics, Health::default(), "child");
    let bind = || TcpListener::bind(("127.0.0.1", port));
    let listener = eventually(SOON, "the port of discovery", bind).await.unwrap();
    controller.telling(reached).run(listener, CancellationToken::new()).await.unwrap();
}

/// The uids of all that federation made.
async fn made(mesh: &Mesh) -> anyhow::Result<BTreeMap<String, String>> {
    let list = mesh.kubectl().json(&["get", &kinds().join(","), "--all-namespaces"]).await?;
    let of = |object: &Value| {
        let meta = &object["metadata"];
        let name = format!("{} {} {}", object["kind"], meta["namespace"], meta["name"]);
        (name, meta["uid"].to_string())
    };
    Ok(list["items"].as_array().into_iter().flatten().map(of).collect())
}

/// Two meshes, of which one exports a service and the other imports it.
struct Bed {
    east: Mesh,
    west: Mesh,
    folder: Folder,
}

impl Bed {
    async fn export(&self, export: bool) {
        self.west.kubectl().apply(&service("shop", "first", 80, export)).await.unwrap();
    }

    /// Whether what is exported is imported and told of, and nothing else.
    async fn is_so(&self, export: bool) -> anyhow::Result<()> {
        let now = imported(&self.east).await?;
        ensure!(now.len() == usize::from(export), "{now:?}");
        let here = self.east.kubectl();
        let federation = here.json(&["get", "meshfederation", "default"]).await?;
        let told = &federation["status"]["remotes"][0]["imported"];
        ensure!(told.as_u64().unwrap_or(0) == u64::from(export), "{}", federation["status"]);
        for object in here.json(&["get", "importedservices", "-A"]).await?["items"].as_array().unwrap() {
            ensure!(condition(object, "Ready") == "True", "{object}");
        }
        Ok(())
    }

    /// Lets a controller begin that dies at a point; tells whether it did before all was done.
    async fn die(&self, at: usize, export: bool) -> bool {
        let orders = Orders {
            kubeconfig: self.east.plane().kubeconfig().display().to_string(),
            port: self.east.port(),
            peer: self.west.port(),
            die_at: at,
        };
        let program = Program::new(std::env::current_exe().unwrap())
            .args(["--exact", "it::points::the_controller_as_a_process", "--nocapture", "--test-threads=1"])
            .env(ORDERS, serde_json::to_string(&orders).unwrap());
        let name = format!("doomed-{at}-{export}");
        let mut child = Process::start(&self.folder, &name, program).unwrap();
        loop {
            if child.exited().unwrap().is_some() {
                return true;
            }
            // What is told last is told after all is written.
            if self.is_so(export).await.is_ok() {
                child.kill9().unwrap();
                return false;
            }
        }
    }

    /// Another controller brings it to its end.
    async fn go_on(&mut self, export: bool) {
        let peer = Some(("west", self.west.port()));
        self.east.start(Settings { peer, ..Settings::default() }).await;
        eventually(SOON, "what is exported, and only that", || self.is_so(export)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_dies_beside_any_write_leaves_nothing_doubled_lost_or_behind() {
    let (east, mut west, _turn) = two_meshes().await.unwrap();
    for (mesh, other, address) in [(&east, "west", "192.0.2.1"), (&west, "east", "192.0.2.2")] {
        mesh.kubectl().apply(&federation(&mesh.name, other, address)).await.unwrap();
        mesh.kubectl().apply(&rules("istio-system", json!([{ "meshID": other }]))).await.unwrap();
    }
    west.start(Settings { peer: Some(("east", east.port())), ..Settings::default() }).await;
    let mut bed = Bed { east, west, folder: Folder::new("mesh-points").unwrap() };
    // What there is to be when nobody dies.
    let mut wanted = BTreeMap::new();
    for export in [true, false] {
        bed.export(export).await;
        bed.go_on(export).await;
        let names: BTreeSet<String> = made(&bed.east).await.unwrap().into_keys().collect();
        wanted.insert(export, names);
        bed.east.kill();
    }
    assert!(wanted[&true].len() > wanted[&false].len());

    let mut deaths = 0;
    for at in 1.. {
        let mut died = false;
        for export in [true, false] {
            bed.export(export).await;
            let dead = bed.die(at, export).await;
            let before = made(&bed.east).await.unwrap();
            bed.go_on(export).await;
            let after = made(&bed.east).await.unwrap();
            assert_eq!(after.keys().cloned().collect::<BTreeSet<_>>(), wanted[&export], "at {at}");
            let again: Vec<_> =
                after.iter().filter(|(name, uid)| before.get(*name).is_some_and(|old| old != *uid)).collect();
            assert!(again.is_empty(), "made again at {at}: {again:?}");
            bed.east.kill();
            // All is as it must be, so a third one has nothing to do.
            bed.go_on(export).await;
            bed.east.reconciled(2).await;
            assert_eq!(bed.east.writes(), 0, "at {at}");
            bed.east.kill();
            died |= dead;
            deaths += usize::from(dead);
        }
        if !died {
            break;
        }
    }
    assert!(deaths > 10, "it died {deaths} times");
    verified("kill -9 of a mesh controller beside each write: nothing is doubled, lost or left", deaths);
}
