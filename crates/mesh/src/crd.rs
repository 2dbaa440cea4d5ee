//! The three custom resources: two that an administrator writes, one that shows what was imported.

mod federation;
mod imported;
mod rules;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

pub use federation::{
    ControlPlane, Egress, GatewayPort, GatewayRef, Identity, Ingress, IngressType, Local, MeshFederation,
    MeshFederationSpec, MeshFederationStatus, Refusal, Remote, RemoteDiscovery, RemoteIngress, RemoteStatus,
};
pub use imported::{ImportedPort, ImportedService, ImportedServiceSpec, ImportedServiceStatus, SaidBy};
pub use rules::{
    DnsSettings, Export, ExportSelector, FederationServiceRules, FederationServiceRulesSpec,
    FederationServiceRulesStatus, Import, Operator, Requirement, Selector,
};

/// The API group of all three.
pub const GROUP: &str = "federation.openshift-service-mesh.io";
/// Their version.
pub const VERSION: &str = "v1alpha1";

/// A DNS label: what a namespace, and with the first character restricted a Service, may be called.
pub(crate) const LABEL: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// A DNS name of one or more labels.
pub(crate) const DOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

/// The definitions to install in every mesh.
pub fn definitions() -> [CustomResourceDefinition; 3] {
    [MeshFederation::crd(), FederationServiceRules::crd(), ImportedService::crd()]
}
