//! The configuration file of kas, so that a gateway can be dropped in for one.
//!
//! Every key of the original is accepted. Those that have no effect here are named by
//! [`KasConfig::warnings`], because a key that is silently ignored is a trap. A key that the original
//! does not have is an error. [`own_url`] reads the environment that goes with it.

mod apply;
mod listen;
mod own_url;
mod redis;
mod span;

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;

pub use self::listen::{
    AgentListen, ApiListen, KubernetesListen, Network, ObservabilityListen, PrivateApiListen,
};
pub use self::own_url::{OwnUrl, OwnUrlError, OwnUrlSettings, own_url};
pub use self::redis::{RedisConfig, RedisSentinel, RedisServer, RedisTls};
pub use self::span::Span;
use super::prefix::Prefix;
use crate::config::with_last_slash;

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KasConfigError {
    /// It is not YAML, or holds a key or value that kas does not know: where, and what was expected there. What
    /// stands there is not told: a password may have got into the wrong line.
    #[error("the kas configuration cannot be read: {0}")]
    Read(String),
    /// Keys that do not go together.
    #[error("the kas configuration is contradictory: {0}")]
    Contradiction(String),
}

/// The whole file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KasConfig {
    /// Who checks tokens. Absent: our own store does.
    pub gitlab: Option<GitlabConfig>,
    /// Everything about agents.
    pub agent: AgentConfig,
    /// Metrics, probes, logs, traces.
    pub observability: ObservabilityConfig,
    /// Has no effect: nothing here reads repositories.
    gitaly: Option<IgnoredAny>,
    /// Where replicas meet. Absent: the embedded store.
    pub redis: Option<RedisConfig>,
    /// Where GitLab calls.
    pub api: Option<ApiConfig>,
    /// Where other gateways call.
    pub private_api: Option<PrivateApiConfig>,
    /// Only in the fork, which has no `gitlab`.
    pub plural_url: Option<String>,
}

/// `gitlab`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GitlabConfig {
    /// Its URL.
    pub address: String,
    /// The URL that people use, for the origin of browsers.
    pub external_url: Option<String>,
    /// The shared secret, in base64.
    pub authentication_secret_file: PathBuf,
    /// An authority to trust besides the system's.
    pub ca_certificate_file: Option<PathBuf>,
    api_rate_limit: Option<IgnoredAny>,
}

/// `agent`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// Where agents dial in.
    pub listen: AgentListen,
    configuration: Option<IgnoredAny>,
    gitops: Option<IgnoredAny>,
    /// The Kubernetes API proxy; off when absent.
    pub kubernetes_api: Option<KubernetesApiConfig>,
    remote_development: Option<IgnoredAny>,
    /// How long a token that was good may be believed.
    pub info_cache_ttl: Span,
    /// How long a token that was refused is refused without asking.
    pub info_cache_error_ttl: Span,
    /// How long Redis keeps what is not refreshed.
    pub redis_conn_info_ttl: Span,
    /// How often it is refreshed.
    pub redis_conn_info_refresh: Span,
    /// How often what others left behind is removed.
    pub redis_conn_info_gc: Span,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            listen: AgentListen::default(),
            configuration: None,
            gitops: None,
            kubernetes_api: None,
            remote_development: None,
            info_cache_ttl: Span::seconds(300),
            info_cache_error_ttl: Span::seconds(60),
            redis_conn_info_ttl: Span::seconds(300),
            redis_conn_info_refresh: Span::seconds(240),
            redis_conn_info_gc: Span::seconds(600),
        }
    }
}

/// `agent.kubernetes_api`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KubernetesApiConfig {
    /// Where Kubernetes clients come in.
    pub listen: KubernetesListen,
    /// What is cut off paths. The original completes its last slash.
    pub url_path_prefix: String,
    /// How long an allowed caller may be believed.
    pub allowed_agent_cache_ttl: Span,
    /// How long a refused caller is refused without asking.
    pub allowed_agent_cache_error_ttl: Span,
}

impl Default for KubernetesApiConfig {
    fn default() -> Self {
        Self {
            listen: KubernetesListen::default(),
            url_path_prefix: "/".into(),
            allowed_agent_cache_ttl: Span::seconds(60),
            allowed_agent_cache_error_ttl: Span::seconds(10),
        }
    }
}

/// `observability`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObservabilityConfig {
    usage_reporting_period: Option<IgnoredAny>,
    /// Where probes and Prometheus call.
    pub listen: ObservabilityListen,
    /// The path of the metrics.
    pub prometheus: UrlPath,
    /// Where traces go.
    pub tracing: Option<TracingConfig>,
    sentry: Option<IgnoredAny>,
    /// What is logged.
    pub logging: LoggingConfig,
    google_profiler: Option<IgnoredAny>,
    /// The path of the liveness probe.
    pub liveness_probe: UrlPath,
    /// The path of the readiness probe.
    pub readiness_probe: UrlPath,
}

/// A path, if it is not the usual one.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UrlPath {
    /// The path.
    pub url_path: Option<String>,
}

/// `observability.tracing`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracingConfig {
    /// The collector, by OTLP over HTTP.
    pub otlp_endpoint: String,
    /// A token for it.
    pub otlp_token_secret_file: Option<PathBuf>,
    /// An authority to trust besides the system's.
    pub otlp_ca_certificate_file: Option<PathBuf>,
}

/// `observability.logging`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoggingConfig {
    /// How much is logged.
    pub level: LogLevel,
    grpc_level: Option<IgnoredAny>,
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What an operator wants to know.
    #[default]
    Info,
    /// More than that.
    Debug,
    /// What may become a problem.
    Warn,
    /// Problems.
    Error,
}

/// `api`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiConfig {
    /// The listener.
    pub listen: ApiListen,
}

/// `private_api`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrivateApiConfig {
    /// The listener.
    pub listen: PrivateApiListen,
}

/// What is wrong, and where, in words that hold no value of the file.
fn mistake(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error as Wrong;
    let what = match error.without_snippet() {
        Wrong::SerdeUnknownField { field, .. } if is_name(field) => format!("`{field}` is no key of kas"),
        Wrong::SerdeUnknownField { .. } => "there is a key that kas does not have".into(),
        Wrong::SerdeMissingField { field, .. } => format!("`{field}` is missing"),
        Wrong::SerdeUnknownVariant { expected, .. } => format!("expected one of {}", expected.join(", ")),
        Wrong::SerdeInvalidType { expected, .. } | Wrong::SerdeInvalidValue { expected, .. } => {
            format!("expected {expected}")
        }
        Wrong::Unexpected { expected, .. } | Wrong::InvalidScalar { ty: expected, .. } => {
            format!("expected {expected}")
        }
        _ => "it is not YAML, or has another shape than that of kas".into(),
    };
    match error.location() {
        Some(place) => format!("line {}, column {}: {what}", place.line(), place.column()),
        None => what,
    }
}

/// Whether it looks like a key; one that was run together with its value does not.
fn is_name(key: &str) -> bool {
    key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

impl KasConfig {
    /// Reads the text of a file.
    pub fn parse(text: &str) -> Result<Self, KasConfigError> {
        let config: Self =
            serde_saphyr::from_str(text).map_err(|error| KasConfigError::Read(mistake(&error)))?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), KasConfigError> {
        let contradiction = |text: &str| Err(KasConfigError::Contradiction(text.into()));
        if self.gitlab.is_some() && self.plural_url.is_some() {
            return contradiction("`gitlab` and `plural_url` belong to different families");
        }
        if let Some(redis) = &self.redis
            && redis.server.is_some() == redis.sentinel.is_some()
        {
            return contradiction("`redis` needs either `server` or `sentinel`");
        }
        if self.agent.redis_conn_info_refresh.get() >= self.agent.redis_conn_info_ttl.get() {
            return contradiction(
                "`agent.redis_conn_info_refresh` must be shorter than `agent.redis_conn_info_ttl`",
            );
        }
        for (name, certificate, key) in self.pairs() {
            if certificate != key {
                return Err(KasConfigError::Contradiction(format!(
                    "`{name}` needs both `certificate_file` and `key_file`, or neither"
                )));
            }
        }
        if let Some(api) = &self.agent.kubernetes_api
            && !with_last_slash(&api.url_path_prefix).starts_with('/')
        {
            return contradiction("`agent.kubernetes_api.url_path_prefix` must begin with a slash");
        }
        Ok(())
    }

    fn pairs(&self) -> Vec<(&'static str, bool, bool)> {
        let mut pairs = Vec::new();
        let mut add = |name, certificate: &Option<PathBuf>, key: &Option<PathBuf>| {
            pairs.push((name, certificate.is_some(), key.is_some()));
        };
        add("agent.listen", &self.agent.listen.certificate_file, &self.agent.listen.key_file);
        let observability = &self.observability.listen;
        add("observability.listen", &observability.certificate_file, &observability.key_file);
        if let Some(api) = &self.agent.kubernetes_api {
            add("agent.kubernetes_api.listen", &api.listen.certificate_file, &api.listen.key_file);
        }
        if let Some(api) = &self.api {
            add("api.listen", &api.listen.certificate_file, &api.listen.key_file);
        }
        if let Some(api) = &self.private_api {
            add("private_api.listen", &api.listen.certificate_file, &api.listen.key_file);
        }
        if let Some(redis) = &self.redis {
            add("redis.tls", &redis.tls.certificate_file, &redis.tls.key_file);
        }
        pairs
    }

    /// The package names its agents use.
    pub fn prefix(&self) -> Prefix {
        if self.plural_url.is_some() { Prefix::Plural } else { Prefix::Gitlab }
    }

    /// How long each listener goes on accepting after the process is told to stop.
    fn listen_graces(&self) -> Vec<(&'static str, Duration)> {
        let usual = Span::seconds(5);
        let mut graces = vec![("agent.listen", self.agent.listen.listen_grace_period.get())];
        if let Some(api) = &self.agent.kubernetes_api {
            graces.push(("agent.kubernetes_api.listen", api.listen.listen_grace_period.get()));
        }
        if let Some(api) = &self.api {
            graces.push(("api.listen", api.listen.listen_grace_period.unwrap_or(usual).get()));
        }
        if let Some(api) = &self.private_api {
            graces.push(("private_api.listen", api.listen.listen_grace_period.unwrap_or(usual).get()));
        }
        graces
    }

    /// The longest of these: here all listeners stop together.
    pub fn listen_grace(&self) -> Duration {
        self.listen_graces().into_iter().map(|(_, grace)| grace).max().unwrap_or_default()
    }

    /// How long running requests may take once the process is told to stop, from that moment.
    pub fn shutdown_deadline(&self) -> Option<Duration> {
        let api = self.agent.kubernetes_api.as_ref()?;
        Some(self.listen_grace() + api.listen.shutdown_grace_period.get())
    }

    /// What an operator should know: keys without effect, and settings that are legal but unwise.
    pub fn warnings(&self) -> Vec<String> {
        let (agent, observability) = (&self.agent, &self.observability);
        let (redis, proxy) = (self.redis.as_ref(), agent.kubernetes_api.as_ref());
        let unused = [
            ("gitaly", self.gitaly.is_some()),
            ("plural_url (tokens of people are not exchanged there)", self.plural_url.is_some()),
            ("redis.tls without enabled: true", redis.is_some_and(|redis| redis.tls.is_idle())),
            (
                "agent.info_cache_error_ttl",
                proxy.is_some() && agent.info_cache_error_ttl != Span::seconds(60),
            ),
            (
                "gitlab.api_rate_limit",
                self.gitlab.as_ref().is_some_and(|gitlab| gitlab.api_rate_limit.is_some()),
            ),
            ("agent.configuration", agent.configuration.is_some()),
            ("agent.gitops", agent.gitops.is_some()),
            ("agent.remote_development", agent.remote_development.is_some()),
            ("observability.usage_reporting_period", observability.usage_reporting_period.is_some()),
            ("observability.sentry", observability.sentry.is_some()),
            ("observability.google_profiler", observability.google_profiler.is_some()),
            ("observability.logging.grpc_level", observability.logging.grpc_level.is_some()),
            ("redis.pool_size", redis.is_some_and(|redis| redis.pool_size.is_some())),
            ("redis.idle_timeout", redis.is_some_and(|redis| redis.idle_timeout.is_some())),
            (
                "api.listen.max_connection_age",
                self.api.as_ref().is_some_and(|api| api.listen.max_connection_age.is_some()),
            ),
            (
                "private_api.listen.max_connection_age",
                self.private_api.as_ref().is_some_and(|api| api.listen.max_connection_age.is_some()),
            ),
        ];
        let mut warnings: Vec<String> = unused
            .iter()
            .filter(|(_, set)| *set)
            .map(|(key, _)| format!("`{key}` has no effect here"))
            .collect();
        if observability.tracing.is_some() {
            warnings.push(
                "`observability.tracing` has no effect here: spans are sent over gRPC, to the collector that \
                 `observability.otlp_endpoint` of the settings names (port 4317 of most)"
                    .into(),
            );
        }
        let grace = self.listen_grace();
        for (key, asked) in self.listen_graces() {
            if asked != grace {
                warnings.push(format!(
                    "`{key}.listen_grace_period` is taken as {}s, the longest of all",
                    grace.as_secs_f64()
                ));
            }
        }
        if self.redis.is_none() {
            warnings
                .push("`redis` is absent: the embedded store is used, and this gateway stands alone".into());
        }
        if let (Some(api), Some(private)) = (&self.api, &self.private_api)
            && api.listen.authentication_secret_file == private.listen.authentication_secret_file
        {
            warnings.push(
                "`api` and `private_api` share one secret: whoever may call one may call the other".into(),
            );
        }
        if agent.info_cache_ttl.get().as_secs() > 60 {
            warnings.push(
                "`agent.info_cache_ttl` is taken as 60s: a revoked token must be dead within a minute".into(),
            );
        }
        if proxy.is_some_and(|api| api.allowed_agent_cache_ttl.get().as_secs() > 60) {
            warnings.push(
                "`agent.kubernetes_api.allowed_agent_cache_ttl` is taken as 60s: who may no longer call must \
                 be out within a minute"
                    .into(),
            );
        }
        if agent.listen.websocket == Some(false) {
            warnings.push(
                "`agent.listen.websocket: false` has no effect here: WebSockets are taken as well".into(),
            );
        }
        warnings
    }
}

#[cfg(test)]
mod tests;
