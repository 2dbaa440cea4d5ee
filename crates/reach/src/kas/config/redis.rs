//! Where replicas meet.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Network, Span};

/// `redis`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedisConfig {
    /// One server.
    pub server: Option<RedisServer>,
    /// Or servers watched by Sentinel.
    pub sentinel: Option<RedisSentinel>,
    /// How long connecting may take.
    pub dial_timeout: Option<Span>,
    /// How long a write may take.
    pub write_timeout: Option<Span>,
    /// How long an answer may take. The original takes it and does nothing with it.
    pub read_timeout: Option<Span>,
    /// What keys begin with.
    pub key_prefix: Option<String>,
    /// The user.
    pub username: Option<String>,
    /// The password.
    pub password_file: Option<PathBuf>,
    /// How it is reached.
    pub network: Network,
    /// TLS.
    pub tls: RedisTls,
    /// The number of the database.
    pub database_index: u32,
    pub(super) pool_size: Option<IgnoredAny>,
    pub(super) idle_timeout: Option<IgnoredAny>,
}

/// What the store may be told to wait. Gateways that are silent for twelve seconds are taken for dead by the others,
/// so a call must be over before that.
const PATIENCE: [Duration; 2] = [Duration::from_millis(300), Duration::from_secs(9)];

impl RedisConfig {
    /// How long a call to the store may take in all: each attempt to connect or to be answered has a third of
    /// it, which is what the slowest of the timeouts asks for.
    pub(super) fn patience(&self) -> Option<Duration> {
        let asked = [self.dial_timeout, self.read_timeout, self.write_timeout];
        // Nothing stands for the usual time.
        let slowest = asked.into_iter().flatten().map(Span::get).filter(|span| !span.is_zero()).max()?;
        let [least, most] = PATIENCE;
        Some(slowest.saturating_mul(3).clamp(least, most))
    }
}

/// `redis.server`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisServer {
    /// Host and port, or a path.
    pub address: String,
}

/// `redis.sentinel`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisSentinel {
    /// The name of the set.
    pub master_name: String,
    /// The sentinels.
    pub addresses: Vec<String>,
    /// Their password.
    pub sentinel_password_file: Option<PathBuf>,
}

/// `redis.tls`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedisTls {
    /// Whether it is on.
    pub enabled: bool,
    /// Our certificate.
    pub certificate_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// An authority to trust besides the system's.
    pub ca_certificate_file: Option<PathBuf>,
}

impl RedisTls {
    /// Whether files are named that nobody looks at.
    pub(super) fn is_idle(&self) -> bool {
        let named = [&self.certificate_file, &self.key_file, &self.ca_certificate_file];
        !self.enabled && named.into_iter().any(Option::is_some)
    }
}
