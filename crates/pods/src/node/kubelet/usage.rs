//! What pods use, in the two forms that readers of metrics ask for.
//!
//! The place they run at tells it where it is one of ours and knows; of others only times are told,
//! never made-up numbers.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Kubelet;
use crate::wire::ContainerUsage;

type Reading = (Timestamp, u64, u64);

/// Readings so far: a rate needs two.
#[derive(Default)]
pub(super) struct Readings {
    /// By UID and container: when, the time spent by then, and the rate.
    last: Mutex<HashMap<(String, String), Reading>>,
}

impl Readings {
    /// The rate, in billionths of a core, since the reading before.
    fn rate(&self, uid: &str, used: &ContainerUsage, now: Timestamp) -> Option<u64> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (uid.to_owned(), used.name.clone());
        let before = last.get(&key).copied();
        let rate = before.and_then(|(then, spent, _)| {
            let passed = u64::try_from(now.duration_since(then).as_millis()).ok().filter(|&ms| ms >= 100)?;
            Some(used.cpu_nanoseconds.saturating_sub(spent).saturating_mul(1000) / passed)
        });
        match (rate, before) {
            (None, Some((_, _, known))) => Some(known),
            (rate, _) => {
                last.insert(key, (now, used.cpu_nanoseconds, rate.unwrap_or_default()));
                rate
            }
        }
    }

    fn keep(&self, alive: &BTreeMap<String, Vec<ContainerUsage>>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.retain(|(uid, _), _| alive.contains_key(uid));
    }
}

async fn used(kubelet: &Kubelet) -> (BTreeMap<String, Vec<ContainerUsage>>, bool) {
    if !kubelet.node.peer().ping.extensions.usage {
        return (BTreeMap::new(), true);
    }
    match kubelet.node.interlink.usage().await {
        Ok(pods) => (pods.into_iter().map(|pod| (pod.uid, pod.containers)).collect(), true),
        Err(error) => {
            tracing::debug!(error = %error, "What pods use is not known at the moment.");
            (BTreeMap::new(), false)
        }
    }
}

/// The summary of the node and its pods.
pub(super) async fn summary(State(kubelet): State<Arc<Kubelet>>) -> Json<Value> {
    let ((used, _), now) = (used(&kubelet).await, Timestamp::now());
    kubelet.readings.keep(&used);
    let (mut spent, mut rate, mut memory) = (0u64, 0u64, 0u64);
    let mut pods = Vec::new();
    for entry in kubelet.node.book.all() {
        let status = entry.pod.status.as_ref();
        let (mut pod_spent, mut pod_rate, mut pod_memory) = (0u64, 0u64, 0u64);
        let mut containers = Vec::new();
        for container in status.iter().flat_map(|status| status.container_statuses.iter().flatten()) {
            let Some(running) = container.state.as_ref().and_then(|state| state.running.as_ref()) else {
                continue;
            };
            let mut told = json!({"name": container.name, "startTime": running.started_at});
            let found = used.get(entry.uid()).into_iter().flatten().find(|used| used.name == container.name);
            if let Some(found) = found {
                let now_rate = kubelet.readings.rate(entry.uid(), found, now);
                told["cpu"] = cpu(now, found.cpu_nanoseconds, now_rate);
                told["memory"] = json!({"time": now.to_string(), "workingSetBytes": found.memory_bytes});
                pod_spent += found.cpu_nanoseconds;
                pod_rate += now_rate.unwrap_or_default();
                pod_memory += found.memory_bytes;
            }
            containers.push(told);
        }
        let (namespace, name) = entry.key();
        let mut pod = json!({
            "podRef": {"name": name, "namespace": namespace, "uid": entry.uid()},
            "startTime": status.and_then(|status| status.start_time.clone()),
            "containers": containers,
        });
        if used.contains_key(entry.uid()) {
            pod["cpu"] = cpu(now, pod_spent, Some(pod_rate));
            pod["memory"] = json!({"time": now.to_string(), "workingSetBytes": pod_memory});
            (spent, rate, memory) = (spent + pod_spent, rate + pod_rate, memory + pod_memory);
        }
        pods.push(pod);
    }
    let mut node = json!({"nodeName": kubelet.node.config.node_name, "startTime": kubelet.began.to_string()});
    if !used.is_empty() {
        node["cpu"] = cpu(now, spent, Some(rate));
        node["memory"] = json!({"time": now.to_string(), "workingSetBytes": memory});
    }
    Json(json!({"node": node, "pods": pods}))
}

fn cpu(now: Timestamp, spent: u64, rate: Option<u64>) -> Value {
    let mut told = json!({"time": now.to_string(), "usageCoreNanoSeconds": spent});
    if let Some(rate) = rate {
        told["usageNanoCores"] = json!(rate);
    }
    told
}

/// The same as metrics.
pub(super) async fn resource(State(kubelet): State<Arc<Kubelet>>) -> Response {
    let (used, known) = used(&kubelet).await;
    let mut began = String::new();
    let (mut cpu, mut memory, mut pod_cpu, mut pod_memory) =
        (String::new(), String::new(), String::new(), String::new());
    let (mut all_spent, mut all_memory) = (0u64, 0u64);
    for entry in kubelet.node.book.all() {
        let (namespace, pod) = entry.key();
        let statuses = entry.pod.status.as_ref().and_then(|status| status.container_statuses.clone());
        for status in statuses.into_iter().flatten() {
            let start = status.state.and_then(|state| state.running).and_then(|running| running.started_at);
            if let Some(start) = start {
                let labels = format!("container=\"{}\",namespace=\"{namespace}\",pod=\"{pod}\"", status.name);
                let _ = writeln!(began, "container_start_time_seconds{{{labels}}} {}", start.0.as_second());
            }
        }
        let Some(containers) = used.get(entry.uid()) else { continue };
        let (mut spent, mut held) = (0u64, 0u64);
        for used in containers {
            let labels = format!("container=\"{}\",namespace=\"{namespace}\",pod=\"{pod}\"", used.name);
            let _ = writeln!(
                cpu,
                "container_cpu_usage_seconds_total{{{labels}}} {}",
                seconds(used.cpu_nanoseconds)
            );
            let _ = writeln!(memory, "container_memory_working_set_bytes{{{labels}}} {}", used.memory_bytes);
            (spent, held) = (spent + used.cpu_nanoseconds, held + used.memory_bytes);
        }
        let labels = format!("namespace=\"{namespace}\",pod=\"{pod}\"");
        let _ = writeln!(pod_cpu, "pod_cpu_usage_seconds_total{{{labels}}} {}", seconds(spent));
        let _ = writeln!(pod_memory, "pod_memory_working_set_bytes{{{labels}}} {held}");
        (all_spent, all_memory) = (all_spent + spent, all_memory + held);
    }
    let (node_cpu, node_memory) = if used.is_empty() {
        (String::new(), String::new())
    } else {
        (
            format!("node_cpu_usage_seconds_total {}\n", seconds(all_spent)),
            format!("node_memory_working_set_bytes {all_memory}\n"),
        )
    };
    let mut text = String::new();
    for (name, kind, help, lines) in [
        (
            "container_cpu_usage_seconds_total",
            "counter",
            "Cumulative cpu time consumed by the container in core-seconds",
            cpu,
        ),
        (
            "container_memory_working_set_bytes",
            "gauge",
            "Current working set of the container in bytes",
            memory,
        ),
        (
            "container_start_time_seconds",
            "gauge",
            "Start time of the container since unix epoch in seconds",
            began,
        ),
        (
            "node_cpu_usage_seconds_total",
            "counter",
            "Cumulative cpu time consumed by the node in core-seconds",
            node_cpu,
        ),
        ("node_memory_working_set_bytes", "gauge", "Current working set of the node in bytes", node_memory),
        (
            "pod_cpu_usage_seconds_total",
            "counter",
            "Cumulative cpu time consumed by the pod in core-seconds",
            pod_cpu,
        ),
        ("pod_memory_working_set_bytes", "gauge", "Current working set of the pod in bytes", pod_memory),
        (
            "scrape_error",
            "gauge",
            "1 if there was an error while getting container metrics, 0 otherwise",
            format!("scrape_error {}\n", u8::from(!known)),
        ),
    ] {
        if !lines.is_empty() {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
        }
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

fn seconds(nanoseconds: u64) -> String {
    format!("{}.{:09}", nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_two_readings() {
        let readings = Readings::default();
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let used =
            |spent: u64| ContainerUsage { name: "main".into(), cpu_nanoseconds: spent, memory_bytes: 1 };
        assert_eq!(readings.rate("u", &used(0), at(0)), None);
        assert_eq!(readings.rate("u", &used(1_000_000_000), at(2)), Some(500_000_000));
        // Two readers at the same moment are told the same.
        assert_eq!(readings.rate("u", &used(1_000_000_000), at(2)), Some(500_000_000));
        assert_eq!(seconds(1_500_000_000), "1.500000000");
    }
}
