//! Where the discovery of a remote is, as told by the federation or by a setting of the controller.
//!
//! Whatever is not on this machine is reached by its Service name: the proxy beside us finds the place
//! in the ServiceEntry that the plan makes of it, and speaks mutual TLS with the remote's identity, as
//! the policies there demand.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tarbet_link::Address;

use crate::crd::{MeshFederationSpec, Remote};
use crate::plan::DISCOVERY_PORT;

/// What is told about the place of a remote's discovery; a setting of the controller goes first.
pub(crate) fn told<'a>(remote: &'a Remote, settings: &'a BTreeMap<String, String>) -> Option<&'a str> {
    let declared = remote.discovery.as_ref().map(|discovery| discovery.address.as_str());
    settings.get(&remote.id).map(String::as_str).or(declared)
}

/// The places that proxies must know, by mesh: those that are told, except on this machine and where the
/// agent of a site dials.
pub(crate) fn places(
    federation: &MeshFederationSpec,
    settings: &BTreeMap<String, String>,
    is_sited: impl Fn(&Remote) -> bool,
) -> BTreeMap<String, Address> {
    let place = |remote: &Remote| {
        let address: Address = told(remote, settings)?.parse().ok()?;
        (!is_here(&address)).then(|| (remote.id.clone(), address))
    };
    federation.remote.iter().filter(|remote| !is_sited(remote)).filter_map(place).collect()
}

/// What to dial for a remote's discovery: through a site as its agent sees it, else as the proxy beside
/// us knows it, and on this machine as told.
pub(crate) fn target(remote: &Remote, told: Option<&str>, through_site: bool) -> Result<Address, String> {
    let service = || Address::new(remote.discovery_host(), DISCOVERY_PORT);
    let address = match (told, remote.ingress.addresses.first()) {
        (Some(told), _) => match told.parse::<Address>() {
            Ok(address) if !through_site && !is_here(&address) => service(),
            other => other,
        },
        (None, _) if through_site => service(),
        // The name that the ServiceEntry of its discovery gives it.
        (None, Some(first)) if first.parse::<IpAddr>().is_ok() => service(),
        (None, Some(host)) => Address::new(host.clone(), DISCOVERY_PORT),
        (None, None) => {
            return Err(format!(
                "no way to its discovery: set ingress.addresses or discovery.address of the remote `{0}`, or `via_site.{0}` of the controller",
                remote.id
            ));
        }
    };
    address.map_err(|error| error.to_string())
}

/// Whether it is on this very machine, where no other proxy could reach it.
fn is_here(address: &Address) -> bool {
    address.host() == "localhost" || address.host().parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn remote(addresses: &Value) -> Remote {
        let identity = json!({ "namespace": "mesh-system" });
        let ingress = json!({ "addresses": addresses });
        serde_json::from_value(
            json!({ "id": "west", "network": "west", "identity": identity, "ingress": ingress }),
        )
        .unwrap()
    }

    #[test]
    fn where_discovery_is_looked_for() {
        let at = |addresses: Value, told, site| {
            target(&remote(&addresses), told, site).map(|address| address.to_string())
        };
        let service = "federation-discovery-service-west.mesh-system.svc.cluster.local:15080";
        for addresses in [json!([]), json!(["192.0.2.1"]), json!(["router.west.example"])] {
            // Through a site: the Service in the other mesh, wherever its ingress may be.
            assert_eq!(at(addresses.clone(), None, true).as_deref(), Ok(service), "{addresses}");
            let told = at(addresses.clone(), Some("10.0.0.7:15080"), true);
            assert_eq!(told.as_deref(), Ok("10.0.0.7:15080"), "{addresses}");
            // Elsewhere in the network: by the name that the proxy knows. On this machine: as told.
            let told = at(addresses.clone(), Some("10.0.0.7:15080"), false);
            assert_eq!(told.as_deref(), Ok(service), "{addresses}");
            let told = at(addresses.clone(), Some("127.0.0.1:15082"), false);
            assert_eq!(told.as_deref(), Ok("127.0.0.1:15082"), "{addresses}");
        }
        assert_eq!(at(json!(["192.0.2.1"]), None, false).as_deref(), Ok(service));
        assert_eq!(
            at(json!(["router.west.example"]), None, false).as_deref(),
            Ok("router.west.example:15080")
        );
        assert!(at(json!([]), None, false).unwrap_err().contains("via_site.west"));
    }

    #[test]
    fn proxies_know_every_place_but_this_machine_and_sites() {
        let mut west = remote(&json!([]));
        west.discovery = Some(serde_json::from_value(json!({ "address": "10.0.0.7:15080" })).unwrap());
        let local = serde_json::from_value(json!({ "id": "east", "network": "one" })).unwrap();
        let federation = MeshFederationSpec { local, remote: vec![west] };
        let known = |settings: &[(&str, &str)], sited: bool| -> Vec<String> {
            let settings = settings.iter().map(|(mesh, at)| ((*mesh).into(), (*at).into())).collect();
            places(&federation, &settings, |_| sited).values().map(ToString::to_string).collect()
        };
        assert_eq!(known(&[], false), ["10.0.0.7:15080"]);
        assert_eq!(known(&[("west", "lb.west.example:443")], false), ["lb.west.example:443"]);
        assert!(known(&[("west", "[::1]:15080")], false).is_empty());
        assert!(known(&[], true).is_empty());
    }
}
