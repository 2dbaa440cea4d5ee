//! Services that are exported and withdrawn between two meshes, on two control planes.

use serde_json::{Value, json};
use tarbet_testbed::product::{Agent, Product};
use tarbet_testbed::{Kubectl, Lease, eventually, verified};

use super::{Process, Watched};
use crate::mesh::{SOON, clean, connected, controller, federation, planes, rules};

/// Services of a round.
const SERVICES: usize = 10;

fn services(namespace: &str) -> Value {
    let service = |number: usize| {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": format!("s{number}"), "namespace": namespace, "labels": { "soak": "true" },
            },
            "spec": { "selector": { "app": "s" }, "ports": [{ "name": "http", "port": 80 }] },
        })
    };
    json!({ "apiVersion": "v1", "kind": "List", "items": (0..SERVICES).map(service).collect::<Vec<_>>() })
}

/// Waits until so many services of the other mesh are imported.
async fn imported(kubectl: &Kubectl, wanted: usize) {
    let look = || async {
        let names = kubectl.run(&["get", "importedservices", "-A", "-o", "name"]).await?;
        anyhow::ensure!(names.lines().count() == wanted, "{names:?} and not {wanted}");
        Ok(())
    };
    eventually(SOON, "the imports of a round", look).await.unwrap();
}

fn process(role: &'static str, controller: &Agent) -> Process {
    let observability = format!("http://127.0.0.1:{}", controller.probes());
    Process { role, pid: controller.process.pid(), observability }
}

#[tokio::test(flavor = "multi_thread")]
async fn services_that_come_and_go_leave_nothing_in_the_controllers_of_meshes() {
    let (east, west, _turn) = planes().await;
    let (here, there) = (east.kubectl(), west.kubectl());
    let namespace = west.unique_namespace("soak").await.unwrap();
    for (kubectl, local, remote, address) in
        [(&here, "east", "west", "192.0.2.1"), (&there, "west", "east", "192.0.2.2")]
    {
        let system =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "istio-system" } });
        // Others may have left services that they export.
        let mut rules = rules(remote);
        rules["spec"]["export"]["serviceSelectors"] = json!([{ "matchLabels": { "soak": "true" } }]);
        for object in [system, federation(local, remote, &[address]), rules] {
            kubectl.apply(&object).await.unwrap();
        }
    }
    let (product, ports) = (Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap(), Lease::block(2).unwrap());
    let (east_at, west_at) = (ports.port(0), ports.port(1));
    let mut importing = controller(&product, east, "east", east_at, "west", west_at).await;
    let mut exporting = controller(&product, west, "west", west_at, "east", east_at).await;
    connected(&here).await;
    let mut watched = Watched::briefly(vec![
        process("mesh that imports", &importing),
        process("mesh that exports", &exporting),
    ]);
    let (all, mut exports) = (services(&namespace), 0);
    while watched.goes_on() {
        there.apply(&all).await.unwrap();
        imported(&here, SERVICES).await;
        there.run(&["delete", "services", "--all", "-n", &namespace, "--wait=false"]).await.unwrap();
        imported(&here, 0).await;
        exports += SERVICES;
        watched.look().await;
    }
    watched.judge(&format!("{exports} exports"));
    for controller in [&mut importing, &mut exporting] {
        controller.process.stop().await.unwrap();
    }
    for plane in [east, west] {
        clean(&product, plane).await;
    }
    verified("exports that come and go after which the controllers of meshes have not grown", exports);
}
