//! Networks that others made on this machine: bridges with addresses, its own and those in namespaces that no local
//! cloud made. They are only looked at.

use ipnet::IpNet;
use serde_json::Value;

use super::{Local, kernel};
use crate::cloud::count_of;
use crate::error::Error;
use crate::model::{Deployment, ForeignNetwork};

/// A bridge that has addresses, and how many are plugged into it.
#[derive(Debug, PartialEq, Eq)]
struct Bridge {
    name: String,
    spaces: Vec<IpNet>,
    ports: Option<u32>,
}

/// The bridges among the interfaces that `ip` tells.
fn bridges(links: &Value) -> Vec<Bridge> {
    let links = links.as_array().map(Vec::as_slice).unwrap_or_default();
    let is_bridge = |link: &&Value| link["linkinfo"]["info_kind"] == "bridge";
    let one = |link: &Value| {
        let name = link["ifname"].as_str()?.to_owned();
        let addresses = link["addr_info"].as_array().into_iter().flatten();
        // Addresses of the link alone are everywhere the same.
        let wide = addresses.filter(|address| address["scope"] != "link");
        let spaces: Vec<IpNet> = wide.filter_map(space).collect();
        let ports = count_of(links.iter().filter(|port| port["master"] == *name));
        (!spaces.is_empty()).then_some(Bridge { name, spaces, ports })
    };
    links.iter().filter(is_bridge).filter_map(one).collect()
}

fn space(address: &Value) -> Option<IpNet> {
    let local = address["local"].as_str()?.parse().ok()?;
    let length = u8::try_from(address["prefixlen"].as_u64()?).ok()?;
    IpNet::new(local, length).ok().map(|space| space.trunc())
}

/// Whether tables of a packet filter are those of a local cloud, whoever runs it.
fn is_filtered_by_a_cloud(tables: &Value) -> bool {
    let tables = tables["nftables"].as_array().into_iter().flatten();
    tables.into_iter().any(|one| one["table"]["name"] == "tarbet" && one["table"]["family"] == "inet")
}

/// A network as it is told: `BRIDGE` on this machine itself, `NAMESPACE/BRIDGE` elsewhere.
fn told(netns: Option<&str>, bridge: Bridge, deployment: &str) -> ForeignNetwork {
    let Bridge { name, spaces, ports } = bridge;
    let (id, name) = match netns {
        Some(netns) => (format!("local/netns/{netns}/{name}"), format!("{netns}/{name}")),
        None => (format!("local/host/{name}"), name),
    };
    ForeignNetwork {
        id,
        name,
        region: String::new(),
        deployment: deployment.into(),
        subnets: count_of(&spaces),
        spaces,
        machines: ports,
    }
}

/// The bridges of a namespace that no local cloud made.
fn bridges_of_others(netns: &str) -> Result<Vec<Bridge>, Error> {
    let found = bridges(&kernel::told_links(Some(netns))?);
    if found.is_empty() || is_filtered_by_a_cloud(&kernel::tables(netns)?) {
        return Ok(Vec::new());
    }
    Ok(found)
}

impl Local {
    /// The networks of others on this machine, which all deployments share.
    pub(super) async fn others(&self, deployments: &[Deployment]) -> Result<Vec<ForeignNetwork>, Error> {
        let Some(deployment) = deployments.first().map(|deployment| deployment.id.clone()) else {
            return Ok(Vec::new());
        };
        let own = self.names.everything();
        kernel::blocking(move || {
            let here = bridges(&kernel::told_links(None)?).into_iter();
            let mut found: Vec<ForeignNetwork> = here.map(|bridge| told(None, bridge, &deployment)).collect();
            for netns in kernel::names("").into_iter().filter(|netns| !netns.starts_with(&own)) {
                match bridges_of_others(&netns) {
                    Ok(bridges) => {
                        found.extend(bridges.into_iter().map(|bridge| told(Some(&netns), bridge, &deployment)));
                    }
                    // It went meanwhile.
                    Err(_) if !kernel::has(&netns) => {}
                    Err(error) => {
                        tracing::warn!(netns, %error, "A network namespace cannot be looked into; it is left out.");
                    }
                }
            }
            Ok(found)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bridge_with_addresses_is_a_network() {
        let address = |local: &str, length: u8, scope: &str| json!({ "local": local, "prefixlen": length, "scope": scope });
        let links = json!([
            { "ifname": "lo", "addr_info": [address("127.0.0.1", 8, "host")] },
            { "ifname": "br0", "linkinfo": { "info_kind": "bridge" },
              "addr_info": [address("10.50.0.1", 16, "global"), address("fe80::1", 64, "link"), address("fd00::1", 64, "global")] },
            { "ifname": "br1", "linkinfo": { "info_kind": "bridge" }, "addr_info": [] },
            { "ifname": "v1", "linkinfo": { "info_kind": "veth" }, "master": "br0" },
            { "ifname": "v2", "linkinfo": { "info_kind": "veth" }, "master": "br0" },
            { "ifname": "v3", "linkinfo": { "info_kind": "veth" }, "master": "br1" },
        ]);
        let found = bridges(&links);
        let spaces = ["10.50.0.0/16", "fd00::/64"].map(|space| space.parse().unwrap()).to_vec();
        assert_eq!(found, [Bridge { name: "br0".into(), spaces, ports: Some(2) }]);
        assert_eq!(bridges(&Value::Null), []);
        let theirs = told(Some("lab"), found.into_iter().next().unwrap(), "d");
        assert_eq!((theirs.id.as_str(), theirs.name.as_str()), ("local/netns/lab/br0", "lab/br0"));
    }

    #[test]
    fn filters_of_local_clouds_are_known() {
        let tables = |family: &str, name: &str| json!({ "nftables": [{ "metainfo": {} }, { "table": { "family": family, "name": name } }] });
        assert!(is_filtered_by_a_cloud(&tables("inet", "tarbet")));
        assert!(
            !is_filtered_by_a_cloud(&tables("ip", "tarbet"))
                && !is_filtered_by_a_cloud(&tables("inet", "docker"))
        );
        assert!(!is_filtered_by_a_cloud(&Value::Null));
    }
}
