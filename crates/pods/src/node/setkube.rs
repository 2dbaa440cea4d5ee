//! The kubeconfig that endpoints of 2023 read the cluster with.

use bytes::Bytes;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use tarbet_cluster::describe;

use super::config::NodeConfig;

/// A day; it is sent again after each time the other side was away.
const SECONDS: i64 = 24 * 3600;

/// The kubeconfig to send: the file that was named, or one for the service account that was named.
/// `None` where neither is.
pub(super) async fn kubeconfig(config: &NodeConfig, client: &Client) -> Result<Option<Bytes>, String> {
    if let Some(path) = &config.custom_kubeconf {
        let text = tokio::fs::read(path).await.map_err(|error| format!("{}: {error}", path.display()))?;
        return Ok(Some(text.into()));
    }
    let (account, address) = (&config.service_account, &config.kubernetes_api_addr);
    if account.is_empty() || address.is_empty() {
        return Ok(None);
    }
    let api: Api<ServiceAccount> = Api::namespaced(client.clone(), &config.namespace);
    let request = TokenRequest {
        spec: TokenRequestSpec { expiration_seconds: Some(SECONDS), ..Default::default() },
        ..Default::default()
    };
    let made = api.create_token_request(account, &PostParams::default(), &request).await;
    let made =
        made.map_err(|error| format!("no token of the service account `{account}`: {}", describe(&error)))?;
    let token = made.status.map(|status| status.token).unwrap_or_default();
    Ok(Some(render(config, &token).into()))
}

fn render(config: &NodeConfig, token: &str) -> String {
    use base64::Engine as _;
    let authority = base64::engine::general_purpose::STANDARD.encode(&config.kubernetes_api_ca_crt);
    let port = if config.kubernetes_api_port.is_empty() { "443" } else { &config.kubernetes_api_port };
    let server = format!("https://{}:{port}", config.kubernetes_api_addr);
    // JSON is YAML, and needs no quoting of ours.
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": {"server": server, "certificate-authority-data": authority}}],
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
        let config = NodeConfig {
            service_account: "reader".into(),
            kubernetes_api_addr: "10.0.0.1".into(),
            kubernetes_api_port: "6443".into(),
            kubernetes_api_ca_crt: "PEM".into(),
            ..Default::default()
        };
        let text = render(&config, "t0ken");
        let kubeconfig: kube::config::Kubeconfig = serde_json::from_str(&text).unwrap();
        assert_eq!(
            kubeconfig.clusters[0].cluster.as_ref().unwrap().server.as_deref(),
            Some("https://10.0.0.1:6443")
        );
        assert!(!text.contains("exec") && !text.contains("-file"));
    }
}
