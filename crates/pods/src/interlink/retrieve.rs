//! A pod with the data of each container, as plugins want it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret, Volume};

use crate::wire::{PodCreate, RetrievedContainer, RetrievedPod};

/// What containers are given of the objects that come with a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Giving {
    /// Nothing.
    Nothing,
    /// What their volumes name: all that plugins of others know.
    Mounted,
    /// Also what their variables and projected volumes name: ours make sure of those themselves.
    Everything,
}

/// Puts together what a plugin gets: for each container the objects that it needs.
pub fn retrieve(create: PodCreate, giving: Giving) -> RetrievedPod {
    let PodCreate { pod, config_maps, secrets, projected, .. } = create;
    let spec = pod.spec.clone().unwrap_or_default();
    let volumes: BTreeMap<&str, &Volume> =
        spec.volumes.iter().flatten().map(|volume| (volume.name.as_str(), volume)).collect();
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    let containers = all.map(|container| {
        let named = RetrievedContainer { name: container.name.clone(), ..Default::default() };
        let wanted = match giving {
            Giving::Nothing => return named,
            Giving::Mounted => Wanted::mounted(container, &volumes),
            Giving::Everything => Wanted::of(container, &volumes),
        };
        let map = |map: &&ConfigMap| {
            map.metadata.name.as_ref().is_some_and(|name| wanted.config_maps.contains(name))
        };
        let secret =
            |one: &&Secret| one.metadata.name.as_ref().is_some_and(|name| wanted.secrets.contains(name));
        let made =
            |map: &&ConfigMap| map.metadata.name.as_ref().is_some_and(|name| wanted.projected.contains(name));
        RetrievedContainer {
            config_maps: config_maps.iter().filter(map).cloned().collect(),
            secrets: secrets.iter().filter(secret).cloned().collect(),
            projected: projected.iter().filter(made).cloned().collect(),
            ..named
        }
    });
    RetrievedPod { containers: containers.collect(), pod, ..Default::default() }
}

/// Names for each container the folders of its emptyDirs, as API servers of 2023 did and the original's
/// plugin for Docker still reads them. The plugin makes them.
pub(super) fn propose_folders(pod: &mut RetrievedPod, root: &Path) {
    let meta = &pod.pod.metadata;
    let owner = format!(
        "{}-{}",
        meta.namespace.as_deref().unwrap_or_default(),
        meta.uid.as_deref().unwrap_or_default()
    );
    let folder = root.join(owner).join("emptyDirs");
    let spec = pod.pod.spec.iter();
    let empty: BTreeSet<&str> = spec
        .clone()
        .flat_map(|spec| spec.volumes.iter().flatten())
        .filter(|volume| volume.empty_dir.is_some())
        .map(|volume| volume.name.as_str())
        .collect();
    let all = spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
    for (container, data) in all.zip(&mut pod.containers) {
        let mounts = container.volume_mounts.iter().flatten().map(|mount| mount.name.as_str());
        let named = mounts.filter(|name| empty.contains(name));
        data.empty_dirs = named.map(|name| folder.join(name).display().to_string()).collect();
    }
}

/// Names of objects.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) config_maps: BTreeSet<String>,
    pub(super) secrets: BTreeSet<String>,
    pub(super) projected: BTreeSet<String>,
}

impl Wanted {
    /// What all containers of a pod need.
    pub(super) fn of_pod(pod: &Pod) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        let volumes = spec.volumes.iter().flatten().map(|volume| (volume.name.as_str(), volume)).collect();
        let mut wanted = Self::default();
        for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
            let one = Self::of(container, &volumes);
            wanted.config_maps.extend(one.config_maps);
            wanted.secrets.extend(one.secrets);
            wanted.projected.extend(one.projected);
        }
        wanted
    }

    /// What a container's volumes name.
    fn mounted(container: &Container, volumes: &BTreeMap<&str, &Volume>) -> Self {
        let mut wanted = Self::default();
        for mount in container.volume_mounts.iter().flatten() {
            let Some(volume) = volumes.get(mount.name.as_str()) else { continue };
            wanted.config_maps.extend(volume.config_map.as_ref().map(|map| map.name.clone()));
            wanted.secrets.extend(volume.secret.as_ref().and_then(|secret| secret.secret_name.clone()));
            if volume.projected.is_some() || volume.downward_api.is_some() {
                wanted.projected.insert(volume.name.clone());
            }
        }
        wanted
    }

    /// What a container needs, by its mounts and its variables.
    fn of(container: &Container, volumes: &BTreeMap<&str, &Volume>) -> Self {
        let mut wanted = Self::mounted(container, volumes);
        for mount in container.volume_mounts.iter().flatten() {
            let Some(volume) = volumes.get(mount.name.as_str()) else { continue };
            for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
                wanted.config_maps.extend(source.config_map.as_ref().map(|map| map.name.clone()));
                wanted.secrets.extend(source.secret.as_ref().map(|secret| secret.name.clone()));
            }
        }
        for variable in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
            wanted.config_maps.extend(variable.config_map_key_ref.as_ref().map(|map| map.name.clone()));
            wanted.secrets.extend(variable.secret_key_ref.as_ref().map(|secret| secret.name.clone()));
        }
        for source in container.env_from.iter().flatten() {
            wanted.config_maps.extend(source.config_map_ref.as_ref().map(|map| map.name.clone()));
            wanted.secrets.extend(source.secret_ref.as_ref().map(|secret| secret.name.clone()));
        }
        wanted
    }
}
