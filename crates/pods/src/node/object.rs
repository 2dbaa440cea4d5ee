//! The Node object: labels, taints, what it offers and how it is. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NodeCondition, Pod, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::config::NodeConfig;
use super::offer::Offer;
use crate::wire::PingReply;

/// The taint of every virtual node of interLink.
pub const TAINT: &str = "virtual-node.interlink/no-schedule";
/// The node's annotation with the answer to the last ping.
pub const PING_RESPONSE: &str = "interlink.virtual-kubelet.io/ping-response";
/// The node's annotation with the keys of the taints that are ours to change.
pub const OUR_TAINTS: &str = "tarbet.dev/taints";

/// How the other side is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Link {
    /// Nobody was asked yet.
    #[default]
    Untried,
    /// It answered with this text.
    Up(String),
    /// It does not answer, for this reason.
    Down(String),
    /// It answers, and cannot work without an account that there is not, for this reason.
    NoAccount(String),
}

impl Link {
    /// What is wrong; nothing while all is well.
    pub fn trouble(&self) -> String {
        match self {
            Self::Untried | Self::Up(_) => String::new(),
            Self::Down(reason) => format!("interLink does not answer: {}", clip(reason)),
            Self::NoAccount(reason) => format!("there is no account for interLink: {}", clip(reason)),
        }
    }
}

/// The labels of the node.
pub fn labels(config: &NodeConfig) -> BTreeMap<String, String> {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let mut labels: BTreeMap<String, String> = [
        ("alpha.service-controller.kubernetes.io/exclude-balancer", "true"),
        // Nodes of 2023 had these two, and pods of then may select by them.
        ("beta.kubernetes.io/os", "linux"),
        ("type", "virtual-kubelet"),
        ("kubernetes.io/arch", arch),
        ("kubernetes.io/hostname", &config.node_name),
        ("kubernetes.io/os", "virtual-kubelet"),
        ("kubernetes.io/role", "agent"),
        ("node.kubernetes.io/exclude-from-external-load-balancers", "true"),
        ("virtual-node.interlink/type", "virtual-kubelet"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    let own = config.node_labels.iter().filter_map(|label| label.split_once('='));
    labels.extend(own.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())));
    for kind in &config.resources.accelerators {
        let label = match kind.resource_type.as_str() {
            "nvidia.com/gpu" => "nvidia-gpu-type",
            "xilinx.com/fpga" => "xilinx-fpga-type",
            "intel.com/fpga" => "intel-fpga-type",
            _ => continue,
        };
        if !kind.model.is_empty() {
            labels.insert(label.to_owned(), kind.model.clone());
        }
    }
    labels
}

/// The taints of the node: its own, then those of the plugin or else of the settings.
pub fn taints(config: &NodeConfig, ping: Option<&PingReply>) -> Vec<Taint> {
    let taint = |key: &str, value: &str, effect: &str| Taint {
        key: key.to_owned(),
        value: (!value.is_empty()).then(|| value.to_owned()),
        effect: match effect {
            "NoExecute" | "PreferNoSchedule" => effect.to_owned(),
            _ => "NoSchedule".to_owned(),
        },
        time_added: None,
    };
    let mut taints = vec![taint(TAINT, "true", "NoSchedule")];
    match ping.and_then(|ping| ping.taints.as_ref()) {
        Some(told) => taints.extend(told.iter().map(|t| taint(&t.key, &t.value, &t.effect))),
        None => taints.extend(config.node_taints.iter().map(|t| taint(&t.key, &t.value, &t.effect))),
    }
    taints.retain(|taint| !taint.key.is_empty());
    let mut seen = BTreeSet::new();
    taints.retain(|taint| seen.insert((taint.key.clone(), taint.effect.clone())));
    taints
}

/// The taints as they should be: ours as wanted, those of others as they are.
pub fn merge_taints(now: &[Taint], ours_before: &BTreeSet<String>, wanted: &[Taint]) -> Vec<Taint> {
    let ours = |taint: &&Taint| {
        ours_before.contains(&taint.key)
            || wanted.iter().any(|w| w.key == taint.key && w.effect == taint.effect)
    };
    let foreign = now.iter().filter(|taint| !ours(taint));
    wanted.iter().chain(foreign).cloned().collect()
}

/// The conditions of the node, with the times of those that have not changed kept.
pub fn conditions(old: &[NodeCondition], link: &Link, now: Timestamp) -> Vec<NodeCondition> {
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let make = |type_: &str, status: bool, reason: &str, message: String| {
        let status = if status { "True" } else { "False" };
        let before = old.iter().find(|condition| condition.type_ == type_ && condition.status == status);
        let since = before.and_then(|condition| condition.last_transition_time.clone());
        NodeCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: since.or(Some(Time(now))),
        }
    };
    let (ready, ready_reason, ready_text) = match link {
        Link::Untried => (false, "KubeletPending", "kubelet is pending.".to_owned()),
        Link::Up(_) => (true, "KubeletReady", "kubelet is ready.".to_owned()),
        Link::Down(_) => (false, "InterlinkPingFailed", link.trouble()),
        Link::NoAccount(_) => (false, "InterlinkAccountMissing", link.trouble()),
    };
    let mut conditions = vec![
        make("Ready", ready, ready_reason, ready_text),
        make(
            "OutOfDisk",
            false,
            "KubeletHasSufficientDisk",
            "kubelet has sufficient disk space available".into(),
        ),
        make(
            "MemoryPressure",
            false,
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available".into(),
        ),
        make("DiskPressure", false, "KubeletHasNoDiskPressure", "kubelet has no disk pressure".into()),
        make("PIDPressure", false, "KubeletHasSufficientPID", "kubelet has sufficient PID available".into()),
        make("NetworkUnavailable", !ready, "RouteCreated", "RouteController created a route".into()),
    ];
    match link {
        Link::Untried => {}
        Link::Up(body) => conditions.push(make(
            "InterlinkConnectivity",
            true,
            "InterlinkPingSuccessful",
            format!("Ping successful with code 200. Response: {}", clip(body)),
        )),
        Link::Down(reason) => {
            conditions.push(make("InterlinkConnectivity", false, "InterlinkPingFailed", clip(reason)));
        }
        Link::NoAccount(reason) => {
            conditions.push(make("InterlinkConnectivity", false, "InterlinkAccountMissing", clip(reason)));
        }
    }
    conditions
}

fn clip(text: &str) -> String {
    let end = (0..=text.len().min(1000)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or_default();
    text[..end].to_owned()
}

/// Whether two lists of conditions say the same, whenever they were said.
pub fn same(a: &[NodeCondition], b: &[NodeCondition]) -> bool {
    let key = |condition: &NodeCondition| {
        (
            condition.type_.clone(),
            condition.status.clone(),
            condition.reason.clone(),
            condition.message.clone(),
        )
    };
    let (a, b): (BTreeSet<_>, BTreeSet<_>) = (a.iter().map(key).collect(), b.iter().map(key).collect());
    a.is_subset(&b)
}

/// The tolerations of a pod without an end to those that evict it from a node that is not ready;
/// `None` if there is nothing to change.
pub fn held(pod: &Pod) -> Option<Vec<Toleration>> {
    let mut tolerations = pod.spec.as_ref()?.tolerations.clone()?;
    let mut changed = false;
    for toleration in &mut tolerations {
        let key = toleration.key.as_deref().unwrap_or_default();
        let evicts = matches!(key, "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable")
            && toleration.effect.as_deref() == Some("NoExecute");
        if evicts && toleration.toleration_seconds.take().is_some() {
            changed = true;
        }
    }
    changed.then_some(tolerations)
}

/// The Node as it is first created.
pub fn node(config: &NodeConfig) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": config.node_name, "labels": labels(config)},
        "spec": {
            "providerID": format!("external:///{}", config.node_name),
            "taints": taints(config, None),
        },
    })
}

/// The status of the Node.
pub fn status(
    config: &NodeConfig,
    port: u16,
    offer: &Offer,
    old: &[NodeCondition],
    link: &Link,
    now: Timestamp,
) -> Value {
    let capacity = offer.patch();
    let arch = labels(config).remove("kubernetes.io/arch");
    json!({
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": conditions(old, link, now),
        "addresses": [
            {"type": "InternalIP", "address": config.pod_ip},
            {"type": "Hostname", "address": config.node_name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": {
            "architecture": arch,
            "operatingSystem": "linux",
            // Tools compare it with the cluster's version.
            "kubeletVersion": concat!("v1.33.0-tarbet-", env!("CARGO_PKG_VERSION")),
            "kubeProxyVersion": "",
            "kernelVersion": "", "machineID": "", "systemUUID": "", "bootID": "",
            "osImage": "interLink", "containerRuntimeVersion": concat!("interlink://", env!("CARGO_PKG_VERSION")),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_taints_of_the_plugin_come_beside_our_own() {
        let config = NodeConfig::default();
        let text = r#"{"taints":[{"key":"busy","effect":"Strange"},
            {"key":"virtual-node.interlink/no-schedule","effect":"NoSchedule"}]}"#;
        let ping: PingReply = wire::read(text.as_bytes(), "a ping").unwrap();
        let taints = taints(&config, Some(&ping));
        assert_eq!(taints.iter().map(|t| t.key.as_str()).collect::<Vec<_>>(), [TAINT, "busy"]);
        assert_eq!(taints[1].effect, "NoSchedule");
    }

    #[test]
    fn taints_of_others_stay_and_ours_go_when_they_are_no_longer_wanted() {
        let taint = |key: &str| Taint { key: key.into(), effect: "NoSchedule".into(), ..Default::default() };
        let now = [taint("node.kubernetes.io/not-ready"), taint("busy"), taint("mine"), taint(TAINT)];
        let before = BTreeSet::from(["busy".to_owned(), TAINT.to_owned()]);
        let merged = merge_taints(&now, &before, &[taint(TAINT), taint("new")]);
        let keys: Vec<&str> = merged.iter().map(|taint| taint.key.as_str()).collect();
        assert_eq!(keys, [TAINT, "new", "node.kubernetes.io/not-ready", "mine"]);
    }

    #[test]
    fn conditions_move_with_the_link() {
        let first = conditions(&[], &Link::Untried, at(1));
        let find = |list: &[NodeCondition], type_: &str| list.iter().find(|c| c.type_ == type_).cloned();
        assert_eq!(find(&first, "Ready").unwrap().reason.as_deref(), Some("KubeletPending"));
        assert_eq!(find(&first, "NetworkUnavailable").unwrap().status, "True");
        let up = conditions(&first, &Link::Up("fine".into()), at(2));
        let ready = find(&up, "Ready").unwrap();
        assert_eq!((ready.status.as_str(), ready.last_transition_time), ("True", Some(Time(at(2)))));
        assert!(!same(&first, &up) && same(&up, &up));
        let later = conditions(&up, &Link::Up("fine".into()), at(9));
        let ready = find(&later, "Ready").unwrap();
        assert_eq!(
            (ready.last_transition_time, ready.last_heartbeat_time),
            (Some(Time(at(2))), Some(Time(at(9))))
        );
        let down = conditions(&later, &Link::Down("refused".into()), at(10));
        assert_eq!(find(&down, "InterlinkConnectivity").unwrap().message.as_deref(), Some("refused"));
        assert_eq!(find(&down, "Ready").unwrap().status, "False");
    }
}
