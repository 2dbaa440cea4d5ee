//! Finalizers, added and removed without touching anybody else's.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Whether the object carries it.
pub fn present(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|known| known == finalizer)
}

/// The patch that adds it, or `None` if it is there.
///
/// It holds the version it was made for: with another one the API answers with a conflict.
pub fn adding(meta: &ObjectMeta, finalizer: &str) -> Option<Value> {
    if present(meta, finalizer) {
        return None;
    }
    let all: Vec<&str> = meta.finalizers.iter().flatten().map(String::as_str).chain([finalizer]).collect();
    Some(replacing(meta, &all))
}

/// The patch that removes it, or `None` if it is gone.
pub fn removing(meta: &ObjectMeta, finalizer: &str) -> Option<Value> {
    if !present(meta, finalizer) {
        return None;
    }
    let rest: Vec<&str> =
        meta.finalizers.iter().flatten().map(String::as_str).filter(|known| *known != finalizer).collect();
    Some(replacing(meta, &rest))
}

fn replacing(meta: &ObjectMeta, finalizers: &[&str]) -> Value {
    json!({ "metadata": {
        "uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers,
    } })
}

/// Sends a patch of [`adding`] or [`removing`].
pub async fn write<K: Clone + DeserializeOwned + std::fmt::Debug>(
    api: &Api<K>,
    name: &str,
    patch: &Value,
) -> kube::Result<K> {
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn others_are_left_in_place(others in proptest::collection::vec("[a-c]{1,3}", 0..5), version in "[0-9]{1,4}") {
            let ours = "tarbet.dev/ours";
            let mut meta = ObjectMeta { finalizers: Some(others.clone()), resource_version: Some(version.clone()), ..Default::default() };
            prop_assert!(removing(&meta, ours).is_none());
            let patch = adding(&meta, ours).unwrap();
            prop_assert_eq!(&patch["metadata"]["resourceVersion"], &json!(version));
            let all: Vec<String> = serde_json::from_value(patch["metadata"]["finalizers"].clone()).unwrap();
            prop_assert!(all.starts_with(&others) && all.len() == others.len() + 1);
            meta.finalizers = Some(all);
            prop_assert!(adding(&meta, ours).is_none());
            let patch = removing(&meta, ours).unwrap();
            prop_assert_eq!(&patch["metadata"]["finalizers"], &json!(others));
        }
    }
}
