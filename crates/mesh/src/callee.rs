//! How an imported service is called: for trials by people.

use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde_json::Value;
use tarbet_link::Address;

use crate::crd::{ImportedService, IngressType, MeshFederation};
use crate::error::MeshError;
use crate::names::{istio_sni, router_host};
use crate::plan::{Kind, MANAGED_BY};

/// An imported service as its callers' proxies know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callee {
    /// Its name.
    pub host: String,
    /// Its port.
    pub port: u32,
    /// The meshes it is in.
    pub meshes: Vec<String>,
    /// The gateways that lead to it; none if it is joined with a local Service.
    pub gateways: Vec<Address>,
    /// The name by which a gateway knows where to.
    pub server_name: String,
    /// Who may answer for it.
    pub identities: Vec<String>,
}

/// Finds an imported service by its whole name or the beginning of it (`pay.shop`), and the port if
/// it is told, else the first. Nothing if it is not imported.
pub async fn callee(client: &Client, name: &str, port: Option<u32>) -> Result<Option<Callee>, MeshError> {
    let failed = |kind: &'static str| {
        move |source: kube::Error| MeshError::Cluster {
            what: format!("list {kind} objects"),
            source: Box::new(source),
        }
    };
    let imported = Api::<ImportedService>::all(client.clone())
        .list(&ListParams::default())
        .await
        .map_err(failed("ImportedService"))?;
    let called =
        |host: &str| host.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    let Some(found) =
        imported.items.into_iter().map(|object| object.spec).find(|spec| called(&spec.hostname))
    else {
        return Ok(None);
    };
    let Some(chosen) = found.ports.iter().find(|one| port.is_none_or(|port| one.number == port)) else {
        return Ok(None);
    };
    let ours = ListParams::default().labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1));
    let entries = Api::<DynamicObject>::all_with(client.clone(), &Kind::ServiceEntry.resource())
        .list(&ours)
        .await
        .map_err(failed("ServiceEntry"))?;
    let entry =
        entries.items.into_iter().find(|entry| entry.data["spec"]["hosts"][0] == found.hostname.as_str());
    let gateways = entry.map(|entry| gateways(&entry.data["spec"], &chosen.name)).unwrap_or_default();
    let federations = Api::<MeshFederation>::all(client.clone())
        .list(&ListParams::default())
        .await
        .map_err(failed("MeshFederation"))?;
    let routed = federations.items.iter().flat_map(|federation| &federation.spec.remote).any(|remote| {
        found.meshes.contains(&remote.id) && remote.ingress.kind == IngressType::OpenshiftRouter
    });
    let mut identities: Vec<String> = found
        .offers
        .iter()
        .filter(|said| found.meshes.contains(&said.mesh))
        .flat_map(|said| said.offer.subject_alt_names.clone())
        .collect();
    identities.sort_unstable();
    identities.dedup();
    Ok(Some(Callee {
        server_name: server_name(&found.hostname, chosen.number, routed),
        port: chosen.number,
        host: found.hostname,
        meshes: found.meshes,
        gateways,
        identities,
    }))
}

/// What a caller's proxy sends: a router reads another form than Istio's gateways do.
fn server_name(host: &str, port: u32, routed: bool) -> String {
    if routed { router_host(host, port) } else { istio_sni(host, port) }
}

fn gateways(spec: &Value, port: &str) -> Vec<Address> {
    let address = |endpoint: &Value| {
        // Where we export the name too, one endpoint is our own Service.
        if endpoint["address"].as_str()?.ends_with(".svc.cluster.local") {
            return None;
        }
        let number = endpoint["ports"][port].as_u64().and_then(|number| u16::try_from(number).ok())?;
        Address::new(endpoint["address"].as_str()?, number).ok()
    };
    spec["endpoints"].as_array().into_iter().flatten().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_trial_speaks_as_a_callers_proxy_does() {
        assert_eq!(
            server_name("r.shop.svc.cluster.local", 80, false),
            "outbound_.80_._.r.shop.svc.cluster.local"
        );
        assert_eq!(server_name("r.shop.svc.cluster.local", 80, true), "r-80.shop.svc.cluster.local");
        let endpoint = |address: &str, port: u16| json!({ "address": address, "ports": { "http": port } });
        let spec = json!({ "endpoints": [
            endpoint("r.shop.svc.cluster.local", 80), endpoint("192.0.2.1", 15443), endpoint("router.west.example", 443),
        ] });
        let found: Vec<String> = gateways(&spec, "http").iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.0.2.1:15443", "router.west.example:443"]);
        assert!(gateways(&spec, "grpc").is_empty());
    }
}
