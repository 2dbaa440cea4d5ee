//! Two meshes with real traffic: `tarbet mesh` beside real istiods, requests through real Envoys.

mod leaving;
mod ways;

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};
use tarbet_testbed::product::{Agent, Product};
use tarbet_testbed::{
    ControlPlane, Folder, Helm, Istiod, Kubectl, Lease, MeshLab, effort, eventually, shared_pair, verified,
};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

pub(crate) use ways::resolving;

pub(crate) const SOON: Duration = Duration::from_secs(90);
const RULES: &str = "federationservicerules";

/// The two planes with the kinds of ours and of Istio, for one test at a time: east and west.
pub(crate) async fn planes() -> (&'static ControlPlane, &'static ControlPlane, MutexGuard<'static, ()>) {
    static READY: OnceCell<()> = OnceCell::const_new();
    static TURN: Mutex<()> = Mutex::const_new(());
    let turn = TURN.lock().await;
    let pair = shared_pair().await.unwrap();
    let prepare = || async {
        for plane in [&pair.public, &pair.private] {
            install_kinds(plane).await.unwrap();
            Istiod::install_kinds(plane).await.unwrap();
        }
    };
    READY.get_or_init(prepare).await;
    (&pair.public, &pair.private, turn)
}

pub(crate) async fn install_kinds(plane: &ControlPlane) -> Result<()> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/crds");
    for kind in ["meshfederations", RULES, "importedservices"] {
        let file = format!("{folder}/{kind}.federation.openshift-service-mesh.io.yaml");
        plane.kubectl().run(&["apply", "--server-side", "--force-conflicts", "-f", &file]).await?;
    }
    for kind in ["meshfederations", RULES, "importedservices"] {
        eventually(SOON, kind, || async { plane.kubectl().run(&["get", kind, "-A"]).await }).await?;
    }
    Ok(())
}

pub(crate) fn federation(local: &str, remote: &str, addresses: &[&str]) -> Value {
    let (label, value) = MeshLab::GATE_LABEL;
    json!({
        "apiVersion": "federation.openshift-service-mesh.io/v1alpha1", "kind": "MeshFederation",
        "metadata": { "name": "default" },
        "spec": {
            "local": { "id": local, "network": local, "trustDomain": format!("{local}.local"),
                "ingress": { "gateway": { "selector": { label: value } } } },
            "remote": [{ "id": remote, "network": remote,
                "identity": { "trustDomain": format!("{remote}.local") },
                "ingress": { "addresses": addresses, "port": 15443 } }],
        },
    })
}

pub(crate) fn rules(import: &str) -> Value {
    json!({
        "apiVersion": "federation.openshift-service-mesh.io/v1alpha1", "kind": "FederationServiceRules",
        "metadata": { "name": "default", "namespace": "istio-system" },
        "spec": {
            "export": { "serviceSelectors": [{ "matchLabels": { "export": "true" } }] },
            "import": [{ "meshID": import }],
        },
    })
}

/// Marks west's service as exported, or as not.
pub(crate) async fn export(west: &Kubectl, yes: bool) {
    let label = if yes { "export=true" } else { "export-" };
    west.run(&["label", "service", "pay", "-n", "shop", "--overwrite", label]).await.unwrap();
}

/// Waits until calls are answered, and gives the answer.
pub(crate) async fn answered(lab: &MeshLab, by: &str) -> String {
    let look = || async {
        let (status, body) = lab.call(MeshLab::PAY).await?;
        ensure!(status == 200 && body.ends_with(by), "{status}: {body}");
        Ok(body)
    };
    eventually(SOON, "an answer from the other mesh", look).await.unwrap()
}

/// Waits until calls are not answered any more.
pub(crate) async fn unanswered(lab: &MeshLab) {
    let look = || async {
        match lab.call(MeshLab::PAY).await {
            Ok((200, body)) => Err(anyhow!("{body}")),
            _ => Ok(()),
        }
    };
    eventually(SOON, "the other mesh to be out of reach", look).await.unwrap();
}

/// Waits until a mesh hears its peer.
pub(crate) async fn connected(kubectl: &Kubectl) {
    let look = || async {
        let federation = kubectl.json(&["get", "meshfederation", "default"]).await?;
        ensure!(federation["status"]["connected"] == "1/1", "{}", federation["status"]);
        Ok(())
    };
    eventually(SOON, "the meshes to hear each other", look).await.unwrap();
}

/// A controller of one mesh whose peer's discovery is at this port.
pub(crate) async fn controller(
    product: &Product,
    plane: &ControlPlane,
    mesh: &str,
    at: u16,
    peer: &str,
    peer_at: u16,
) -> Agent {
    let kubeconfig = plane.kubeconfig().display().to_string();
    let (listen, discovery) = (format!("127.0.0.1:{at}"), format!("{peer}=127.0.0.1:{peer_at}"));
    let args = ["mesh", "--kubeconfig", &kubeconfig, "--listen", &listen, "--discovery", &discovery];
    product.role(&format!("mesh-{mesh}"), &args, &[("POD_NAMESPACE", "istio-system")]).await.unwrap()
}

/// Controllers of both meshes, for as long as they are wanted.
pub(crate) struct Joined {
    pub(crate) product: Product,
    _controllers: [Agent; 2],
    _ports: Lease,
}

/// Joins the meshes east and west by these objects of each.
pub(crate) async fn join(
    (east, east_objects): (&ControlPlane, [Value; 2]),
    (west, west_objects): (&ControlPlane, [Value; 2]),
) -> Joined {
    for (plane, objects) in [(east, &east_objects), (west, &west_objects)] {
        for object in objects {
            plane.kubectl().apply(object).await.unwrap();
        }
    }
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
    let ports = Lease::block(2).unwrap();
    let (east_at, west_at) = (ports.port(0), ports.port(1));
    let controllers = [
        controller(&product, east, "east", east_at, "west", west_at).await,
        controller(&product, west, "west", west_at, "east", east_at).await,
    ];
    Joined { product, _controllers: controllers, _ports: ports }
}

impl Joined {
    /// Everything that federation made is gone from both.
    pub(crate) async fn part(&self, planes: [&ControlPlane; 2]) {
        for plane in planes {
            clean(&self.product, plane).await;
        }
    }
}

/// Every object that federation made, with the version of its last write.
async fn objects(kubectl: &Kubectl) -> String {
    let each = "jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.resourceVersion}\n{end}";
    let kinds = "gateways.networking.istio.io,serviceentries.networking.istio.io,\
        peerauthentications.security.istio.io,authorizationpolicies.security.istio.io,importedservices";
    let ours = "app.kubernetes.io/managed-by=tarbet-mesh";
    let all = kubectl.run(&["get", kinds, "-A", "-l", ours, "-o", each]).await.unwrap();
    assert!(all.contains("PeerAuthentication"), "{all}");
    all
}

/// Everything federation made is gone from a cluster.
pub(crate) async fn clean(product: &Product, plane: &ControlPlane) {
    let kubeconfig = plane.kubeconfig().display().to_string();
    let (code, said) =
        product.command(&["mesh", "cleanup", "--kubeconfig", &kubeconfig, "--yes"]).await.unwrap();
    assert_eq!(code, Some(0), "{said}");
    let kinds = "meshfederations,federationservicerules,importedservices,gateways.networking.istio.io,\
        serviceentries.networking.istio.io,virtualservices.networking.istio.io,authorizationpolicies.security.istio.io";
    // A controller that still runs may be about to write a last object, and takes it away again.
    eventually(SOON, "nothing to be left", || async {
        let left = plane.kubectl().run(&["get", kinds, "-A", "-o", "name"]).await?;
        anyhow::ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_crosses_two_envoys_only_while_its_service_is_exported() {
    let (east, west, _turn) = planes().await;
    let mut lab = MeshLab::start(east, west).await.unwrap();
    let (here, there) = (east.kubectl(), west.kubectl());
    here.apply(&federation("east", "west", &[MeshLab::GATEWAY])).await.unwrap();
    here.apply(&rules("west")).await.unwrap();
    there.apply(&federation("west", "east", &["192.0.2.2"])).await.unwrap();
    there.apply(&rules("east")).await.unwrap();
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
    let ports = Lease::block(2).unwrap();
    let (east_at, west_at) = (ports.port(0), ports.port(1));
    let mut controllers = [
        controller(&product, east, "east", east_at, "west", west_at).await,
        controller(&product, west, "west", west_at, "east", east_at).await,
    ];
    connected(&here).await;
    connected(&there).await;

    // Not exported: unknown to the caller, and no other way to the pod.
    unanswered(&lab).await;
    assert!(!lab.reaches_pod().await.unwrap());
    assert_eq!(lab.count("gate", "15443.downstream_cx_total").await.unwrap(), 0);

    // Exported: answered, and the service sees the very identity of the caller.
    export(&there, true).await;
    let caller = "spiffe://east.local/ns/shop/sa/caller";
    answered(&lab, caller).await;
    assert!(lab.count("gate", "upstream_cx_total").await.unwrap() > 0, "not through the gateway");
    let kubeconfig = east.kubeconfig().display().to_string();
    // Objects come first and are told of afterwards.
    eventually(SOON, "the import to be told", || async {
        let (code, said) =
            product.command(&["mesh", "status", "--kubeconfig", &kubeconfig, "-o", "json"]).await?;
        ensure!(code == Some(0), "{said}");
        let status: Value = serde_json::from_str(&said)?;
        ensure!(status["remotes"][0]["imported"] == 1, "{status}");
        Ok(())
    })
    .await
    .unwrap();

    // A person tries it step by step; only the name is not known outside a pod.
    let (folder, door) = (Folder::new("identity").unwrap(), Lease::block(1).unwrap());
    lab.callers_identity(&folder).unwrap();
    lab.cable_to_gate(door.port(0)).await.unwrap();
    let (identity, gateway) = (folder.path().display().to_string(), format!("127.0.0.1:{}", door.port(0)));
    let trial = async |service: &str| {
        let words = [
            "mesh",
            "test",
            "--to",
            service,
            "--kubeconfig",
            &kubeconfig,
            "--identity",
            &identity,
            "--gateway",
            &gateway,
        ];
        product.command(&words).await
    };
    let (code, said) = trial("pay.shop").await.unwrap();
    let row = |step: &str| said.lines().find(|line| line.starts_with(step)).unwrap_or("").to_owned();
    assert!(
        row("mtls").contains("true") && row("mtls").contains("spiffe://west.local/ns/shop/sa/pay"),
        "{said}"
    );
    assert!(row("http").contains("true") && row("http").contains("200 OK"), "{said}");
    assert!(row("dns").contains("false") && row("dns").contains("DNS_CAPTURE") && code == Some(1), "{said}");
    assert_eq!(trial("unknown.shop").await.unwrap().0, Some(3));

    // The controllers die: traffic does not notice. They come back and find every object as it must be.
    let ready = ["wait", "importedservices", "--all", "-A", "--for=condition=Ready", "--timeout=90s"];
    here.run(&ready).await.unwrap();
    let before = (objects(&here).await, objects(&there).await);
    let rounds = effort().min(5);
    for _ in 0..rounds {
        for controller in &mut controllers {
            controller.process.kill9().unwrap();
        }
        answered(&lab, caller).await;
        for controller in &mut controllers {
            controller.process.restart().await.unwrap();
        }
        for controller in &mut controllers {
            controller.ready().await.unwrap();
        }
        let settled = || async {
            for controller in &controllers {
                ensure!(
                    controller.metric("tarbet_mesh_reconcile_seconds_count").await? >= 2.0,
                    "not looked yet"
                );
                ensure!(controller.metric("tarbet_mesh_peer_connected").await? >= 1.0, "not connected yet");
            }
            Ok(())
        };
        eventually(SOON, "the controllers to look around", settled).await.unwrap();
        assert_eq!((objects(&here).await, objects(&there).await), before, "nothing changed");
        answered(&lab, caller).await;
    }

    // No longer exported: gone, at the gateway too.
    export(&there, false).await;
    unanswered(&lab).await;
    for plane in [east, west] {
        clean(&product, plane).await;
    }
    verified("kill -9 of both controllers of meshes: traffic goes on, nothing is written anew", rounds);
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_crosses_the_gateway_for_the_peers_identity_and_for_no_other() {
    let (east, west, _turn) = planes().await;
    let mut lab = MeshLab::start(east, west).await.unwrap();
    let ports = Lease::block(3).unwrap();
    let [east_at, west_at, entrance] = [0, 1, 2].map(|index| ports.port(index));
    lab.discovery_through_gateway(west, west_at, (Ipv4Addr::LOCALHOST, entrance).into()).await.unwrap();
    east.kubectl().apply(&federation("east", "west", &[MeshLab::GATEWAY])).await.unwrap();
    east.kubectl().apply(&rules("west")).await.unwrap();
    west.kubectl().apply(&federation("west", "east", &["192.0.2.2"])).await.unwrap();
    west.kubectl().apply(&rules("east")).await.unwrap();
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
    let _east = controller(&product, east, "east", east_at, "west", entrance).await;
    let _west = controller(&product, west, "west", west_at, "east", east_at).await;
    connected(&east.kubectl()).await;
    export(&west.kubectl(), true).await;
    answered(&lab, "spiffe://east.local/ns/shop/sa/caller").await;

    // Whoever is no peer gets through the gateway, and no further: the policy refuses it.
    let host = "federation-discovery-service-west.istio-system.svc.cluster.local";
    let refused = || async {
        let (status, body) = lab.call_at(host, 15080).await?;
        ensure!(status == 403, "{status}: {body}");
        Ok(())
    };
    eventually(SOON, "a stranger to be refused", refused).await.unwrap();
    export(&west.kubectl(), false).await;
    unanswered(&lab).await;
    for plane in [east, west] {
        clean(&product, plane).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_charts_account_may_do_all_that_the_controller_does() {
    let (east, _, _turn) = planes().await;
    let kubectl = east.kubectl();
    for name in ["istio-system", "shop"] {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
        kubectl.apply(&namespace).await.unwrap();
    }
    let helm = Helm::on(east).await.unwrap();
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/helm/tarbet-mesh");
    let version = "--kube-version=1.31.0";
    let nameless = helm.run(&["template", "mesh", chart, version]).await.unwrap_err().to_string();
    assert!(nameless.contains("/mesh'"), "a mesh without an id: {nameless}");
    helm.run(&["lint", chart, "--set", "mesh=east", "--strict"]).await.unwrap();
    // What is carried passes the sidecar by; a person's annotations go before ours.
    let carrying = [
        "template",
        "mesh",
        chart,
        version,
        "--set",
        "mesh=east,config.carry.west.listen=0.0.0.0:15543,config.carry.north.listen=[::]:15544",
        "--set",
        "podAnnotations.team=mesh",
    ];
    let rendered = helm.run(&carrying).await.unwrap();
    let excluded = "traffic.sidecar.istio.io/excludeInboundPorts: 15544,15543";
    assert!(rendered.contains(excluded) && rendered.contains("team: mesh"), "{rendered}");
    let words = [
        "install",
        "mesh",
        chart,
        "--namespace",
        "istio-system",
        "--set",
        "mesh=east",
        "--set",
        "replicas=1",
    ];
    helm.run(&words).await.unwrap();

    let name = "federation-discovery-service-east";
    let deployment = kubectl.json(&["get", "deployment", name, "-n", "istio-system"]).await.unwrap();
    let pod = &deployment["spec"]["template"];
    assert_eq!(pod["metadata"]["labels"]["app.kubernetes.io/name"], "federation-controller");
    assert_eq!(pod["spec"]["serviceAccountName"], name);
    let variables = pod["spec"]["containers"][0]["env"].as_array().unwrap();
    let namespace = variables.iter().find(|variable| variable["name"] == "POD_NAMESPACE").unwrap();
    assert_eq!(namespace["valueFrom"]["fieldRef"]["fieldPath"], "metadata.namespace");
    let service = kubectl.json(&["get", "service", name, "-n", "istio-system"]).await.unwrap();
    assert_eq!(service["spec"]["ports"][0]["port"], 15080);

    // As the chart's account and nobody else: writes, elects, tells, and cleans up.
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
    let token = east.service_account_token("istio-system", name).await.unwrap();
    let kubeconfig = east.kubeconfig_with_token(&token).unwrap().display().to_string();
    kubectl.apply(&federation("east", "west", &["192.0.2.1"])).await.unwrap();
    kubectl.apply(&rules("west")).await.unwrap();
    // New rights are known to the API server a little later.
    let account = format!("--as=system:serviceaccount:istio-system:{name}");
    for (verb, kind) in [("create", "gateways.networking.istio.io"), ("list", "services")] {
        let words = ["auth", "can-i", verb, kind, "-A", &account];
        eventually(SOON, "the chart's rights", || kubectl.run(&words)).await.unwrap();
    }
    let ports = Lease::block(1).unwrap();
    let listen = format!("127.0.0.1:{}", ports.port(0));
    let words = ["mesh", "--kubeconfig", &kubeconfig, "--listen", &listen, "--discovery", "west=127.0.0.1:1"];
    let controller = product.role("mesh-chart", &words, &[("POD_NAMESPACE", "istio-system")]).await.unwrap();
    let told = || async {
        let gateway =
            ["get", "gateways.networking.istio.io", "federation-ingress-gateway", "-n", "istio-system"];
        kubectl.json(&gateway).await?;
        let federation = kubectl.json(&["get", "meshfederation", "default"]).await?;
        ensure!(federation["status"]["connected"] == "0/1", "{}", federation["status"]);
        let events = kubectl
            .run(&["get", "events", "-A", "--field-selector=involvedObject.kind=MeshFederation"])
            .await?;
        ensure!(events.contains("NotConnected"), "no event yet: {events}");
        Ok(())
    };
    eventually(SOON, "the controller to write and to tell", told).await.unwrap();
    assert!(controller.metric("tarbet_mesh_write_failures").await.unwrap() < 0.5, "refused by the cluster");

    // What the hook before an uninstall runs; there is no kubelet here to run it.
    let hooks = helm.run(&["get", "hooks", "mesh", "--namespace", "istio-system"]).await.unwrap();
    assert!(hooks.contains("pre-delete") && hooks.contains("[mesh, cleanup, \"--yes\"]"), "{hooks}");
    let (code, said) =
        product.command(&["mesh", "cleanup", "--kubeconfig", &kubeconfig, "--yes"]).await.unwrap();
    assert_eq!(code, Some(0), "{said}");
    drop(controller);
    clean(&product, east).await;
    helm.run(&["uninstall", "mesh", "--namespace", "istio-system", "--no-hooks"]).await.unwrap();
    let left = [
        "get",
        "deployment,service,serviceaccount,lease",
        "-n",
        "istio-system",
        "-l",
        "app.kubernetes.io/instance=mesh",
        "-o",
        "name",
    ];
    assert_eq!(kubectl.run(&left).await.unwrap(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_processes_one_writes_and_the_other_takes_over_when_it_is_killed() {
    let (east, _, _turn) = planes().await;
    let kubectl = east.kubectl();
    let namespace =
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "istio-system" } });
    kubectl.apply(&namespace).await.unwrap();
    kubectl.apply(&federation("east", "west", &["192.0.2.1"])).await.unwrap();
    kubectl.apply(&rules("west")).await.unwrap();
    let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
    let ports = Lease::block(2).unwrap();
    let gateway = ["get", "gateways.networking.istio.io", "federation-ingress-gateway", "-n", "istio-system"];
    let uid = || async {
        let object = kubectl.json(&gateway).await?;
        anyhow::Ok(object["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
    };
    let mut first = controller(&product, east, "one", ports.port(0), "west", 1).await;
    let before = eventually(SOON, "the first to write", uid).await.unwrap();
    let second = controller(&product, east, "two", ports.port(1), "west", 1).await;
    assert!(first.metric("tarbet_mesh_writes_total").await.unwrap() > 0.5);
    assert!(second.metric("tarbet_mesh_writes_total").await.unwrap() < 0.5, "two hands at once");

    // Nobody says goodbye; what is broken meanwhile is repaired by the other.
    first.process.kill9().unwrap();
    let delete = [&["delete"], &gateway[1..], &["--wait=false"]].concat();
    kubectl.run(&delete).await.unwrap();
    let repaired = || async {
        let now = uid().await?;
        ensure!(now != before, "it is still the old one");
        Ok(())
    };
    eventually(SOON, "the second to take over", repaired).await.unwrap();
    assert!(second.metric("tarbet_mesh_writes_total").await.unwrap() > 0.5);

    // The first comes back and finds that it does not lead.
    first.process.restart().await.unwrap();
    first.ready().await.unwrap();
    assert!(first.metric("tarbet_mesh_writes_total").await.unwrap() < 0.5);
    drop((first, second));
    clean(&product, east).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_is_killed_anywhere_finishes_what_it_began_and_writes_nothing_twice() {
    const SERVICES: usize = 60;
    let (east, west, _turn) = planes().await;
    let (here, there) = (east.kubectl(), west.kubectl());
    for kubectl in [&here, &there] {
        for name in ["istio-system", "many"] {
            let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
            kubectl.apply(&namespace).await.unwrap();
        }
    }
    here.apply(&federation("east", "west", &["192.0.2.1"])).await.unwrap();
    here.apply(&rules("west")).await.unwrap();
    there.apply(&federation("west", "east", &["192.0.2.2"])).await.unwrap();
    let mut nothing = rules("east");
    nothing["spec"]["import"] = json!([]);
    there.apply(&nothing).await.unwrap();
    let service = |number: usize| {
        json!({ "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": format!("s{number}"), "namespace": "many", "labels": { "export": "true" } },
            "spec": { "selector": { "app": "s" }, "ports": [{ "name": "http", "port": 80 }] } })
    };
    let services: Vec<Value> = (0..SERVICES).map(service).collect();
    there.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": services })).await.unwrap();

    let product = Product::new(env!("CARGO_BIN_EXE_tarbet")).unwrap();
    let ports = Lease::block(2).unwrap();
    let at = |index: u16| format!("127.0.0.1:{}", ports.port(index));
    let (east_config, west_config) =
        (east.kubeconfig().display().to_string(), west.kubeconfig().display().to_string());
    let (east_at, west_at, peer) = (at(0), at(1), format!("west={}", at(1)));
    let alone = "--leader-elect=false";
    let words = ["mesh", "--kubeconfig", &west_config, "--listen", &west_at, alone];
    let exporter = product.role("mesh-west", &words, &[("POD_NAMESPACE", "istio-system")]).await.unwrap();
    let words = ["mesh", "--kubeconfig", &east_config, "--listen", &east_at, "--discovery", &peer, alone];
    let mut controller =
        product.role("mesh-east", &words, &[("POD_NAMESPACE", "istio-system")]).await.unwrap();

    let entries = || async {
        let list = ["get", "serviceentries.networking.istio.io", "-n", "istio-system", "-o", "name"];
        anyhow::Ok(here.run(&list).await?.lines().filter(|line| line.contains("/import-")).count())
    };
    let reached = |least: usize| async move {
        let look = || async {
            let count = entries().await?;
            ensure!(count >= least, "{count} of {least}");
            Ok(())
        };
        eventually(SOON, "entries of imported services", look).await.unwrap();
    };
    for least in [1, SERVICES / 3, SERVICES / 2] {
        reached(least).await;
        controller.process.kill9().unwrap();
        controller.process.restart().await.unwrap();
        controller.ready().await.unwrap();
    }
    reached(SERVICES).await;
    let whole = || async {
        let federation = here.json(&["get", "meshfederation", "default"]).await?;
        ensure!(federation["status"]["remotes"][0]["imported"] == SERVICES, "{}", federation["status"]);
        let ready = "jsonpath={range .items[*]}{.status.conditions[?(@.type==\"Ready\")].status}{end}";
        let ready = here.run(&["get", "importedservices", "-A", "-o", ready]).await?;
        ensure!(ready == "True".repeat(SERVICES), "{ready}");
        Ok(())
    };
    eventually(SOON, "all of it to be told", whole).await.unwrap();
    assert_eq!(entries().await.unwrap(), SERVICES);

    // Once more: all is as it must be.
    controller.process.kill9().unwrap();
    controller.process.restart().await.unwrap();
    controller.ready().await.unwrap();
    let looked = || async {
        ensure!(controller.metric("tarbet_mesh_reconcile_seconds_count").await? >= 2.0, "not looked yet");
        ensure!(controller.metric("tarbet_mesh_peer_connected").await? >= 1.0, "not connected yet");
        Ok(())
    };
    eventually(SOON, "the controller to look around", looked).await.unwrap();
    assert!(controller.metric("tarbet_mesh_writes_total").await.unwrap() < 0.5, "nothing changed");
    drop((controller, exporter));
    here.run(&["delete", "namespace", "many", "--wait=false"]).await.unwrap();
    there.run(&["delete", "namespace", "many", "--wait=false"]).await.unwrap();
    for plane in [east, west] {
        clean(&product, plane).await;
    }
    verified("kill -9 of a mesh controller amid imports: all are made, none twice", 4);
}
