//! The orchestrator's settings: Paraglider's own file, key for key, with a few more.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::Error;
use crate::model::Flags;
use crate::tags::{RemoteTags, TagWire};
use crate::trust::{DialTrust, ListenTrust};

/// Everything the orchestrator can be told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct NetsConfig {
    /// Where people and plugins reach it.
    pub server: ServerConfig,
    /// How its listeners prove themselves, and what they ask of callers.
    pub security: ListenTrust,
    /// The clouds. None at all means one local cloud in this process.
    pub cloud_plugins: Vec<PluginConfig>,
    /// Namespaces, and their deployment in each cloud.
    pub namespaces: BTreeMap<String, Vec<DeploymentConfig>>,
    /// Pools that address spaces are given out from.
    #[schemars(with = "Vec<String>")]
    pub address_space: Vec<IpNet>,
    /// The tag service, which is part of this process. It speaks the first generation's messages where a plugin
    /// does, unless `seedTagService` has a port of its own. In Paraglider's file a host that is none of this
    /// machine's is that of a tag service elsewhere.
    pub tag_service: ListenConfig,
    /// A tag service in another process, instead of the one here.
    pub remote_tags: Option<RemoteTags>,
    /// The tag service for clients of the first generation; it needs a port of its own.
    pub seed_tag_service: Option<ListenConfig>,
    /// The key-value service, which is part of this process.
    pub kv_store: ListenConfig,
    /// What is switched on in each cloud.
    pub feature_flags: BTreeMap<String, Flags>,
    /// How old the clouds' reports of used address spaces may be when a new space is chosen.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub space_refresh: Duration,
    /// How long a space or number that was given out is set aside before its cloud must report it.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub space_reserve: Duration,
    /// How long GetSubscribers still tells who followed a tag that was deleted over the tag service's gRPC.
    /// Paraglider's own orchestrator asks for them only then.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub subscriptions_kept: Duration,
    /// How long operations that ended can be looked at.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub operations_kept: Duration,
    /// How long an orchestrator on a shared store may be silent until another one takes over.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub leader_lease: Duration,
}

impl Default for NetsConfig {
    fn default() -> Self {
        Self {
            server: ServerConfig::default(),
            security: ListenTrust::default(),
            cloud_plugins: Vec::new(),
            namespaces: BTreeMap::new(),
            address_space: vec![IpNet::new_assert(std::net::Ipv4Addr::new(10, 0, 0, 0).into(), 8)],
            tag_service: ListenConfig { host: "127.0.0.1".into(), port: 8085 },
            remote_tags: None,
            seed_tag_service: None,
            kv_store: ListenConfig { host: "127.0.0.1".into(), port: 8086 },
            feature_flags: BTreeMap::new(),
            space_refresh: Duration::from_secs(10),
            space_reserve: Duration::from_mins(10),
            subscriptions_kept: crate::tags::SUBSCRIPTIONS_KEPT,
            operations_kept: Duration::from_hours(72),
            leader_lease: Duration::from_secs(6),
        }
    }
}

/// Where people and plugins reach the orchestrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ServerConfig {
    /// Address to listen at.
    pub host: String,
    /// REST.
    #[serde(deserialize_with = "port")]
    pub port: u16,
    /// gRPC.
    #[serde(deserialize_with = "port", alias = "rpcport")]
    pub rpc_port: u16,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self { host: "127.0.0.1".into(), port: 8080, rpc_port: 8081 }
    }
}

/// One listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ListenConfig {
    /// Address to listen at.
    pub host: String,
    /// Port.
    #[serde(deserialize_with = "port")]
    pub port: u16,
}

/// What a cloud plugin that is a process of its own needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct CloudConfig {
    /// The orchestrator's gRPC listener.
    pub orchestrator: ListenConfig,
    /// Further orchestrators on the same store: the one that leads is found.
    pub other_orchestrators: Vec<ListenConfig>,
    /// How to call them.
    pub orchestrator_trust: DialTrust,
    /// How the plugin's listener proves itself, and what it asks of callers.
    pub security: ListenTrust,
    /// The local cloud.
    pub local: crate::local::LocalConfig,
    /// AWS.
    pub aws: crate::clouds::aws::AwsConfig,
    /// Azure.
    pub azure: crate::clouds::azure::AzureConfig,
    /// Google Cloud.
    pub gcp: crate::clouds::GcpConfig,
    /// IBM Cloud.
    pub ibm: crate::clouds::IbmConfig,
}

impl Default for CloudConfig {
    fn default() -> Self {
        Self {
            orchestrator: ListenConfig { host: "127.0.0.1".into(), port: 8081 },
            other_orchestrators: Vec::new(),
            orchestrator_trust: DialTrust::default(),
            security: ListenTrust::default(),
            local: crate::local::LocalConfig::default(),
            aws: crate::clouds::aws::AwsConfig::default(),
            azure: crate::clouds::azure::AzureConfig::default(),
            gcp: crate::clouds::GcpConfig::default(),
            ibm: crate::clouds::IbmConfig::default(),
        }
    }
}

/// A cloud and where its plugin is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PluginConfig {
    /// The cloud's name, in tags and commands.
    pub name: String,
    /// Host of the plugin.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Port of the plugin.
    #[serde(default, deserialize_with = "port", skip_serializing_if = "is_zero")]
    pub port: u16,
    /// Whose messages the plugin speaks. Without this it is of the first generation (`seed`) where
    /// `invDeployment` is given; plugins of Tarbet's speak both, and do more with `today`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<TagWire>,
    /// How to call it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub trust: DialTrust,
    /// A local cloud in this process instead of a plugin elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<crate::local::LocalConfig>,
    /// The first generation's way to name the deployment of the namespace `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inv_deployment: Option<String>,
}

impl PluginConfig {
    /// Whose messages the plugin speaks.
    pub fn wire(&self) -> TagWire {
        let implied = if self.inv_deployment.is_some() { TagWire::Seed } else { TagWire::Today };
        self.wire.unwrap_or(implied)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(port: &u16) -> bool {
    *port == 0
}

fn is_default(trust: &DialTrust) -> bool {
    *trust == DialTrust::default()
}

/// A deployment of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeploymentConfig {
    /// The cloud.
    pub name: String,
    /// The deployment's id in it.
    pub deployment: String,
}

/// Ports are written with and without quotes.
pub(crate) fn port<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Spelling {
        Number(u16),
        Text(String),
    }
    match Spelling::deserialize(deserializer)? {
        Spelling::Number(number) => Ok(number),
        Spelling::Text(text) => {
            text.parse().map_err(|_| serde::de::Error::custom(format!("`{text}` is not a port")))
        }
    }
}

impl NetsConfig {
    /// Reads Paraglider's own file, of either generation, and says which keys in it mean nothing here: the
    /// original skips such keys too.
    pub fn from_paraglider(path: &Path) -> Result<(Self, Vec<String>), Error> {
        let unreadable = |cause: String| Error::setting(path.display().to_string(), cause);
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
        // The lines around a mistake are not quoted: a credential may stand there.
        let tree =
            serde_saphyr::from_str(&text).map_err(|error| unreadable(error.without_snippet().to_string()))?;
        let (config, skipped) = Self::lenient(tree).map_err(unreadable)?;
        Ok((config.completed(), skipped))
    }

    /// Reads settings without the keys that are not known, and names those.
    fn lenient(mut tree: serde_json::Value) -> Result<(Self, Vec<String>), String> {
        let mut skipped = Vec::new();
        loop {
            let error = match serde_path_to_error::deserialize::<_, Self>(&tree) {
                Ok(config) => return Ok((config, skipped)),
                Err(error) => error,
            };
            let path: Vec<String> = error.path().iter().map(ToString::to_string).collect();
            let is_unknown = error.inner().to_string().starts_with("unknown field");
            if !is_unknown || !take_out(&mut tree, &path) {
                return Err(format!("{}: {}", path.join("."), error.inner()));
            }
            skipped.push(path.join("."));
        }
    }

    /// Fills in what other keys imply: the default cloud, and the first generation's deployments.
    #[must_use]
    pub fn completed(mut self) -> Self {
        if self.cloud_plugins.is_empty() {
            self.cloud_plugins.push(PluginConfig {
                name: "local".into(),
                host: String::new(),
                port: 0,
                wire: None,
                trust: DialTrust::default(),
                local: Some(crate::local::LocalConfig::default()),
                inv_deployment: None,
            });
        }
        for plugin in &self.cloud_plugins {
            let named = self.namespaces.values().flatten().any(|deployment| deployment.name == plugin.name);
            let implied =
                plugin.inv_deployment.clone().or_else(|| plugin.local.as_ref().map(|_| plugin.name.clone()));
            if let Some(deployment) = implied.filter(|_| !named) {
                let default = self.namespaces.entry("default".into()).or_default();
                default.push(DeploymentConfig { name: plugin.name.clone(), deployment });
            }
        }
        self
    }

    /// Every mistake: the setting and what is wrong with it.
    pub fn mistakes(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        if let Err(error) = crate::plan::space::AddressBook::new(&self.address_space) {
            found.push(("addressSpace".into(), error.to_string()));
        }
        let mut names = std::collections::BTreeSet::new();
        for (index, plugin) in self.cloud_plugins.iter().enumerate() {
            let at = |field: &str| format!("cloudPlugins.{index}.{field}");
            if let Err(message) = part(&plugin.name) {
                found.push((at("name"), message));
            } else if !names.insert(&plugin.name) {
                found.push((at("name"), format!("`{}` is named twice", plugin.name)));
            }
            if plugin.local.is_none() && (plugin.host.is_empty() || plugin.port == 0) {
                found.push((at("host"), "a plugin needs host and port, or `local`".into()));
            }
        }
        for (namespace, deployments) in &self.namespaces {
            if let Err(message) = part(namespace) {
                found.push((format!("namespaces.{namespace}"), message));
            }
            for (index, deployment) in deployments.iter().enumerate() {
                let known = self.cloud_plugins.iter().any(|plugin| plugin.name == deployment.name);
                if !known && !self.cloud_plugins.is_empty() {
                    let message = format!("`{}` is none of cloudPlugins", deployment.name);
                    found.push((format!("namespaces.{namespace}.{index}.name"), message));
                }
            }
        }
        found
    }
}

/// Takes the key at the end of a path out of a tree, and says whether it was there.
fn take_out(tree: &mut serde_json::Value, path: &[String]) -> bool {
    let Some((key, above)) = path.split_last() else { return false };
    let inner = above.iter().try_fold(tree, |node, step| match node {
        serde_json::Value::Array(items) => {
            step.trim_matches(['[', ']']).parse::<usize>().ok().and_then(|index| items.get_mut(index))
        }
        node => node.get_mut(step),
    });
    inner.and_then(serde_json::Value::as_object_mut).is_some_and(|map| map.remove(key).is_some())
}

/// Namespaces and clouds are parts of tags, so they hold no dot.
fn part(name: &str) -> Result<(), String> {
    crate::plan::rule::name(name)?;
    if name.contains('.') { Err(format!("`{name}` must not contain a dot")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_yaml_is_not_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("paraglider.yaml");
        std::fs::write(&path, "password: hunter2\nbroken: [\n").unwrap();
        let error = NetsConfig::from_paraglider(&path).unwrap_err();
        let said = format!("{error} {error:?}");
        assert!(said.contains("line ") && !said.contains("hunter2"), "{said}");
    }

    #[test]
    fn paragliders_own_files_are_understood() {
        let today = "
server: {host: localhost, port: 8080, rpcPort: '8081'}
cloudPlugins:
  - {name: gcp, host: localhost, port: '8082'}
  - {name: azure, host: localhost, port: 8083}
namespaces:
  default:
    - {name: gcp, deployment: projects/p}
    - {name: azure, deployment: /subscriptions/s/resourceGroups/r}
addressSpace: [10.0.0.0/8, 172.16.0.0/12]
tagService: {host: localhost, port: 8085}
kvStore: {host: localhost, port: 8086}
featureFlags:
  azure: {attachResourceEnabled: true}
";
        let config: NetsConfig = serde_saphyr::from_str(today).unwrap();
        let config = config.completed();
        assert!(config.mistakes().is_empty(), "{:?}", config.mistakes());
        assert_eq!((config.server.rpc_port, config.cloud_plugins[0].port), (8081, 8082));
        assert!(config.feature_flags["azure"].attach_resource_enabled);

        let seed = "
server: {host: localhost, port: 8080, rpcPort: 8081}
tagService: {host: localhost, port: 8085}
cloudPlugins:
  - {name: gcp, host: localhost, port: 8082, invDeployment: projects/p}
";
        let config: NetsConfig = serde_saphyr::from_str(seed).unwrap();
        assert_eq!(config.cloud_plugins[0].wire(), TagWire::Seed, "its plugins are of its generation");
        assert_eq!(config.completed().namespaces["default"][0].deployment, "projects/p");
        let said: NetsConfig = serde_saphyr::from_str(&seed.replace("invD", "wire: today, invD")).unwrap();
        assert_eq!(said.cloud_plugins[0].wire(), TagWire::Today);
    }

    #[test]
    fn keys_of_other_versions_are_skipped_and_named() {
        let text = "
server: {host: localhost, port: 8080, rpcPort: 8081, scheme: http}
cloudPlugins:
  - {name: gcp, host: localhost, port: 8082}
  - {name: azure, host: localhost, port: 8083, region: westus}
featureFlags: {azure: {teleportEnabled: true, attachResourceEnabled: true}}
logLevel: debug
";
        let (config, mut skipped) = NetsConfig::lenient(serde_saphyr::from_str(text).unwrap()).unwrap();
        skipped.sort();
        assert_eq!(
            skipped,
            ["cloudPlugins.[1].region", "featureFlags.azure.teleportEnabled", "logLevel", "server.scheme"]
        );
        assert_eq!((config.server.port, config.cloud_plugins.len()), (8080, 2));
        assert!(config.feature_flags["azure"].attach_resource_enabled);
        let wrong = serde_saphyr::from_str("server: {host: localhost, port: many, rpcPort: 8081}").unwrap();
        assert!(NetsConfig::lenient(wrong).unwrap_err().starts_with("server.port: "));
    }

    #[test]
    fn nothing_is_one_local_cloud_and_mistakes_are_named() {
        let config = NetsConfig::default().completed();
        assert_eq!(config.namespaces["default"][0].name, "local");
        assert!(config.mistakes().is_empty());
        let bad = "
cloudPlugins: [{name: a.b, host: x, port: 1}, {name: c}]
addressSpace: [10.0.0.0/8, 10.1.0.0/16]
namespaces: {default: [{name: d, deployment: x}]}
";
        let config: NetsConfig = serde_saphyr::from_str(bad).unwrap();
        let fields: Vec<_> = config.mistakes().into_iter().map(|(field, _)| field).collect();
        assert_eq!(
            fields,
            ["addressSpace", "cloudPlugins.0.name", "cloudPlugins.1.host", "namespaces.default.0.name"]
        );
    }
}
