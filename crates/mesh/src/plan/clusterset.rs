//! The Multi-Cluster Services API of Kubernetes as another way to export and to import: whoever owns
//! a service makes a ServiceExport of its name, and where it can be called there is a ServiceImport.
//!
//! Such a service has one name in all meshes, `<service>.<namespace>.svc.clusterset.local`; how it is
//! opened, told and called is the same as for every other name.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::export::Exported;
use super::import::Imported;
use super::{Draft, Kind, Object, Owner};
use crate::model::{Key, OfferedPort};

/// The domain of the API's names.
const DOMAIN: &str = ".svc.clusterset.local";

/// The name of a service in the clusterset.
pub(crate) fn host((namespace, name): &Key) -> String {
    format!("{name}.{namespace}{DOMAIN}")
}

/// The service that has this name in the clusterset.
fn service(host: &str) -> Option<Key> {
    let (name, namespace) = host.strip_suffix(DOMAIN)?.split_once('.')?;
    (!namespace.contains('.')).then(|| (namespace.to_owned(), name.to_owned()))
}

/// One ServiceImport for each name that is exported here or imported, where its namespace is.
pub(super) fn objects(draft: &mut Draft<'_>, exported: &[Arc<Exported>], imported: &[Imported<'_>]) {
    if !draft.rules.service_imports {
        return;
    }
    let mut found: BTreeMap<Key, (Vec<OfferedPort>, Vec<String>)> = BTreeMap::new();
    let local = &draft.federation.local.id;
    for exported in exported {
        if let Some(key) = service(&exported.hostname) {
            found.insert(key, (exported.ports.clone(), vec![local.clone()]));
        }
    }
    for imported in imported.iter().filter(|imported| !imported.ports().is_empty()) {
        let Some(key) = service(imported.host) else { continue };
        let meshes = imported.used.iter().map(|(remote, _)| remote.id.clone());
        match found.get_mut(&key) {
            // What runs here counts; others join only if they agree.
            Some((_, clusters)) if imported.joined => clusters.extend(meshes),
            Some(_) => {}
            None => {
                found.insert(key, (imported.ports().to_vec(), meshes.collect()));
            }
        }
    }
    // A namespace means the same everywhere; where it is not, nobody can look into it.
    found.retain(|(namespace, _), _| draft.world.namespaces.contains_key(namespace));
    for ((namespace, name), (ports, clusters)) in found {
        let spec = json!({ "type": "ClusterSetIP", "ports": ports.iter().map(port).collect::<Vec<_>>() });
        let owner = Owner::Federation;
        draft.plan.clusters.insert((namespace.clone(), name.clone()), clusters);
        let kind = Kind::ServiceImport;
        draft.push(Object { kind, namespace, name, mesh: None, owner, spec: spec.into() });
    }
}

fn port(port: &OfferedPort) -> Value {
    let mut value = json!({ "name": port.name, "port": port.number, "protocol": "TCP" });
    if port.protocol != "TCP" {
        value["appProtocol"] = json!(port.protocol.to_lowercase());
    }
    value
}
