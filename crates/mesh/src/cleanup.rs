//! Removes everything that federation made, and what it was made for.

use std::collections::BTreeMap;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::api::{DeleteParams, ListParams};
use kube::core::{DeserializeGuard, DynamicObject};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tarbet_cluster::Class;

use crate::controller::LEASE;
use crate::crd::{FederationServiceRules, MeshFederation};
use crate::error::MeshError;
use crate::plan::{Kind, MANAGED_BY};

/// Deletions at once.
const AT_ONCE: usize = 32;

/// Deletes the rules and federations, so that a running controller makes nothing new, then everything
/// with our label, and the lease of controllers in this namespace if none of them runs. Returns how many
/// objects of each kind went.
pub async fn cleanup(client: &Client, namespace: &str) -> Result<BTreeMap<&'static str, usize>, MeshError> {
    remove(client, namespace, &DeleteParams::background()).await
}

/// How many objects of each kind [`cleanup`] would delete now. The cluster is asked to delete and to
/// change nothing, so what it would refuse is refused here too.
pub async fn cleanup_plan(
    client: &Client,
    namespace: &str,
) -> Result<BTreeMap<&'static str, usize>, MeshError> {
    remove(client, namespace, &DeleteParams::background().dry_run()).await
}

async fn remove(
    client: &Client,
    namespace: &str,
    how: &DeleteParams,
) -> Result<BTreeMap<&'static str, usize>, MeshError> {
    let mut gone = BTreeMap::new();
    gone.insert(
        "FederationServiceRules",
        delete_all::<FederationServiceRules>(client, "FederationServiceRules", how).await?,
    );
    gone.insert("MeshFederation", delete_all::<MeshFederation>(client, "MeshFederation", how).await?);
    for kind in Kind::ALL {
        gone.insert(kind.name(), sweep(client, kind, how).await?);
    }
    gone.insert("Lease", lease(client, namespace, how).await?);
    gone.retain(|_, count| *count > 0);
    Ok(gone)
}

/// Deletes the lease unless a controller holds it: that one would only make it again.
async fn lease(client: &Client, namespace: &str, how: &DeleteParams) -> Result<usize, MeshError> {
    let failed = |source: kube::Error| MeshError::Cluster {
        what: format!("delete the lease {namespace}/{LEASE}"),
        source: Box::new(source),
    };
    let api: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let Some(lease) = api.get_opt(LEASE).await.map_err(failed)? else { return Ok(0) };
    if lease.spec.is_some_and(|spec| is_held(&spec, Timestamp::now())) {
        return Ok(0);
    }
    deleted(api.delete(LEASE, how).await).map_err(failed)
}

fn is_held(lease: &LeaseSpec, now: Timestamp) -> bool {
    let holder = lease.holder_identity.as_deref().is_some_and(|holder| !holder.is_empty());
    let seconds = i64::from(lease.lease_duration_seconds.unwrap_or(0));
    holder && lease.renew_time.as_ref().is_some_and(|last| last.0.as_second() + seconds >= now.as_second())
}

async fn delete_all<K>(client: &Client, kind: &str, how: &DeleteParams) -> Result<usize, MeshError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    K: Resource,
{
    let failed = |what: &str| {
        let what = format!("{what} {kind} objects");
        move |source: kube::Error| MeshError::Cluster { what, source: Box::new(source) }
    };
    let api: Api<DeserializeGuard<DynamicObject>> =
        Api::all_with(client.clone(), &kube::core::ApiResource::erase::<K>(&()));
    let list = match api.list_metadata(&ListParams::default()).await {
        Ok(list) => list.items,
        Err(error) if tarbet_cluster::class(&error) == Class::Missing => return Ok(0),
        Err(error) => return Err(failed("list")(error)),
    };
    let mut count = 0;
    for object in list {
        let resource = kube::core::ApiResource::erase::<K>(&());
        let api: Api<DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        count += deleted(api.delete(&object.name_any(), how).await).map_err(failed("delete"))?;
    }
    Ok(count)
}

async fn sweep(client: &Client, kind: Kind, how: &DeleteParams) -> Result<usize, MeshError> {
    let failed = |what: &'static str| {
        move |source: kube::Error| MeshError::Cluster {
            what: format!("{what} {} objects", kind.name()),
            source: Box::new(source),
        }
    };
    let resource = kind.resource();
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let ours = ListParams::default().labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1));
    let list = match api.list_metadata(&ours).await {
        Ok(list) => list.items,
        // A kind that is not served cannot have objects.
        Err(error) if tarbet_cluster::class(&error) == Class::Missing => return Ok(0),
        Err(error) => return Err(failed("list")(error)),
    };
    let deletes = list.into_iter().map(|object| {
        let api: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), &object.namespace().unwrap_or_default(), &resource);
        async move { deleted(api.delete(&object.name_any(), how).await) }
    });
    let results: Vec<_> = futures::stream::iter(deletes).buffer_unordered(AT_ONCE).collect().await;
    results.into_iter().sum::<Result<usize, kube::Error>>().map_err(failed("delete"))
}

fn deleted<T>(result: kube::Result<T>) -> kube::Result<usize> {
    match result {
        Ok(_) => Ok(1),
        Err(error) if tarbet_cluster::class(&error) == Class::Missing => Ok(0),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_lease_is_held_until_its_time_is_over() {
        let held = |spec: serde_json::Value| {
            is_held(&serde_json::from_value(spec).unwrap(), "2026-01-01T00:01:00Z".parse().unwrap())
        };
        let renewed = |at: &str, holder: &str| json!({ "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": at });
        assert!(held(renewed("2026-01-01T00:00:50.000000Z", "one")));
        assert!(!held(renewed("2026-01-01T00:00:40.000000Z", "one")));
        assert!(!held(renewed("2026-01-01T00:00:50.000000Z", "")), "given back");
        assert!(!held(json!({})));
    }
}
