//! Puts a node together and starts its parts.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::runtime::watcher;
use kube::{Api, Client};
use tarbet_cluster::{
    Change, Connect, Events, Mirror, Queue, Reached, Source, Watch, describe, place, watch,
};
use tarbet_identity::PrivateKey;
use tarbet_identity::tls::{
    Acceptor, CaSource, ClientCerts, ClientTls, Connector, Credential, CredentialSource, ServerTls,
};
use tarbet_telemetry::{Coded, Health, Metrics, Stage, Supervisor};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};

use super::address;
use super::book::Book;
use super::certificate;
use super::config::NodeConfig;
use super::error::NodeError;
use super::feed::Feed;
use super::gather::Gather;
use super::heart::Heart;
use super::interlink::{Endpoint, Interlink};
use super::keeper::{Node, Peer, Seen};
use super::kubelet::Kubelet;
use super::lease;
use super::metrics::NodeMetrics;
use super::turns::Turns;

/// Pods that are worked on at once. Most of the time of each is waiting for the other side: a removal takes
/// as long as its containers have to end.
const WORKERS: usize = 64;
/// Pods that are sent at once, and statuses that are written at once. Each holds the pod in several forms and
/// a connection, so after a burst the node would stay as large as the burst was.
const AT_ONCE: usize = 16;
/// How often certificate files are looked at.
const LOOK: Duration = Duration::from_secs(10);

/// What a node needs from the process it runs in.
pub struct Parts {
    /// The cluster.
    pub client: Client,
    /// How `client` reaches it.
    pub source: Source,
    /// Opens connections to interLink where it is not a socket: the network, or a link to a site.
    pub carrier: Connect,
    /// Counts.
    pub metrics: Metrics,
    /// Tells what works.
    pub health: Health,
    /// Owns the tasks.
    pub supervisor: Supervisor,
}

/// Starts a node. Returns where its kubelet API listens, once it does.
pub async fn start(config: NodeConfig, parts: Parts) -> Result<SocketAddr, NodeError> {
    start_telling(config, parts, Reached::default()).await
}

/// The same, telling which points the node passes: one after each effect on the cluster or on interLink.
pub async fn start_telling(
    mut config: NodeConfig,
    parts: Parts,
    reached: Reached,
) -> Result<SocketAddr, NodeError> {
    let mistakes = config.mistakes();
    if let Some((key, what)) = mistakes.first() {
        return Err(NodeError::Settings(format!("{key}: {what}")));
    }
    let Parts { client, source, carrier, metrics, health, supervisor } = parts;
    // It was just used to make the client; if it is being replaced now, loopback is said and warned of.
    config.pod_ip = address::find(&config, &place(&source).await.unwrap_or_default()).await;
    let endpoint =
        Endpoint::new(&config.interlink_url, &config.interlink_port).map_err(NodeError::Settings)?;
    let connect = endpoint.connect(carrier, client_tls(&config, &endpoint)?);
    let interlink = Interlink::new(endpoint, connect, config.vk_token_file.clone());
    let clients = client_certificates(&config, &client).await;
    let tls = server_tls(&config, &clients)?;
    let address = config.kubelet_listen;
    let failed = |source| NodeError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    tracing::info!(listener = "kubelet", %address, "Listening.");

    let queue = Queue::default();
    let node = Arc::new(Node {
        gather: Gather::new(client.clone(), Duration::from_secs(config.refresh_seconds.max(1))),
        interlink,
        book: Book::default(),
        mirror: Mirror::default(),
        sending: Turns::new(AT_ONCE, queue.clone()),
        queue,
        peer: tokio::sync::watch::Sender::new(Peer::default()),
        poll: Notify::new(),
        writing: Semaphore::new(AT_ONCE),
        metrics: NodeMetrics::new(&metrics),
        events: Events::new(client.clone(), "tarbet-node"),
        client: client.clone(),
        source,
        config,
        reached: reached.clone(),
    });
    spawn_watch(&node, &supervisor, &health);
    spawn_feed(&node, &supervisor);
    let keeper = Arc::clone(&node);
    supervisor.spawn(Stage::Work, "pods", move |stop| async move {
        let queue = keeper.queue.clone();
        queue.run(WORKERS, stop, |key| Arc::clone(&keeper).look(key)).await;
        Ok(())
    });
    let heart = Heart::new(Arc::clone(&node), address.port(), health.part("interlink"));
    supervisor.spawn(Stage::Upkeep, "node", move |stop| async move {
        heart.beat(stop).await.map_err(|error| error.problem())
    });
    let name = node.config.node_name.clone();
    supervisor.spawn(Stage::Upkeep, "node lease", move |stop| async move {
        lease::keep(client, name, reached, stop).await;
        Ok(())
    });
    let shown = Arc::new(ArcSwap::from_pointee(tls.clone()));
    spawn_certificate(&node, &supervisor, tls, clients, Arc::clone(&shown));
    spawn_kubelet(&node, &supervisor, metrics, listener, shown);
    Ok(address)
}

fn spawn_watch(node: &Arc<Node>, supervisor: &Supervisor, health: &Health) {
    let part = health.part("pods");
    let node = Arc::clone(node);
    supervisor.spawn(Stage::Intake, "watch of pods", move |stop| async move {
        let api: Api<Pod> = Api::all(node.client.clone());
        let wanted = watcher::Config::default().fields(&format!("spec.nodeName={}", node.config.node_name));
        let what = Watch { api, config: wanted, namespace: None };
        let tell = |change: Change<Seen>| {
            match change {
                Change::Applied(seen) | Change::Deleted(seen) => node.queue.add(seen.kept.key()),
                Change::Listed | Change::Back => part.ready(),
                Change::Failing(reason) => part.failing(format!("the cluster does not answer: {reason}")),
            }
            node.metrics.pods.set(i64::try_from(node.mirror.len()).unwrap_or(i64::MAX));
        };
        watch(what, node.mirror.clone(), |pod| Some(Seen::new(pod)), tell, stop).await;
        Ok(())
    });
}

fn spawn_feed(node: &Arc<Node>, supervisor: &Supervisor) {
    let feed = Arc::new(Feed::default());
    let (poll, polled) = (Arc::clone(&feed), Arc::clone(node));
    supervisor.spawn(Stage::Work, "states asked for", move |stop| async move {
        poll.poll(polled, stop).await;
        Ok(())
    });
    let watched = Arc::clone(node);
    supervisor.spawn(Stage::Work, "states pushed", move |stop| async move {
        feed.watch(watched, stop).await;
        Ok(())
    });
}

/// Follows the files of the kubelet's certificate, or has the cluster sign one.
fn spawn_certificate(
    node: &Arc<Node>,
    supervisor: &Supervisor,
    tls: Acceptor,
    clients: ClientCerts,
    shown: Arc<ArcSwap<Acceptor>>,
) {
    let (config, client) = (node.config.clone(), node.client.clone());
    supervisor.spawn(Stage::Upkeep, "kubelet certificate", move |stop| async move {
        if config.kubelet_cert_file.is_none() && !config.disable_csr {
            certificate::keep(client, config, clients, shown, stop).await;
            return Ok(());
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tls.follow(tokio::time::interval(LOOK), Timestamp::now) => {}
        }
        Ok(())
    });
}

fn spawn_kubelet(
    node: &Arc<Node>,
    supervisor: &Supervisor,
    metrics: Metrics,
    listener: TcpListener,
    tls: Arc<ArcSwap<Acceptor>>,
) {
    let node = Arc::clone(node);
    supervisor.spawn(Stage::Intake, "kubelet listener", move |stop| async move {
        Kubelet::new(node, metrics, stop).serve(listener, tls).await;
        Ok(())
    });
}

fn unusable<E: std::error::Error + Send + Sync + 'static>(what: &'static str) -> impl FnOnce(E) -> NodeError {
    move |error| NodeError::Tls { what, source: Box::new(error) }
}

fn client_tls(config: &NodeConfig, endpoint: &Endpoint) -> Result<Option<Connector>, NodeError> {
    if !matches!(endpoint, Endpoint::Network { tls: true, .. }) {
        return Ok(None);
    }
    let mut tls = match &config.tls.ca_cert_file {
        Some(path) if config.tls.enabled => ClientTls::only(CaSource::File(path.clone())),
        _ => ClientTls::new(),
    };
    if !config.http.ca_cert.is_empty() {
        tls = tls.add_ca(CaSource::Pem(config.http.ca_cert.clone()));
    }
    if config.http.insecure {
        tracing::warn!("Any certificate of interLink is taken, since HTTP.Insecure is set.");
        tls = tls.dangerously_skip_verification();
    }
    if let (true, Some(certificate), Some(key)) =
        (config.tls.enabled, &config.tls.cert_file, &config.tls.key_file)
    {
        tls = tls.credential(CredentialSource::Files { certificate: certificate.clone(), key: key.clone() });
    }
    let tls = tls.alpn(["http/1.1"]).build(Timestamp::now());
    tls.map(Some).map_err(unusable("interLink"))
}

fn server_tls(config: &NodeConfig, clients: &ClientCerts) -> Result<Acceptor, NodeError> {
    let credential =
        if let (Some(certificate), Some(key)) = (&config.kubelet_cert_file, &config.kubelet_key_file) {
            CredentialSource::Files { certificate: certificate.clone(), key: key.clone() }
        } else {
            let key = PrivateKey::generate().map_err(unusable("the kubelet API"))?;
            CredentialSource::Fixed(Credential::self_signed(&key).map_err(unusable("the kubelet API"))?)
        };
    let tls = ServerTls::new(credential).clients(clients.clone()).alpn(["http/1.1"]);
    tls.build(Timestamp::now()).map_err(unusable("the kubelet API"))
}

async fn client_certificates(config: &NodeConfig, client: &Client) -> ClientCerts {
    match &config.kubelet_client_ca_file {
        Some(path) => ClientCerts::Optional(CaSource::File(path.clone())),
        None => match cluster_authority(client).await {
            Some(pem) => ClientCerts::Optional(CaSource::Pem(pem)),
            None => ClientCerts::NotAsked,
        },
    }
}

/// Whose client certificates the cluster itself accepts.
async fn cluster_authority(client: &Client) -> Option<String> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    match maps.get_opt("extension-apiserver-authentication").await {
        Ok(map) => map.and_then(|map| map.data).and_then(|mut data| data.remove("client-ca-file")),
        Err(error) => {
            tracing::warn!(
                cause = describe(&error),
                "The cluster's authority for clients cannot be read; only tokens are accepted."
            );
            None
        }
    }
}
