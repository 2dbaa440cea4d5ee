//! What a person writes under `store:`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use garde::Validate;
use jiff::fmt::serde::unsigned_duration::friendly::compact::required as duration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tarbet_identity::SecretFile;
use url::Url;

/// Where records are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Validate)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum StoreConfig {
    /// In this process only; gone when it ends.
    Memory {},
    /// In one file that belongs to this process.
    Redb(#[garde(dive)] RedbConfig),
    /// In a Redis that several processes share.
    Redis(#[garde(dive)] Box<RedisConfig>),
}

/// Settings of the embedded store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Validate)]
#[serde(deny_unknown_fields)]
pub struct RedbConfig {
    /// The file. It is created, with its folder, if it is missing.
    #[garde(skip)]
    pub path: PathBuf,
    /// When a change is on the disk: `soon` (the default), by a flush that begins within 20 ms of its being acknowledged, so that a power failure may cost the last 20 ms and the time of one flush (but no site, token or user) and the death of the process nothing; or `each`, before it is acknowledged.
    #[serde(default, skip_serializing_if = "is_soon")]
    #[garde(skip)]
    pub sync: Sync,
}

/// When a change is on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Sync {
    /// Soon after it was acknowledged. Killing the process loses nothing; a power failure may lose the
    /// last 20 ms and the time of one flush, and leaves the state of a moment before.
    #[default]
    Soon,
    /// Before it is acknowledged.
    Each,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_soon(sync: &Sync) -> bool {
    *sync == Sync::Soon
}

impl RedbConfig {
    /// The settings for a file at this path, everything else as usual.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), sync: Sync::default() }
    }
}

/// Settings of a shared store. Either `url` or `sentinel` says where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Validate)]
#[serde(deny_unknown_fields)]
pub struct RedisConfig {
    /// `redis://host:port`, `rediss://host:port` for TLS, or `unix:///path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[garde(custom(either_or(self.sentinel.is_some())))]
    pub url: Option<RedisUrl>,
    /// The Sentinels that know which server is the master.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[garde(dive)]
    pub sentinel: Option<SentinelConfig>,
    /// The user, if not the default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[garde(skip)]
    pub username: Option<String>,
    /// A file with the password. It is read again for each new connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[garde(skip)]
    pub password_file: Option<SecretFile>,
    /// The number of the database.
    #[serde(default)]
    #[garde(skip)]
    pub database: u16,
    /// What all keys begin with. Stores with different prefixes know nothing of each other.
    #[serde(default = "default_prefix")]
    #[garde(custom(|prefix: &str, (): &()| is_prefix(prefix)))]
    pub prefix: String,
    /// TLS to the server, and to the Sentinels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[garde(dive, custom(tls_is_used(self.url.as_ref())))]
    pub tls: Option<TlsConfig>,
    /// How long a call may take in all, retries and reconnects included.
    #[serde(default = "default_deadline", with = "duration")]
    #[schemars(with = "String")]
    #[garde(custom(|deadline: &Duration, (): &()| is_sensible(*deadline)))]
    pub deadline: Duration,
    /// How many replicas must confirm a lasting change before it counts as made.
    #[serde(default)]
    #[garde(skip)]
    pub replicas: u16,
}

/// Settings of Sentinels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Validate)]
#[serde(deny_unknown_fields)]
pub struct SentinelConfig {
    /// The name they know the master by.
    #[garde(length(min = 1))]
    pub master: String,
    /// `host:port` of each.
    #[garde(length(min = 1))]
    pub addresses: Vec<HostPort>,
    /// The user at the Sentinels, if they want one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[garde(skip)]
    pub username: Option<String>,
    /// A file with the password for the Sentinels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[garde(skip)]
    pub password_file: Option<SecretFile>,
}

/// Files for TLS, all PEM. They are read again for each new connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, Validate)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The authority that signed the server's certificate; the system's own if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[garde(skip)]
    pub ca_file: Option<PathBuf>,
    /// Our certificate, if the server wants one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[garde(custom(go_together(self.key_file.is_some())))]
    pub cert_file: Option<PathBuf>,
    /// The key of our certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[garde(skip)]
    pub key_file: Option<SecretFile>,
}

impl RedisConfig {
    /// The settings for a server at this address, everything else as usual.
    pub fn at(url: RedisUrl) -> Self {
        Self {
            url: Some(url),
            sentinel: None,
            username: None,
            password_file: None,
            database: 0,
            prefix: default_prefix(),
            tls: None,
            deadline: default_deadline(),
            replicas: 0,
        }
    }

    /// Where it is, for messages.
    pub(crate) fn address(&self) -> String {
        match (&self.url, &self.sentinel) {
            (Some(url), _) => url.to_string(),
            (None, Some(sentinel)) => format!("sentinel master {}", sentinel.master),
            (None, None) => "nowhere".into(),
        }
    }
}

fn default_prefix() -> String {
    "tarbet".into()
}

/// Longer than a restart of Redis takes, shorter than callers' own deadlines.
fn default_deadline() -> Duration {
    Duration::from_secs(3)
}

/// A setting that is not what it should be. The value is withheld, as it may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected} (the value is not shown, as it may hold a password)")]
pub struct NotAnAddress {
    expected: &'static str,
}

/// The address of a Redis server, without secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct RedisUrl(Url);

impl RedisUrl {
    pub(crate) fn url(&self) -> &Url {
        &self.0
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.0.scheme() == "rediss"
    }
}

impl TryFrom<String> for RedisUrl {
    type Error = NotAnAddress;

    fn try_from(text: String) -> Result<Self, NotAnAddress> {
        let expected = "redis://host:port, rediss://host:port or unix:///path, with user, password and \
                        database in their own settings";
        let url = Url::parse(&text).map_err(|_| NotAnAddress { expected })?;
        let bare = url.username().is_empty() && url.password().is_none() && url.query().is_none();
        let fits = match url.scheme() {
            "redis" | "rediss" => url.has_host() && matches!(url.path(), "" | "/"),
            "unix" => !url.has_host() && url.path().len() > 1,
            _ => false,
        };
        if bare && fits { Ok(Self(url)) } else { Err(NotAnAddress { expected }) }
    }
}

impl std::str::FromStr for RedisUrl {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        text.to_owned().try_into()
    }
}

impl From<RedisUrl> for String {
    fn from(url: RedisUrl) -> Self {
        url.0.into()
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct HostPort {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl TryFrom<String> for HostPort {
    type Error = NotAnAddress;

    fn try_from(text: String) -> Result<Self, NotAnAddress> {
        let split = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
        match split {
            Some((host, port)) if !host.is_empty() && !host.contains(['/', '@']) => {
                Ok(Self { host: host.trim_matches(['[', ']']).into(), port })
            }
            _ => Err(NotAnAddress { expected: "host:port" }),
        }
    }
}

impl From<HostPort> for String {
    fn from(address: HostPort) -> Self {
        if address.host.contains(':') {
            format!("[{}]:{}", address.host, address.port)
        } else {
            format!("{}:{}", address.host, address.port)
        }
    }
}

fn either_or<T>(other: bool) -> impl FnOnce(&Option<T>, &()) -> garde::Result {
    move |url, ()| {
        if url.is_some() == other {
            return Err(garde::Error::new("give either url or sentinel"));
        }
        Ok(())
    }
}

fn go_together<T>(other: bool) -> impl FnOnce(&Option<T>, &()) -> garde::Result {
    move |this, ()| {
        if this.is_some() == other {
            Ok(())
        } else {
            Err(garde::Error::new("give cert_file and key_file together"))
        }
    }
}

fn tls_is_used(url: Option<&RedisUrl>) -> impl FnOnce(&Option<TlsConfig>, &()) -> garde::Result {
    let plain = url.is_some_and(|url| !url.is_tls());
    move |tls, ()| {
        if tls.is_some() && plain { Err(garde::Error::new("tls needs a rediss:// url")) } else { Ok(()) }
    }
}

fn is_prefix(prefix: &str) -> garde::Result {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b':' | b'.');
    if (1..=64).contains(&prefix.len()) && prefix.bytes().all(legal) {
        Ok(())
    } else {
        Err(garde::Error::new("must be 1 to 64 letters, digits, -, _, : or ."))
    }
}

fn is_sensible(deadline: Duration) -> garde::Result {
    if (Duration::from_millis(100)..=Duration::from_mins(5)).contains(&deadline) {
        Ok(())
    } else {
        Err(garde::Error::new("must be between 100ms and 5m"))
    }
}

#[cfg(test)]
mod tests;
