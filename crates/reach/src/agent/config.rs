//! What an agent can be told.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tarbet_identity::Secret;
use tarbet_link::ProxySettings;

use super::cluster::ClusterFlags;
use super::kas::Pod;
use crate::audit::AuditConfig;
use crate::kas::Prefix;

/// An agent: whom it dials, as whom, and what it offers.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// The gateways: `grpc://`, `grpcs://`, `ws://`, `wss://` or `https://` URLs.
    pub gateways: Vec<String>,
    /// A kas to join besides, or instead.
    pub kas: AtKas,
    /// The file with the site's token.
    pub token_file: Option<PathBuf>,
    /// A name for people; the host's name if absent.
    pub name: Option<String>,
    /// The authority of the gateways' certificates, besides those of the system.
    pub ca_file: Option<PathBuf>,
    /// Extra headers for WebSocket upgrades, as `Name: value`.
    pub headers: Vec<String>,
    /// Links to keep.
    pub links: usize,
    /// Further links for large transfers: forwards prefer them, so that they neither wait for requests nor
    /// make them wait, and their windows fill a long line.
    pub bulk_links: usize,
    /// The site's policy. Without one: the Kubernetes API within the agent's own RBAC.
    pub policy_file: Option<PathBuf>,
    /// The name of the site, as callers' tokens name it. Needed with `issuers`.
    pub site: Option<String>,
    /// Public keys (`ed25519:…`) of those who vouch for callers. Rules that name callers believe
    /// only tokens of these.
    pub issuers: Vec<String>,
    /// The agent's own key, by which clients know it end to end; made if it is missing. Beside the
    /// token file if absent.
    pub key_file: Option<PathBuf>,
    /// The record of what was asked of this site.
    pub audit: AuditConfig,
    /// A kubeconfig for the `kubernetes` service; in a cluster the pod's own account is used.
    pub kubeconfig: Option<PathBuf>,
    /// What the command line says of the cluster, over the kubeconfig.
    #[serde(skip)]
    pub cluster: ClusterFlags,
    /// Services of other programs at the site, by name: `unix:///path` or `host:port`. A policy file
    /// must name them among its services. Under the full name of a gRPC service its calls are passed on.
    pub offers: BTreeMap<String, String>,
    /// How long a TCP connection inside the site may take.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "String")]
    pub connect_timeout: Duration,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            gateways: Vec::new(),
            kas: AtKas::default(),
            token_file: None,
            name: None,
            ca_file: None,
            headers: Vec::new(),
            links: 2,
            bulk_links: 0,
            policy_file: None,
            site: None,
            issuers: Vec::new(),
            key_file: None,
            audit: AuditConfig::default(),
            kubeconfig: None,
            cluster: ClusterFlags::default(),
            offers: BTreeMap::new(),
            connect_timeout: Duration::from_secs(10),
        }
    }
}

/// How the agent joins a kas.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AtKas {
    /// Its address: `grpc://`, `grpcs://`, `ws://` or `wss://`.
    pub address: Option<String>,
    /// The package names it uses: `gitlab` or `plural`.
    pub prefix: Prefix,
    /// The name in its certificate, if it is not the one in the address.
    pub tls_server_name: Option<String>,
    /// Takes any certificate. For a trial only.
    pub insecure_skip_tls_verify: bool,
    /// Methods of gRPC services among `offers`, by the full name of the service: a kas sends an agent only
    /// calls of methods that it announced. Links to our own gateways need no such list.
    pub methods: BTreeMap<String, Vec<String>>,
    /// Connections to keep, each to another address of the name in turn. Absent: two where a `grpc://` or
    /// `grpcs://` name has several addresses, else one.
    pub connections: Option<usize>,
}

/// What the environment says that is no setting of ours.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// The host's name.
    pub host: String,
    /// `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY`.
    pub proxies: ProxySettings,
    /// A token that came by the environment (`AGENTK_TOKEN`).
    pub token: Option<Secret>,
    /// The pod this is, if it is one.
    pub pod: Pod,
}
