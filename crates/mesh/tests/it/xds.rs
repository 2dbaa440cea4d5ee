//! Real istiod turns what we write into what proxies need: server names at the gateway of the
//! exporter, endpoints, server names and identities at the callers of the importer.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow};
use prost_types::value::Kind as Field;
use prost_types::{Struct, Value as Any};
use serde_json::{Value, json};
use tarbet_mesh::fds::proto::discovery::DiscoveryRequest;
use tarbet_mesh::fds::proto::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use tarbet_mesh::fds::proto::node::Node;
use tarbet_testbed::{Istiod, eventually};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;

use super::federation::{federated, federation, service, until, until_gone};
use super::world::SOON;

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
const ENDPOINTS: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
/// The service as callers know it.
const PAY: &str = "outbound|80||pay.shop.svc.cluster.local";
/// Another service of the same pods.
const TWIN: &str = "outbound|80||canary.shop.svc.cluster.local";

/// A proxy that only listens: as long as it is connected istiod can be asked what it was told.
struct Proxy {
    name: String,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Connects as `kind` (`router` or `sidecar`) with these labels.
    async fn connect(
        istiod: &Istiod,
        kind: &str,
        namespace: &str,
        network: &str,
        labels: Value,
    ) -> Result<Self> {
        let address = format!("http://127.0.0.1:{}", istiod.discovery_port());
        let mut client =
            AggregatedDiscoveryServiceClient::connect(address).await?.max_decoding_message_size(64 << 20);
        let metadata = json!({
            "NAMESPACE": namespace, "CLUSTER_ID": "Kubernetes", "NETWORK": network, "LABELS": labels,
            "REQUESTED_NETWORK_VIEW": if kind == "router" { network } else { "" },
            "ISTIO_VERSION": "1.31.0", "SERVICE_ACCOUNT": "default",
        });
        let node = Node {
            id: format!("{kind}~10.9.9.9~proxy.{namespace}~{namespace}.svc.cluster.local"),
            metadata: Some(fields(&metadata)),
        };
        let (sender, requests) = mpsc::channel(4);
        for (type_url, resource_names) in [(CLUSTER, vec![]), (ENDPOINTS, both()), (LISTENER, vec![])] {
            let (node, type_url) = (Some(node.clone()), type_url.to_owned());
            sender
                .send(DiscoveryRequest { node, type_url, resource_names, ..DiscoveryRequest::default() })
                .await?;
        }
        let mut answers =
            client.stream_aggregated_resources(ReceiverStream::new(requests)).await?.into_inner();
        answers.message().await?.context("istiod ended the stream")?;
        let task = tokio::spawn(async move {
            while let Ok(Some(answer)) = answers.message().await {
                let accepted = DiscoveryRequest {
                    version_info: answer.version_info,
                    response_nonce: answer.nonce,
                    resource_names: if answer.type_url == ENDPOINTS { both() } else { vec![] },
                    type_url: answer.type_url,
                    ..DiscoveryRequest::default()
                };
                if sender.send(accepted).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self { name: format!("proxy.{namespace}"), task })
    }

    /// Waits until what it was told is as `good` wants it.
    async fn told<T>(&self, istiod: &Istiod, what: &str, good: impl Fn(&Value) -> Option<T>) -> T {
        let look = || async {
            let dump = istiod.config_dump(&self.name).await?;
            good(&dump).ok_or_else(|| anyhow!("not so in {} bytes", dump.to_string().len()))
        };
        eventually(SOON, what, look).await.unwrap()
    }
}

/// The clusters whose endpoints are looked at.
fn both() -> Vec<String> {
    vec![PAY.to_owned(), TWIN.to_owned()]
}

fn fields(value: &Value) -> Struct {
    let field = |value: &Value| Any {
        kind: Some(match value {
            Value::Object(_) => Field::StructValue(fields(value)),
            other => Field::StringValue(other.as_str().unwrap_or_default().to_owned()),
        }),
    };
    let all = value.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), field(value)));
    Struct { fields: all.collect::<BTreeMap<_, _>>() }
}

/// Every value under this key, at any depth.
fn all<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(map) => {
            for (name, inner) in map {
                if name == key {
                    found.push(inner);
                }
                all(inner, key, found);
            }
        }
        Value::Array(list) => list.iter().for_each(|inner| all(inner, key, found)),
        _ => {}
    }
}

fn server_names(dump: &Value) -> Vec<String> {
    let mut found = Vec::new();
    all(dump, "serverNames", &mut found);
    found
        .into_iter()
        .filter_map(Value::as_array)
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

/// The cluster of this name.
fn cluster<'a>(dump: &'a Value, name: &str) -> Option<&'a Value> {
    let mut found = Vec::new();
    all(dump, "cluster", &mut found);
    found.into_iter().find(|cluster| cluster["name"] == name)
}

/// The endpoints of the cluster of this name.
fn endpoints<'a>(dump: &'a Value, name: &str) -> Option<&'a Value> {
    let mut found = Vec::new();
    all(dump, "endpointConfig", &mut found);
    found.into_iter().find(|endpoints| endpoints["clusterName"] == name)
}

#[tokio::test]
async fn istiod_opens_what_is_exported_and_leads_callers_there() {
    let (east, west, _turn) = federated().await;
    let (here, there) = (east.kubectl(), west.kubectl());
    // A pod behind the exported service, so that there is an identity to tell.
    there.run(&["create", "serviceaccount", "payer", "-n", "shop"]).await.unwrap();
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "pay-1", "namespace": "shop", "labels": { "app": "payer" } },
        "spec": { "serviceAccountName": "payer", "containers": [{ "name": "app", "image": "none" }] } });
    let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "pay-ours", "namespace": "shop", "labels": { "kubernetes.io/service-name": "pay" } },
        "endpoints": [{ "addresses": ["10.1.0.5"], "conditions": { "ready": true },
            "targetRef": { "kind": "Pod", "name": "pay-1", "namespace": "shop" } }],
        "ports": [{ "name": "http", "port": 8080 }] });
    there.apply(&pod).await.unwrap();
    there.apply(&slice).await.unwrap();

    let exporter = Istiod::start(west.plane(), "cluster.local").await.unwrap();
    let importer = Istiod::start(east.plane(), "cluster.local").await.unwrap();
    let gateway =
        Proxy::connect(&exporter, "router", "istio-system", "west", json!({ "app": "gw" })).await.unwrap();
    let caller =
        Proxy::connect(&importer, "sidecar", "shop", "east", json!({ "app": "caller" })).await.unwrap();
    let sni = "outbound_.80_._.pay.shop.svc.cluster.local".to_owned();
    gateway
        .told(&exporter, "the gateway to open pay", |dump| server_names(dump).contains(&sni).then_some(()))
        .await;

    // The caller is led to the gateway's address, with that server name and that identity.
    let identity = "spiffe://cluster.local/ns/shop/sa/payer";
    caller
        .told(&importer, "the caller to know pay and its identity", |dump| {
            let text = cluster(dump, PAY)?.to_string();
            (text.contains(&sni) && text.contains(identity)).then_some(())
        })
        .await;
    let behind = |dump: &Value, address: &str, port: u16| {
        let text = endpoints(dump, PAY)?.to_string();
        (text.contains(address) && text.contains(&port.to_string())).then_some(())
    };
    caller
        .told(&importer, "the address of the remote gateway", |dump| behind(dump, "192.0.2.1", 15443))
        .await;

    // Behind a router the gateway takes the name that a router can read, beside Istio's own.
    let mut router = federation("west", "east", "192.0.2.2");
    router["spec"]["local"]["ingress"]["type"] = json!("openshift-router");
    there.apply(&router).await.unwrap();
    let readable = "pay-80.shop.svc.cluster.local".to_owned();
    let either = |dump: &Value| {
        let names = server_names(dump);
        (names.contains(&readable) && names.contains(&sni)).then_some(())
    };
    gateway.told(&exporter, "both server names at the gateway", either).await;

    // A local service of the same name: the remote gateway is one more endpoint of it.
    here.apply(&service("shop", "pay", 80, false)).await.unwrap();
    until(&here, "workloadentries.networking.istio.io", "shop", "import-west-pay-0", |_| true).await;
    caller
        .told(&importer, "the remote gateway behind the local service", |dump| {
            behind(dump, "192.0.2.1", 15443)
        })
        .await;
    // Another Service of the same pods gets nothing of it, and the one of that name loses nothing.
    let mut twin = service("shop", "canary", 80, false);
    twin["spec"]["selector"] = json!({ "app": "pay" });
    here.apply(&twin).await.unwrap();
    until_gone(&here, "workloadentries.networking.istio.io", "shop", "import-west-pay-0").await;
    caller
        .told(&importer, "the remote gateway behind the one service alone", |dump| {
            let theirs = cluster(dump, TWIN).map(|_| endpoints(dump, TWIN).map(Value::to_string))?;
            behind(dump, "192.0.2.1", 15443)?;
            (!theirs.unwrap_or_default().contains("192.0.2.1")).then_some(())
        })
        .await;
    here.run(&["delete", "service", "pay", "canary", "-n", "shop"]).await.unwrap();

    // Un-exported: closed there, unknown here.
    there.apply(&service("shop", "pay", 80, false)).await.unwrap();
    gateway
        .told(&exporter, "the gateway to close pay", |dump| {
            (!server_names(dump).contains(&sni)).then_some(())
        })
        .await;
    caller
        .told(&importer, "the caller to forget pay", |dump| cluster(dump, PAY).is_none().then_some(()))
        .await;
    there
        .run(&[
            "delete",
            "pod/pay-1",
            "endpointslice/pay-ours",
            "serviceaccount/payer",
            "-n",
            "shop",
            "--force",
        ])
        .await
        .unwrap();
}

#[tokio::test]
async fn a_name_of_its_own_has_its_own_chain_at_the_gateway() {
    let (_east, west, _turn) = federated().await;
    let there = west.kubectl();
    let patch =
        json!({ "spec": { "export": { "dnsSettings": { "searchDomain": "mesh.global" } } } }).to_string();
    there
        .run(&[
            "patch",
            "federationservicerules",
            "default",
            "-n",
            "istio-system",
            "--type=merge",
            "-p",
            &patch,
        ])
        .await
        .unwrap();
    let istiod = Istiod::start(west.plane(), "cluster.local").await.unwrap();
    let gateway =
        Proxy::connect(&istiod, "router", "istio-system", "west", json!({ "app": "gw" })).await.unwrap();
    let wanted = "outbound_.80_._.pay.mesh.global".to_owned();
    gateway
        .told(&istiod, "the chain of the alias", |dump| {
            let names = server_names(dump);
            let own = names.contains(&"outbound_.80_._.pay.shop.svc.cluster.local".to_owned());
            (names.contains(&wanted) && !own).then_some(())
        })
        .await;
}
