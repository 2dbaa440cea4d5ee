//! What is kept of a request while the controller watches it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DeserializeGuard;
use kube::{Resource, ResourceExt};
use tarbet_cluster::{Newer, finalizer};

use crate::crd::{InternalRequest, InternalRequestSpec};
use crate::machine::{Before, Phase};
use crate::names::REQUEST_FINALIZER;

/// A request of one remote cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The remote.
    pub remote: Arc<str>,
    /// The namespace there.
    pub namespace: String,
    /// The name there.
    pub name: String,
}

impl Key {
    /// A request by name.
    pub fn new(remote: &str, namespace: &str, name: &str) -> Self {
        Self { remote: remote.into(), namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.remote, self.namespace, self.name)
    }
}

/// What is kept of a request. Of one that is over only the least stays, for there may be many.
#[derive(Debug, Clone)]
pub struct Request {
    /// Which one.
    pub key: Key,
    /// Its identity.
    pub uid: String,
    /// Its version.
    pub version: u64,
    /// Whether somebody deleted it.
    pub deleting: bool,
    /// Whether our finalizer keeps it.
    pub held: bool,
    /// Where it stands.
    pub phase: Phase,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// What it asks for, or why that cannot be read.
    pub spec: Result<Box<InternalRequestSpec>, String>,
    /// What its status said.
    pub before: Before,
    // Finalizers of others, to leave in place.
    others: Vec<String>,
}

impl Newer for Request {
    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> u64 {
        self.version
    }
}

impl Request {
    /// What is kept of a request object.
    pub fn keep(remote: &Arc<str>, object: DeserializeGuard<InternalRequest>) -> Self {
        let (meta, parsed) = match object.0 {
            Ok(mut request) => {
                let meta = std::mem::take(request.meta_mut());
                (meta, Ok(request))
            }
            // The status of an object we cannot read is unknown; writing a rejection over it is safe,
            // because nothing was ever started for it.
            Err(invalid) => (invalid.metadata, Err(invalid.error)),
        };
        let (spec, status) = match parsed {
            Ok(InternalRequest { spec, status, .. }) => (Ok(Box::new(spec)), status.unwrap_or_default()),
            Err(error) => (Err(error), Default::default()),
        };
        let phase = Phase::of(&status);
        let others = meta.finalizers.iter().flatten().filter(|known| *known != REQUEST_FINALIZER).cloned().collect();
        let mut kept = Self {
            key: Key {
                remote: Arc::clone(remote),
                namespace: meta.namespace.clone().unwrap_or_default(),
                name: meta.name.clone().unwrap_or_default(),
            },
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0),
            deleting: meta.deletion_timestamp.is_some(),
            held: finalizer::present(&meta, REQUEST_FINALIZER),
            phase,
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            labels: BTreeMap::new(),
            spec: Ok(Box::default()),
            before: Before::default(),
            others,
        };
        if !phase.is_final() {
            kept.labels = meta.labels.unwrap_or_default();
            kept.spec = spec;
            kept.before = Before {
                conditions: status.conditions,
                generation: meta.generation,
                start_time: status.start_time.map(|time| time.0),
            };
        }
        kept
    }

    /// The metadata that a change of finalizers needs.
    pub(crate) fn meta(&self) -> ObjectMeta {
        let ours = self.held.then(|| REQUEST_FINALIZER.to_owned());
        ObjectMeta {
            uid: Some(self.uid.clone()),
            resource_version: Some(self.version.to_string()),
            finalizers: Some(self.others.iter().cloned().chain(ours).collect()),
            ..ObjectMeta::default()
        }
    }

    /// How events refer to it.
    pub(crate) fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(InternalRequest::api_version(&()).into_owned()),
            kind: Some(InternalRequest::kind(&()).into_owned()),
            name: Some(self.key.name.clone()),
            namespace: Some(self.key.namespace.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }

    /// Who asks, for fairness: namespaces of two remotes are two tenants.
    pub(crate) fn tenant(&self) -> String {
        format!("{}/{}", self.key.remote, self.key.namespace)
    }
}

/// The version of an object as a number.
pub(crate) fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|text| text.parse().ok()).unwrap_or(0)
}
