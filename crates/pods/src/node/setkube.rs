//! The kubeconfig that endpoints of 2023 read the cluster with.

use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use http::Uri;
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use tarbet_cluster::{Class, ClusterError, Place, class, describe};

use super::address::is_loopback;
use super::config::NodeConfig;
use super::error::NodeError;
use super::gather::renewal;
use super::interlink::Endpoint;
use super::keeper::Node;

/// A day. A new one is sent before it ends, and after each time the other side was away.
const SECONDS: i64 = 24 * 3600;

/// What is sent.
pub(super) struct Account {
    pub(super) kubeconfig: Bytes,
    /// When it has to be made anew, where it ends.
    pub(super) renew: Option<Timestamp>,
}

/// Why there is no account to send.
#[derive(Debug, thiserror::Error)]
pub(super) enum AccountError {
    #[error("the kubeconfig {} cannot be read", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the cluster gives no token of the service account `{account}`")]
    Token {
        account: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("the token of the service account `{0}` came without content")]
    Empty(String),
    #[error("the node's own way to the cluster cannot be read")]
    Place(#[source] ClusterError),
}

impl AccountError {
    /// Whether the same may work later without a change of anything.
    pub(super) fn retry(&self) -> bool {
        match self {
            Self::File { .. } => false,
            Self::Token { source, .. } => class(source) == Class::Unavailable,
            // The way was read when the node began, and is being replaced.
            Self::Empty(_) | Self::Place(_) => true,
        }
    }
}

impl From<AccountError> for NodeError {
    fn from(error: AccountError) -> Self {
        match error {
            AccountError::File { path, source } => Self::File { path, reason: source.to_string() },
            AccountError::Token { account, source } => Self::Account { account, source },
            error @ (AccountError::Empty(_) | AccountError::Place(_)) => Self::Settings(error.to_string()),
        }
    }
}

impl Node {
    /// The account to send: the file that was named, or one for the service account that was named.
    /// `None` where neither is.
    pub(super) async fn account(&self) -> Result<Option<Account>, AccountError> {
        let config = &self.config;
        if let Some(path) = &config.custom_kubeconf {
            let text = tokio::fs::read(path).await;
            let text = text.map_err(|source| AccountError::File { path: path.clone(), source })?;
            return Ok(Some(Account { kubeconfig: text.into(), renew: None }));
        }
        if config.service_account.is_empty() {
            return Ok(None);
        }
        let (token, renew) = token(config, &self.client).await?;
        let place = tarbet_cluster::place(&self.source).await.map_err(AccountError::Place)?;
        let server = server(config, &place, self.interlink.endpoint(), &self.client).await;
        let authority = authority(config, &place, &server, &self.client).await;
        let kubeconfig = render(config, &place, &server, authority.as_deref(), &token);
        Ok(Some(Account { kubeconfig: kubeconfig.into(), renew: Some(renew) }))
    }
}

async fn token(config: &NodeConfig, client: &Client) -> Result<(String, Timestamp), AccountError> {
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), &config.namespace);
    let request = TokenRequest {
        spec: TokenRequestSpec { expiration_seconds: Some(SECONDS), ..Default::default() },
        ..Default::default()
    };
    let made = api.create_token_request(&config.service_account, &PostParams::default(), &request).await;
    let account = || format!("{}/{}", config.namespace, config.service_account);
    let made = made.map_err(|source| AccountError::Token { account: account(), source: Box::new(source) })?;
    let status = made.status.ok_or_else(|| AccountError::Empty(account()))?;
    Ok((status.token, renewal(Timestamp::now(), status.expiration_timestamp.0)))
}

/// Where the cluster's API is for the other side.
async fn server(config: &NodeConfig, place: &Place, endpoint: &Endpoint, client: &Client) -> String {
    if !config.kubernetes_api_addr.is_empty() {
        let port = if config.kubernetes_api_port.is_empty() { "443" } else { &config.kubernetes_api_port };
        return format!("https://{}:{port}", config.kubernetes_api_addr);
    }
    if serves(place, endpoint) {
        return place.url.clone();
    }
    let told = advertised(client).await;
    let server = told.unwrap_or_else(|| place.url.clone());
    if leads_here(&server) {
        tracing::warn!(
            server,
            "The address of the cluster's API is one of this machine; set KubernetesApiAddr for interLink elsewhere."
        );
    }
    server
}

/// Whether our own way to the cluster is one for the other side, too.
fn serves(place: &Place, endpoint: &Endpoint) -> bool {
    !place.inside && (endpoint.is_here() || !leads_here(&place.url))
}

fn leads_here(url: &str) -> bool {
    url.parse::<Uri>().is_ok_and(|url| url.host().is_some_and(is_loopback))
}

/// The address that the API server itself tells others, which is not the one that pods use.
async fn advertised(client: &Client) -> Option<String> {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    match slices.get_opt("kubernetes").await {
        Ok(slice) => first(&slice?),
        Err(error) => {
            tracing::warn!(cause = describe(&error), "The address of the cluster's API cannot be asked for.");
            None
        }
    }
}

fn first(slice: &EndpointSlice) -> Option<String> {
    let address = slice.endpoints.first()?.addresses.first()?;
    let port = slice.ports.as_ref()?.iter().find_map(|port| port.port)?;
    let host = if address.contains(':') { format!("[{address}]") } else { address.clone() };
    Some(format!("https://{host}:{port}"))
}

/// Whom to trust there, as PEM; `None` where the other side's own authorities do.
async fn authority(config: &NodeConfig, place: &Place, server: &str, client: &Client) -> Option<String> {
    if !config.kubernetes_api_ca_crt.is_empty() {
        return Some(config.kubernetes_api_ca_crt.clone());
    }
    if !place.authorities.is_empty() {
        return Some(place.authorities.iter().map(|certificate| pem(certificate)).collect());
    }
    if server == place.url && !place.unchecked {
        return None;
    }
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &config.namespace);
    match maps.get_opt("kube-root-ca.crt").await {
        Ok(map) => map.and_then(|map| map.data).and_then(|mut data| data.remove("ca.crt")),
        Err(error) => {
            tracing::warn!(cause = describe(&error), "The cluster's authority cannot be read.");
            None
        }
    }
}

fn encoded(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn pem(certificate: &[u8]) -> String {
    let body = encoded(certificate);
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    // Lines of 64, as every reader of the form takes them; base64 has one byte a character.
    for line in body.as_bytes().chunks(64) {
        text.push_str(&String::from_utf8_lossy(line));
        text.push('\n');
    }
    text + "-----END CERTIFICATE-----\n"
}

fn render(config: &NodeConfig, place: &Place, server: &str, authority: Option<&str>, token: &str) -> String {
    let mut cluster = json!({"server": server});
    if let Some(authority) = authority {
        cluster["certificate-authority-data"] = json!(encoded(authority.as_bytes()));
    }
    if let Some(name) = place.name.as_ref().filter(|_| server == place.url) {
        cluster["tls-server-name"] = json!(name);
    }
    // JSON is YAML, and needs no quoting of ours.
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": cluster}],
        "users": [{"name": config.service_account, "user": {"token": token}}],
        "contexts": [{"name": "context", "context": {
            "cluster": "cluster", "user": config.service_account, "namespace": config.namespace,
        }}],
        "current-context": "context",
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_of_ours_holds_no_files_and_no_programs() {
        let config = NodeConfig { service_account: "reader".into(), ..Default::default() };
        let server = "https://10.0.0.1:6443";
        let place = Place { url: server.into(), name: Some("api".into()), ..Default::default() };
        let text = render(&config, &place, server, Some("PEM"), "t0ken");
        let kubeconfig: kube::config::Kubeconfig = serde_json::from_str(&text).unwrap();
        let cluster = kubeconfig.clusters[0].cluster.clone().unwrap();
        assert_eq!(cluster.server.as_deref(), Some(server));
        assert_eq!(cluster.certificate_authority_data.as_deref(), Some("UEVN"));
        assert_eq!(cluster.tls_server_name.as_deref(), Some("api"));
        assert!(!text.contains("exec") && !text.contains("-file"));
        // An empty authority would be none that anybody could be trusted by.
        let other = render(&config, &place, "https://192.0.2.1:6443", None, "t0ken");
        assert!(!other.contains("certificate-authority") && !other.contains("tls-server-name"));
    }

    #[test]
    fn our_own_way_is_given_only_to_whom_it_leads_there() {
        let place = |url: &str, inside| Place { url: url.into(), inside, ..Default::default() };
        let far = Endpoint::new("http://edge", "3000").unwrap();
        let near = Endpoint::new("http://127.0.0.1", "3000").unwrap();
        let socket = Endpoint::new("unix:///run/interlink.sock", "").unwrap();
        assert!(serves(&place("https://10.1.2.3:6443/", false), &far));
        let here = place("https://127.0.0.1:6443/", false);
        assert!(!serves(&here, &far) && serves(&here, &near) && serves(&here, &socket));
        assert!(!serves(&place("https://10.43.0.1/", true), &near), "an address of the cluster's own");
        assert!(leads_here("https://localhost:6443/") && leads_here("https://[::1]:6443/"));
    }

    #[test]
    fn the_address_that_the_api_server_tells_is_read() {
        let slice = |address: &str| {
            serde_json::from_value::<EndpointSlice>(json!({
                "addressType": "IPv4", "metadata": {"name": "kubernetes"},
                "endpoints": [{"addresses": [address]}], "ports": [{"name": "https", "port": 6443}],
            }))
            .unwrap()
        };
        assert_eq!(first(&slice("192.0.2.7")).as_deref(), Some("https://192.0.2.7:6443"));
        assert_eq!(first(&slice("2001:db8::7")).as_deref(), Some("https://[2001:db8::7]:6443"));
        assert_eq!(first(&EndpointSlice::default()), None);
    }

    #[test]
    fn certificates_are_written_in_lines() {
        let text = pem(&[7; 100]);
        assert!(
            text.starts_with("-----BEGIN CERTIFICATE-----\n")
                && text.ends_with("-----END CERTIFICATE-----\n")
        );
        assert!(text.lines().all(|line| line.len() <= 64));
        assert_eq!(text.lines().skip(1).take(3).map(str::len).sum::<usize>(), 136);
    }
}
