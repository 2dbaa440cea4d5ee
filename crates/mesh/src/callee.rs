//! How an imported service is called: for trials by people.

use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde_json::Value;
use tarbet_link::Address;

use crate::crd::ImportedService;
use crate::error::MeshError;
use crate::names::istio_sni;
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
    let mut identities: Vec<String> = found
        .offers
        .iter()
        .filter(|said| found.meshes.contains(&said.mesh))
        .flat_map(|said| said.offer.subject_alt_names.clone())
        .collect();
    identities.sort_unstable();
    identities.dedup();
    Ok(Some(Callee {
        server_name: istio_sni(&found.hostname, chosen.number),
        port: chosen.number,
        host: found.hostname,
        meshes: found.meshes,
        gateways,
        identities,
    }))
}

fn gateways(spec: &Value, port: &str) -> Vec<Address> {
    let address = |endpoint: &Value| {
        let number = endpoint["ports"][port].as_u64().and_then(|number| u16::try_from(number).ok())?;
        Address::new(endpoint["address"].as_str()?, number).ok()
    };
    spec["endpoints"].as_array().into_iter().flatten().filter_map(address).collect()
}
