//! Comparing the kernel with what is written down.

use std::collections::BTreeSet;
use std::os::unix::net::UnixStream;

use super::state::NetworkName;
use super::{Local, kernel, vpn};
use crate::error::Error;
use crate::model::Direction;

impl Local {
    /// One sentence for each difference in a namespace; all namespaces if it is empty.
    pub(super) async fn differences(&self, namespace: &str) -> Result<(Vec<String>, Vec<String>), Error> {
        let state = self.lock().clone();
        let ours = |of: &str| namespace.is_empty() || of == namespace;
        let networks: Vec<&NetworkName> =
            state.networks.keys().filter(|name| ours(&name.namespace)).collect();
        let into = networks.iter().map(|name| self.names.network(name)).collect();
        let seen = kernel::look(self.names.everything(), into).await?;
        let mut found = Vec::new();
        let mut expected = BTreeSet::new();
        for name in networks {
            let here = self.names.network(name);
            expected.insert(here.clone());
            if !seen.has_link(&here, "br0") {
                found.push(format!("the network {here} is missing"));
                continue;
            }
            for (machine_name, machine) in state.machines_of(name) {
                let machine_netns = self.names.machine(machine_name);
                if !seen.has_link(&here, &format!("v{}", machine.port))
                    || !seen.netns.contains(&machine_netns)
                {
                    found.push(format!("the machine {machine_netns} is missing or unplugged"));
                }
            }
            for peer in &state.networks[name].peers {
                if !seen.has_link(&here, &self.names.peer_port(peer)) {
                    found.push(format!("the peering of {here} with {} is missing", self.names.network(peer)));
                }
            }
            found.extend(self.filter_differences(name).await?);
        }
        for name in state.machines.keys().filter(|name| ours(&name.network.namespace)) {
            expected.insert(self.names.machine(name));
        }
        for (hub_namespace, hub) in state.hubs.iter().filter(|(name, _)| ours(name)) {
            expected.insert(self.names.hub(hub_namespace));
            for tunnel in hub.tunnels.values() {
                let netns = self.names.tunnel(hub_namespace, tunnel.index);
                let socket = vpn::folder(&self.config.folder, &netns).join("vici");
                if tunnel.peer.is_some() && UnixStream::connect(socket).is_err() {
                    found.push(format!("the tunnel {netns} to {} is down", tunnel.cloud));
                }
                expected.insert(netns);
            }
        }
        let prefix = if namespace.is_empty() {
            self.names.everything()
        } else {
            format!("{}{namespace}.", self.names.everything())
        };
        let strays: Vec<String> = seen
            .netns
            .iter()
            .filter(|netns| netns.starts_with(&prefix) && !expected.contains(*netns))
            .cloned()
            .collect();
        found.extend(strays.iter().map(|netns| format!("the namespace {netns} belongs to nothing")));
        Ok((found, strays))
    }

    /// Which permissions are in the filter, by chain and name.
    async fn filter_differences(&self, name: &NetworkName) -> Result<Vec<String>, Error> {
        let here = self.names.network(name);
        let args = ["-j", "list", "table", "inet", "tarbet"].map(str::to_owned).to_vec();
        let Ok(text) = kernel::run(Some(here.clone()), "nft", args).await else {
            return Ok(vec![format!("the filter of {here} is missing")]);
        };
        let json: serde_json::Value = serde_json::from_str(&text)
            .map_err(|error| Error::Internal(format!("`nft -j` is not JSON: {error}")))?;
        let objects = json["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
        let rules = objects.iter().filter_map(|object| object.get("rule"));
        let actual: BTreeSet<(String, String)> = rules
            .filter_map(|rule| {
                Some((rule["chain"].as_str()?.to_owned(), rule["comment"].as_str()?.to_owned()))
            })
            .collect();
        let state = self.lock();
        let expected: BTreeSet<(String, String)> = state
            .machines_of(name)
            .flat_map(|(_, machine)| {
                machine.rules.values().filter(|rule| !rule.targets.is_empty()).map(|rule| {
                    let chain = if rule.direction == Direction::Inbound { "i" } else { "e" };
                    (format!("{chain}{}", machine.port), rule.name.clone())
                })
            })
            .collect();
        let missing = expected
            .difference(&actual)
            .map(|(chain, rule)| format!("rule {rule} is missing in chain {chain} of {here}"));
        let foreign = actual
            .difference(&expected)
            .map(|(chain, rule)| format!("rule {rule} in chain {chain} of {here} is not ours"));
        Ok(missing.chain(foreign).collect())
    }
}
