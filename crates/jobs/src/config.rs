//! What the controller itself is told. What may run is told by `InternalServicesConfig`.

use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The InternalRequest controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The namespace of the private cluster that holds the configuration, the Pipelines and the runs.
    /// Also SERVICE_NAMESPACE.
    pub namespace: String,
    /// The kubeconfig of the private cluster; without it, KUBECONFIG, the pod's account, then the home folder.
    pub kubeconfig: Option<PathBuf>,
    /// The clusters whose requests are served.
    pub remotes: Vec<RemoteConfig>,
    /// How many requests are worked on at once.
    pub workers: usize,
    /// What is kept of the logs of runs.
    pub logs: LogConfig,
    /// Whether events are told on the remote clusters too; they need rights of their own there.
    pub remote_events: bool,
    /// One of several replicas works.
    pub leader_election: LeaderElection,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            namespace: "default".to_owned(),
            kubeconfig: None,
            remotes: Vec::new(),
            workers: 32,
            logs: LogConfig::default(),
            remote_events: false,
            leader_election: LeaderElection::default(),
        }
    }
}

/// A cluster whose requests are served.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoteConfig {
    /// Its name, which is part of what makes a run unique. Controllers that share a namespace must
    /// not share a remote's name. Runs under a name it had before are taken over at the start.
    pub name: String,
    /// Its kubeconfig, read again when it changes.
    #[serde(default)]
    pub kubeconfig: Option<PathBuf>,
    /// Instead: the site whose agent offers its API, reached through a gateway.
    #[serde(default)]
    pub site: Option<String>,
    /// The keys of that site's agents (`sha256:…`); without any, the first that are seen are remembered.
    #[serde(default)]
    pub site_keys: Vec<String>,
}

/// What is kept of the logs of runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Bytes of the end of each step's log that go into the status of the request.
    pub tail_per_step: usize,
    /// Bytes of all of these together.
    pub tail_total: usize,
    /// Bytes of the whole log of a request that are kept on the private cluster, 0 for none.
    pub keep_per_request: usize,
    /// Bytes of all kept logs together; the oldest go first.
    pub keep_total: usize,
    /// Regular expressions of what is taken out besides what looks like a secret.
    pub redact: Vec<String>,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            tail_per_step: 2 * 1024,
            tail_total: 16 * 1024,
            keep_per_request: 256 * 1024,
            keep_total: 16 * 1024 * 1024,
            redact: Vec::new(),
        }
    }
}

/// One of several replicas works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LeaderElection {
    /// Whether there may be other replicas.
    pub enabled: bool,
    /// The name of the lease in the controller's namespace; one for each set of remotes.
    pub id: String,
    /// How long others wait for a silent leader.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub duration: Duration,
    /// How long a leader goes on without renewing.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub renew: Duration,
    /// How often it renews.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub retry: Duration,
}

impl Default for LeaderElection {
    fn default() -> Self {
        Self {
            enabled: false,
            id: "b548bb9d.redhat.com".to_owned(),
            duration: Duration::from_secs(15),
            renew: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// A mistake in the configuration: the setting, dotted, and what is wrong with it.
pub type Mistake = (String, String);

impl Config {
    /// What the types alone cannot refuse.
    pub fn mistakes(&self) -> Vec<Mistake> {
        let mut found = Vec::new();
        let mut wrong = |setting: &str, message: String| found.push((setting.to_owned(), message));
        if self.namespace.is_empty() {
            wrong("namespace", "must not be empty".to_owned());
        }
        if self.workers == 0 {
            wrong("workers", "must be at least 1".to_owned());
        }
        for (index, remote) in self.remotes.iter().enumerate() {
            if crate::names::label_value(&remote.name) != remote.name || remote.name.is_empty() {
                wrong(
                    &format!("remotes.{index}.name"),
                    "must be letters, digits, `-`, `_` and `.`, at most 63".to_owned(),
                );
            }
            if self.remotes[..index].iter().any(|other| other.name == remote.name) {
                wrong(&format!("remotes.{index}.name"), format!("`{}` is there twice", remote.name));
            }
        }
        for (index, remote) in self.remotes.iter().enumerate() {
            if remote.kubeconfig.is_some() == remote.site.is_some() {
                wrong(&format!("remotes.{index}"), "needs either kubeconfig or site".to_owned());
            }
        }
        for (index, pattern) in self.logs.redact.iter().enumerate() {
            if let Err(error) = regex::Regex::new(pattern) {
                wrong(&format!("logs.redact.{index}"), format!("is not a regular expression: {error}"));
            }
        }
        let LeaderElection { duration, renew, retry, .. } = self.leader_election;
        if !(retry < renew && renew < duration) || retry.is_zero() {
            wrong("leader_election", "needs retry < renew < duration".to_owned());
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_found_all_at_once() {
        assert!(Config::default().mistakes().is_empty());
        let remote = |name: &str| RemoteConfig {
            name: name.into(),
            site: Some("s".into()),
            ..RemoteConfig::default()
        };
        let config = Config {
            workers: 0,
            remotes: vec![remote("a"), remote("a"), remote("b/c"), remote("")],
            logs: LogConfig { redact: vec!["(".into()], ..Default::default() },
            leader_election: LeaderElection { renew: Duration::from_mins(1), ..Default::default() },
            ..Config::default()
        };
        let places: Vec<String> = config.mistakes().into_iter().map(|(setting, _)| setting).collect();
        assert_eq!(
            places,
            [
                "workers",
                "remotes.1.name",
                "remotes.2.name",
                "remotes.3.name",
                "logs.redact.0",
                "leader_election"
            ]
        );
    }
}
