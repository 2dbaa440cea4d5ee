//! The contents that came with a pod, and the files that volumes make of them.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, KeyToPath, ObjectFieldSelector, Pod, ResourceFieldSelector, Secret,
    VolumeProjection,
};

use super::error::PlanError;
use super::path::RelPath;
use super::quantity::Quantity;
use crate::wire::RetrievedContainer;

/// A file of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// What is in it.
    pub content: Vec<u8>,
    /// Its permissions.
    pub mode: u32,
}

/// The files of a volume by path.
pub type Files = BTreeMap<RelPath, File>;

/// Everything that came with a pod, by name.
pub(super) struct Data<'a> {
    config_maps: BTreeMap<&'a str, &'a ConfigMap>,
    secrets: BTreeMap<&'a str, &'a Secret>,
    projected: BTreeMap<&'a str, &'a ConfigMap>,
}

impl<'a> Data<'a> {
    pub(super) fn of(containers: &'a [RetrievedContainer]) -> Self {
        fn name(meta: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> &str {
            meta.name.as_deref().unwrap_or_default()
        }
        let mut data =
            Self { config_maps: BTreeMap::new(), secrets: BTreeMap::new(), projected: BTreeMap::new() };
        for container in containers {
            data.config_maps.extend(container.config_maps.iter().map(|map| (name(&map.metadata), map)));
            data.secrets.extend(container.secrets.iter().map(|secret| (name(&secret.metadata), secret)));
            data.projected.extend(container.projected.iter().map(|map| (name(&map.metadata), map)));
        }
        data
    }

    /// All entries of a ConfigMap; `None` if it did not come.
    pub(super) fn config_map(&self, name: &str) -> Option<BTreeMap<String, Vec<u8>>> {
        self.config_maps.get(name).map(|map| entries(map))
    }

    /// All entries of a Secret; `None` if it did not come.
    pub(super) fn secret(&self, name: &str) -> Option<BTreeMap<String, Vec<u8>>> {
        let secret = self.secrets.get(name)?;
        let plain =
            secret.string_data.iter().flatten().map(|(key, text)| (key.clone(), text.clone().into_bytes()));
        let data = secret.data.iter().flatten().map(|(key, ByteString(bytes))| (key.clone(), bytes.clone()));
        Some(data.chain(plain).collect())
    }

    /// The files of a projected or downward volume as the caller made them.
    pub(super) fn made(&self, volume: &str, mode: u32) -> Option<Result<Files, PlanError>> {
        let map = self.projected.get(volume)?;
        Some(all(entries(map), mode, volume))
    }

    /// The files of a projected volume that came without them, from its sources. interLink's first
    /// generation sends none, and a node may be told not to: what did not come is named in
    /// `left_out` and the pod runs without it, as it does there. Tokens cannot be made here.
    pub(super) fn project(
        &self,
        volume: &str,
        sources: &[VolumeProjection],
        mode: u32,
        pod: &Pod,
        left_out: &mut Vec<String>,
    ) -> Result<Files, PlanError> {
        let mut files = Files::new();
        for source in sources {
            if let Some(map) = &source.config_map {
                let what = format!("the ConfigMap `{}`", map.name);
                match self.config_map(&map.name) {
                    Some(found) => {
                        let optional = map.optional.unwrap_or_default();
                        files.extend(pick(Some(found), map.items.as_deref(), mode, optional, &what, volume)?);
                    }
                    None => left_out.push(format!("{what} in the volume `{volume}`")),
                }
            }
            if let Some(secret) = &source.secret {
                let what = format!("the Secret `{}`", secret.name);
                match self.secret(&secret.name) {
                    Some(found) => {
                        let (items, optional) =
                            (secret.items.as_deref(), secret.optional.unwrap_or_default());
                        files.extend(pick(Some(found), items, mode, optional, &what, volume)?);
                    }
                    None => left_out.push(format!("{what} in the volume `{volume}`")),
                }
            }
            if let Some(downward) = &source.downward_api {
                files.extend(downward_files(
                    downward.items.as_deref().unwrap_or_default(),
                    mode,
                    pod,
                    volume,
                )?);
            }
            if source.service_account_token.is_some() {
                left_out.push(format!("the service account token in the volume `{volume}`"));
            }
        }
        Ok(files)
    }
}

fn entries(map: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let text = map.data.iter().flatten().map(|(key, text)| (key.clone(), text.clone().into_bytes()));
    let binary =
        map.binary_data.iter().flatten().map(|(key, ByteString(bytes))| (key.clone(), bytes.clone()));
    text.chain(binary).collect()
}

fn all(entries: BTreeMap<String, Vec<u8>>, mode: u32, volume: &str) -> Result<Files, PlanError> {
    entries.into_iter().map(|(key, content)| Ok((path(key, volume)?, File { content, mode }))).collect()
}

fn path(text: String, volume: &str) -> Result<RelPath, PlanError> {
    RelPath::new(text)
        .map_err(|source| PlanError::Path { place: format!("a file of the volume `{volume}`"), source })
}

/// The chosen entries of an object, or all of them.
pub(super) fn pick(
    found: Option<BTreeMap<String, Vec<u8>>>,
    items: Option<&[KeyToPath]>,
    mode: u32,
    optional: bool,
    what: &str,
    volume: &str,
) -> Result<Files, PlanError> {
    let Some(mut found) = found else {
        return if optional { Ok(Files::new()) } else { Err(PlanError::Missing(what.to_owned())) };
    };
    let Some(items) = items.filter(|items| !items.is_empty()) else { return all(found, mode, volume) };
    let mut files = Files::new();
    for item in items {
        match found.remove(&item.key) {
            Some(content) => {
                let mode = item.mode.map_or(mode, permissions);
                files.insert(path(item.path.clone(), volume)?, File { content, mode });
            }
            None if optional => {}
            None => return Err(PlanError::Missing(format!("the key `{}` of {what}", item.key))),
        }
    }
    Ok(files)
}

/// The permission bits of a mode as Kubernetes writes it.
pub(super) fn permissions(mode: i32) -> u32 {
    mode.cast_unsigned() & 0o777
}

/// The files of a downward volume, from the pod as it is now.
pub(super) fn downward_files(
    items: &[DownwardAPIVolumeFile],
    mode: u32,
    pod: &Pod,
    volume: &str,
) -> Result<Files, PlanError> {
    let mut files = Files::new();
    for item in items {
        let mode = item.mode.map_or(mode, permissions);
        let content = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => field_value(field, pod)?,
            (None, Some(resource)) => resource_value(resource, pod, None),
            (None, None) => String::new(),
        };
        files.insert(path(item.path.clone(), volume)?, File { content: content.into_bytes(), mode });
    }
    Ok(files)
}

/// A field of the pod as the downward API writes it; what is not there yet is empty.
pub(crate) fn field_value(field: &ObjectFieldSelector, pod: &Pod) -> Result<String, PlanError> {
    let (meta, path) = (&pod.metadata, field.field_path.as_str());
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let keyed = |prefix: &str| path.strip_prefix(prefix)?.strip_prefix("['")?.strip_suffix("']");
    let text = |value: Option<&String>| value.cloned().unwrap_or_default();
    Ok(match path {
        "metadata.name" => text(meta.name.as_ref()),
        "metadata.namespace" => text(meta.namespace.as_ref()),
        "metadata.uid" => text(meta.uid.as_ref()),
        "metadata.labels" => listing(meta.labels.as_ref()),
        "metadata.annotations" => listing(meta.annotations.as_ref()),
        "spec.nodeName" => text(spec.and_then(|spec| spec.node_name.as_ref())),
        "spec.serviceAccountName" => text(spec.and_then(|spec| spec.service_account_name.as_ref())),
        "status.podIP" | "status.podIPs" => text(status.and_then(|status| status.pod_ip.as_ref())),
        "status.hostIP" | "status.hostIPs" => text(status.and_then(|status| status.host_ip.as_ref())),
        _ => match (keyed("metadata.labels"), keyed("metadata.annotations")) {
            (Some(key), _) => text(meta.labels.as_ref().and_then(|labels| labels.get(key))),
            (_, Some(key)) => text(meta.annotations.as_ref().and_then(|notes| notes.get(key))),
            _ => return Err(PlanError::Missing(format!("the field `{path}`"))),
        },
    })
}

fn listing(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> =
        map.into_iter().flatten().map(|(key, value)| format!("{key}={value:?}")).collect();
    lines.join("\n")
}

/// `limits.cpu` and the like of a container, in whole units of the divisor.
pub(crate) fn resource_value(resource: &ResourceFieldSelector, pod: &Pod, here: Option<&str>) -> String {
    let name = resource.container_name.as_deref().or(here);
    let containers =
        pod.spec.iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let container = containers.into_iter().find(|container| Some(container.name.as_str()) == name);
    let resources = container.and_then(|container| container.resources.as_ref());
    let (list, key) = match resource.resource.split_once('.') {
        Some(("limits", key)) => (resources.and_then(|r| r.limits.as_ref()), key),
        Some(("requests", key)) => (resources.and_then(|r| r.requests.as_ref()), key),
        _ => (None, ""),
    };
    let value = list.and_then(|list| list.get(key)).and_then(|quantity| Quantity::parse(&quantity.0));
    let divisor = resource
        .divisor
        .as_ref()
        .and_then(|divisor| Quantity::parse(&divisor.0))
        .map_or(1000, Quantity::milli);
    let divisor = if divisor == 0 { 1000 } else { divisor };
    value.map_or(0, |value| (value.milli() + divisor - 1) / divisor).to_string()
}
