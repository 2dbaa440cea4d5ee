//! The objects a plan holds.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use super::Spec;
use crate::crd::{GROUP, VERSION};
use crate::model::Labels;

/// The label, and its value, of everything we made.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "tarbet-mesh");
/// The label of everything the original made.
pub const ORIGINAL_LABEL: &str = "federation.openshift-service-mesh.io/peer";
/// The label that names the one mesh an object is for.
pub const MESH_LABEL: &str = "federation.openshift-service-mesh.io/mesh";

/// How objects are named and which are made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Flavour {
    /// By the custom resources: one ImportedService and one ServiceEntry for each name.
    #[default]
    Resources,
    /// By the original's flags: its names, API versions and one ServiceEntry for each name and mesh.
    Original,
}

/// The kinds of objects, in the order in which they are written: owners first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Ours.
    ImportedService,
    /// Istio's.
    PeerAuthentication,
    /// Istio's.
    AuthorizationPolicy,
    /// Istio's.
    ServiceEntry,
    /// Istio's.
    WorkloadEntry,
    /// Istio's.
    DestinationRule,
    /// Istio's.
    Gateway,
    /// Istio's.
    EnvoyFilter,
    /// Istio's.
    VirtualService,
    /// OpenShift's.
    Route,
    /// The Multi-Cluster Services API's.
    ServiceImport,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::ImportedService,
        Self::PeerAuthentication,
        Self::AuthorizationPolicy,
        Self::ServiceEntry,
        Self::WorkloadEntry,
        Self::DestinationRule,
        Self::Gateway,
        Self::EnvoyFilter,
        Self::VirtualService,
        Self::Route,
        Self::ServiceImport,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::ImportedService => "ImportedService",
            Self::PeerAuthentication => "PeerAuthentication",
            Self::AuthorizationPolicy => "AuthorizationPolicy",
            Self::ServiceEntry => "ServiceEntry",
            Self::WorkloadEntry => "WorkloadEntry",
            Self::DestinationRule => "DestinationRule",
            Self::Gateway => "Gateway",
            Self::EnvoyFilter => "EnvoyFilter",
            Self::VirtualService => "VirtualService",
            Self::Route => "Route",
            Self::ServiceImport => "ServiceImport",
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::ImportedService => "importedservices",
            Self::PeerAuthentication => "peerauthentications",
            Self::AuthorizationPolicy => "authorizationpolicies",
            Self::ServiceEntry => "serviceentries",
            Self::WorkloadEntry => "workloadentries",
            Self::DestinationRule => "destinationrules",
            Self::Gateway => "gateways",
            Self::EnvoyFilter => "envoyfilters",
            Self::VirtualService => "virtualservices",
            Self::Route => "routes",
            Self::ServiceImport => "serviceimports",
        }
    }

    fn group_version(self, flavour: Flavour) -> (&'static str, &'static str) {
        let original = flavour == Flavour::Original;
        match self {
            Self::ImportedService => (GROUP, VERSION),
            Self::PeerAuthentication | Self::AuthorizationPolicy => {
                ("security.istio.io", if original { "v1beta1" } else { "v1" })
            }
            Self::Route => ("route.openshift.io", "v1"),
            Self::ServiceImport => ("multicluster.x-k8s.io", "v1alpha1"),
            // The only version it has.
            Self::EnvoyFilter => ("networking.istio.io", "v1alpha3"),
            _ => ("networking.istio.io", if original { "v1alpha3" } else { "v1" }),
        }
    }

    /// Where the API server has it.
    pub fn resource(self) -> ApiResource {
        let (group, version) = self.group_version(Flavour::Resources);
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, self.name()), self.plural())
    }
}

/// Whose end is the end of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// The FederationServiceRules.
    Rules,
    /// The MeshFederation.
    Federation,
    /// An ImportedService.
    Imported {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

/// An object that must exist.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The one mesh it is for, if it is for one.
    pub mesh: Option<String>,
    /// Whose end is its end.
    pub owner: Owner,
    /// What it says.
    pub spec: Spec,
}

impl Object {
    /// What tells it from every other object, in the order of writing.
    pub fn place(&self) -> (Kind, &str, &str) {
        (self.kind, &self.namespace, &self.name)
    }

    /// The labels it carries.
    pub fn labels(&self, flavour: Flavour) -> Labels {
        if flavour == Flavour::Original {
            return BTreeMap::from([("federation.openshift-service-mesh.io/peer".into(), "todo".into())]);
        }
        let mut labels = BTreeMap::from([(MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned())]);
        if let Some(mesh) = &self.mesh {
            labels.insert(MESH_LABEL.to_owned(), mesh.clone());
        }
        labels
    }

    /// As it is written.
    pub fn manifest(&self, flavour: Flavour, owner: Option<&OwnerReference>) -> Value {
        let (group, version) = self.kind.group_version(flavour);
        let mut metadata = json!({
            "name": self.name, "namespace": self.namespace, "labels": self.labels(flavour),
        });
        if let Some(owner) = owner {
            metadata["ownerReferences"] = json!([owner]);
        }
        let mut manifest = json!({ "apiVersion": format!("{group}/{version}"), "kind": self.kind.name() });
        // Moved: the macro would copy them, word by word.
        manifest["metadata"] = metadata;
        manifest["spec"] = self.spec.value();
        manifest
    }
}
