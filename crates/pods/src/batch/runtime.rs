//! What a container becomes inside a job: the command line of whatever the site has.

use super::split;
use super::word::{Word, is_identifier};
use crate::folder;
use crate::plan::{Container, Content, Plan, PlanError};

/// The variable of the script that holds the pod's folder.
pub(super) const DIR: &str = "T_DIR";
/// The variable of the script that holds the folder of volumes on the machine of the job.
pub(super) const WORK: &str = "T_WORK";

/// The annotation that says what a pod's images are below.
const IMAGE_ROOT: &str = "slurm-job.vk.io/image-root";

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

/// A container as a piece of script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Launch {
    /// Commands that must succeed first.
    pub(super) before: Vec<Vec<Word>>,
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
        image_prefix: &str,
    ) -> Result<Launch, PlanError> {
        let binds = binds(plan, container);
        let image = image(plan, container, image_prefix)?;
        match self {
            Self::Singularity { path, options } => {
                let verb = if container.command.is_some() { "exec" } else { "run" };
                let mut command: Vec<Word> = vec![path.as_str().into(), verb.into()];
                command.extend(options.iter().map(|option| Word::from(option.as_str())));
                command.extend(raw(plan, "singularity-mounts")?);
                command.extend(raw(plan, "singularity-options")?);
                for bind in &binds {
                    let mode = if bind.read_only { "ro" } else { "rw" };
                    let value = bind.source.clone().then(format!(":{}:{mode}", bind.target));
                    command.extend([Word::from("--bind"), value]);
                }
                if let Some(dir) = &container.working_dir {
                    command.extend(["--pwd".into(), Word::from(dir.as_str())]);
                }
                command.push(image.into());
                command.extend(own_words(container));
                // Both names of the product; what it does not know it ignores.
                let exports = container.env.iter().flat_map(|(key, value)| {
                    ["SINGULARITYENV", "APPTAINERENV"]
                        .map(|prefix| (format!("{prefix}_{key}"), value.clone().into()))
                });
                Ok(Launch { before: vec![], clean: false, exports: exports.collect(), command })
            }
            Self::Enroot { path, options } => {
                let name = format!("{}-{}", container.name, plan.id.uid);
                let file = Word::variable(WORK).then(format!("/{name}.sqsh"));
                let before = vec![
                    vec![
                        path.as_str().into(),
                        "import".into(),
                        "--output".into(),
                        file.clone(),
                        image.into(),
                    ],
                    vec![path.as_str().into(), "create".into(), "--name".into(), name.as_str().into(), file],
                ];
                let mut command: Vec<Word> = vec![path.as_str().into(), "start".into()];
                command.extend(options.iter().map(|option| Word::from(option.as_str())));
                command.extend(raw(plan, "enroot-mounts")?);
                command.extend(raw(plan, "enroot-options")?);
                for bind in &binds {
                    let mode = if bind.read_only { "ro" } else { "rw" };
                    command.extend([
                        "--mount".into(),
                        bind.source.clone().then(format!(":{}:{mode}", bind.target)),
                    ]);
                }
                // By name only: the value comes from the environment and is in no list of processes.
                command.extend(
                    container.env.iter().flat_map(|(key, _)| ["--env".into(), Word::from(key.as_str())]),
                );
                command.push(name.into());
                command.extend(own_words(container));
                Ok(Launch { before, clean: false, exports: exports(container), command })
            }
            Self::Podman { path, options } => {
                let mut command: Vec<Word> = ["run", "--rm"].map(Word::from).to_vec();
                command.insert(0, path.as_str().into());
                command.extend(options.iter().map(|option| Word::from(option.as_str())));
                command.extend(["--name".into(), Word::from(format!("{}-{}", container.name, plan.id.uid))]);
                for bind in &binds {
                    let value = Word::text("type=bind,source=").join(bind.source.clone());
                    let mode = if bind.read_only { ",readonly" } else { "" };
                    command.extend(["--mount".into(), value.then(format!(",target={}{mode}", bind.target))]);
                }
                command.extend(
                    container.env.iter().flat_map(|(key, _)| ["--env".into(), Word::from(key.as_str())]),
                );
                if let Some(user) = container.security.user {
                    command.extend(["--user".into(), Word::from(user.to_string())]);
                }
                if let Some(dir) = &container.working_dir {
                    command.extend(["--workdir".into(), Word::from(dir.as_str())]);
                }
                if let Some(program) = container.command.as_ref().and_then(|words| words.first()) {
                    command.extend(["--entrypoint".into(), Word::from(program.as_str())]);
                }
                command.push(image.into());
                let rest = container.command.iter().flat_map(|words| words.iter().skip(1));
                command.extend(
                    rest.chain(container.args.iter().flatten()).map(|word| Word::from(word.as_str())),
                );
                Ok(Launch { before: vec![], clean: false, exports: exports(container), command })
            }
            Self::Process { bwrap } => process(container, &binds, bwrap, &image, image_prefix),
        }
    }
}

/// A machine's own program, in a view of the file system with the pod's mounts if it has any.
fn process(
    container: &Container,
    binds: &[Bind],
    bwrap: &str,
    image: &str,
    image_prefix: &str,
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
    let root = (!image_prefix.is_empty() && root.is_absolute() && root.is_dir()).then_some(image);
    if binds.is_empty() && root.is_none() && container.working_dir.is_none() {
        return Ok(Launch { before: vec![], clean: true, exports: exports(container), command: own });
    }
    let mut command: Vec<Word> = vec![bwrap.into(), "--die-with-parent".into()];
    let mut before = Vec::new();
    if let Some(root) = root {
        // A private copy: what one pod writes to its image no other one sees.
        let copy = Word::variable(WORK).then(format!("/root-{}", container.name));
        before.push(vec!["cp".into(), "-a".into(), "--".into(), root.into(), copy.clone()]);
        command.extend(["--bind".into(), copy, "/".into()]);
    } else {
        command.extend(["--tmpfs", "/"].map(Word::from));
        for folder in ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/home", "/root"]
        {
            command.extend(["--ro-bind-try", folder, folder].map(Word::from));
        }
        command.extend(["--tmpfs", "/var", "--tmpfs", "/run"].map(Word::from));
    }
    command.extend(["--dev-bind", "/dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"].map(Word::from));
    for bind in binds {
        let flag = if bind.read_only { "--ro-bind" } else { "--bind" };
        command.extend([flag.into(), bind.source.clone(), bind.target.as_str().into()]);
    }
    if let Some(dir) = &container.working_dir {
        command.extend([
            "--dir".into(),
            Word::from(dir.as_str()),
            "--chdir".into(),
            Word::from(dir.as_str()),
        ]);
    } else {
        command.extend(["--chdir", "/"].map(Word::from));
    }
    command.push("--".into());
    command.extend(own);
    Ok(Launch { before, clean: true, exports: exports(container), command })
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

/// Where the image is: as it says itself, else below what the pod names, else below what the site
/// does.
fn image(plan: &Plan, container: &Container, prefix: &str) -> Result<String, PlanError> {
    let image = &container.image;
    let own = plan.annotations.get(IMAGE_ROOT).filter(|own| !own.is_empty());
    if own.is_some_and(|own| {
        own.starts_with('-') || own.contains(|c: char| c.is_control() || c.is_whitespace())
    }) {
        return Err(PlanError::Value(format!("the annotation `{IMAGE_ROOT}`")));
    }
    let prefix = own.map_or(prefix, String::as_str);
    if image.starts_with('/') || image.contains("://") || prefix.is_empty() {
        return Ok(image.clone());
    }
    // A prefix that is a folder needs no slash at its end; a scheme keeps its own.
    let slash = if prefix.starts_with('/') && !prefix.ends_with('/') { "/" } else { "" };
    Ok(format!("{prefix}{slash}{image}"))
}

struct Bind {
    source: Word,
    target: String,
    read_only: bool,
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
    // The usual place is inside `/dev`, which runtimes fill by themselves; only another one is bound.
    if container.message_path != "/dev/termination-log" {
        let source = Word::variable(DIR).then(format!("/{}/{}", folder::messages(), container.name));
        binds.push(Bind { source, target: container.message_path.clone(), read_only: false });
    }
    binds.sort_by(|a, b| a.target.cmp(&b.target));
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
