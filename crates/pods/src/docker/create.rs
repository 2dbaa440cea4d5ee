//! A container of a plan in Docker's words. Nothing is asked or done here.

use std::collections::HashMap;
use std::io;

use bollard::models::{
    ContainerCreateBody, DeviceRequest, HostConfig, Mount, MountType, RestartPolicy, RestartPolicyNameEnum,
};

use super::pause;
use crate::folder::{self, Folder};
use crate::plan::{Container, Plan, PodId, Restart};

/// Labels that tell whose a container is.
pub(super) const INSTANCE: &str = "dev.tarbet.plugin";
pub(super) const UID: &str = "dev.tarbet.pod.uid";
pub(super) const NAME: &str = "dev.tarbet.pod.name";
pub(super) const NAMESPACE: &str = "dev.tarbet.pod.namespace";
pub(super) const CONTAINER: &str = "dev.tarbet.container";

/// The network that a pod joins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Network<'a> {
    pub(super) mode: &'a str,
    /// The addresses of name servers, if they are set.
    pub(super) dns: &'a [String],
}

/// The name of a pod's pause container.
pub(super) fn pause_name(id: &PodId) -> String {
    format!("tarbet-{}", id.uid)
}

/// The name of a container; each replacement has its own.
pub(super) fn name(id: &PodId, container: &str, generation: u32) -> String {
    format!("tarbet-{}-{container}-{generation}", id.uid)
}

fn labels(id: &PodId, container: &str, instance: &str) -> HashMap<String, String> {
    let pairs = [
        (INSTANCE, instance),
        (UID, &id.uid),
        (NAME, &id.name),
        (NAMESPACE, &id.namespace),
        (CONTAINER, container),
    ];
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn hosts(plan: &Plan) -> Vec<String> {
    plan.host_aliases.iter().map(|(name, address)| format!("{name}:{address}")).collect()
}

/// The pause container of a pod.
pub(super) fn pause(plan: &Plan, instance: &str, network: &Network<'_>) -> ContainerCreateBody {
    ContainerCreateBody {
        image: Some(pause::IMAGE.into()),
        entrypoint: Some(vec![pause::PROGRAM.into()]),
        hostname: Some(plan.hostname.clone()),
        // It is the first process of its namespace and hears nothing else.
        stop_signal: Some("SIGKILL".into()),
        labels: Some(labels(&plan.id, "", instance)),
        host_config: Some(HostConfig {
            network_mode: Some(network.mode.to_owned()),
            extra_hosts: Some(hosts(plan)),
            dns: (!network.dns.is_empty()).then(|| network.dns.to_vec()),
            cap_drop: Some(vec!["ALL".into()]),
            readonly_rootfs: Some(true),
            security_opt: Some(vec!["no-new-privileges".into()]),
            ipc_mode: Some("shareable".into()),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A container of a pod. Fails where the place of a mount is not what it should be.
pub(super) fn container(
    plan: &Plan,
    container: &Container,
    pod: &Folder,
    instance: &str,
    network: &Network<'_>,
) -> io::Result<ContainerCreateBody> {
    let bind = |source: &std::path::Path, target: &str, read_only: bool| Mount {
        typ: Some(MountType::BIND),
        source: Some(source.display().to_string()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        ..Default::default()
    };
    let mut mounts = Vec::new();
    for mount in &container.mounts {
        mounts.push(bind(&folder::mount_source(pod, plan, mount)?, &mount.target, mount.read_only));
    }
    let messages = pod.enter(folder::messages().as_str())?;
    mounts.push(bind(&messages.path().join(&container.name), &container.message_path, false));
    // Docker mounts in the order given; a place inside another comes after it.
    mounts.sort_by(|a, b| a.target.cmp(&b.target));
    let security = &container.security;
    let user = match (security.user, security.group) {
        (Some(user), Some(group)) => Some(format!("{user}:{group}")),
        (Some(user), None) => Some(user.to_string()),
        (None, Some(group)) => Some(format!("0:{group}")),
        (None, None) => None,
    };
    let shared = || format!("container:{}", pause_name(&plan.id));
    let own = !plan.host_network && plan.is_alone();
    let mode = match (plan.host_network, own) {
        (true, _) => "host".to_owned(),
        (false, true) => network.mode.to_owned(),
        (false, false) => shared(),
    };
    let restart = match (plan.restart, plan.is_init(&container.name)) {
        (_, true) if container.sidecar => RestartPolicyNameEnum::UNLESS_STOPPED,
        (Restart::Never, _) => RestartPolicyNameEnum::NO,
        // A container that ended well in the beginning has done its part.
        (Restart::OnFailure, _) | (Restart::Always, true) => RestartPolicyNameEnum::ON_FAILURE,
        (Restart::Always, false) => RestartPolicyNameEnum::UNLESS_STOPPED,
    };
    let gpus = (container.limits.gpus > 0).then(|| {
        vec![DeviceRequest {
            count: Some(container.limits.gpus),
            capabilities: Some(vec![vec!["gpu".into()]]),
            ..Default::default()
        }]
    });
    // Docker gives a share of 1024 to a core, as kubelets do.
    let shares = container.requests.cpu_milli.map(|milli| (milli * 1024 / 1000).max(2));
    let mut options = Vec::new();
    if security.no_new_privileges {
        options.push("no-new-privileges".to_owned());
    }
    Ok(ContainerCreateBody {
        image: Some(super::image::name(&container.image).to_owned()),
        entrypoint: container.command.clone(),
        // A command of the pod's own replaces the image's arguments too, even if it has none.
        cmd: container.args.clone().or_else(|| container.command.is_some().then(Vec::new)),
        working_dir: container.working_dir.clone(),
        env: Some(container.env.iter().map(|(key, value)| format!("{key}={value}")).collect()),
        user,
        tty: Some(container.tty),
        open_stdin: Some(container.stdin),
        labels: Some(labels(&plan.id, &container.name, instance)),
        hostname: (plan.host_network || own).then(|| plan.hostname.clone()),
        host_config: Some(HostConfig {
            mounts: Some(mounts),
            network_mode: Some(mode),
            extra_hosts: own.then(|| hosts(plan)),
            dns: (own && !network.dns.is_empty()).then(|| network.dns.to_vec()),
            ipc_mode: (!plan.host_network && !own).then(shared),
            nano_cpus: container.limits.cpu_milli.map(|milli| milli * 1_000_000),
            memory: container.limits.memory,
            cpu_shares: shares,
            device_requests: gpus,
            privileged: Some(security.privileged),
            readonly_rootfs: Some(security.read_only_root),
            cap_add: Some(security.add.clone()),
            cap_drop: Some(security.drop.clone()),
            group_add: Some(security.groups.iter().map(ToString::to_string).collect()),
            security_opt: Some(options),
            restart_policy: Some(RestartPolicy { name: Some(restart), maximum_retry_count: None }),
            ..Default::default()
        }),
        ..Default::default()
    })
}
