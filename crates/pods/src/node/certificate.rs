//! The kubelet's serving certificate, signed by the cluster itself.
//!
//! Until somebody approves the request, and where nobody may, a certificate of its own making is
//! shown. The key never leaves the process.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use rcgen::{CertificateParams, DnType, KeyPair};
use tarbet_cluster::{Class, class, describe};
use tarbet_identity::Secret;
use tarbet_identity::tls::{Acceptor, ClientCerts, Credential, CredentialSource, ServerTls};
use tokio_util::sync::CancellationToken;

use super::config::NodeConfig;

/// How often a request is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// How long a request waits for approval before a new one is made; Kubernetes forgets it after a day.
const PATIENCE: Duration = Duration::from_hours(12);
/// How often files are looked at.
const FILES: Duration = Duration::from_secs(10);
/// After a refusal.
const LATER: Duration = Duration::from_mins(10);

/// Asks for certificates and swaps them in, until `stop`.
pub(super) async fn keep(
    client: Client,
    config: NodeConfig,
    clients: ClientCerts,
    shown: Arc<ArcSwap<Acceptor>>,
    stop: CancellationToken,
) {
    loop {
        let pause = tokio::select! {
            () = stop.cancelled() => return,
            asked = ask(&client, &config) => match asked.and_then(|made| made.acceptor(&clients)) {
                Ok((acceptor, renew)) => {
                    shown.store(Arc::new(acceptor));
                    tracing::info!(renew_seconds = renew.as_secs(), "The cluster signed the kubelet's certificate.");
                    renew
                }
                Err(reason) => {
                    tracing::warn!(reason, "The kubelet shows a certificate of its own making.");
                    LATER
                }
            }
        };
        // Meanwhile a file of those whose certificates count may be replaced.
        let current = shown.load_full();
        tokio::select! {
            () = stop.cancelled() => return,
            () = current.follow(tokio::time::interval(FILES), Timestamp::now) => {}
            () = tokio::time::sleep(pause) => {}
        }
    }
}

struct Made {
    certificate: Vec<u8>,
    key: Secret,
}

impl Made {
    /// What to show, and for how long.
    fn acceptor(self, clients: &ClientCerts) -> Result<(Acceptor, Duration), String> {
        let credential =
            Credential::from_pem(&self.certificate, &self.key).map_err(|error| error.to_string())?;
        let now = Timestamp::now();
        let left = credential.identity().expires.duration_since(now).max(SignedDuration::ZERO);
        let tls =
            ServerTls::new(CredentialSource::Fixed(credential)).clients(clients.clone()).alpn(["http/1.1"]);
        let acceptor = tls.build(now).map_err(|error| error.to_string())?;
        // At four fifths of its life.
        Ok((acceptor, Duration::try_from(left / 5 * 4).unwrap_or(LATER).max(LOOK)))
    }
}

async fn ask(client: &Client, config: &NodeConfig) -> Result<Made, String> {
    let key = KeyPair::generate().map_err(|error| error.to_string())?;
    let names = vec![config.node_name.clone(), config.pod_ip.clone()];
    let mut params = CertificateParams::new(names).map_err(|error| error.to_string())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{}", config.node_name));
    let request = params.serialize_request(&key).and_then(|request| request.pem());
    let request = request.map_err(|error| error.to_string())?;
    let usages = ["digital signature", "server auth"].map(str::to_owned).to_vec();
    let wanted = CertificateSigningRequest {
        metadata: ObjectMeta {
            generate_name: Some(format!("vk-{}-", config.node_name)),
            ..Default::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: config.kubelet_csr_signer_name.clone(),
            usages: Some(usages),
            ..Default::default()
        },
        status: None,
    };
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    let made = api.create(&PostParams::default(), &wanted).await.map_err(|error| describe(&error))?;
    let name = made.metadata.name.unwrap_or_default();
    tracing::info!(request = %name, "Asked the cluster for a certificate; `kubectl certificate approve` approves it.");
    let key = Secret::from(key.serialize_pem());
    let signed = tokio::time::timeout(PATIENCE, signed(&api, &name)).await;
    let certificate = signed.map_err(|_| format!("nobody approved the request {name}"))??;
    Ok(Made { certificate, key })
}

async fn signed(api: &Api<CertificateSigningRequest>, name: &str) -> Result<Vec<u8>, String> {
    loop {
        match api.get(name).await {
            Ok(request) => {
                let status = request.status.unwrap_or_default();
                if let Some(ByteString(certificate)) = status.certificate {
                    return Ok(certificate);
                }
                let refused = |kind: &str| kind == "Denied" || kind == "Failed";
                if let Some(refusal) = status.conditions.iter().flatten().find(|c| refused(&c.type_)) {
                    let why = refusal.message.clone().unwrap_or_default();
                    return Err(format!("the request {name} was refused ({}): {why}", refusal.type_));
                }
            }
            Err(error) if class(&error) == Class::Unavailable => {}
            Err(error) => return Err(describe(&error)),
        }
        tokio::time::sleep(LOOK).await;
    }
}
