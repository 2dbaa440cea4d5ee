//! Comparing the kernel with what is written down.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::net::UnixStream;

use serde_json::Value;

use super::state::NetworkName;
use super::{Local, kernel, nft, vpn};
use crate::error::Error;

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

    /// What of a network's filter is not as it would be if it were written anew.
    async fn filter_differences(&self, name: &NetworkName) -> Result<Vec<String>, Error> {
        let here = self.names.network(name);
        let wanted = {
            let state = self.lock();
            nft::network(state.machines_of(name).map(|(_, machine)| machine))
        };
        let wanted = listed(&kernel::rendered(wanted).await?)?;
        let args = ["-j", "list", "ruleset"].map(str::to_owned).to_vec();
        let actual = listed(&kernel::run(Some(here.clone()), "nft", args).await?)?;
        if actual.is_empty() {
            return Ok(vec![format!("the filter of {here} is missing")]);
        }
        let parts: BTreeSet<&String> = wanted.keys().chain(actual.keys()).collect();
        let differing = parts.into_iter().filter(|part| wanted.get(*part) != actual.get(*part));
        Ok(differing.map(|part| format!("{part} of {here} is not as its rules say")).collect())
    }
}

/// The parts of a filter by name: of a chain its hook and rules in their order, of a set its elements. Without
/// what changes by itself.
fn listed(text: &str) -> Result<BTreeMap<String, Vec<Value>>, Error> {
    let mut json: Value = serde_json::from_str(text)
        .map_err(|error| Error::Internal(format!("`nft -j` is not JSON: {error}")))?;
    let Value::Array(objects) = json["nftables"].take() else { return Ok(BTreeMap::new()) };
    let mut parts: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for object in objects {
        let Value::Object(object) = object else { continue };
        for (kind, mut value) in object {
            let family = text_of(&value, "family").to_owned();
            let (part, value) = match kind.as_str() {
                "chain" => {
                    let hook = ["type", "hook", "prio", "policy"].map(|field| value[field].take());
                    (format!("chain {family} {}", text_of(&value, "name")), Value::from(hook.to_vec()))
                }
                "rule" => {
                    let mut rule = Value::from(vec![value["comment"].take(), value["expr"].take()]);
                    settle(&mut rule);
                    (format!("chain {family} {}", text_of(&value, "chain")), rule)
                }
                "set" | "map" => {
                    let mut elements = value["elem"].take();
                    settle(&mut elements);
                    sort(&mut elements);
                    (format!("set {family} {}", text_of(&value, "name")), elements)
                }
                _ => continue,
            };
            parts.entry(part).or_default().push(value);
        }
    }
    Ok(parts)
}

fn text_of<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// Forgets what was counted, and puts what has no order into one.
fn settle(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(settle),
        Value::Object(fields) => {
            for (name, value) in fields {
                if name == "counter" {
                    *value = Value::Null;
                }
                settle(value);
                if name == "set" {
                    sort(value);
                }
            }
        }
        _ => {}
    }
}

fn sort(list: &mut Value) {
    if let Value::Array(items) = list {
        items.sort_by_cached_key(ToString::to_string);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(rule: &str, elements: &str) -> BTreeMap<String, Vec<Value>> {
        let text = format!(
            r#"{{"nftables": [{{"metainfo": {{}}}}, {{"table": {{"family": "inet", "name": "tarbet"}}}},
                {{"chain": {{"family": "inet", "name": "i1", "handle": 7}}}}, {{"map": {{"family": "inet", "name": "egress", "elem": {elements}}}}},
                {{"rule": {{"family": "inet", "chain": "i1", "handle": 9, "comment": "web", "expr": {rule}}}}}]}}"#
        );
        listed(&text).unwrap()
    }

    #[test]
    fn only_what_matters_differs() {
        let rule = |target: &str, packets: u32| {
            format!(
                r#"[{{"match": {{"right": {{"set": [{target}]}}}}}}, {{"counter": {{"packets": {packets}}}}}, {{"accept": null}}]"#
            )
        };
        let wanted = filter(&rule("1, 2", 0), "[3, 4]");
        assert_eq!(wanted.keys().collect::<Vec<_>>(), ["chain inet i1", "set inet egress"]);
        assert_eq!(wanted, filter(&rule("2, 1", 99), "[4, 3]"), "neither counters nor the order of a set");
        assert_ne!(wanted, filter(&rule("1", 0), "[3, 4]"), "another target");
        assert_ne!(wanted, filter(&rule("1, 2", 0), "[3]"), "a machine less");
    }
}
