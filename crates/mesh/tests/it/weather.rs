//! Lines between two meshes that are slow and break: everything that is exported arrives, and nothing else does.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex};

use anyhow::ensure;
use futures::StreamExt;
use kube::core::DynamicObject;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tarbet_mesh::plan::Kind;
use tarbet_testbed::{Relay, effort, eventually, verified};

use super::federation::{IMPORTED, condition, federation, rules, service, until};
use super::world::{Mesh, SOON, Settings, two_meshes};

/// Services that were ever imported, and those that went again.
#[derive(Default)]
struct Seen {
    came: BTreeSet<String>,
    went: BTreeSet<String>,
}

/// Looks at every object of this kind that comes or goes from now on.
async fn look(client: &Client, kind: Kind, seen: &Arc<Mutex<Seen>>) {
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client.clone(), &kind.resource());
    let (seen, (tell, listed)) = (Arc::clone(seen), tokio::sync::oneshot::channel());
    tokio::spawn(async move {
        let (mut events, mut tell) = (pin!(watcher(api, Config::default()).default_backoff()), Some(tell));
        while let Some(event) = events.next().await {
            let mut seen = seen.lock().unwrap();
            match event {
                Ok(Event::InitApply(object) | Event::Apply(object)) => {
                    seen.came.insert(short(&object.name_any()));
                }
                Ok(Event::Delete(object)) => {
                    seen.went.insert(short(&object.name_any()));
                }
                // Nobody waits for a later list.
                Ok(Event::InitDone) => drop(tell.take().map(|tell| tell.send(()))),
                Ok(Event::Init) | Err(_) => {}
            }
        }
    });
    listed.await.unwrap();
}

/// The name of a service, of the name of what was made for it.
fn short(name: &str) -> String {
    name.trim_start_matches("import-").trim_end_matches("-shop-svc-cluster-local").to_owned()
}

/// The imported services and their ports, as they are now.
pub(crate) async fn imported(mesh: &Mesh) -> anyhow::Result<BTreeMap<String, u64>> {
    let list = mesh.kubectl().json(&["get", IMPORTED, "--all-namespaces"]).await?;
    let of = |object: &Value| {
        let name = short(object["metadata"]["name"].as_str()?);
        Some((name, object["spec"]["ports"][0]["number"].as_u64()?))
    };
    Ok(list["items"].as_array().into_iter().flatten().filter_map(of).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_slow_and_breaks_brings_every_export_and_nothing_else() {
    let (mut east, mut west, _turn) = two_meshes().await.unwrap();
    for (mesh, other, address) in [(&east, "west", "192.0.2.1"), (&west, "east", "192.0.2.2")] {
        mesh.kubectl().apply(&federation(&mesh.name, other, address)).await.unwrap();
        let rules = rules("istio-system", json!([{ "meshID": other }]));
        mesh.kubectl().apply(&rules).await.unwrap();
    }
    let there = west.kubectl();
    let offer = async |name: &str, port: u16, export: bool| {
        there.apply(&service("shop", name, port, export)).await.unwrap();
    };
    offer("steady", 80, true).await;
    offer("own", 80, false).await;
    let line = async |mesh: &Mesh| Relay::to(([127, 0, 0, 1], mesh.port()).into()).await.unwrap();
    let (to_west, to_east) = (line(&west).await, line(&east).await);
    east.start(Settings { peer: Some(("west", to_west.address().port())), ..Settings::default() }).await;
    west.start(Settings { peer: Some(("east", to_east.address().port())), ..Settings::default() }).await;
    let seen = Arc::new(Mutex::new(Seen::default()));
    for kind in [Kind::ImportedService, Kind::ServiceEntry] {
        look(&east.client, kind, &seen).await;
    }
    let arrived = async |wanted: &BTreeMap<String, u64>| {
        let same = || async {
            let now = imported(&east).await?;
            ensure!(now == *wanted, "{now:?} and not {wanted:?}");
            Ok(())
        };
        eventually(SOON, "what is exported, and only that", same).await.unwrap();
    };
    let mut wanted = BTreeMap::from([("steady".to_owned(), 80)]);
    arrived(&wanted).await;

    let cuts = || to_west.cuts() + to_east.cuts();
    let rain = |raining| [&to_west, &to_east].iter().for_each(|line| line.rain(raining));
    let mut changes = 0;
    rain(true);
    while cuts() < 6 * effort().min(10) {
        // One comes, the one before has another port, the one before that goes, and one was never meant for others.
        let (before, round) = (cuts(), changes);
        offer(&format!("own-{round}"), 80, false).await;
        for (age, port, export) in [(0, 80, true), (1, 81, true), (2, 81, false)] {
            if let Some(number) = usize::checked_sub(round, age) {
                let name = format!("s{number}");
                offer(&name, port, export).await;
                wanted.insert(name.clone(), port.into());
                wanted.retain(|known, _| export || *known != name);
            }
        }
        changes += 1;
        // What changed last while it rained is told after the rain.
        eventually(SOON, "a line to break again", || async { cuts() > before }).await.unwrap();
    }
    rain(false);
    arrived(&wanted).await;
    for mesh in [&east, &west] {
        let well = |object: &Value| condition(object, "RemotesConnected") == "True";
        until(&mesh.kubectl(), "meshfederations", "istio-system", "default", well).await;
    }

    let seen = seen.lock().unwrap();
    let own = |name: &&String| name.starts_with("own");
    assert_eq!(seen.came.iter().find(own), None, "nothing was imported that was not exported");
    assert!(wanted.keys().all(|name| seen.came.contains(name)), "what came was seen: {:?}", seen.came);
    let lost: Vec<&String> = seen.went.iter().filter(|name| wanted.contains_key(*name)).collect();
    assert!(lost.is_empty(), "a line that breaks takes nothing away: {lost:?}");
    verified(
        "connections of discovery that break on a slow line: every export arrives, nothing else",
        cuts(),
    );
}
