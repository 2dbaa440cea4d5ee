//! A pod with everything of the cluster that it mentions, ready to travel.
//!
//! Pure: [`needs`] says what has to be read, [`assemble`] puts what was read into the pod. Variables
//! become plain values, volumes of the cluster become files or folders, and nothing that the other
//! side would have to ask the cluster for is left.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, DownwardAPIProjection, EnvVar, EnvVarSource, HostPathVolumeSource, KeyToPath, Pod,
    ProjectedVolumeSource, Secret, Volume, VolumeProjection,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::machine::POD_IP;
use crate::plan::expand::expand;
use crate::plan::{field_value, resource_value};
use crate::wire::{Origin, PodCreate, RetrievedContainer, RetrievedPod};

/// Objects that a pod mentions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// ConfigMaps by name.
    pub config_maps: BTreeSet<String>,
    /// Secrets by name.
    pub secrets: BTreeSet<String>,
    /// Tokens of its service account.
    pub tokens: Vec<TokenNeed>,
    /// Claims of volumes by name.
    pub claims: BTreeSet<String>,
}

/// A token of the pod's service account.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenNeed {
    /// The volume it is for.
    pub volume: String,
    /// Its file there.
    pub path: String,
    /// Whom it is for; the API itself if `None`.
    pub audience: Option<String>,
    /// How long it is to live.
    pub seconds: i64,
}

/// What was found of the needs.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    /// ConfigMaps by name.
    pub config_maps: BTreeMap<String, ConfigMap>,
    /// Secrets by name.
    pub secrets: BTreeMap<String, Secret>,
    /// Tokens by volume and path.
    pub tokens: BTreeMap<(String, String), String>,
    /// Folders behind claims.
    pub claims: BTreeMap<String, String>,
}

/// How to put it together.
#[derive(Debug, Clone, Copy)]
pub struct Ways<'a> {
    /// Leaves projected and downward volumes out.
    pub no_projected: bool,
    /// For whom: others than ours do not replace `$(NAME)` in commands themselves, know nothing of claims, and want an
    /// object for every volume of one.
    pub origin: Origin,
    /// The address of the node, for pods that name it.
    pub host_ip: &'a str,
    /// Address and port of the API for the pod's variables.
    pub api: Option<(&'a str, &'a str)>,
    /// In place of the content of `kube-root-ca.crt`.
    pub authority: Option<&'a str>,
    /// Where job scripts are built.
    pub job_script_url: &'a str,
}

/// Something that is not there although the pod needs it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} is not there")]
pub struct Unresolved {
    /// What it is.
    pub what: String,
    /// Whether a variable needs it, rather than a volume.
    pub variable: bool,
}

/// What has to be read for a pod.
pub fn needs(pod: &Pod, no_projected: bool) -> Needs {
    let mut needs = Needs::default();
    let Some(spec) = &pod.spec else { return needs };
    for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
        for source in container.env_from.iter().flatten() {
            needs.config_maps.extend(source.config_map_ref.as_ref().map(|map| map.name.clone()));
            needs.secrets.extend(source.secret_ref.as_ref().map(|secret| secret.name.clone()));
        }
        for source in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
            needs.config_maps.extend(source.config_map_key_ref.as_ref().map(|map| map.name.clone()));
            needs.secrets.extend(source.secret_key_ref.as_ref().map(|secret| secret.name.clone()));
        }
    }
    for volume in spec.volumes.iter().flatten() {
        needs.config_maps.extend(volume.config_map.as_ref().map(|map| map.name.clone()));
        needs.secrets.extend(volume.secret.as_ref().and_then(|secret| secret.secret_name.clone()));
        needs.claims.extend(volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.clone()));
        let sources = volume.projected.as_ref().and_then(|projected| projected.sources.as_ref());
        for source in sources.into_iter().flatten().filter(|_| !no_projected) {
            needs.config_maps.extend(source.config_map.as_ref().map(|map| map.name.clone()));
            needs.secrets.extend(source.secret.as_ref().map(|secret| secret.name.clone()));
            if let Some(token) = &source.service_account_token {
                needs.tokens.push(TokenNeed {
                    volume: volume.name.clone(),
                    path: token.path.clone(),
                    audience: token.audience.clone().filter(|audience| !audience.is_empty()),
                    seconds: token.expiration_seconds.unwrap_or(3600),
                });
            }
        }
    }
    needs
}

/// The pod as it travels.
pub fn assemble(pod: &Pod, contents: &Contents, ways: Ways<'_>) -> Result<PodCreate, Unresolved> {
    let pod = &addressed(pod, ways.host_ip);
    let mut create =
        PodCreate { pod: pod.clone(), job_script_url: ways.job_script_url.to_owned(), ..Default::default() };
    create.pod.metadata.managed_fields = None;
    let Some(spec) = &mut create.pod.spec else { return Ok(create) };
    let mut volumes = spec.volumes.take().unwrap_or_default();
    for volume in &mut volumes {
        carry(
            volume,
            pod,
            contents,
            ways,
            &mut create.config_maps,
            &mut create.secrets,
            &mut create.projected,
        )?;
    }
    spec.volumes = (!volumes.is_empty()).then_some(volumes);
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        fill(container, pod, contents, ways)?;
    }
    Ok(create)
}

fn missing(what: impl Into<String>, variable: bool) -> Unresolved {
    Unresolved { what: what.into(), variable }
}

/// The metadata of an object that may be missing, and is.
fn nothing(name: &str, pod: &Pod) -> ObjectMeta {
    let namespace = pod.metadata.namespace.clone();
    ObjectMeta { name: Some(name.to_owned()), namespace, ..Default::default() }
}

/// The pod with addresses, which its variables and files may name: those it has, or as the original gives
/// them before a pod runs anywhere.
fn addressed(pod: &Pod, host_ip: &str) -> Pod {
    let mut pod = pod.clone();
    let noted = pod.metadata.annotations.as_ref().and_then(|notes| notes.get(POD_IP)).cloned();
    let status = pod.status.get_or_insert_default();
    let pod_ip = status.pod_ip.get_or_insert_with(|| noted.unwrap_or_else(|| "127.0.0.1".into())).clone();
    let host = if host_ip.is_empty() { pod_ip } else { host_ip.to_owned() };
    status.host_ip.get_or_insert(host);
    pod
}

fn carry(
    volume: &mut Volume,
    pod: &Pod,
    contents: &Contents,
    ways: Ways<'_>,
    config_maps: &mut Vec<ConfigMap>,
    secrets: &mut Vec<Secret>,
    projected: &mut Vec<ConfigMap>,
) -> Result<(), Unresolved> {
    if let Some(source) = &volume.config_map {
        match contents.config_maps.get(&source.name) {
            Some(map) if config_maps.iter().any(|known| known.metadata.name == map.metadata.name) => {}
            Some(map) => config_maps.push(map.clone()),
            None if source.optional == Some(true) && ways.origin.is_ours() => {}
            None if source.optional == Some(true) => {
                config_maps.push(ConfigMap { metadata: nothing(&source.name, pod), ..Default::default() });
            }
            None => return Err(missing(format!("the ConfigMap `{}`", source.name), false)),
        }
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.clone().unwrap_or_default();
        match contents.secrets.get(&name) {
            Some(secret) if secrets.iter().any(|known| known.metadata.name == secret.metadata.name) => {}
            Some(secret) => secrets.push(secret.clone()),
            None if source.optional == Some(true) && ways.origin.is_ours() => {}
            None if source.optional == Some(true) => {
                secrets.push(Secret { metadata: nothing(&name, pod), ..Default::default() });
            }
            None => return Err(missing(format!("the Secret `{name}`"), false)),
        }
    } else if let Some(claim) = volume.persistent_volume_claim.clone() {
        match contents.claims.get(&claim.claim_name) {
            Some(folder) => {
                volume.persistent_volume_claim = None;
                // The original's plugin for Slurm ends on a folder of no type.
                let type_ = Some("DirectoryOrCreate".to_owned());
                volume.host_path = Some(HostPathVolumeSource { path: folder.clone(), type_ });
            }
            // What the original does not know it leaves to the plugin.
            None if !ways.origin.is_ours() => {}
            None => {
                return Err(missing(format!("a folder behind the claim `{}`", claim.claim_name), false));
            }
        }
    } else if ways.no_projected {
    } else if let Some(downward) = volume.downward_api.take() {
        // One form for both: everybody knows projected volumes.
        let source = VolumeProjection {
            downward_api: Some(DownwardAPIProjection { items: downward.items }),
            ..Default::default()
        };
        let source =
            ProjectedVolumeSource { sources: Some(vec![source]), default_mode: downward.default_mode };
        projected.push(project(&volume.name, &source, pod, contents, ways)?);
        volume.projected = Some(source);
    } else if let Some(source) = &volume.projected {
        projected.push(project(&volume.name, source, pod, contents, ways)?);
    }
    Ok(())
}

type Entries = BTreeMap<String, Vec<u8>>;

fn entries_of_map(map: &ConfigMap) -> Entries {
    let text = map.data.iter().flatten().map(|(key, text)| (key.clone(), text.clone().into_bytes()));
    let binary =
        map.binary_data.iter().flatten().map(|(key, ByteString(bytes))| (key.clone(), bytes.clone()));
    text.chain(binary).collect()
}

fn entries_of_secret(secret: &Secret) -> Entries {
    secret.data.iter().flatten().map(|(key, ByteString(bytes))| (key.clone(), bytes.clone())).collect()
}

/// The files of a projected volume as one map of paths to contents, named like the volume.
fn project(
    name: &str,
    source: &ProjectedVolumeSource,
    pod: &Pod,
    contents: &Contents,
    ways: Ways<'_>,
) -> Result<ConfigMap, Unresolved> {
    let mut files = Entries::new();
    for source in source.sources.iter().flatten() {
        if let Some(map) = &source.config_map {
            let mut found = contents.config_maps.get(&map.name).map(entries_of_map);
            if let (Some(entries), Some(authority), "kube-root-ca.crt") =
                (&mut found, ways.authority, map.name.as_str())
            {
                entries.insert("ca.crt".into(), authority.as_bytes().to_vec());
            }
            let what = format!("the ConfigMap `{}`", map.name);
            files.extend(pick(found, map.items.as_deref(), map.optional, &what)?);
        }
        if let Some(secret) = &source.secret {
            let found = contents.secrets.get(&secret.name).map(entries_of_secret);
            let what = format!("the Secret `{}`", secret.name);
            files.extend(pick(found, secret.items.as_deref(), secret.optional, &what)?);
        }
        for item in source.downward_api.iter().flat_map(|downward| downward.items.iter().flatten()) {
            let value = match (&item.field_ref, &item.resource_field_ref) {
                (Some(field), _) => {
                    field_value(field, pod).map_err(|error| missing(error.to_string(), false))?
                }
                (None, Some(resource)) => resource_value(resource, pod, None),
                (None, None) => String::new(),
            };
            files.insert(item.path.clone(), value.into_bytes());
        }
        if let Some(token) = &source.service_account_token {
            let key = (name.to_owned(), token.path.clone());
            let Some(text) = contents.tokens.get(&key) else {
                return Err(missing(format!("a token for the volume `{name}`"), false));
            };
            files.insert(token.path.clone(), text.clone().into_bytes());
        }
    }
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    for (path, content) in files {
        match String::from_utf8(content) {
            Ok(text) => map.data.get_or_insert_default().insert(path, text),
            Err(error) => {
                map.binary_data.get_or_insert_default().insert(path, ByteString(error.into_bytes()));
                None
            }
        };
    }
    Ok(map)
}

fn pick(
    found: Option<Entries>,
    items: Option<&[KeyToPath]>,
    optional: Option<bool>,
    what: &str,
) -> Result<Entries, Unresolved> {
    let optional = optional == Some(true);
    let Some(mut found) = found else {
        return if optional { Ok(Entries::new()) } else { Err(missing(what, false)) };
    };
    let Some(items) = items.filter(|items| !items.is_empty()) else { return Ok(found) };
    let mut files = Entries::new();
    for item in items {
        match found.remove(&item.key) {
            Some(content) => drop(files.insert(item.path.clone(), content)),
            None if optional => {}
            None => return Err(missing(format!("the key `{}` of {what}", item.key), false)),
        }
    }
    Ok(files)
}

/// Names and values as a program gets them.
type Variables = Vec<(String, String)>;

fn set(variables: &mut Variables, name: String, value: String) {
    match variables.iter_mut().find(|(known, _)| *known == name) {
        Some((_, old)) => *old = value,
        None => variables.push((name, value)),
    }
}

/// Makes all variables of a container plain: values are final for whoever reads them next.
fn fill(container: &mut Container, pod: &Pod, contents: &Contents, ways: Ways<'_>) -> Result<(), Unresolved> {
    let mut variables = Variables::new();
    if let Some((address, port)) = ways.api {
        let url = format!("tcp://{address}:{port}");
        for (name, value) in [
            ("KUBERNETES_SERVICE_HOST", address),
            ("KUBERNETES_SERVICE_PORT", port),
            ("KUBERNETES_SERVICE_PORT_HTTPS", port),
            ("KUBERNETES_PORT", &url),
            ("KUBERNETES_PORT_443_TCP", &url),
            ("KUBERNETES_PORT_443_TCP_PROTO", "tcp"),
            ("KUBERNETES_PORT_443_TCP_ADDR", address),
            ("KUBERNETES_PORT_443_TCP_PORT", port),
        ] {
            set(&mut variables, name.to_owned(), value.to_owned());
        }
    }
    for source in container.env_from.take().into_iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        let (found, optional, what) = match (&source.config_map_ref, &source.secret_ref) {
            (Some(map), _) => (
                contents.config_maps.get(&map.name).map(entries_of_map),
                map.optional,
                format!("the ConfigMap `{}`", map.name),
            ),
            (_, Some(secret)) => (
                contents.secrets.get(&secret.name).map(entries_of_secret),
                secret.optional,
                format!("the Secret `{}`", secret.name),
            ),
            (None, None) => continue,
        };
        let Some(found) = found else {
            if optional == Some(true) {
                continue;
            }
            return Err(missing(what, true));
        };
        for (key, value) in found {
            // What cannot be a variable is passed over, as kubelets do.
            let Ok(value) = String::from_utf8(value) else { continue };
            set(&mut variables, format!("{prefix}{key}"), value);
        }
    }
    for variable in container.env.take().into_iter().flatten() {
        if let Some(source) = &variable.value_from {
            if let Some(value) = referenced(source, container, pod, contents)? {
                set(&mut variables, variable.name, value);
            }
            continue;
        }
        let pattern = variable.value.unwrap_or_default();
        let value = expand(&pattern, |name| lookup(&variables, name));
        set(&mut variables, variable.name, value);
    }
    if !ways.origin.is_ours() {
        for words in [&mut container.command, &mut container.args].into_iter().flatten() {
            for word in words {
                *word = expand(word, |name| lookup(&variables, name));
            }
        }
    }
    let plain =
        variables.into_iter().map(|(name, value)| EnvVar { name, value: Some(value), value_from: None });
    let plain: Vec<EnvVar> = plain.collect();
    container.env = (!plain.is_empty()).then_some(plain);
    Ok(())
}

fn lookup<'a>(variables: &'a [(String, String)], name: &str) -> Option<&'a str> {
    variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

fn referenced(
    source: &EnvVarSource,
    container: &Container,
    pod: &Pod,
    contents: &Contents,
) -> Result<Option<String>, Unresolved> {
    if let Some(field) = &source.field_ref {
        return field_value(field, pod).map(Some).map_err(|error| missing(error.to_string(), true));
    }
    if let Some(resource) = &source.resource_field_ref {
        return Ok(Some(resource_value(resource, pod, Some(&container.name))));
    }
    let (found, key, optional, what) = match (&source.config_map_key_ref, &source.secret_key_ref) {
        (Some(map), _) => (
            contents.config_maps.get(&map.name).map(entries_of_map),
            &map.key,
            map.optional,
            format!("the ConfigMap `{}`", map.name),
        ),
        (_, Some(secret)) => (
            contents.secrets.get(&secret.name).map(entries_of_secret),
            &secret.key,
            secret.optional,
            format!("the Secret `{}`", secret.name),
        ),
        (None, None) => return Ok(None),
    };
    match found.and_then(|mut found| found.remove(key)) {
        Some(value) => String::from_utf8(value)
            .map(Some)
            .map_err(|_| missing(format!("a text under the key `{key}` of {what}"), true)),
        None if optional == Some(true) => Ok(None),
        None => Err(missing(format!("the key `{key}` of {what}"), true)),
    }
}

/// The same in the words of a plugin: each container with what it mounts.
pub fn retrieved(create: &PodCreate) -> RetrievedPod {
    let spec = create.pod.spec.as_ref();
    let volumes: Vec<&Volume> = spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).collect();
    let containers =
        spec.iter().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    let containers = containers.map(|container| {
        let mut data = RetrievedContainer { name: container.name.clone(), ..Default::default() };
        for mount in container.volume_mounts.iter().flatten() {
            let Some(volume) = volumes.iter().find(|volume| volume.name == mount.name) else { continue };
            let map = volume.config_map.as_ref().map(|map| &map.name);
            let secret = volume.secret.as_ref().and_then(|secret| secret.secret_name.as_ref());
            let add_map = |from: &[ConfigMap], to: &mut Vec<ConfigMap>, name: &String| {
                let known = to.iter().any(|map| map.metadata.name.as_ref() == Some(name));
                to.extend(
                    from.iter().filter(|map| !known && map.metadata.name.as_ref() == Some(name)).cloned(),
                );
            };
            if let Some(name) = map {
                add_map(&create.config_maps, &mut data.config_maps, name);
            } else if let Some(name) = secret {
                let known = data.secrets.iter().any(|secret| secret.metadata.name.as_ref() == Some(name));
                let found =
                    create.secrets.iter().filter(|secret| secret.metadata.name.as_ref() == Some(name));
                data.secrets.extend(found.filter(|_| !known).cloned());
            } else if volume.projected.is_some() {
                add_map(&create.projected, &mut data.projected, &volume.name);
            }
        }
        data
    });
    RetrievedPod { containers: containers.collect(), pod: create.pod.clone(), ..Default::default() }
}

#[cfg(test)]
mod tests;
