//! What the node offers: by its settings, and as its plugin says. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use serde_json::{Map, Value, json};

use super::config::{ACCELERATORS, NodeConfig};
use crate::plan::quantity::Quantity;
use crate::wire::PingReply;

/// The node's annotation with the kinds of resources that are ours to take back.
pub(super) const OUR_RESOURCES: &str = "tarbet.dev/resources";

/// What the node is to offer, and what it offers no longer.
pub struct Offer {
    wanted: BTreeMap<String, String>,
    /// Kinds that were ours and are still written on the node. Those of others stay.
    withdrawn: BTreeSet<String>,
}

impl Offer {
    /// Over what the Node object says now.
    pub fn new(config: &NodeConfig, ping: Option<&PingReply>, now: &Node) -> Self {
        let wanted = capacity(config, ping);
        let notes = now.metadata.annotations.as_ref().and_then(|notes| notes.get(OUR_RESOURCES));
        let ours: BTreeSet<&str> = notes.map(|kinds| kinds.split(',').collect()).unwrap_or_default();
        let is_ours = |kind: &str| ours.contains(kind) || ACCELERATORS.contains(&kind);
        let written = written(now).into_keys();
        let withdrawn = written.filter(|kind| is_ours(kind) && !wanted.contains_key(kind)).collect();
        Self { wanted, withdrawn }
    }

    /// Whether the Node object says the same.
    pub fn is_there(&self, now: &Node) -> bool {
        let written = written(now);
        let same = |(kind, amount): (&String, &String)| {
            written.get(kind).is_some_and(|there| Quantity::parse(there) == Quantity::parse(amount))
        };
        self.withdrawn.is_empty() && self.wanted.iter().all(same)
    }

    /// The kinds to note as ours: also those that are about to go, until they are gone.
    pub fn kinds(&self) -> String {
        let kinds = self.wanted.keys().filter(|kind| kind.contains('/')).chain(&self.withdrawn);
        kinds.map(String::as_str).collect::<Vec<_>>().join(",")
    }

    /// The change of the Node object: a key that is left out of a patch stays, so what goes is named.
    pub fn patch(&self) -> Value {
        let offered = self.wanted.iter().map(|(kind, amount)| (kind.clone(), json!(amount)));
        let gone = self.withdrawn.iter().map(|kind| (kind.clone(), Value::Null));
        Value::Object(offered.chain(gone).collect::<Map<_, _>>())
    }
}

fn written(now: &Node) -> BTreeMap<String, String> {
    let capacity = now.status.as_ref().and_then(|status| status.capacity.clone()).unwrap_or_default();
    capacity.into_iter().map(|(kind, amount)| (kind, amount.0)).collect()
}

/// What the node offers: the settings, and over them what the plugin says it can take.
fn capacity(config: &NodeConfig, ping: Option<&PingReply>) -> BTreeMap<String, String> {
    let resources = &config.resources;
    let mut capacity: BTreeMap<String, String> =
        [("cpu", &resources.cpu), ("memory", &resources.memory), ("pods", &resources.pods)]
            .map(|(key, value)| (key.to_owned(), value.clone()))
            .into();
    capacity.extend(config.accelerators().into_iter().map(|(kind, count)| (kind, count.to_string())));
    let Some(told) = ping.and_then(|ping| ping.resources.as_ref()) else { return capacity };
    let whole = |text: &str| text.parse::<u64>().is_ok();
    for (key, text, good) in [
        ("cpu", &told.cpu, Quantity::parse(&told.cpu).is_some()),
        ("memory", &told.memory, Quantity::parse(&told.memory).is_some()),
        ("pods", &told.pods, whole(&told.pods)),
    ] {
        if good {
            capacity.insert(key.to_owned(), text.clone());
        }
    }
    for kind in &told.accelerators {
        if kind.resource_type.contains('/') && whole(&kind.available) {
            capacity.insert(kind.resource_type.clone(), kind.available.clone());
        }
    }
    capacity
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::config::Accelerator;
    use crate::wire;

    #[test]
    fn the_plugin_has_the_last_word_on_what_can_be_taken() {
        let config = NodeConfig::default();
        assert_eq!(capacity(&config, None)["memory"], "3000G");
        let text = r#"{"status":"ok","resources":{"cpu":"8","pods":"-1",
            "accelerators":[{"resourceType":"nvidia.com/gpu","available":2}]}}"#;
        let ping: PingReply = wire::read(text.as_bytes(), "a ping").unwrap();
        let told = capacity(&config, Some(&ping));
        assert_eq!((&told["cpu"][..], &told["pods"][..], &told["nvidia.com/gpu"][..]), ("8", "10000", "2"));
    }

    #[test]
    fn what_is_offered_no_longer_is_taken_back_and_what_others_wrote_stays() {
        let mut config = NodeConfig::default();
        let gpu = |available: &str| Accelerator {
            resource_type: "nvidia.com/gpu".into(),
            available: available.into(),
            ..Default::default()
        };
        config.resources.accelerators = vec![gpu("2")];
        let now: Node = serde_json::from_value(json!({
            "metadata": {"annotations": {OUR_RESOURCES: "nvidia.com/gpu,example.org/told"}},
            "status": {"capacity": {"cpu": "100", "memory": "3T", "pods": "10k", "nvidia.com/gpu": "2",
                "example.org/told": "1", "example.org/others": "7", "amd.com/gpu": "3"}},
        }))
        .unwrap();
        let offer = Offer::new(&config, None, &now);
        assert!(!offer.is_there(&now));
        assert_eq!(offer.kinds(), "nvidia.com/gpu,amd.com/gpu,example.org/told");
        let patch = offer.patch();
        assert_eq!((&patch["nvidia.com/gpu"], &patch["amd.com/gpu"]), (&json!("2"), &Value::Null));
        let patch = patch.as_object().unwrap();
        assert!(patch.contains_key("example.org/told") && !patch.contains_key("example.org/others"));

        let mut after = now;
        let capacity = after.status.as_mut().and_then(|status| status.capacity.as_mut()).unwrap();
        capacity.retain(|kind, _| !["amd.com/gpu", "example.org/told"].contains(&kind.as_str()));
        assert!(Offer::new(&config, None, &after).is_there(&after), "amounts are compared, not their words");
        config.resources.accelerators = vec![gpu("3")];
        assert!(!Offer::new(&config, None, &after).is_there(&after));
        config.resources.accelerators = vec![gpu("0")];
        assert_eq!(Offer::new(&config, None, &after).patch()["nvidia.com/gpu"], Value::Null);
    }
}
