//! An API server that is killed while its mesh is being changed: nothing is lost, withdrawn or made twice.

use std::collections::BTreeMap;

use anyhow::ensure;
use serde_json::{Value, json};
use tarbet_testbed::{effort, eventually, verified};

use super::federation::{condition, federation, rules, service, until};
use super::weather::imported;
use super::world::{Mesh, SOON, Settings, breakable_mesh, two_meshes};

/// Exports that come with each round: enough that an API server dies between two writes for them.
const EXPORTS: usize = 20;

async fn arrived(mesh: &Mesh, wanted: &BTreeMap<String, u64>) {
    let same = || async {
        let now = imported(mesh).await?;
        ensure!(now == *wanted, "{now:?} and not {wanted:?}");
        Ok(())
    };
    eventually(SOON, "what is exported, and only that", same).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_dies_while_exports_come_and_go_costs_none() {
    let (_, mut west, _turn) = two_meshes().await.unwrap();
    let (mut east, mut plane) = breakable_mesh("outage").await.unwrap();
    for (mesh, other, address) in [(&east, "west", "192.0.2.1"), (&west, "outage", "192.0.2.2")] {
        mesh.kubectl().apply(&federation(&mesh.name, other, address)).await.unwrap();
        mesh.kubectl().apply(&rules("istio-system", json!([{ "meshID": other }]))).await.unwrap();
    }
    let (here, there) = (east.kubectl(), west.kubectl());
    here.apply(&service("shop", "steady", 80, true)).await.unwrap();
    let ports = (east.port(), west.port());
    east.start(Settings { peer: Some(("west", ports.1)), ..Settings::default() }).await;
    west.start(Settings { peer: Some(("outage", ports.0)), ..Settings::default() }).await;
    let steady = BTreeMap::from([("steady".to_owned(), 80)]);
    arrived(&west, &steady).await;
    let told = west.versions().await.unwrap();

    let (mut wanted, rounds) = (BTreeMap::new(), 2 * effort().min(10));
    for round in 0..rounds {
        let exports = |export| {
            let list = (0..EXPORTS).map(|number| service("shop", &format!("s{round}-{number}"), 80, export));
            json!({ "apiVersion": "v1", "kind": "List", "items": list.collect::<Vec<Value>>() })
        };
        let begun = east.writes();
        there.apply(&exports(true)).await.unwrap();
        // Some of what the exports become has been written, and most of it not yet.
        eventually(SOON, "the first writes", || async { east.writes() > begun }).await.unwrap();
        plane.apiserver().kill9().unwrap();
        // Some of them go, and one changes, while nobody can be told.
        for number in 0..2 {
            there.apply(&service("shop", &format!("s{round}-{number}"), 80, false)).await.unwrap();
        }
        there.apply(&service("shop", &format!("s{round}-2"), 81, true)).await.unwrap();
        wanted.extend((3..EXPORTS).map(|number| (format!("s{round}-{number}"), 80)));
        wanted.insert(format!("s{round}-2"), 81);
        plane.restart_apiserver().await.unwrap();
        arrived(&east, &wanted).await;
        let well = |object: &Value| {
            condition(object, "Ready") == "True" && condition(object, "RemotesConnected") == "True"
        };
        until(&here, "meshfederations", "istio-system", "default", well).await;
    }
    // The conditions of imports are told last.
    let told_all = || async {
        let federation = here.json(&["get", "meshfederation", "default"]).await?;
        let imports = &federation["status"]["remotes"][0]["imported"];
        ensure!(*imports == json!(wanted.len()), "{}", federation["status"]);
        for object in here.json(&["get", "importedservices", "-A"]).await?["items"].as_array().unwrap() {
            ensure!(condition(object, "Ready") == "True", "{object}");
        }
        Ok(())
    };
    eventually(SOON, "all of it to be told", told_all).await.unwrap();
    // What this mesh exports was never withdrawn: at the other end nothing was written again.
    let at_the_end = west.versions().await.unwrap();
    let imports = |all: &BTreeMap<String, String>| -> Vec<(String, String)> {
        let of_steady = |(name, _): &(&String, &String)| name.contains("steady");
        all.iter().filter(of_steady).map(|(name, version)| (name.clone(), version.clone())).collect()
    };
    assert!(!imports(&told).is_empty(), "{told:?}");
    assert_eq!(imports(&at_the_end), imports(&told));

    // Nothing is left to do.
    let (before, looked) = (east.versions().await.unwrap(), east.reconciles());
    east.kill();
    east.start(Settings { peer: Some(("west", ports.1)), ..Settings::default() }).await;
    east.reconciled(2).await;
    assert_eq!(east.writes(), 0, "after {looked} looks nothing is left to write");
    assert_eq!(east.versions().await.unwrap(), before);
    east.stop().await;
    verified("API servers that die while exports come and go: none is lost, withdrawn or left", rounds);
}
