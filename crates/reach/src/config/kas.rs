//! What a gateway can be told about the protocol of kas.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tarbet_store::RedisConfig;
use url::Url;

use crate::kas::Prefix;
use crate::kas::redis::DEFAULT_KEY_PREFIX;

/// The longest that the word of GitLab may be used again: a revoked token is dead within a minute.
const LONGEST: Duration = Duration::from_mins(1);

/// Agents and callers that speak the protocol of kas, on the same listeners as all others.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KasSection {
    /// The package names on the wire: `gitlab` or `plural`.
    pub prefix: Prefix,
    /// The GitLab that knows agents and callers. Absent: the sites and users of this gateway.
    pub gitlab: Option<GitlabSection>,
    /// A file with the secret, in base64, of those who call the gRPC services of the API listener.
    pub api_secret_file: Option<PathBuf>,
    /// What is cut off the paths of Kubernetes clients; it begins with a slash.
    pub url_path_prefix: String,
    /// Calls that the bearers of one agent token may make in a minute at one gateway. Each proxied request is
    /// one, so this bounds the requests to a site: a million are some 16,000 a second. (kas allows 40,000.)
    pub calls_per_minute: u32,
    /// The age that an agent's connection may reach; it is asked to move at a fifth of it.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub max_connection_age: Duration,
    /// Replicas of the original that stand beside this gateway and serve the same agents.
    pub beside: Option<BesideSection>,
}

/// Where replicas of the original keep who holds which agent. They are called, and call, through the
/// private listeners, with the secret that all share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BesideSection {
    /// Their Redis.
    pub redis: RedisConfig,
    /// What their keys begin with.
    #[serde(default = "usual_prefix")]
    pub key_prefix: String,
    /// How long what this gateway writes there counts without being written again.
    #[serde(default = "entry_ttl", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub entry_ttl: Duration,
    /// How often it is written again.
    #[serde(default = "entry_refresh", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub entry_refresh: Duration,
    /// How often what others left behind is looked for.
    #[serde(default = "entry_tidy", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub entry_tidy: Duration,
}

impl BesideSection {
    /// Replicas that meet in this Redis, with the usual names and times.
    pub fn at(redis: RedisConfig) -> Self {
        Self {
            redis,
            key_prefix: usual_prefix(),
            entry_ttl: entry_ttl(),
            entry_refresh: entry_refresh(),
            entry_tidy: entry_tidy(),
        }
    }
}

fn usual_prefix() -> String {
    DEFAULT_KEY_PREFIX.to_owned()
}

fn entry_ttl() -> Duration {
    Duration::from_mins(5)
}

fn entry_refresh() -> Duration {
    Duration::from_mins(4)
}

fn entry_tidy() -> Duration {
    Duration::from_mins(10)
}

impl Default for KasSection {
    fn default() -> Self {
        Self {
            prefix: Prefix::default(),
            gitlab: None,
            api_secret_file: None,
            url_path_prefix: "/".into(),
            calls_per_minute: 1_000_000,
            max_connection_age: Duration::from_hours(2),
            beside: None,
        }
    }
}

/// A GitLab that knows agents and callers.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GitlabSection {
    /// Its URL.
    pub address: String,
    /// The URL that people use, for the origin of browsers; the address if absent.
    #[serde(default)]
    pub external_url: Option<String>,
    /// A file with the secret shared with it, in base64.
    pub secret_file: PathBuf,
    /// An authority to trust besides the system's.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// How long its yes is used again; a minute at most.
    #[serde(default = "longest", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub cache: Duration,
    /// How long its no is used again.
    #[serde(default = "short", with = "humantime_serde")]
    #[schemars(with = "String")]
    pub refusal_cache: Duration,
}

fn longest() -> Duration {
    LONGEST
}

fn short() -> Duration {
    Duration::from_secs(10)
}

impl KasSection {
    /// What is cut off paths, with its last slash, which may be left out.
    pub fn path_prefix(&self) -> String {
        with_last_slash(&self.url_path_prefix)
    }

    /// What the types alone cannot refuse: dotted setting and message.
    pub fn mistakes(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut wrong = |setting: &str, message: &str| found.push((setting.to_owned(), message.to_owned()));
        if !self.path_prefix().starts_with('/') {
            wrong("url_path_prefix", "must begin with a slash");
        }
        if self.calls_per_minute == 0 {
            wrong("calls_per_minute", "must be at least 1");
        }
        if self.max_connection_age < Duration::from_secs(10) {
            wrong("max_connection_age", "must be at least 10 s");
        }
        if self
            .beside
            .as_ref()
            .is_some_and(|beside| beside.redis.url.is_some() == beside.redis.sentinel.is_some())
        {
            wrong("beside.redis", "needs either url or sentinel");
        }
        if let Some(beside) = &self.beside {
            // The store's own times are whole seconds.
            if beside.entry_ttl < Duration::from_secs(1) || beside.entry_refresh.is_zero() {
                wrong("beside.entry_refresh", "must be more than nothing, and entry_ttl at least 1 s");
            }
            if beside.entry_refresh >= beside.entry_ttl {
                wrong("beside.entry_refresh", "must be shorter than entry_ttl");
            }
        }
        if let Some(gitlab) = &self.gitlab {
            let is_web =
                |text: &str| Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
            if !is_web(&gitlab.address) {
                wrong("gitlab.address", "must be an http or https URL");
            }
            if gitlab.external_url.as_deref().is_some_and(|url| !is_web(url)) {
                wrong("gitlab.external_url", "must be an http or https URL");
            }
            if gitlab.cache > LONGEST {
                wrong(
                    "gitlab.cache",
                    "must be at most 60 s, so that a revoked token is dead within a minute",
                );
            }
        }
        found
    }
}

/// A path as the original completes it.
pub(crate) fn with_last_slash(path: &str) -> String {
    if path.ends_with('/') { path.to_owned() } else { format!("{path}/") }
}
