//! What a gateway and an agent can be told.

mod kas;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(crate) use self::kas::with_last_slash;
pub use self::kas::{BesideSection, GitlabSection, KasSection};
use crate::audit::AuditConfig;
use crate::gateway::PortConfig;
use crate::listen::Place;
use crate::quota::QuotaConfig;
use crate::vouch::{CertificateConfig, OidcConfig};

/// A gateway: five listeners, each with its own address and TLS.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GatewayConfig {
    /// The name of this replica in logs and the registry; made up if absent.
    pub name: Option<String>,
    /// Where agents dial in.
    pub agents: ListenerConfig,
    /// The URL under which agents reach this gateway, as `tarbet site add` prints it (`grpcs://host:port`,
    /// `wss://host/path`); made from the listen address if absent, with the host by which the API was asked
    /// if that is a wildcard.
    pub agents_url: Option<String>,
    /// Where people and programs manage sites and open connections to them.
    pub api: ListenerConfig,
    /// Where kubectl and other Kubernetes clients come in.
    pub kubernetes: ListenerConfig,
    /// Whether Kubernetes clients are let in at all.
    pub serve_kubernetes: bool,
    /// Where other gateways come in.
    pub private: PrivateConfig,
    /// Agents and callers that speak the protocol of kas.
    pub kas: KasSection,
    /// A file with the token of the first administrator; made with mode 0600 if it is missing.
    pub admin_token_file: Option<PathBuf>,
    /// How long a request waits for a site that is not connected.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub max_wait: Duration,
    /// How long the listeners go on taking connections after the gateway is told to stop: those in front of
    /// it may need a while to notice.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub listen_grace: Duration,
    /// How often the tokens of live links are checked again.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub recheck: Duration,
    /// How long known callers and sites stay good while the store cannot be asked.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub store_grace: Duration,
    /// How old a link may grow before its agent is asked to open another one; a fifth of it earlier for
    /// some, so that not all move at once.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "Option<String>")]
    pub max_connection_age: Option<Duration>,
    /// Identity providers whose tokens are taken besides those of `tarbet user add`.
    pub oidc: Vec<OidcConfig>,
    /// Who the holders of client certificates are.
    pub certificates: CertificateConfig,
    /// TCP ports that lead to a host behind a site, for whoever reaches them.
    pub ports: Vec<PortConfig>,
    /// Limits for each site and each caller.
    pub quotas: QuotaConfig,
    /// The record of who asked for what.
    pub audit: AuditConfig,
    /// How many recent requests `tarbet why` can tell about.
    pub remembered_requests: usize,
    /// How many agents may be in the middle of their TLS handshake at once; the others wait, in the order in
    /// which they came.
    pub handshakes: usize,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            name: None,
            agents: ListenerConfig::at(Ipv4Addr::LOCALHOST, 8150),
            agents_url: None,
            api: ListenerConfig::at(Ipv4Addr::LOCALHOST, 8153),
            kubernetes: ListenerConfig::at(Ipv4Addr::LOCALHOST, 8154),
            serve_kubernetes: true,
            private: PrivateConfig::default(),
            kas: KasSection::default(),
            admin_token_file: None,
            max_wait: Duration::from_secs(20),
            listen_grace: Duration::ZERO,
            recheck: Duration::from_secs(20),
            store_grace: Duration::from_hours(1),
            max_connection_age: Some(Duration::from_hours(2)),
            oidc: Vec::new(),
            certificates: CertificateConfig::default(),
            ports: Vec::new(),
            quotas: QuotaConfig::default(),
            audit: AuditConfig::default(),
            remembered_requests: 10_000,
            // Two and a half thousand a second where an agent is 100 ms away, and never more than a core computes
            // in a quarter of a second.
            handshakes: 256,
        }
    }
}

/// One listener.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListenerConfig {
    /// Its address.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// A socket in the file system to listen on, instead of the address.
    #[serde(default)]
    pub socket: Option<PathBuf>,
    /// Its certificate; without one it speaks plain text.
    #[serde(default)]
    pub tls: Option<TlsFiles>,
    /// Connections that may be open at once; one more is closed as soon as it comes.
    #[serde(default = "max_connections")]
    pub max_connections: usize,
}

impl ListenerConfig {
    /// A plain listener.
    pub fn at(ip: Ipv4Addr, port: u16) -> Self {
        let max_connections = max_connections();
        let listen = SocketAddr::new(IpAddr::V4(ip), port);
        Self { listen, socket: None, tls: None, max_connections }
    }

    /// Where it is.
    pub fn place(&self) -> Place<'_> {
        self.socket.as_deref().map_or(Place::Tcp(self.listen), Place::Socket)
    }
}

/// Far more than one gateway is meant to hold, and far less than what would exhaust a machine.
fn max_connections() -> usize {
    50_000
}

/// Where a listener's certificate comes from: two PEM files that may change while the process runs,
/// or the built-in authority in a folder.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate and those that lead to its authority.
    pub cert_file: Option<PathBuf>,
    /// The key.
    pub key_file: Option<PathBuf>,
    /// The folder of the built-in authority, for one machine or a trial; made if it is missing.
    pub authority_folder: Option<PathBuf>,
    /// The authorities of client certificates; callers who show one need no token. Only for the API and
    /// the Kubernetes listener.
    pub client_ca_file: Option<PathBuf>,
    /// The names and addresses in the certificates that the built-in authority issues.
    pub names: Vec<String>,
}

impl TlsFiles {
    /// The pair of files or the folder, whichever is meant.
    pub fn source(&self) -> Result<TlsSource<'_>, &'static str> {
        match (&self.cert_file, &self.key_file, &self.authority_folder) {
            (Some(cert), Some(key), None) => Ok(TlsSource::Files(cert, key)),
            (None, None, Some(folder)) => Ok(TlsSource::Authority(folder)),
            (None, None, None) => Err("needs cert_file and key_file, or authority_folder"),
            (_, _, Some(_)) => Err("takes files or authority_folder, not both"),
            _ => Err("needs both cert_file and key_file"),
        }
    }
}

/// Where a certificate comes from.
#[derive(Debug, Clone, Copy)]
pub enum TlsSource<'a> {
    /// Certificate and key.
    Files(&'a Path, &'a Path),
    /// The built-in authority.
    Authority(&'a Path),
}

/// The listener for other gateways.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PrivateConfig {
    /// Its address.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// A socket in the file system to listen on, instead of the address; only for a gateway that stands alone,
    /// or whose `advertise` leads there.
    pub socket: Option<PathBuf>,
    /// Its certificate; without one it speaks plain text.
    pub tls: Option<TlsFiles>,
    /// The URL under which other gateways reach it (`grpc://host:port`, `grpcs://host:port`); made
    /// from the listen address if that is not a wildcard.
    pub advertise: Option<String>,
    /// A file with the secret that all gateways share, in base64. Needed as soon as there are two.
    pub secret_file: Option<PathBuf>,
    /// The authority of the other gateways' certificates, besides those of the system.
    pub ca_file: Option<PathBuf>,
    /// The name in the other gateways' certificates, if it is not the one in their URLs.
    pub tls_server_name: Option<String>,
    /// Connections that may be open at once; one more is closed as soon as it comes.
    pub max_connections: usize,
}

impl Default for PrivateConfig {
    fn default() -> Self {
        let ListenerConfig { listen, socket, tls, max_connections } =
            ListenerConfig::at(Ipv4Addr::LOCALHOST, 8155);
        Self {
            listen,
            socket,
            tls,
            advertise: None,
            secret_file: None,
            ca_file: None,
            tls_server_name: None,
            max_connections,
        }
    }
}

impl PrivateConfig {
    /// Where it is.
    pub fn place(&self) -> Place<'_> {
        self.socket.as_deref().map_or(Place::Tcp(self.listen), Place::Socket)
    }
}

impl GatewayConfig {
    /// Where tokens are shown, by their settings: address, and whether it is encrypted.
    fn token_listeners(&self) -> impl Iterator<Item = (&'static str, SocketAddr, bool)> {
        let named = |name, listener: &ListenerConfig| {
            listener.socket.is_none().then(|| (name, listener.listen, listener.tls.is_some()))
        };
        let kubernetes = self.serve_kubernetes.then(|| named("gateway.kubernetes", &self.kubernetes));
        let others = [named("gateway.agents", &self.agents), named("gateway.api", &self.api)];
        // Whoever reaches a socket in the file system is on this machine.
        others.into_iter().chain(kubernetes).flatten()
    }

    /// The settings of listeners that others than this machine reach.
    pub fn public_listeners(&self) -> Vec<&'static str> {
        let public = self.token_listeners().filter(|(_, at, _)| !at.ip().is_loopback());
        public.map(|(name, ..)| name).collect()
    }

    /// Those of them over which tokens travel in the clear.
    pub fn plain_listeners(&self) -> Vec<&'static str> {
        let plain = self.token_listeners().filter(|(_, at, tls)| !tls && !at.ip().is_loopback());
        plain.map(|(name, ..)| name).collect()
    }

    /// What the types alone cannot refuse: dotted setting and message.
    pub fn mistakes(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let listeners = [
            ("agents", &self.agents.tls),
            ("api", &self.api.tls),
            ("kubernetes", &self.kubernetes.tls),
            ("private", &self.private.tls),
        ];
        for (name, tls) in listeners {
            if let Some(Err(message)) = tls.as_ref().map(TlsFiles::source) {
                found.push((format!("{name}.tls"), message.to_owned()));
            }
        }
        for (name, most) in [
            ("agents", self.agents.max_connections),
            ("api", self.api.max_connections),
            ("kubernetes", self.kubernetes.max_connections),
            ("private", self.private.max_connections),
        ] {
            if most == 0 {
                found.push((format!("{name}.max_connections"), "must be at least 1".to_owned()));
            }
        }
        if self.recheck.is_zero() || self.recheck > Duration::from_mins(1) {
            found.push((
                "recheck".into(),
                "must be between 1 s and 60 s, so that a revoked token is dead within a minute".into(),
            ));
        }
        if self.remembered_requests == 0 {
            found.push(("remembered_requests".into(), "must be at least 1".into()));
        }
        if self.handshakes == 0 {
            found.push(("handshakes".into(), "must be at least 1".into()));
        }
        found.extend(self.kas.mistakes().into_iter().map(|(name, text)| (format!("kas.{name}"), text)));
        for (name, tls) in [("agents", &self.agents.tls), ("private", &self.private.tls)] {
            if tls.as_ref().is_some_and(|tls| tls.client_ca_file.is_some()) {
                let text = "only the api and the kubernetes listener know callers by their certificates";
                found.push((format!("{name}.tls.client_ca_file"), text.into()));
            }
        }
        if self.max_connection_age.is_some_and(|age| age < Duration::from_millis(100)) {
            found.push(("max_connection_age".into(), "must be at least 100 ms; null for no limit".into()));
        }
        for (index, issuer) in self.oidc.iter().enumerate() {
            let mistakes = issuer.mistakes().into_iter();
            found.extend(mistakes.map(|(name, text)| (format!("oidc.{index}.{name}"), text)));
        }
        for (index, port) in self.ports.iter().enumerate() {
            if let Err(text) = port.check() {
                found.push((format!("ports.{index}.target"), text));
            }
        }
        found.extend(self.quotas.mistakes().into_iter().map(|(name, text)| (format!("quotas.{name}"), text)));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_open_to_others_unless_somebody_says_so() {
        let mut config = GatewayConfig::default();
        assert_eq!(config.public_listeners(), Vec::<&str>::new());
        config.kubernetes.listen.set_ip(Ipv4Addr::UNSPECIFIED.into());
        config.api.listen.set_ip(Ipv4Addr::UNSPECIFIED.into());
        config.api.tls = Some(TlsFiles::default());
        assert_eq!(config.public_listeners(), ["gateway.api", "gateway.kubernetes"]);
        assert_eq!(config.plain_listeners(), ["gateway.kubernetes"]);
        config.serve_kubernetes = false;
        assert_eq!(config.plain_listeners(), Vec::<&str>::new());
    }
}
