//! What a pod means, decided without touching anything: files, mounts, variables, limits, and
//! the order in which its containers run.

mod data;
mod env;
mod error;
pub mod expand;
pub mod path;
mod policy;
pub mod probe;
pub mod quantity;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::{self as k8s, Pod, PodSpec};

pub use data::{File, Files};
pub(crate) use data::{field_value, resource_value};
pub use error::PlanError;
pub use path::RelPath;
pub use policy::Policy;
use probe::{Hooks, Probes};
use quantity::Quantity;

use crate::wire::{RetrievedPod, is_label, is_uid};
use data::{Data, downward_files, permissions, pick};

/// Kubernetes' own default for the time a pod has to end.
const GRACE: Duration = Duration::from_secs(30);
/// Kubernetes' own default for the place of the last message.
const TERMINATION_LOG: &str = "/dev/termination-log";
/// The mode of files that ask for none.
const FILE_MODE: u32 = 0o644;

/// Who a pod is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodId {
    /// Unique for all time.
    pub uid: String,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
}

impl PodId {
    /// Checks the names; they become folders, labels and job names.
    pub fn of(pod: &Pod) -> Result<Self, PlanError> {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let meta = &pod.metadata;
        let id = Self { uid: text(&meta.uid), name: text(&meta.name), namespace: text(&meta.namespace) };
        let wrong = |field, value: &str| Err(PlanError::Name { field, value: value.to_owned() });
        if !is_uid(&id.uid) {
            return wrong("UID", &id.uid);
        }
        if !is_label(&id.namespace) {
            return wrong("namespace", &id.namespace);
        }
        if !path::is_object_name(&id.name) {
            return wrong("name", &id.name);
        }
        Ok(id)
    }

    /// The name of its folder.
    pub fn folder(&self) -> String {
        format!("{}-{}", self.namespace, self.uid)
    }
}

impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ({})", self.namespace, self.name, self.uid)
    }
}

/// A pod, ready to be run by anything.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Who it is.
    pub id: PodId,
    /// What it calls itself on its network.
    pub hostname: String,
    /// Names for addresses in `/etc/hosts`.
    pub host_aliases: Vec<(String, String)>,
    /// Whether it uses the host's network.
    pub host_network: bool,
    /// Its volumes.
    pub volumes: Vec<Volume>,
    /// Containers that run one after another, each to its end, before the others.
    pub init: Vec<Container>,
    /// Containers that run together.
    pub containers: Vec<Container>,
    /// Whether ended containers are started again.
    pub restart: Restart,
    /// How long it has to end.
    pub grace: Duration,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// What it asks for and goes without, for the log.
    pub left_out: Vec<String>,
}

/// One step of running a plan.
#[derive(Debug, PartialEq)]
pub enum Step<'a> {
    /// Run this to its end; stop if it fails.
    Init(&'a Container),
    /// Run these at the same time.
    Together(&'a [Container]),
}

/// Whether ended containers are started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restart {
    /// Whatever their exit code.
    Always,
    /// When they failed.
    OnFailure,
    /// Never.
    Never,
}

/// A volume of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    /// Its name in the pod.
    pub name: String,
    /// Its folder below the pod's own, such as `configMaps/settings`.
    pub folder: RelPath,
    /// What is in it.
    pub content: Content,
}

/// What a volume holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Nothing at first; everybody may write.
    Empty,
    /// These files, replaced all at once when they change.
    Files(Files),
    /// A folder of the host, allowed by policy.
    Host(PathBuf),
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    /// Its name in the pod.
    pub name: String,
    /// Its image.
    pub image: String,
    /// When the image is pulled.
    pub pull: Pull,
    /// Replaces the image's entrypoint, if given.
    pub command: Option<Vec<String>>,
    /// Replaces the image's command, if given.
    pub args: Option<Vec<String>>,
    /// Where it starts.
    pub working_dir: Option<String>,
    /// Its variables.
    pub env: Vec<(String, String)>,
    /// Its mounts.
    pub mounts: Vec<Mount>,
    /// Whom it runs as and what it may do.
    pub security: Security,
    /// What it may use at most.
    pub limits: Limits,
    /// What it asks for at least.
    pub requests: Limits,
    /// Where it leaves its last message.
    pub message_path: String,
    /// Whether the end of the log serves as last message of a failure.
    pub message_from_log: bool,
    /// Whether its input stays open.
    pub stdin: bool,
    /// Whether it has a terminal.
    pub tty: bool,
    /// An init container that goes on beside the others until they have ended.
    pub sidecar: bool,
    /// What it is asked while it runs.
    pub probes: Probes,
    /// What is done at its beginning and end.
    pub hooks: Hooks,
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pull {
    /// Each time.
    Always,
    /// When it is not there.
    IfNotPresent,
    /// Never.
    Never,
}

/// A volume at a place in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The volume's place in [`Plan::volumes`].
    pub volume: usize,
    /// Only this part of the volume.
    pub sub_path: Option<RelPath>,
    /// Where it appears.
    pub target: String,
    /// Whether it can be written.
    pub read_only: bool,
}

/// Whom a container runs as and what it may do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Security {
    /// The user.
    pub user: Option<i64>,
    /// The group.
    pub group: Option<i64>,
    /// Further groups.
    pub groups: Vec<i64>,
    /// Refuse to run as root.
    pub non_root: bool,
    /// Full power over the host; only where policy allows.
    pub privileged: bool,
    /// No way to gain power by programs with set-user-id.
    pub no_new_privileges: bool,
    /// The image itself cannot be written.
    pub read_only_root: bool,
    /// Capabilities beyond the usual; only where policy allows.
    pub add: Vec<String>,
    /// Capabilities taken away.
    pub drop: Vec<String>,
}

/// Resources of a container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Thousandths of a core.
    pub cpu_milli: Option<i64>,
    /// Bytes.
    pub memory: Option<i64>,
    /// GPUs of any maker.
    pub gpus: i64,
}

impl Plan {
    /// The steps in order.
    pub fn steps(&self) -> Vec<Step<'_>> {
        self.init.iter().map(Step::Init).chain([Step::Together(&self.containers)]).collect()
    }

    /// Whether this is an init container.
    pub fn is_init(&self, name: &str) -> bool {
        self.init.iter().any(|init| init.name == name)
    }

    /// All containers, init first.
    pub fn all(&self) -> impl Iterator<Item = &Container> {
        self.init.iter().chain(&self.containers)
    }

    /// A container by name.
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.all().find(|container| container.name == name)
    }

    /// Whether it is one container that runs once: nobody is there to share a network with, and
    /// none has to outlive the container.
    pub fn is_alone(&self) -> bool {
        self.init.is_empty() && self.containers.len() == 1 && self.restart == Restart::Never
    }

    /// The container a request means: the named one, or the only one.
    pub fn meant(&self, name: &str) -> Option<&Container> {
        match (name, self.containers.as_slice()) {
            ("", [only]) => Some(only),
            ("", [first, ..]) => Some(first),
            _ => self.container(name),
        }
    }
}

/// Decides what a pod means on a host with this policy.
pub fn plan(retrieved: &RetrievedPod, policy: &Policy) -> Result<Plan, PlanError> {
    let pod = &retrieved.pod;
    let id = PodId::of(pod)?;
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let annotations = pod.metadata.annotations.clone().unwrap_or_default();
    policy.check_annotations(annotations.keys().map(String::as_str))?;
    let host_network = spec.host_network.unwrap_or_default();
    if host_network && !policy.allow_host_network {
        let what = "the host's network".to_owned();
        return Err(PlanError::Refused { what, setting: "Policy.AllowHostNetwork" });
    }
    let data = Data::of(&retrieved.containers);
    let used: BTreeSet<&str> = containers(spec)
        .flat_map(|container| container.volume_mounts.iter().flatten())
        .map(|mount| mount.name.as_str())
        .collect();
    let mut left_out = policy::without_effect(annotations.keys().map(String::as_str));
    let volumes = volumes(spec, pod, &data, policy, &used, &mut left_out)?;
    let build = |container: &k8s::Container| self::container(container, spec, pod, &data, policy, &volumes);
    let init: Vec<Container> = spec.init_containers.iter().flatten().map(build).collect::<Result<_, _>>()?;
    let main: Vec<Container> = spec.containers.iter().map(build).collect::<Result<_, _>>()?;
    if main.is_empty() {
        return Err(PlanError::Shape("has no containers".into()));
    }
    let mut names = BTreeSet::new();
    for container in init.iter().chain(&main) {
        if !names.insert(container.name.clone()) {
            return Err(PlanError::Shape(format!("has two containers called `{}`", container.name)));
        }
    }
    let grace = spec.termination_grace_period_seconds.and_then(|s| u64::try_from(s).ok());
    let hostname = spec.hostname.clone().filter(|name| is_label(name)).unwrap_or_else(|| {
        let label: String = id.name.chars().map(|c| if c == '.' { '-' } else { c }).take(63).collect();
        label.trim_end_matches('-').to_owned()
    });
    let host_aliases = spec
        .host_aliases
        .iter()
        .flatten()
        .flat_map(|alias| alias.hostnames.iter().flatten().map(|name| (name.clone(), alias.ip.clone())));
    let host_aliases: Vec<_> = host_aliases.collect();
    for (name, address) in &host_aliases {
        if !path::is_object_name(name) || address.parse::<std::net::IpAddr>().is_err() {
            return Err(PlanError::Name { field: "host alias", value: format!("{address} {name}") });
        }
    }
    Ok(Plan {
        id,
        hostname,
        host_aliases,
        host_network,
        volumes,
        init,
        containers: main,
        restart: match spec.restart_policy.as_deref() {
            Some("Never") => Restart::Never,
            Some("OnFailure") => Restart::OnFailure,
            _ => Restart::Always,
        },
        grace: grace.map_or(GRACE, Duration::from_secs),
        annotations,
        left_out,
    })
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = &k8s::Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

fn volumes(
    spec: &PodSpec,
    pod: &Pod,
    data: &Data<'_>,
    policy: &Policy,
    used: &BTreeSet<&str>,
    left_out: &mut Vec<String>,
) -> Result<Vec<Volume>, PlanError> {
    let mut planned = Vec::new();
    let mut folders = BTreeSet::new();
    // What nothing mounts is not carried: the cluster side does not send its contents either.
    for volume in spec.volumes.iter().flatten().filter(|volume| used.contains(volume.name.as_str())) {
        let name = &volume.name;
        if !is_label(name) {
            return Err(PlanError::Name { field: "volume", value: name.clone() });
        }
        let mode = |mode: Option<i32>| mode.map_or(FILE_MODE, permissions);
        // ConfigMaps and Secrets lie in a folder of their own name; a second volume of the same
        // one may hold other files and gets the volume's name instead.
        let (kind, object, content) = if let Some(map) = &volume.config_map {
            let what = format!("the ConfigMap `{}`", map.name);
            let optional = map.optional.unwrap_or_default();
            let found = data.config_map(&map.name);
            let files = pick(found, map.items.as_deref(), mode(map.default_mode), optional, &what, name)?;
            ("configMaps", map.name.as_str(), Content::Files(files))
        } else if let Some(secret) = &volume.secret {
            let object = secret.secret_name.as_deref().unwrap_or_default();
            let what = format!("the Secret `{object}`");
            let optional = secret.optional.unwrap_or_default();
            let found = data.secret(object);
            let files =
                pick(found, secret.items.as_deref(), mode(secret.default_mode), optional, &what, name)?;
            ("secrets", object, Content::Files(files))
        } else if let Some(projected) = &volume.projected {
            let mode = mode(projected.default_mode);
            let sources = projected.sources.as_deref().unwrap_or_default();
            let mut files = match data.made(name, mode) {
                Some(made) => made?,
                None => data.project(name, sources, mode, pod, left_out)?,
            };
            // The pod itself is the newest word on its own fields.
            for downward in sources.iter().filter_map(|source| source.downward_api.as_ref()) {
                files.extend(downward_files(downward.items.as_deref().unwrap_or_default(), mode, pod, name)?);
            }
            ("projectedVolumeMaps", name.as_str(), Content::Files(files))
        } else if let Some(downward) = &volume.downward_api {
            let items = downward.items.as_deref().unwrap_or_default();
            let files = downward_files(items, mode(downward.default_mode), pod, name)?;
            ("projectedVolumeMaps", name.as_str(), Content::Files(files))
        } else if volume.empty_dir.is_some() {
            ("emptyDirs", name.as_str(), Content::Empty)
        } else if let Some(host) = &volume.host_path {
            ("hostPaths", name.as_str(), Content::Host(policy.check_host_path(&host.path)?))
        } else {
            return Err(PlanError::Volume(name.clone()));
        };
        if !path::is_object_name(object) {
            return Err(PlanError::Name { field: "object of a volume", value: object.to_owned() });
        }
        let mut folder = format!("{kind}/{object}");
        if !folders.insert(folder.clone()) {
            folder = format!("{kind}/{object}@{name}");
        }
        let place = format!("the volume `{name}`");
        let folder = RelPath::new(folder).map_err(|source| PlanError::Path { place, source })?;
        planned.push(Volume { name: name.clone(), folder, content });
    }
    Ok(planned)
}

fn container(
    container: &k8s::Container,
    spec: &PodSpec,
    pod: &Pod,
    data: &Data<'_>,
    policy: &Policy,
    volumes: &[Volume],
) -> Result<Container, PlanError> {
    let name = container.name.clone();
    if !is_label(&name) {
        return Err(PlanError::Name { field: "container", value: name });
    }
    let env = env::variables(container, pod, data)?;
    let known = |wanted: &str| env.iter().find(|(key, _)| key == wanted).map(|(_, value)| value.as_str());
    let words = |words: &Option<Vec<String>>| -> Result<Option<Vec<String>>, PlanError> {
        let Some(words) = words.as_ref().filter(|words| !words.is_empty()) else { return Ok(None) };
        let words: Vec<String> = words.iter().map(|word| expand::expand(word, known)).collect();
        if words.iter().any(|word| word.contains('\0')) {
            return Err(PlanError::Value(format!("the command of `{name}`")));
        }
        Ok(Some(words))
    };
    let (command, args) = (words(&container.command)?, words(&container.args)?);
    let image = container.image.clone().unwrap_or_default();
    if image.contains(|c: char| c.is_control() || c.is_whitespace()) || image.starts_with('-') {
        return Err(PlanError::Value(format!("the image of `{name}`")));
    }
    let target = |text: &str, what: &str| {
        path::mount_target(text)
            .map_err(|source| PlanError::Path { place: format!("the {what} of `{name}`"), source })
    };
    let mut mounts = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let volume = volumes.iter().position(|volume| volume.name == mount.name);
        let volume = volume.ok_or_else(|| PlanError::Missing(format!("the volume `{}`", mount.name)))?;
        let sub_path = match (&mount.sub_path_expr, &mount.sub_path) {
            (Some(text), _) if !text.is_empty() => Some(expand::expand(text, known)),
            (_, Some(text)) if !text.is_empty() => Some(text.clone()),
            _ => None,
        };
        let place = format!("the subPath of `{name}`");
        let sub_path = sub_path.map(RelPath::new).transpose();
        let sub_path = sub_path.map_err(|source| PlanError::Path { place, source })?;
        mounts.push(Mount {
            volume,
            sub_path,
            target: target(&mount.mount_path, "mount path")?,
            // Files are ours to replace; a container that wrote them would write into the void.
            read_only: mount.read_only.unwrap_or_default()
                || matches!(volumes[volume].content, Content::Files(_)),
        });
    }
    let working_dir = container.working_dir.clone().filter(|dir| !dir.is_empty());
    if working_dir.as_ref().is_some_and(|dir| !dir.starts_with('/') || dir.contains(char::is_control)) {
        return Err(PlanError::Value(format!("the working folder of `{name}`")));
    }
    let message_path = container.termination_message_path.as_deref().filter(|path| !path.is_empty());
    Ok(Container {
        pull: match container.image_pull_policy.as_deref() {
            Some("Always") => Pull::Always,
            Some("Never") => Pull::Never,
            None if image.ends_with(":latest") => Pull::Always,
            Some(_) | None => Pull::IfNotPresent,
        },
        image,
        command,
        args,
        working_dir,
        mounts,
        security: security(container, spec, policy)?,
        limits: limits(container.resources.as_ref().and_then(|resources| resources.limits.as_ref())),
        requests: limits(container.resources.as_ref().and_then(|resources| resources.requests.as_ref())),
        message_path: target(message_path.unwrap_or(TERMINATION_LOG), "termination message path")?,
        message_from_log: container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError"),
        stdin: container.stdin.unwrap_or_default(),
        tty: container.tty.unwrap_or_default(),
        sidecar: container.restart_policy.as_deref() == Some("Always"),
        probes: probe::probes(container)?,
        hooks: probe::hooks(container)?,
        env,
        name,
    })
}

fn security(container: &k8s::Container, spec: &PodSpec, policy: &Policy) -> Result<Security, PlanError> {
    let own = container.security_context.clone().unwrap_or_default();
    let shared = spec.security_context.clone().unwrap_or_default();
    let privileged = own.privileged.unwrap_or_default();
    if privileged {
        policy.check_privileged()?;
    }
    let capabilities = own.capabilities.unwrap_or_default();
    let add = capabilities.add.iter().flatten().map(|name| policy.check_capability(name));
    let group = shared.fs_group.into_iter();
    Ok(Security {
        user: own.run_as_user.or(shared.run_as_user),
        group: own.run_as_group.or(shared.run_as_group),
        groups: shared.supplemental_groups.into_iter().flatten().chain(group).collect(),
        non_root: own.run_as_non_root.or(shared.run_as_non_root).unwrap_or_default(),
        privileged,
        no_new_privileges: own.allow_privilege_escalation == Some(false),
        read_only_root: own.read_only_root_filesystem.unwrap_or_default(),
        add: add.collect::<Result<_, _>>()?,
        drop: capabilities.drop.unwrap_or_default(),
    })
}

type Quantities = BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>;

fn limits(list: Option<&Quantities>) -> Limits {
    let get =
        |key: &str| list.and_then(|list| list.get(key)).and_then(|quantity| Quantity::parse(&quantity.0));
    let gpus = ["nvidia.com/gpu", "amd.com/gpu", "intel.com/gpu"];
    Limits {
        cpu_milli: get("cpu").map(Quantity::milli).filter(|&milli| milli > 0),
        memory: get("memory").map(Quantity::units).filter(|&bytes| bytes > 0),
        gpus: gpus.into_iter().filter_map(get).map(Quantity::units).sum(),
    }
}
