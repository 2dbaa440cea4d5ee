//! The listeners, each with its own address and TLS.

use std::path::PathBuf;

use serde::Deserialize;

use super::Span;

/// What a listener binds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Either family.
    #[default]
    Tcp,
    /// IPv4 only.
    Tcp4,
    /// IPv6 only.
    Tcp6,
    /// A socket in the file system.
    Unix,
}

/// `agent.listen`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AgentListen {
    /// What it binds.
    pub network: Network,
    /// Its address.
    pub address: String,
    /// Whether WebSockets are taken, too; here they always are.
    pub websocket: Option<bool>,
    /// The certificate; TLS is off without one.
    pub certificate_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// Calls an agent may make in a minute.
    pub connections_per_token_per_minute: u32,
    /// The age a connection may reach.
    pub max_connection_age: Span,
    /// How long to go on accepting after being told to stop.
    pub listen_grace_period: Span,
}

impl Default for AgentListen {
    fn default() -> Self {
        Self {
            network: Network::Tcp,
            address: "127.0.0.1:8150".into(),
            websocket: None,
            certificate_file: None,
            key_file: None,
            connections_per_token_per_minute: 1_000_000,
            max_connection_age: Span::seconds(7200),
            listen_grace_period: Span::seconds(5),
        }
    }
}

/// `agent.kubernetes_api.listen`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KubernetesListen {
    /// What it binds.
    pub network: Network,
    /// Its address.
    pub address: String,
    /// The certificate; TLS is off without one.
    pub certificate_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// How long to go on accepting after being told to stop.
    pub listen_grace_period: Span,
    /// How long running requests may take then.
    pub shutdown_grace_period: Span,
}

impl Default for KubernetesListen {
    fn default() -> Self {
        Self {
            network: Network::Tcp,
            address: "0.0.0.0:8154".into(),
            certificate_file: None,
            key_file: None,
            listen_grace_period: Span::seconds(5),
            shutdown_grace_period: Span::seconds(3600),
        }
    }
}

/// `observability.listen`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObservabilityListen {
    /// What it binds.
    pub network: Network,
    /// Its address.
    pub address: String,
    /// The certificate; TLS is off without one.
    pub certificate_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
}

impl Default for ObservabilityListen {
    fn default() -> Self {
        Self {
            network: Network::Tcp,
            address: "127.0.0.1:8151".into(),
            certificate_file: None,
            key_file: None,
        }
    }
}

/// `api.listen`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiListen {
    /// What it binds.
    #[serde(default)]
    pub network: Network,
    /// Its address; 127.0.0.1:8153 if absent.
    pub address: Option<String>,
    /// The secret of its callers, in base64.
    pub authentication_secret_file: PathBuf,
    /// The certificate; TLS is off without one.
    pub certificate_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// The age a connection may reach.
    pub max_connection_age: Option<Span>,
    /// How long to go on accepting after being told to stop.
    pub listen_grace_period: Option<Span>,
}

/// `private_api.listen`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrivateApiListen {
    /// What it binds.
    #[serde(default)]
    pub network: Network,
    /// Its address; 127.0.0.1:8155 if absent.
    pub address: Option<String>,
    /// The secret of its callers, in base64.
    pub authentication_secret_file: PathBuf,
    /// The certificate; TLS is off without one.
    pub certificate_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// The authority that signed the certificates of the other gateways.
    pub ca_certificate_file: Option<PathBuf>,
    /// The age a connection may reach.
    pub max_connection_age: Option<Span>,
    /// How long to go on accepting after being told to stop.
    pub listen_grace_period: Option<Span>,
}
