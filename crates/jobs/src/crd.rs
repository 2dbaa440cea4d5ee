//! The two custom resources, as today's callers know them, with our additions.

mod config;
mod request;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

pub use config::{
    InternalServicesConfig, InternalServicesConfigSpec, Offer, OfferedParam, OfferedResolver, ResolverParam,
    VolumeClaim, WatchScope,
};
pub use request::{
    InternalRequest, InternalRequestSpec, InternalRequestStatus, NamedValue, PipelineForm, PipelineRef,
    QueuePlace, StepLog, Timeouts,
};

/// The definitions to install: both on the private cluster, the first on each remote one.
pub fn definitions() -> [CustomResourceDefinition; 2] {
    [InternalRequest::crd(), InternalServicesConfig::crd()]
}
