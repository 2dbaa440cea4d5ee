//! Discovery over real connections: between two of ours, and with the original on either side.
//!
//! The original is played as its wire behaviour is known: it never acknowledges, has versions of
//! whole seconds, pushes without a nonce and knows no stream of changes.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::Stream;
use tarbet_link::{NetDialer, Target};
use tarbet_mesh::fds::proto::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use tarbet_mesh::fds::proto::discovery::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use tarbet_mesh::fds::proto::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use tarbet_mesh::fds::{
    Discovery, Heard, Limits, Snapshot, Subscription, TYPE_URL, Told, Way, decode, encode, serve, subscribe,
};
use tarbet_mesh::model::{Offer, OfferedPort};
use tarbet_testbed::{Lease, verified, wait_for};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

const SOON: Duration = Duration::from_mins(1);

pub(crate) fn offer(name: &str) -> Offer {
    let port = OfferedPort { name: "http".into(), number: 80, protocol: "HTTP".into(), target_port: 8080 };
    Offer { hostname: name.to_owned(), ports: vec![port], ..Offer::default() }
}

/// A running server of ours.
pub(crate) struct Server {
    pub(crate) port: u16,
    told: watch::Sender<Option<Arc<Told>>>,
    stop: CancellationToken,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener)
    }

    pub(crate) fn on(listener: TcpListener) -> Self {
        let port = listener.local_addr().unwrap().port();
        let (told, stop) = (watch::Sender::new(None), CancellationToken::new());
        let discovery = Discovery::new(told.subscribe(), stop.clone());
        tokio::spawn(serve(listener, discovery, stop.clone()));
        Self { port, told, stop }
    }

    fn export(&self, names: &[String], millis: u64) {
        let offers: Vec<Offer> = names.iter().map(|name| offer(name)).collect();
        self.offer_as("west", &offers, millis);
    }

    /// Says these things in the name of a mesh.
    pub(crate) fn offer_as(&self, mesh: &str, offers: &[Offer], millis: u64) {
        let before = self.told.borrow().clone();
        let last = before.as_ref().map(|before| before.everybody.as_ref());
        let offers: Vec<Arc<Offer>> = offers.iter().cloned().map(Arc::new).collect();
        if let Some(snapshot) = Snapshot::after(last, mesh, &offers, millis) {
            self.told.send_replace(Some(Arc::new(snapshot.into())));
        }
    }
}

/// What a subscriber of ours heard last.
#[derive(Default)]
struct Ear {
    hosts: Option<Vec<String>>,
    states: usize,
    refused: Vec<String>,
    lost: usize,
}

fn listen(port: u16, limits: Limits) -> (Arc<Mutex<Ear>>, tokio::task::JoinHandle<()>) {
    let ear = Arc::new(Mutex::new(Ear::default()));
    let subscription = Subscription {
        local: "east".into(),
        mesh: "west".into(),
        way: Way {
            dialer: Arc::new(NetDialer::default()),
            target: Target::tcp(format!("127.0.0.1:{port}").parse().unwrap()),
            authority: "federation-discovery-service-west.istio-system.svc.cluster.local:15080".into(),
        },
        limits,
        known: None,
        restart: Arc::new(Notify::new()),
    };
    let told = Arc::clone(&ear);
    let task = tokio::spawn(subscribe(subscription, move |heard| {
        let mut ear = told.lock().unwrap();
        match heard {
            Heard::State(taken) => {
                ear.states += 1;
                if let Some(offers) = taken.offers {
                    ear.hosts = Some(offers.iter().map(|offer| offer.hostname.clone()).collect());
                }
            }
            Heard::Refused(refused) => ear.refused.push(refused.to_string()),
            Heard::Lost(_) => ear.lost += 1,
        }
    }));
    (ear, task)
}

async fn heard(ear: &Mutex<Ear>, names: &[String]) {
    wait_for(SOON, "the peer's services", || ear.lock().unwrap().hosts.as_deref() == Some(names))
        .await
        .unwrap();
}

fn names(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| format!("s{number:05}.shop.svc.cluster.local")).collect()
}

#[tokio::test]
async fn two_of_ours_tell_only_changes_and_survive_a_restart_of_the_other() {
    // The port is bound twice: no outgoing connection of others may have it meanwhile.
    let ports = Lease::block(1).unwrap();
    let address = ("127.0.0.1", ports.port(0));
    let server = Server::on(TcpListener::bind(address).await.unwrap());
    let (ear, task) = listen(server.port, Limits::default());
    server.export(&names(0..1200), 1000);
    heard(&ear, &names(0..1200)).await;
    server.export(&names(0..1201), 2000);
    heard(&ear, &names(0..1201)).await;
    server.export(&names(5..1201), 3000);
    heard(&ear, &names(5..1201)).await;
    assert!(ear.lock().unwrap().refused.is_empty());

    // The same state from a new process, as seen later: nothing to do.
    server.stop.cancel();
    wait_for(SOON, "the loss of the peer", || ear.lock().unwrap().lost > 0).await.unwrap();
    let states = ear.lock().unwrap().states;
    let listener = tarbet_testbed::eventually(SOON, "the port", || TcpListener::bind(address)).await.unwrap();
    let again = Server::on(listener);
    again.export(&names(5..1201), 9000);
    wait_for(SOON, "the peer again", || ear.lock().unwrap().states > states).await.unwrap();
    again.export(&names(6..8), 9500);
    heard(&ear, &names(6..8)).await;
    task.abort();
}

/// Lets others run: what was sent is somewhere between here and the server then, elsewhere in each round.
async fn somewhere(round: usize) {
    for _ in 0..round % 30 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_change_beside_an_acknowledgement_is_told() {
    let rounds = 300 * tarbet_testbed::effort();
    let server = Server::start().await;
    let url = format!("http://127.0.0.1:{}", server.port);
    let mut raw = AggregatedDiscoveryServiceClient::connect(url).await.unwrap();

    let (sender, requests) = mpsc::channel(1);
    let ask = || DeltaDiscoveryRequest { type_url: TYPE_URL.into(), ..DeltaDiscoveryRequest::default() };
    sender.send(ask()).await.unwrap();
    let mut changes =
        raw.delta_aggregated_resources(ReceiverStream::new(requests)).await.unwrap().into_inner();
    for round in 1..=rounds {
        server.export(&names(round..round + 1), round as u64);
        let told = async {
            loop {
                let part = changes.message().await.unwrap().unwrap();
                sender.send(DeltaDiscoveryRequest { response_nonce: part.nonce, ..ask() }).await.unwrap();
                if !part.system_version_info.is_empty() {
                    break part.system_version_info;
                }
            }
        };
        let version = tokio::time::timeout(SOON, told).await.expect("a change is told");
        assert!(version.starts_with(&format!("{round}-")), "{version} in round {round}");
        somewhere(round).await;
    }
    drop((sender, changes));

    let (sender, requests) = mpsc::channel(1);
    let ask = || DiscoveryRequest { type_url: TYPE_URL.into(), ..DiscoveryRequest::default() };
    sender.send(ask()).await.unwrap();
    let mut states =
        raw.stream_aggregated_resources(ReceiverStream::new(requests)).await.unwrap().into_inner();
    states.message().await.unwrap().unwrap();
    for round in rounds + 1..=2 * rounds {
        server.export(&names(round..round + 1), round as u64);
        let told = tokio::time::timeout(SOON, states.message()).await.expect("a state is told");
        let DiscoveryResponse { version_info, nonce, .. } = told.unwrap().unwrap();
        assert!(version_info.starts_with(&format!("{round}-")), "{version_info} in round {round}");
        sender.send(DiscoveryRequest { version_info, response_nonce: nonce, ..ask() }).await.unwrap();
        somewhere(round).await;
    }
    verified("changes beside acknowledgements of a peer: each is told", 2 * rounds);
}

#[tokio::test]
async fn until_a_server_knows_what_it_exports_it_says_nothing() {
    let server = Server::start().await;
    let (ear, task) = listen(server.port, Limits::default());
    // The stream is up once the server has its request; silence is the answer.
    let mut raw =
        AggregatedDiscoveryServiceClient::connect(format!("http://127.0.0.1:{}", server.port)).await.unwrap();
    let (sender, requests) = mpsc::channel(1);
    sender.send(DiscoveryRequest { type_url: TYPE_URL.into(), ..DiscoveryRequest::default() }).await.unwrap();
    let mut answers =
        raw.stream_aggregated_resources(ReceiverStream::new(requests)).await.unwrap().into_inner();
    assert!(ear.lock().unwrap().hosts.is_none());
    server.export(&names(0..1), 1000);
    assert_eq!(
        answers.message().await.unwrap().unwrap().resources.len(),
        1,
        "the first answer is not an empty one"
    );
    heard(&ear, &names(0..1)).await;
    task.abort();
}

#[tokio::test]
async fn an_original_subscriber_is_served_as_by_the_original() {
    let server = Server::start().await;
    server.export(&names(0..2), 1_700_000_000_000);
    let mut raw =
        AggregatedDiscoveryServiceClient::connect(format!("http://127.0.0.1:{}", server.port)).await.unwrap();
    let (sender, requests) = mpsc::channel(4);
    // Only the type and a meaningless nonce, and never an acknowledgement.
    let first = DiscoveryRequest {
        type_url: TYPE_URL.into(),
        response_nonce: "12:00".into(),
        ..DiscoveryRequest::default()
    };
    sender.send(first).await.unwrap();
    let mut answers =
        raw.stream_aggregated_resources(ReceiverStream::new(requests)).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap();
    assert_eq!((answer.type_url.as_str(), answer.resources.len()), (TYPE_URL, 2));
    assert_eq!(answer.resources[0].type_url, "type.googleapis.com/v1alpha1.FederatedService");
    assert_eq!(decode(&answer.resources[0].value).unwrap(), offer(&names(0..1)[0]));
    server.export(&names(0..3), 1_700_000_001_000);
    let pushed = answers.message().await.unwrap().unwrap();
    assert_eq!(pushed.resources.len(), 3, "the whole state again");
    assert_ne!(pushed.version_info, answer.version_info);
    // Acknowledgements and refusals change nothing; another type gets an empty answer.
    for request in [
        DiscoveryRequest {
            version_info: pushed.version_info.clone(),
            type_url: TYPE_URL.into(),
            ..DiscoveryRequest::default()
        },
        DiscoveryRequest { type_url: "other".into(), ..DiscoveryRequest::default() },
    ] {
        sender.send(request).await.unwrap();
    }
    let other = answers.message().await.unwrap().unwrap();
    assert_eq!((other.type_url.as_str(), other.resources.len()), ("other", 0));
}

/// The original's server: whole states, versions of seconds, pushes without a nonce.
#[derive(Clone)]
struct Original {
    states: watch::Receiver<Vec<Offer>>,
    seconds: Arc<std::sync::atomic::AtomicU64>,
    seen: Arc<Mutex<Vec<DiscoveryRequest>>>,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl AggregatedDiscoveryService for Original {
    type StreamAggregatedResourcesStream = Answers<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Answers<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (mut requests, mut this) = (request.into_inner(), self.clone());
        let (sender, answers) = mpsc::channel(4);
        tokio::spawn(async move {
            loop {
                let asked = tokio::select! {
                    request = requests.message() => match request {
                        Ok(Some(request)) => {
                            this.seen.lock().unwrap().push(request.clone());
                            if !request.version_info.is_empty() {
                                continue;
                            }
                            true
                        }
                        _ => return,
                    },
                    changed = this.states.changed() => if changed.is_ok() { false } else { return },
                };
                let version = this.seconds.fetch_add(1, std::sync::atomic::Ordering::SeqCst).to_string();
                let answer = DiscoveryResponse {
                    version_info: version.clone(),
                    resources: this.states.borrow_and_update().iter().map(encode).collect(),
                    type_url: TYPE_URL.into(),
                    nonce: if asked { version } else { String::new() },
                    ..DiscoveryResponse::default()
                };
                if sender.send(Ok(answer)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("not implemented"))
    }
}

#[tokio::test]
async fn an_original_server_is_heard_and_acknowledged() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let states = watch::Sender::new(vec![offer("a.b.svc.cluster.local")]);
    let seen = Arc::default();
    let original = Original {
        states: states.subscribe(),
        seconds: Arc::new(1_700_000_000.into()),
        seen: Arc::clone(&seen),
    };
    let service = AggregatedDiscoveryServiceServer::new(original);
    let serving = tonic::transport::Server::builder().add_service(service);
    let server = tokio::spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
    let (ear, task) = listen(port, Limits { services: 2, ..Limits::default() });
    heard(&ear, &["a.b.svc.cluster.local".to_owned()]).await;
    states.send_replace(vec![offer("c.d.svc.cluster.local")]);
    heard(&ear, &["c.d.svc.cluster.local".to_owned()]).await;
    // Too much is refused, said so, and changes nothing; the next good state is taken.
    states.send_replace((0..3).map(|n| offer(&format!("x{n}.y"))).collect());
    wait_for(SOON, "the refusal", || !ear.lock().unwrap().refused.is_empty()).await.unwrap();
    assert_eq!(ear.lock().unwrap().hosts.as_deref(), Some(&["c.d.svc.cluster.local".to_owned()][..]));
    states.send_replace(Vec::new());
    heard(&ear, &[]).await;
    let refusals = || {
        seen.lock()
            .unwrap()
            .iter()
            .filter(|request: &&DiscoveryRequest| request.error_detail.is_some())
            .count()
    };
    wait_for(SOON, "the refusal at the server", || refusals() == 1).await.unwrap();
    let first = seen.lock().unwrap()[0].clone();
    assert_eq!(first.node.unwrap().id, "east");
    assert!(first.version_info.is_empty(), "the original answers only questions without a version");
    assert_eq!(ear.lock().unwrap().lost, 0, "one stream all along");
    task.abort();
    server.abort();
}

#[tokio::test]
async fn a_message_too_large_does_not_get_in() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut huge = offer("a.b.svc.cluster.local");
    huge.labels.insert("k".into(), "v".repeat(10 << 20));
    let states = watch::Sender::new(vec![huge]);
    let original = Original { states: states.subscribe(), seconds: Arc::new(1.into()), seen: Arc::default() };
    let service = AggregatedDiscoveryServiceServer::new(original);
    let serving = tonic::transport::Server::builder().add_service(service);
    let server = tokio::spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
    let (ear, task) = listen(port, Limits::default());
    wait_for(SOON, "the stream to be given up", || ear.lock().unwrap().lost > 0).await.unwrap();
    assert!(ear.lock().unwrap().hosts.is_none());
    states.send_replace(vec![offer("a.b.svc.cluster.local")]);
    heard(&ear, &["a.b.svc.cluster.local".to_owned()]).await;
    task.abort();
    server.abort();
}
