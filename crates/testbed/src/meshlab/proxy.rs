//! A proxy as Istio runs it: configured by istiod, with the certificate of its workload.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::net::{TcpStream, UnixListener};
use tokio::task::JoinHandle;

use crate::sds::Secrets;
use crate::{Authority, Envoy, Folder, Istiod};

/// Who a proxy works for.
pub(super) struct Workload<'a> {
    /// `sidecar`, or `router` for a gateway.
    pub(super) kind: &'a str,
    /// The name of its pod.
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
    pub(super) account: &'a str,
    pub(super) trust_domain: &'a str,
    pub(super) network: &'a str,
    /// Its address.
    pub(super) address: &'a str,
    pub(super) labels: Value,
    /// Host names it can resolve, as a file of hosts; none if empty.
    pub(super) names: &'a str,
}

/// A running proxy; it goes when dropped.
#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) envoy: Envoy,
    _secrets: Secrets,
    relay: JoinHandle<()>,
    _folder: Folder,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.relay.abort();
    }
}

impl Proxy {
    /// Starts it inside a network namespace and waits until istiod has told it everything.
    pub(super) async fn start(
        netns: &str,
        istiod: &Istiod,
        authority: &Authority,
        workload: &Workload<'_>,
    ) -> Result<Self> {
        let folder = Folder::new(&format!("proxy-{}", workload.name))?;
        let (control, secrets) = (folder.path().join("xds.sock"), folder.path().join("sds.sock"));
        let identity =
            format!("spiffe://{}/ns/{}/sa/{}", workload.trust_domain, workload.namespace, workload.account);
        let issued = authority.issue_workload(&identity)?;
        let handing = Secrets::serve(&secrets, &issued, authority.pem())?;
        let relay = relay(&control, istiod.discovery_port())?;
        let names = match workload.names {
            "" => None,
            names => Some(folder.write("hosts", names)?),
        };
        let bootstrap = bootstrap(workload, &control, &secrets);
        let envoy = Envoy::start_in(netns, workload.name, bootstrap, names.as_deref()).await?;
        Ok(Self { envoy, _secrets: handing, relay, _folder: folder })
    }
}

/// Carries a socket file to a port on loopback, which no other network namespace can reach.
fn relay(socket: &Path, port: u16) -> Result<JoinHandle<()>> {
    let listener = UnixListener::bind(socket).with_context(|| format!("listen at {}", socket.display()))?;
    Ok(tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            tokio::spawn(async move {
                if let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await {
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                }
            });
        }
    }))
}

fn bootstrap(workload: &Workload<'_>, control: &Path, secrets: &Path) -> Value {
    let Workload { kind, name, namespace, account, network, address, labels, .. } = workload;
    let mut metadata = json!({
        "NAME": name, "NAMESPACE": namespace, "CLUSTER_ID": "Kubernetes", "NETWORK": network,
        "LABELS": labels, "SERVICE_ACCOUNT": account, "ISTIO_VERSION": "1.31.0",
        "INSTANCE_IPS": address, "INTERCEPTION_MODE": "REDIRECT", "MESH_ID": network,
    });
    if *kind == "router" {
        // A gateway must not send back what came from elsewhere.
        metadata["REQUESTED_NETWORK_VIEW"] = json!(network);
    }
    let cluster = |name: &str, path: &Path| {
        json!({
            "name": name, "type": "STATIC", "connect_timeout": "5s",
            "typed_extension_protocol_options": { "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": { "http2_protocol_options": {} },
            } },
            "load_assignment": { "cluster_name": name, "endpoints": [{ "lb_endpoints": [{
                "endpoint": { "address": { "pipe": { "path": path } } },
            }] }] },
        })
    };
    json!({
        "node": {
            "id": format!("{kind}~{address}~{name}.{namespace}~{namespace}.svc.cluster.local"),
            "cluster": format!("{name}.{namespace}"),
            "metadata": metadata,
        },
        "dynamic_resources": {
            "ads_config": { "api_type": "GRPC", "transport_api_version": "V3",
                "grpc_services": [{ "envoy_grpc": { "cluster_name": "xds-grpc" } }] },
            "cds_config": { "ads": {}, "resource_api_version": "V3" },
            "lds_config": { "ads": {}, "resource_api_version": "V3" },
        },
        "static_resources": { "clusters": [cluster("xds-grpc", control), cluster("sds-grpc", secrets)] },
    })
}
