//! What is written into the clusters: declarations of meshes, services, and the same objects that
//! a controller writes, by a bare client.

use anyhow::Result;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, ObjectMeta};
use kube::{Api, Client};
use serde_json::{Value, json};
use tarbet_mesh::plan::Kind;
use tarbet_testbed::ControlPlane;

const GROUP: &str = "federation.openshift-service-mesh.io/v1alpha1";

/// A mesh with these remotes, which imports from all of them and exports nothing yet.
pub(super) async fn mesh(plane: &ControlPlane, local: &str, remotes: &[String], ingress: bool) -> Result<()> {
    let remote = |name: &String| {
        let ingress = if ingress { json!({ "addresses": ["192.0.2.1"] }) } else { json!({}) };
        json!({ "id": name, "network": name, "ingress": ingress })
    };
    let mut own = json!({ "id": local, "network": local });
    if ingress {
        own["ingress"] = json!({ "gateway": { "selector": { "app": "gateway" } } });
    }
    let remote: Vec<Value> = remotes.iter().map(remote).collect();
    let imports: Vec<Value> = remotes.iter().map(|name| json!({ "meshID": name })).collect();
    let federation = json!({ "apiVersion": GROUP, "kind": "MeshFederation", "metadata": { "name": "default" },
        "spec": { "local": own, "remote": remote } });
    let rules = json!({ "apiVersion": GROUP, "kind": "FederationServiceRules",
        "metadata": { "name": "default", "namespace": "istio-system" }, "spec": { "import": imports } });
    plane.kubectl().apply(&federation).await?;
    plane.kubectl().apply(&rules).await?;
    Ok(())
}

/// What a controller writes for one import: the record, the entry, and the status of the record.
pub(super) async fn import(client: &Client, namespace: &str, number: usize) -> Result<()> {
    let (host, name) = (format!("raw-{number}.shop.svc.cluster.local"), format!("raw-{number}"));
    let ports = json!([{ "name": "http", "number": 80, "protocol": "HTTP" }]);
    let offer = json!({ "hostname": host, "ports": ports, "name": name, "namespace": "shop" });
    let record = json!({ "spec": { "name": name, "namespace": "shop", "hostname": host, "ports": ports,
        "labels": {}, "meshes": ["west"], "offers": [{ "mesh": "west", "offer": offer }] } });
    let kind = Kind::ImportedService.resource();
    apply(client, &kind, namespace, &name, record).await?;
    apply(client, &Kind::ServiceEntry.resource(), namespace, &name, entry(&host, 80)).await?;
    let condition = |name: &str| {
        json!({ "type": name, "status": "True", "reason": "Programmed", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1 })
    };
    let conditions: Vec<Value> = ["Accepted", "Ready", "Conflicted"].into_iter().map(condition).collect();
    let status = Patch::Merge(json!({ "status": { "conditions": conditions } }));
    objects(client, &kind, namespace).patch_status(&name, &PatchParams::default(), &status).await?;
    Ok(())
}

pub(super) fn entry(host: &str, port: usize) -> Value {
    json!({ "spec": { "hosts": [host], "location": "MESH_INTERNAL", "resolution": "STATIC",
        "ports": [{ "name": "http", "number": port, "protocol": "HTTP" }],
        "endpoints": [{ "address": "192.0.2.1", "network": "west", "ports": { "http": 15443 },
            "labels": { "security.istio.io/tlsMode": "istio" } }] } })
}

pub(super) fn core(plural: &str, kind: &str) -> ApiResource {
    ApiResource {
        group: String::new(),
        version: "v1".to_owned(),
        api_version: "v1".to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

pub(super) fn objects(client: &Client, kind: &ApiResource, namespace: &str) -> Api<DynamicObject> {
    if namespace.is_empty() {
        Api::all_with(client.clone(), kind)
    } else {
        Api::namespaced_with(client.clone(), namespace, kind)
    }
}

pub(super) async fn apply(
    client: &Client,
    kind: &ApiResource,
    namespace: &str,
    name: &str,
    body: Value,
) -> Result<()> {
    let mut object = DynamicObject::new(name, kind).data(body);
    object.metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let how = PatchParams::apply("bench").force();
    objects(client, kind, namespace).patch(name, &how, &Patch::Apply(&object)).await?;
    Ok(())
}
