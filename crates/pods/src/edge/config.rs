//! What the API server and the plugins can be told: interLink's keys and variables, by their own
//! names.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;

use crate::interlink::PluginBody;
use crate::plan::Policy;
use crate::slurm::flags::Flavor;
use crate::wire::Taint;

/// Variables by name, as the process was given them.
pub type Environment = BTreeMap<String, String>;

/// The API server and the plugins. One file may hold the settings of all parts, so keys that
/// belong to others are passed over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "PascalCase")]
pub struct EdgeConfig {
    /// Where the API server listens: an address, or `unix:///path`. Loopback unless told.
    pub interlink_address: String,
    /// Its port.
    #[serde(deserialize_with = "text_or_number")]
    pub interlink_port: String,
    /// Where the plugin is: `http://host` or `unix:///path`.
    #[serde(rename = "SidecarURL")]
    pub sidecar_url: String,
    /// The plugin's port; 4000 for Docker and 4001 for Slurm unless told.
    #[serde(deserialize_with = "text_or_number")]
    pub sidecar_port: String,
    /// The form in which the API server sends pods to the plugin: `object`, `list` as plugins before 0.5 and
    /// the original's for Docker want them, or `auto` to find out.
    pub plugin_body: PluginBody,
    /// Where a plugin listens instead of a port: `unix:///path`.
    pub socket: String,
    /// Where a plugin listens, if not on loopback.
    pub sidecar_address: String,
    /// Whether contents of ConfigMaps, Secrets and the like are given to containers.
    pub export_pod_data: bool,
    /// Where pods' files are kept. Jobs of Slurm must see it, since they leave their words, logs and exit
    /// codes there.
    pub data_root_folder: PathBuf,
    /// A file of tokens, one a line; callers must show one of them.
    pub accepted_tokens_file: Option<PathBuf>,
    /// Addresses and networks from which calls are taken, besides this machine; all if empty. An API
    /// server of the original shows a plugin neither token nor certificate: naming its address here
    /// lets the plugin listen where it can be reached. What they say travels in the clear.
    pub allowed_callers: Vec<String>,
    /// TLS of the listener.
    #[serde(rename = "TLS")]
    pub tls: Tls,
    /// What pods may ask for beyond the ordinary.
    pub policy: Policy,
    /// An account for the API server instead of one that a node sends.
    pub custom_kubeconf: Option<PathBuf>,

    /// sbatch.
    pub sbatch_path: PathBuf,
    /// scancel.
    pub scancel_path: PathBuf,
    /// squeue.
    pub squeue_path: PathBuf,
    /// srun, for commands in running jobs.
    pub srun_path: PathBuf,
    /// Lines before everything else in a job's script.
    pub command_prefix: String,
    /// The shell of scripts.
    pub bash_path: String,
    /// Whether volumes lie in the data root (the variable `SHARED_FS`); else they travel inside the script to a
    /// folder of the job's machine.
    #[serde(rename = "SharedFS")]
    pub shared_fs: bool,
    /// `singularity`, `apptainer`, `enroot`, `podman` or `process`.
    pub container_runtime: String,
    /// Singularity or Apptainer.
    pub singularity_path: String,
    /// Its options before all others.
    #[serde(deserialize_with = "words")]
    pub singularity_default_options: Vec<String>,
    /// Enroot.
    pub enroot_path: String,
    /// Its options before all others.
    #[serde(deserialize_with = "words")]
    pub enroot_default_options: Vec<String>,
    /// Podman.
    pub podman_path: String,
    /// bubblewrap, for plain processes with mounts.
    pub bwrap_path: String,
    /// What images without a scheme are below. Where it is empty, singularity, apptainer and enroot take them from
    /// Docker's registry (`docker://`), except files such as `a.sif`.
    pub image_prefix: String,
    /// Whether jobs and their containers reach the outside through a login node.
    pub tsocks: bool,
    /// The library for it, which must fit the C library of images.
    pub tsocks_path: PathBuf,
    /// The login node for it.
    pub tsocks_login_node: String,
    /// Named sets of options of sbatch.
    pub flavors: BTreeMap<String, Flavor>,
    /// The one of pods that name none.
    pub default_flavor: String,
    /// The user jobs run as; needs a plugin that runs as root.
    #[serde(rename = "DefaultUID")]
    pub default_uid: Option<u32>,
    /// Whether a pod becomes one job (`pod`) or each of its containers one (`container`). Containers
    /// in jobs of their own share empty folders only where jobs see the data root.
    pub job_per: JobPer,
    /// Whether probes are asked and hooks run in jobs; each is a command in the job.
    pub enable_probes: bool,
    /// sinfo, for `/system-info` and the resources told with each ping.
    pub sinfo_path: PathBuf,
    /// A program that writes the answer to a ping as JSON (`resources`, `taints`), instead of what
    /// sinfo says.
    pub resource_script_path: Option<PathBuf>,
    /// Seconds between two questions to Slurm for all jobs.
    pub status_seconds: u64,
    /// Seconds a job has between SIGTERM and SIGKILL; a little less than Slurm's own KillWait.
    pub kill_wait_seconds: u64,
    /// Taints for the node, told with each ping.
    #[schemars(with = "Option<serde_json::Value>")]
    pub taints: Option<Vec<Taint>>,

    /// The Docker daemon: `unix:///path` or `tcp://address:port`.
    pub docker_host: String,
    /// The network of pods: `bridge`, `none` or one of Docker's own.
    pub docker_network: String,
    /// Name servers of pods; Docker's own if empty.
    #[serde(rename = "DockerDNS")]
    pub docker_dns: Vec<String>,
    /// When images are pulled, whatever pods say: `Always`, `IfNotPresent` or `Never`.
    pub image_pull_policy: String,

    /// Keys of interLink's other parts.
    #[serde(flatten, skip_serializing)]
    #[schemars(skip)]
    pub others: BTreeMap<String, serde_json::Value>,
}

/// What becomes a job of Slurm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum JobPer {
    /// A pod with all its containers.
    #[default]
    Pod,
    /// Each container.
    Container,
}

/// TLS of a listener.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "PascalCase")]
pub struct Tls {
    /// Whether it is spoken.
    pub enabled: bool,
    /// The certificate.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// Whose certificates callers must have.
    #[serde(rename = "CACertFile")]
    pub ca_cert_file: Option<PathBuf>,
}

impl Default for EdgeConfig {
    fn default() -> Self {
        let options = ["--nv", "--no-eval", "--containall"].map(str::to_owned).to_vec();
        Self {
            interlink_address: String::new(),
            interlink_port: "3000".into(),
            sidecar_url: "http://127.0.0.1".into(),
            sidecar_port: String::new(),
            plugin_body: PluginBody::Auto,
            socket: String::new(),
            sidecar_address: String::new(),
            export_pod_data: true,
            data_root_folder: ".interlink".into(),
            accepted_tokens_file: None,
            allowed_callers: Vec::new(),
            tls: Tls::default(),
            policy: Policy::default(),
            custom_kubeconf: None,
            sbatch_path: "sbatch".into(),
            scancel_path: "scancel".into(),
            squeue_path: "squeue".into(),
            srun_path: "srun".into(),
            command_prefix: String::new(),
            bash_path: "/bin/bash".into(),
            shared_fs: false,
            container_runtime: "singularity".into(),
            singularity_path: "singularity".into(),
            singularity_default_options: options,
            enroot_path: "enroot".into(),
            enroot_default_options: Vec::new(),
            podman_path: "podman".into(),
            bwrap_path: "bwrap".into(),
            image_prefix: String::new(),
            tsocks: false,
            tsocks_path: PathBuf::new(),
            tsocks_login_node: String::new(),
            flavors: BTreeMap::new(),
            default_flavor: String::new(),
            default_uid: None,
            job_per: JobPer::Pod,
            enable_probes: true,
            sinfo_path: "sinfo".into(),
            resource_script_path: None,
            status_seconds: 5,
            kill_wait_seconds: 25,
            taints: None,
            docker_host: "unix:///var/run/docker.sock".into(),
            docker_network: "bridge".into(),
            docker_dns: Vec::new(),
            image_pull_policy: String::new(),
            others: BTreeMap::new(),
        }
    }
}

/// Which part reads the settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The API server.
    Interlink,
    /// The plugin for Docker.
    Docker,
    /// The plugin for Slurm.
    Slurm,
    /// The plugin for plain processes.
    Process,
}

/// Where the file is looked for when nobody says.
const PLACES: &[&str] = &["./kustomizations/InterLinkConfig.yaml", "/etc/interlink/InterLinkConfig.yaml"];
const SLURM_PLACES: &[&str] = &["/etc/interlink/SlurmConfig.yaml"];

/// Puts a file and variables over `base`. `named` is a file that must be there.
pub fn load(
    base: EdgeConfig,
    part: Part,
    named: Option<&Path>,
    environment: &Environment,
) -> Result<EdgeConfig, Problem> {
    let variable = |name: &str| environment.get(name).filter(|value| !value.is_empty());
    let slurm = part == Part::Slurm;
    let file = named
        .map(Path::to_owned)
        .or_else(|| variable("SLURMCONFIGPATH").filter(|_| slurm).map(PathBuf::from))
        .or_else(|| variable("INTERLINKCONFIGPATH").map(PathBuf::from))
        .or_else(|| {
            let places = SLURM_PLACES.iter().filter(|_| slurm).chain(PLACES);
            places.map(PathBuf::from).find(|path| path.is_file())
        });
    let mut config = match file {
        Some(path) => merge(&base, &path)?,
        None => base,
    };
    crate::keys::tell(config.others.keys(), environment.keys());
    overwrite(&mut config, part, &variable)?;
    Ok(config)
}

fn merge(base: &EdgeConfig, path: &Path) -> Result<EdgeConfig, Problem> {
    let wrong = |cause: String| {
        Problem::new(&ground::CONFIG_UNREADABLE, format!("The file {} cannot be used.", path.display()))
            .because(cause)
    };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    // The lines around a mistake are not quoted: a credential may stand there.
    let over: serde_json::Value =
        serde_saphyr::from_str(&text).map_err(|error| wrong(error.without_snippet().to_string()))?;
    let mut whole = serde_json::to_value(base).map_err(|error| wrong(error.to_string()))?;
    match (whole.as_object_mut(), over) {
        (Some(whole), serde_json::Value::Object(over)) => {
            whole.extend(over.into_iter().filter(|(_, value)| !value.is_null()));
        }
        (_, serde_json::Value::Null) => {}
        _ => return Err(wrong("it is not a map of keys to values".into())),
    }
    serde_path_to_error::deserialize(whole).map_err(|error| wrong(error.to_string()))
}

/// interLink's variables win over its file.
fn overwrite<'a>(
    config: &mut EdgeConfig,
    part: Part,
    variable: &impl Fn(&str) -> Option<&'a String>,
) -> Result<(), Problem> {
    let put = |name: &str, target: &mut String| {
        if let Some(value) = variable(name) {
            target.clone_from(value);
        }
    };
    let path = |name: &str, target: &mut PathBuf| {
        if let Some(value) = variable(name) {
            *target = value.into();
        }
    };
    let flag = |name: &str, target: &mut bool| -> Result<(), Problem> {
        match variable(name).map(|value| value.to_ascii_lowercase()).as_deref() {
            None => {}
            Some("true" | "1") => *target = true,
            Some("false" | "0") => *target = false,
            Some(other) => {
                let message = format!("The variable {name} is `{other}`.");
                return Err(Problem::new(&ground::CONFIG_INVALID, message).because("it takes true or false"));
            }
        }
        Ok(())
    };
    if part == Part::Interlink {
        put("INTERLINKURL", &mut config.interlink_address);
    }
    put("INTERLINKPORT", &mut config.interlink_port);
    put("SIDECARURL", &mut config.sidecar_url);
    put("SIDECARPORT", &mut config.sidecar_port);
    path("SBATCHPATH", &mut config.sbatch_path);
    path("SCANCELPATH", &mut config.scancel_path);
    path("SQUEUEPATH", &mut config.squeue_path);
    path("SINFOPATH", &mut config.sinfo_path);
    put("SINGULARITYPATH", &mut config.singularity_path);
    path("TSOCKSPATH", &mut config.tsocks_path);
    flag("TSOCKS", &mut config.tsocks)?;
    flag("SHARED_FS", &mut config.shared_fs)?;
    put("DOCKER_HOST", &mut config.docker_host);
    if let Some(path) = variable("CUSTOMKUBECONF") {
        config.custom_kubeconf = Some(path.into());
    }
    Ok(())
}

/// The variables that Slurm's programs need; nothing else of a plugin's reaches jobs.
pub(super) fn for_slurm(environment: &Environment) -> Vec<(OsString, OsString)> {
    let needed = ["PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "KRB5CCNAME", "LD_LIBRARY_PATH"];
    let wanted =
        |name: &str| needed.contains(&name) || name == "SLURM_CONF" || name.starts_with("SLURM_CONF_");
    environment
        .iter()
        .filter(|(name, _)| wanted(name))
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

fn text_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::String(text) => Ok(text),
        serde_json::Value::Number(number) => Ok(number.to_string()),
        serde_json::Value::Null => Ok(String::new()),
        other => Err(serde::de::Error::custom(format!("expected a port, found `{other}`"))),
    }
}

/// A list, or one line of words.
fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        List(Vec<String>),
        Line(String),
    }
    Ok(match Either::deserialize(deserializer)? {
        Either::List(list) => list,
        Either::Line(line) => line.split_whitespace().map(str::to_owned).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "InterlinkURL: http://edge\nSidecarURL: http://localhost\nInterlinkPort: \"3100\"\nSidecarPort: 4100\n\
        SbatchPath: /opt/sbatch\nScancelPath: /opt/scancel\nVKTokenFile: /t\nCommandPrefix: module load x\nExportPodData: false\n\
        DataRootFolder: /data/\nServiceAccount: interlink\nNamespace: vk\nTsocks: true\nTsocksPath: /lib/t.so\n\
        TsocksLoginNode: login\nSingularityDefaultOptions: --nv --cleanenv\nFlavors:\n  big: {CPUDefault: 8, MemoryDefault: 16Gi, UID: 7, SlurmFlags: [--partition=big]}\n";

    fn loaded(part: Part, variables: &[(&str, &str)]) -> Result<EdgeConfig, Problem> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("InterLinkConfig.yaml");
        std::fs::write(&path, FILE).unwrap();
        let environment = variables.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
        load(EdgeConfig::default(), part, Some(&path), &environment)
    }

    #[test]
    fn the_keys_of_the_original_are_read() {
        let config = loaded(Part::Slurm, &[]).unwrap();
        assert_eq!((config.interlink_port.as_str(), config.sidecar_port.as_str()), ("3100", "4100"));
        assert_eq!(config.sbatch_path, Path::new("/opt/sbatch"));
        assert_eq!(config.scancel_path, Path::new("/opt/scancel"));
        assert_eq!(config.sidecar_url, "http://localhost");
        assert_eq!(config.data_root_folder, Path::new("/data/"));
        assert_eq!(config.tsocks_path, Path::new("/lib/t.so"));
        assert_eq!(config.tsocks_login_node, "login");
        assert_eq!(config.command_prefix, "module load x");
        assert!(!config.export_pod_data && config.tsocks);
        assert_eq!(config.singularity_default_options, ["--nv", "--cleanenv"]);
        let big = &config.flavors["big"];
        assert_eq!(
            (big.cpu_default, big.uid, big.memory_default.as_deref()),
            (Some(8), Some(7), Some("16Gi"))
        );
        assert!(config.others.contains_key("VKTokenFile"), "keys of other parts are passed over");
    }

    #[test]
    fn a_file_that_is_no_yaml_is_not_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("InterLinkConfig.yaml");
        std::fs::write(&path, "Token: hunter2\nbroken: [\n").unwrap();
        let problem =
            load(EdgeConfig::default(), Part::Slurm, Some(&path), &Environment::default()).unwrap_err();
        let said = format!("{problem} {problem:?}");
        assert!(said.contains("line ") && !said.contains("hunter2"), "{said}");
    }

    #[test]
    fn the_shipped_example_is_sound() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../deploy/examples/interlink/InterLinkConfig.yaml");
        let config = load(EdgeConfig::default(), Part::Slurm, Some(&root), &Environment::new()).unwrap();
        assert_eq!((config.default_flavor.as_str(), config.sidecar_port.as_str()), ("default", "4000"));
        assert_eq!(config.policy, Policy::default());
    }

    #[test]
    fn variables_win_over_the_file() {
        let variables = [
            ("INTERLINKURL", "127.0.0.9"),
            ("INTERLINKPORT", "1"),
            ("SIDECARURL", "http://s"),
            ("SIDECARPORT", "2"),
            ("SBATCHPATH", "/b"),
            ("SCANCELPATH", "/c"),
            ("SHARED_FS", "true"),
            ("CUSTOMKUBECONF", "/k"),
            ("TSOCKS", "false"),
            ("TSOCKSPATH", "/l"),
        ];
        let config = loaded(Part::Interlink, &variables).unwrap();
        assert_eq!((config.interlink_address.as_str(), config.interlink_port.as_str()), ("127.0.0.9", "1"));
        assert_eq!((config.sidecar_url.as_str(), config.sidecar_port.as_str()), ("http://s", "2"));
        assert_eq!((config.sbatch_path, config.scancel_path), ("/b".into(), "/c".into()));
        assert!(config.shared_fs && !config.tsocks);
        assert_eq!((config.tsocks_path, config.custom_kubeconf), ("/l".into(), Some("/k".into())));
        assert!(loaded(Part::Slurm, &[("TSOCKS", "perhaps")]).is_err());
    }
}
