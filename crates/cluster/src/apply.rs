//! Writes that name what they change.

use std::fmt::Debug;

use kube::Api;
use kube::api::{Patch, PatchParams};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Makes the named fields so, by server-side apply under the name of `manager`; what `manager`
/// applied before and leaves out now goes, fields of others stay.
pub async fn apply<K: Clone + DeserializeOwned + Debug>(
    api: &Api<K>,
    name: &str,
    manager: &str,
    fields: &(impl Serialize + Debug),
) -> kube::Result<K> {
    api.patch(name, &PatchParams::apply(manager).force(), &Patch::Apply(fields)).await
}

/// Changes the named fields of an object; a `resourceVersion` among them makes it conditional.
pub async fn merge<K: Clone + DeserializeOwned + Debug>(
    api: &Api<K>,
    name: &str,
    fields: &(impl Serialize + Debug),
) -> kube::Result<K> {
    api.patch(name, &PatchParams::default(), &Patch::Merge(fields)).await
}

/// Changes the named fields of an object's status.
pub async fn merge_status<K: Clone + DeserializeOwned + Debug>(
    api: &Api<K>,
    name: &str,
    fields: &(impl Serialize + Debug),
) -> kube::Result<K> {
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(fields)).await
}
