//! Writes a pod's status, when it is news.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use kube::api::{Patch, PatchParams};
use serde_json::{Map, Value, json};
use tarbet_cluster::{Class, class, describe};

use super::{Node, Seen};
use crate::node::book::{Record, print};
use crate::node::machine::{self, Report};
use crate::node::metrics::count;
use crate::node::packed::PackedStatus;
use crate::node::plan::JOB_ID;
use crate::wire;

impl Node {
    /// Writes what is known of a pod, with these annotations. False if it has to be tried again.
    pub(super) async fn write(&self, uid: &str, notes: &[(&str, String)]) -> bool {
        let _turn = self.writing.acquire().await;
        let Some(entry) = self.book.get(uid) else { return true };
        let mut told = entry.record.told.as_ref().map(PackedStatus::open);
        let reached =
            |told: &wire::PodStatus| self.interlink.endpoint().is_here() || self.config.reaches(&told.pod_ip);
        if let Some(told) = told.as_mut().filter(|told| !reached(told)) {
            // Elsewhere the same address is somebody else's, and a Service would lead there.
            told.pod_ip.clear();
        }
        let origin = self.peer.borrow().ping.origin;
        let status = machine::status(
            &entry.pod,
            report(&entry.record, told.as_ref()),
            origin,
            &self.config.pod_ip,
            Timestamp::now(),
        );
        let mut annotations: Map<String, Value> =
            notes.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
        let noted = entry.pod.metadata.annotations.as_ref();
        if !entry.record.jid.is_empty()
            && noted.and_then(|notes| notes.get(JOB_ID)) != Some(&entry.record.jid)
        {
            annotations.insert(JOB_ID.to_owned(), json!(entry.record.jid));
        }
        let known =
            entry.pod.status.as_ref() == Some(&status) || entry.record.written == Some(print(&status));
        if known && annotations.is_empty() {
            return true;
        }
        let (namespace, name) = entry.key();
        let mut metadata = json!({"uid": uid});
        if !annotations.is_empty() {
            metadata["annotations"] = Value::Object(annotations);
        }
        let patch = json!({"metadata": metadata, "status": fields(&status)});
        let answer = self
            .pods(&entry.key())
            .patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch))
            .await;
        count(&self.metrics.statuses, answer.is_ok());
        self.reached.at("status written");
        match answer {
            Ok(pod) => {
                let as_meant = pod.status.as_ref() == Some(&status);
                let seen = Seen::new(pod);
                let kept = std::sync::Arc::clone(&seen.kept);
                self.mirror.refresh(&namespace, &name, seen);
                self.book.change(uid, |record| {
                    record.written = (!as_meant).then(|| print(&status));
                    record.kept = kept;
                });
                true
            }
            // It is gone, or another of the same name is there; the watch will tell.
            Err(error) if matches!(class(&error), Class::Missing | Class::Conflict) => true,
            Err(error) => {
                tracing::warn!(%namespace, pod = %name, cause = describe(&error), "A status could not be written.");
                // Asking again changes nothing if the API understood and said no.
                class(&error) == Class::Refused
            }
        }
    }
}

fn report<'a>(record: &'a Record, told: Option<&'a wire::PodStatus>) -> Report<'a> {
    if let Some(end) = &record.end {
        return Report::Ended { reason: &end.reason, message: &end.message, code: end.code };
    }
    if let Some(told) = told {
        return Report::Told(told);
    }
    match &record.waiting {
        Some((reason, message)) => Report::Waiting { reason, message },
        None => Report::Waiting { reason: "ContainerCreating", message: "" },
    }
}

/// The status as a patch: what is no more is said to be nothing.
fn fields(status: &PodStatus) -> Value {
    let mut value = serde_json::to_value(status).unwrap_or_default();
    let clear = |object: &mut Value| {
        if let Some(object) = object.as_object_mut() {
            for key in ["reason", "message"] {
                object.entry(key).or_insert(Value::Null);
            }
        }
    };
    clear(&mut value);
    if let Some(conditions) = value.get_mut("conditions").and_then(Value::as_array_mut) {
        conditions.iter_mut().for_each(clear);
    }
    value
}
