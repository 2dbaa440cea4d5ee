//! The run of a request: what it is made of, and what is kept of it while it lives.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::DeserializeGuard;
use serde_json::{Value, json};
use tarbet_cluster::Newer;

use crate::crd::{InternalServicesConfigSpec, NamedValue, Timeouts};
use crate::machine::Ending;
use crate::names::{
    ANNOTATION_OFFER, ANNOTATION_OWNER, ANNOTATION_OWNER_TYPE, LABEL_NAME, LABEL_NAMESPACE, LABEL_REMOTE,
    LABEL_TYPE, LABEL_UID, OWNER_TYPE, RUN_FINALIZER, SUCCEEDED, copied_label, label_value, run_name,
};
use crate::policy::{Order, PipelineSource};
use crate::request::{Key, Request};
use crate::tekton::PipelineRun;

/// What is kept of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uid: String,
    /// Its version.
    pub version: u64,
    /// The request it serves, as its annotation says.
    pub serves: Option<Key>,
    /// The identity of that request.
    pub request_uid: String,
    /// The offer it holds a place of.
    pub offer: String,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// Whether somebody deleted it.
    pub deleting: bool,
    /// Whether our finalizer still keeps it.
    pub kept: bool,
    /// Whether Tekton made anything for it.
    pub children: bool,
    /// Its end.
    pub ending: Option<Ending>,
}

impl Newer for Run {
    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> u64 {
        self.version
    }
}

impl Run {
    /// What is kept of a run object. One that cannot be read counts as still running.
    pub fn keep(object: &DeserializeGuard<PipelineRun>) -> Self {
        let meta = kube::Resource::meta(object);
        let label = |key: &str| object.labels().get(key).cloned().unwrap_or_default();
        let remote = label(LABEL_REMOTE);
        let serves = object.annotations().get(ANNOTATION_OWNER).and_then(|owner| owner.split_once('/'));
        let status = object.0.as_ref().ok().and_then(|run| run.status.as_ref());
        Self {
            name: object.name_any(),
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0),
            serves: serves.map(|(namespace, name)| Key::new(&remote, namespace, name)),
            request_uid: label(LABEL_UID),
            offer: object.annotations().get(ANNOTATION_OFFER).cloned().unwrap_or_default(),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            deleting: meta.deletion_timestamp.is_some(),
            kept: tarbet_cluster::finalizer::present(meta, RUN_FINALIZER),
            children: status.is_some_and(|status| !status.child_references.is_empty()),
            ending: object.0.as_ref().ok().and_then(ending),
        }
    }

    /// Whether it is the run of this request, not of an earlier one of the same name.
    pub fn is_of(&self, request: &Request) -> bool {
        self.request_uid == request.uid
    }
}

fn ending(run: &PipelineRun) -> Option<Ending> {
    let status = run.status.as_ref()?;
    let condition = status.conditions.iter().find(|condition| condition.type_ == SUCCEEDED)?;
    let started = run.metadata.creation_timestamp.as_ref().map(|time| time.0);
    match condition.status.as_str() {
        "True" => {
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let results =
                status.results.iter().map(|result| (result.name.clone(), text(&result.value))).collect();
            Some(Ending { succeeded: true, message: String::new(), results, started })
        }
        "False" => {
            let message = if condition.message.is_empty() {
                condition.reason.clone()
            } else {
                condition.message.clone()
            };
            Some(Ending { started, ..Ending::failed(message) })
        }
        _ => None,
    }
}

/// The run object of an order. `declared` are the workspaces of the pipeline, where we can know them.
pub fn build(
    request: &Request,
    order: &Order,
    declared: Option<&[String]>,
    config: &InternalServicesConfigSpec,
    namespace: &str,
) -> Value {
    let Key { remote, namespace: of, name } = &request.key;
    let mut labels: BTreeMap<&str, String> = request
        .labels
        .iter()
        .filter(|(key, _)| copied_label(key, &config.copy_labels))
        .map(|(key, value)| (key.as_str(), value.clone()))
        .collect();
    labels.insert(LABEL_NAME, label_value(name));
    labels.insert(LABEL_NAMESPACE, label_value(of));
    labels.insert(LABEL_TYPE, "release".to_owned());
    labels.insert(LABEL_REMOTE, label_value(remote));
    labels.insert(LABEL_UID, label_value(&request.uid));
    let mut spec = json!({ "pipelineRef": reference(&order.source, namespace) });
    if !order.params.is_empty() {
        let params: Vec<Value> =
            order.params.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
        spec["params"] = json!(params);
    }
    if let Some(account) = &order.service_account {
        spec["taskRunTemplate"]["serviceAccountName"] = json!(account);
    }
    if let Some(template) = &order.pod_template {
        spec["taskRunTemplate"]["podTemplate"] = template.clone();
    }
    if order.timeouts != Timeouts::default() {
        spec["timeouts"] = json!(order.timeouts);
    }
    let claim = &config.volume_claim;
    if declared.map_or(order.workspace, |declared| declared.contains(&claim.name)) {
        let storage = json!({
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": claim.size } },
        });
        spec["workspaces"] = json!([{ "name": claim.name, "volumeClaimTemplate": { "spec": storage } }]);
    }
    json!({
        "apiVersion": "tekton.dev/v1",
        "kind": "PipelineRun",
        "metadata": {
            "name": run_name(remote, &request.uid),
            "namespace": namespace,
            "labels": labels,
            "annotations": {
                ANNOTATION_OWNER: format!("{of}/{name}"),
                ANNOTATION_OWNER_TYPE: OWNER_TYPE,
                ANNOTATION_OFFER: order.offer,
            },
            "finalizers": [RUN_FINALIZER],
        },
        "spec": spec,
    })
}

fn reference(source: &PipelineSource, namespace: &str) -> Value {
    let pair = |name: &str, value: &str| NamedValue { name: name.to_owned(), value: value.to_owned() };
    match source {
        PipelineSource::Local { name, resolver: false } => json!({ "name": name }),
        PipelineSource::Local { name, resolver: true } => json!({
            "resolver": "cluster",
            "params": [pair("name", name), pair("namespace", namespace), pair("kind", "pipeline")],
        }),
        PipelineSource::Resolver { name, params } => json!({ "resolver": name, "params": params }),
    }
}

#[cfg(test)]
mod tests;
