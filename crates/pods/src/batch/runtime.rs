//! What a container becomes inside a job: the command line of whatever the site has.

use super::split;
use super::tsocks::{CONF_INSIDE, Proxy};
use super::word::{Word, is_identifier};
use crate::folder;
use crate::plan::{Container, Content, Plan, PlanError};

/// The variable of the script that holds the pod's folder.
pub(super) const DIR: &str = "T_DIR";
/// The variable of the script that holds the folder of volumes on the machine of the job.
pub(super) const WORK: &str = "T_WORK";

/// The annotation that says what a pod's images are below.
const IMAGE_ROOT: &str = "slurm-job.vk.io/image-root";
/// The variable that names libraries to load first.
const PRELOAD: &str = "LD_PRELOAD";
/// How images that are files end.
const FILES: [&str; 4] = [".sif", ".simg", ".img", ".sqsh"];

/// What runs containers in a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Runtime {
    /// Singularity, Apptainer, or anything with their command line.
    Singularity {
        /// The program.
        path: String,
        /// Options before all others.
        options: Vec<String>,
    },
    /// Enroot.
    Enroot {
        /// The program.
        path: String,
        /// Options before all others.
        options: Vec<String>,
    },
    /// Podman, without a daemon.
    Podman {
        /// The program.
        path: String,
        /// Options before all others.
        options: Vec<String>,
    },
    /// The programs of the machine itself, without isolation. A container with mounts gets a
    /// private view of the file system by bubblewrap; an image that is a folder below the image
    /// prefix becomes its root.
    Process {
        /// The bubblewrap program.
        bwrap: String,
    },
}

/// What a site has for all containers.
#[derive(Debug, Clone)]
pub(super) struct Site<'a> {
    /// What images without a scheme are below.
    pub(super) image_prefix: &'a str,
    /// How containers reach the outside, where they need help.
    pub(super) proxy: Option<Proxy>,
}

impl Site<'_> {
    /// How a container reaches the outside. The pod's own word on these variables goes before the site's.
    pub(super) fn proxy_for(&self, container: &Container) -> Option<&Proxy> {
        self.proxy.as_ref().filter(|_| container.env.iter().all(|(key, _)| key != PRELOAD))
    }
}

/// A container as a piece of script.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Launch {
    /// Commands that must succeed first.
    pub(super) before: Vec<Vec<Word>>,
    /// Commands at the end of the job.
    pub(super) after: Vec<Vec<Word>>,
    /// Whether the container has a view of the file system that others can enter.
    pub(super) view: bool,
    /// Whether the job's own variables are kept from the container.
    pub(super) clean: bool,
    /// Variables to export.
    pub(super) exports: Vec<(String, Word)>,
    /// The command that takes the place of the shell.
    pub(super) command: Vec<Word>,
}

impl Runtime {
    /// The launch of a container.
    pub(super) fn launch(
        &self,
        plan: &Plan,
        container: &Container,
        site: &Site<'_>,
    ) -> Result<Launch, PlanError> {
        let image = self.image(plan, container, site.image_prefix)?;
        let proxy = site.proxy_for(container);
        let binds = self.binds(plan, container, proxy);
        match self {
            Self::Singularity { path, options } => {
                let verb = if container.command.is_some() { "exec" } else { "run" };
                let mut command = words(&[path, verb]);
                command.extend(words(options));
                command.extend(raw(plan, "singularity-mounts")?);
                command.extend(raw(plan, "singularity-options")?);
                command.extend(binds.iter().flat_map(|bind| ["--bind".into(), bind.colons()]));
                if let Some(dir) = &container.working_dir {
                    command.extend(words(&["--pwd", dir]));
                }
                command.push(image.into());
                command.extend(own_words(container));
                // Both names of the product; what it does not know it ignores.
                let all = exports(container).into_iter().chain(proxied(proxy, CONF_INSIDE.into()));
                let exports = all.flat_map(|(key, value)| {
                    ["SINGULARITYENV", "APPTAINERENV"]
                        .map(|prefix| (format!("{prefix}_{key}"), value.clone()))
                });
                Ok(Launch { exports: exports.collect(), command, ..Default::default() })
            }
            Self::Enroot { path, options } => {
                let name = name_of(plan, container);
                let (mut before, mut file) = (Vec::new(), Word::from(image.as_str()));
                if image.contains("://") {
                    file = Word::variable(WORK).then(format!("/{name}.sqsh"));
                    // An import does not replace a file, and a container may begin again.
                    let mut import: Vec<Word> = vec!["t_once".into(), file.clone()];
                    import.extend(words(&[path, "import", "--output"]));
                    import.extend([file.clone(), image.into()]);
                    before.push(import);
                }
                let mut create = words(&[path, "create", "--force", "--name", &name]);
                create.push(file);
                before.push(create);
                let mut command = words(&[path, "start"]);
                command.extend(words(options));
                command.extend(raw(plan, "enroot-mounts")?);
                command.extend(raw(plan, "enroot-options")?);
                command.extend(binds.iter().flat_map(|bind| ["--mount".into(), bind.colons()]));
                command.extend(env_options(container, proxy));
                command.push(name.as_str().into());
                command.extend(own_words(container));
                let after = vec![words(&[path, "remove", "--force", &name])];
                Ok(Launch { before, after, exports: exports(container), command, ..Default::default() })
            }
            Self::Podman { path, options } => {
                let name = name_of(plan, container);
                let mut command = words(&[path, "run", "--rm"]);
                command.extend(words(options));
                command.extend(words(&["--name", &name]));
                if proxy.is_some() && !options.iter().any(|option| option.starts_with("--net")) {
                    // The connection to the login node ends on the machine's own loopback.
                    command.push("--network=host".into());
                }
                for bind in &binds {
                    let value = Word::text("type=bind,source=").join(bind.source.clone());
                    let mode = if bind.read_only { ",readonly" } else { "" };
                    command.extend(["--mount".into(), value.then(format!(",target={}{mode}", bind.target))]);
                }
                command.extend(env_options(container, proxy));
                if let Some(user) = container.security.user {
                    command.extend(words(&["--user", &user.to_string()]));
                }
                if let Some(dir) = &container.working_dir {
                    command.extend(words(&["--workdir", dir]));
                }
                if let Some(program) = container.command.as_ref().and_then(|words| words.first()) {
                    command.extend(words(&["--entrypoint", program]));
                }
                command.push(image.into());
                let rest = container.command.iter().flat_map(|words| words.iter().skip(1));
                command.extend(
                    rest.chain(container.args.iter().flatten()).map(|word| Word::from(word.as_str())),
                );
                // A container outlives the command that started it, if that one is killed.
                let after = vec![words(&[path, "rm", "--force", "--ignore", &name])];
                Ok(Launch { after, exports: exports(container), command, ..Default::default() })
            }
            Self::Process { bwrap } => process(container, &binds, bwrap, &image, site, proxy),
        }
    }

    /// Whether containers are reached by the addresses of their machine.
    pub(super) fn shares_network(&self) -> bool {
        match self {
            Self::Podman { options, .. } => {
                let words = options.iter().zip(options.iter().skip(1).map(String::as_str).chain([""]));
                words.into_iter().any(|(word, next)| match word.split_once('=') {
                    Some((word, value)) => word.starts_with("--net") && value == "host",
                    None => word.starts_with("--net") && next == "host",
                })
            }
            Self::Singularity { .. } | Self::Enroot { .. } | Self::Process { .. } => true,
        }
    }

    /// The command that runs another one in a running container, where the runtime itself has one.
    pub(super) fn enter(
        &self,
        plan: &Plan,
        container: &Container,
        command: &[String],
        terminal: bool,
    ) -> Option<Vec<Word>> {
        let Self::Podman { path, .. } = self else { return None };
        let mut line = words(&[path, "exec", "--interactive"]);
        line.extend(terminal.then(|| Word::from("--tty")));
        line.push(name_of(plan, container).into());
        line.extend(words(command));
        Some(line)
    }

    /// Where the image is: as it says itself, else below what the pod names, else below what the site
    /// does, else in Docker's registry for runtimes that would look for a file.
    fn image(&self, plan: &Plan, container: &Container, prefix: &str) -> Result<String, PlanError> {
        let image = &container.image;
        let own = plan.annotations.get(IMAGE_ROOT).filter(|own| !own.is_empty());
        if own.is_some_and(|own| {
            own.starts_with('-') || own.contains(|c: char| c.is_control() || c.is_whitespace())
        }) {
            return Err(PlanError::Value(format!("the annotation `{IMAGE_ROOT}`")));
        }
        let prefix = own.map_or(prefix, String::as_str);
        if image.starts_with('/') || image.contains("://") {
            return Ok(image.clone());
        }
        if !prefix.is_empty() {
            // A prefix that is a folder needs no slash at its end; a scheme keeps its own.
            let slash = if prefix.starts_with('/') && !prefix.ends_with('/') { "/" } else { "" };
            return Ok(format!("{prefix}{slash}{image}"));
        }
        let file = image.starts_with('.') || FILES.iter().any(|end| image.ends_with(end));
        Ok(match self {
            Self::Singularity { .. } if !file => format!("docker://{image}"),
            Self::Enroot { .. } if !file => match image.split_once('/') {
                // Enroot wants its own sign between a registry and an image.
                Some((host, rest)) if host.contains(['.', ':']) || host == "localhost" => {
                    format!("docker://{host}#{rest}")
                }
                _ => format!("docker://{image}"),
            },
            _ => image.clone(),
        })
    }

    fn binds(&self, plan: &Plan, container: &Container, proxy: Option<&Proxy>) -> Vec<Bind> {
        let mut binds = binds(plan, container);
        // The usual place is inside `/dev`. Podman makes a file there; others give the machine's own
        // `/dev` or one that nothing can be added to.
        let usual = container.message_path == "/dev/termination-log";
        if !usual || matches!(self, Self::Podman { .. }) {
            let source = Word::variable(DIR).then(format!("/{}/{}", folder::messages(), container.name));
            binds.push(Bind { source, target: container.message_path.clone(), read_only: false });
        }
        if let Some(proxy) = proxy
            && !matches!(self, Self::Process { .. })
        {
            binds.extend(proxy_binds(proxy));
        }
        binds.sort_by(|a, b| a.target.cmp(&b.target));
        binds
    }
}

fn words<T: AsRef<str>>(words: &[T]) -> Vec<Word> {
    words.iter().map(|word| Word::from(word.as_ref())).collect()
}

/// What a container is called where the runtime knows it by a name.
fn name_of(plan: &Plan, container: &Container) -> String {
    format!("{}-{}", container.name, plan.id.uid)
}

fn proxy_binds(proxy: &Proxy) -> [Bind; 2] {
    let library = Word::from(proxy.library.as_str());
    [
        Bind { source: library, target: proxy.library.clone(), read_only: true },
        Bind { source: proxy.conf.clone(), target: CONF_INSIDE.into(), read_only: true },
    ]
}

/// The variables that make a program use the proxy, whose settings are at this place.
pub(super) fn proxied(proxy: Option<&Proxy>, conf: Word) -> Vec<(String, Word)> {
    let variables = |proxy: &Proxy| {
        let library = Word::from(proxy.library.as_str());
        vec![(PRELOAD.to_owned(), library), ("TSOCKS_CONF_FILE".to_owned(), conf)]
    };
    proxy.map(variables).unwrap_or_default()
}

/// Variables by name only: the value comes from the environment and is in no list of processes. What
/// only the container is to see has its value here.
fn env_options(container: &Container, proxy: Option<&Proxy>) -> Vec<Word> {
    let own = container.env.iter().map(|(key, _)| Word::from(key.as_str()));
    let more = proxied(proxy, CONF_INSIDE.into()).into_iter();
    let more = more.map(|(key, value)| Word::text(format!("{key}=")).join(value));
    own.chain(more).flat_map(|word| ["--env".into(), word]).collect()
}

/// A machine's own program, in a view of the file system with the pod's mounts if it has any.
fn process(
    container: &Container,
    binds: &[Bind],
    bwrap: &str,
    image: &str,
    site: &Site<'_>,
    proxy: Option<&Proxy>,
) -> Result<Launch, PlanError> {
    let own = own_words(container);
    if container.command.is_none() {
        return Err(PlanError::Missing(format!(
            "a command for `{}` (plain processes have no image to take it from)",
            container.name
        )));
    }
    // A folder of files below the prefix is an image; any other name means the machine itself.
    let root = std::path::Path::new(image);
    let root = (!site.image_prefix.is_empty() && root.is_absolute() && root.is_dir()).then_some(image);
    let mut launch = Launch { clean: true, exports: exports(container), ..Default::default() };
    if binds.is_empty() && root.is_none() && container.working_dir.is_none() {
        let conf = proxy.map(|proxy| proxy.conf.clone()).unwrap_or_default();
        launch.exports.extend(proxied(proxy, conf));
        return Ok(Launch { command: own, ..launch });
    }
    launch.view = true;
    let mut command = words(&[bwrap, "--die-with-parent"]);
    if let Some(root) = root {
        // A private copy: what one pod writes to its image no other one sees, nor does its next run.
        let copy = Word::variable(WORK).then(format!("/root-{}", container.name));
        launch.before.push(vec!["rm".into(), "-rf".into(), "--".into(), copy.clone()]);
        launch.before.push(vec!["cp".into(), "-aT".into(), "--".into(), root.into(), copy.clone()]);
        command.extend(["--bind".into(), copy, "/".into()]);
    } else {
        command.extend(words(&["--tmpfs", "/"]));
        for folder in ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/home", "/root"]
        {
            command.extend(words(&["--ro-bind-try", folder, folder]));
        }
        command.extend(words(&["--tmpfs", "/var", "--tmpfs", "/run"]));
    }
    command.extend(words(&["--dev-bind", "/dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]));
    let proxy_binds = proxy.map(proxy_binds);
    for bind in binds.iter().chain(proxy_binds.iter().flatten()) {
        let flag = if bind.read_only { "--ro-bind" } else { "--bind" };
        command.extend([flag.into(), bind.source.clone(), bind.target.as_str().into()]);
    }
    for (key, value) in proxied(proxy, CONF_INSIDE.into()) {
        command.extend(["--setenv".into(), key.into(), value]);
    }
    if let Some(dir) = &container.working_dir {
        command.extend(words(&["--dir", dir, "--chdir", dir]));
    } else {
        command.extend(words(&["--chdir", "/"]));
    }
    command.push("--".into());
    command.extend(own);
    Ok(Launch { command, ..launch })
}

/// The command and arguments of the container itself.
fn own_words(container: &Container) -> Vec<Word> {
    let words = container.command.iter().flatten().chain(container.args.iter().flatten());
    words.map(|word| Word::from(word.as_str())).collect()
}

fn exports(container: &Container) -> Vec<(String, Word)> {
    container.env.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect()
}

/// The words of an annotation that the host's policy lets through to the runtime, each as it is.
fn raw(plan: &Plan, name: &str) -> Result<Vec<Word>, PlanError> {
    let key = format!("slurm-job.vk.io/{name}");
    let Some(text) = plan.annotations.get(&key) else { return Ok(Vec::new()) };
    let words = split::words(text).filter(|words| words.iter().all(|word| !word.contains('\0')));
    let words = words.ok_or_else(|| PlanError::Value(format!("the annotation `{key}`")))?;
    Ok(words.into_iter().map(Word::from).collect())
}

struct Bind {
    source: Word,
    target: String,
    read_only: bool,
}

impl Bind {
    fn colons(&self) -> Word {
        let mode = if self.read_only { "ro" } else { "rw" };
        self.source.clone().then(format!(":{}:{mode}", self.target))
    }
}

fn binds(plan: &Plan, container: &Container) -> Vec<Bind> {
    let mut binds = Vec::new();
    for mount in &container.mounts {
        let volume = &plan.volumes[mount.volume];
        let mut source = match &volume.content {
            Content::Host(path) => Word::text(path.display().to_string()),
            _ => Word::variable(WORK).then(format!("/{}", volume.folder)),
        };
        if let Some(part) = &mount.sub_path {
            source = source.then(format!("/{part}"));
        }
        binds.push(Bind { source, target: mount.target.clone(), read_only: mount.read_only });
    }
    binds
}

/// The exports and the command as lines of shell.
pub(super) fn lines(launch: &Launch) -> Vec<String> {
    let mut lines = Vec::new();
    for command in &launch.before {
        lines.push(format!("{} || return 125", super::word::line(command)));
    }
    if launch.clean {
        lines.push("t_clean".into());
    }
    let (plain, odd): (Vec<_>, Vec<_>) = launch.exports.iter().partition(|(key, _)| is_identifier(key));
    for (key, value) in plain {
        lines.push(format!("export {key}={value}"));
    }
    let mut command = Vec::new();
    if !odd.is_empty() {
        // A shell cannot export such a name; `env` can.
        command.push(Word::from("env"));
        command.extend(odd.into_iter().map(|(key, value)| Word::text(format!("{key}=")).join(value.clone())));
    }
    command.extend(launch.command.clone());
    lines.push(format!("exec {}", super::word::line(&command)));
    lines
}
