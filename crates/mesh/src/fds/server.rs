//! The answering side. One task owns each stream: requests and changes meet there, so answers are
//! never sent by two hands at once, and a slow reader gets the latest state instead of a backlog.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use super::TYPE_URL;
use super::audience::{Asker, Told};
use super::proto::discovery::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use super::proto::discovery::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Resource,
};
use super::proto::node::ControlPlane;
use super::snapshot::Snapshot;

/// Streams at once: more than a hundred remotes, each with two replicas that reconnect.
const STREAMS: usize = 512;
/// A request lists at most the versions of what a peer holds.
const REQUEST: usize = 4 << 20;
/// Services in one message of changes: well within any peer's limit.
const PART: usize = 500;
/// A peer that takes no answer for this long is gone.
const STUCK: Duration = Duration::from_secs(30);
/// After a connection that could not be taken.
const BREATH: Duration = Duration::from_millis(100);

/// Answers peers from the latest snapshot. Until there is one, nobody is told anything: an empty
/// answer would make them withdraw everything.
#[derive(Clone)]
pub struct Discovery {
    told: watch::Receiver<Option<Arc<Told>>>,
    slots: Arc<Semaphore>,
    stop: CancellationToken,
}

impl Discovery {
    /// Answers until `stop`.
    pub fn new(told: watch::Receiver<Option<Arc<Told>>>, stop: CancellationToken) -> Self {
        Self { told, slots: Arc::new(Semaphore::new(STREAMS)), stop }
    }

    fn slot(&self) -> Result<OwnedSemaphorePermit, Status> {
        let full =
            |_| Status::resource_exhausted(format!("{STREAMS} peers are connected already; try again later"));
        Arc::clone(&self.slots).try_acquire_owned().map_err(full)
    }
}

/// Who speaks: the id of the mesh, so that an address of another mesh is noticed.
fn speaker(snapshot: &Snapshot) -> ControlPlane {
    ControlPlane { identifier: format!("mesh/{}", snapshot.mesh) }
}

/// Connections until `stop`. The listener closes then, and not when the last peer is gone: whoever dials meanwhile is
/// refused and goes elsewhere, instead of waiting in a queue that nobody serves.
fn connections(
    listener: TcpListener,
    stop: CancellationToken,
) -> impl Stream<Item = std::io::Result<TcpStream>> + Send {
    stream::unfold((listener, stop), |(listener, stop)| async move {
        let accepted = tokio::select! {
            () = stop.cancelled() => return None,
            accepted = listener.accept() => accepted.map(|(socket, _)| socket),
        };
        match &accepted {
            Ok(socket) => {
                // A peer that is gone again is noticed by whoever reads from it.
                let _ = socket.set_nodelay(true);
            }
            // Out of descriptors, most likely: asking again at once would only burn a core.
            Err(_) => tokio::time::sleep(BREATH).await,
        }
        Some((accepted, (listener, stop)))
    })
}

/// Serves discovery on a listener until `stop`, and then those who are connected until they know.
pub async fn serve(
    listener: TcpListener,
    discovery: Discovery,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let service = AggregatedDiscoveryServiceServer::new(discovery).max_decoding_message_size(REQUEST);
    Server::builder()
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .max_concurrent_streams(16)
        .http2_keepalive_interval(Some(Duration::from_secs(20)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .add_service(service)
        // The end of the connections is the signal.
        .serve_with_incoming_shutdown(connections(listener, stop), std::future::pending())
        .await
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl AggregatedDiscoveryService for Discovery {
    type StreamAggregatedResourcesStream = Answers<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Answers<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (slot, discovery) = (self.slot()?, self.clone());
        let (sender, answers) = mpsc::channel(1);
        let asker = Asker::seen(&request.metadata().clone().into_headers());
        tokio::spawn(async move {
            let _slot = slot;
            tell_all(discovery, asker, request.into_inner(), sender).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let (slot, discovery) = (self.slot()?, self.clone());
        let (sender, answers) = mpsc::channel(1);
        let asker = Asker::seen(&request.metadata().clone().into_headers());
        tokio::spawn(async move {
            let _slot = slot;
            tell_changes(discovery, asker, request.into_inner(), sender).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }
}

type Sender<T> = mpsc::Sender<Result<T, Status>>;

/// False once the peer is gone.
async fn send<T>(sender: &Sender<T>, answer: T) -> bool {
    matches!(tokio::time::timeout(STUCK, sender.send(Ok(answer))).await, Ok(Ok(())))
}

/// The whole state, at the start and after each change.
async fn tell_all(
    mut discovery: Discovery,
    mut asker: Asker,
    mut requests: Streaming<DiscoveryRequest>,
    sender: Sender<DiscoveryResponse>,
) {
    let (mut subscribed, mut count) = (false, 0u64);
    // Others may have changed without this one seeing a difference.
    let mut last: Option<Arc<Snapshot>> = None;
    loop {
        let (mut due, mut asked) = (false, false);
        tokio::select! {
            () = discovery.stop.cancelled() => return,
            () = sender.closed() => return,
            changed = discovery.told.changed() => match changed {
                Ok(()) => due = subscribed,
                Err(_) => return,
            },
            request = requests.next() => {
                let Some(Ok(request)) = request else { return };
                if let Some(node) = &request.node {
                    asker.name.clone_from(&node.id);
                }
                if let Some(error) = &request.error_detail {
                    tracing::warn!(peer = asker.name, version = %request.version_info, cause = %error.message, "A peer refused what we export.");
                } else if request.type_url != TYPE_URL {
                    // The original answers this way, and somebody may wait for it.
                    let answer = DiscoveryResponse { type_url: request.type_url, ..DiscoveryResponse::default() };
                    if !send(&sender, answer).await {
                        return;
                    }
                } else if request.version_info.is_empty() {
                    (subscribed, due, asked) = (true, true, true);
                }
            }
        }
        // Who is owed nothing does not look: a change that was looked at counts as told.
        if !due {
            continue;
        }
        let told = discovery.told.borrow_and_update().clone();
        let Some(snapshot) = told.map(|told| Arc::clone(told.to(&asker))) else { continue };
        if !asked && last.as_ref().is_some_and(|last| Arc::ptr_eq(last, &snapshot)) {
            continue;
        }
        last = Some(Arc::clone(&snapshot));
        count += 1;
        let answer = DiscoveryResponse {
            version_info: snapshot.version().to_string(),
            resources: snapshot.entries.values().map(|entry| entry.resource.clone()).collect(),
            type_url: TYPE_URL.to_owned(),
            nonce: count.to_string(),
            control_plane: Some(speaker(&snapshot)),
            canary: false,
        };
        if !send(&sender, answer).await {
            return;
        }
    }
}

/// What a peer has.
pub(crate) enum Known {
    /// By its own word when it connected.
    Versions(BTreeMap<String, String>),
    /// By what it was sent.
    Snapshot(Arc<Snapshot>),
}

impl Known {
    fn version(&self, name: &str) -> Option<&str> {
        match self {
            Self::Versions(versions) => versions.get(name).map(String::as_str),
            Self::Snapshot(snapshot) => snapshot.entries.get(name).map(|entry| entry.version.as_str()),
        }
    }

    fn names(&self) -> Box<dyn Iterator<Item = &String> + '_> {
        match self {
            Self::Versions(versions) => Box::new(versions.keys()),
            Self::Snapshot(snapshot) => Box::new(snapshot.entries.keys()),
        }
    }
}

/// Only what differs from what the peer has.
async fn tell_changes(
    mut discovery: Discovery,
    mut asker: Asker,
    mut requests: Streaming<DeltaDiscoveryRequest>,
    sender: Sender<DeltaDiscoveryResponse>,
) {
    let mut known: Option<Known> = None;
    let mut count = 0u64;
    loop {
        let mut due = false;
        tokio::select! {
            () = discovery.stop.cancelled() => return,
            () = sender.closed() => return,
            changed = discovery.told.changed() => match changed {
                Ok(()) => due = known.is_some(),
                Err(_) => return,
            },
            request = requests.next() => {
                let Some(Ok(request)) = request else { return };
                if let Some(node) = &request.node {
                    asker.name.clone_from(&node.id);
                }
                if request.type_url != TYPE_URL {
                    continue;
                }
                if let Some(error) = &request.error_detail {
                    // What it has now is its own business: it reconnects and says so.
                    tracing::warn!(peer = asker.name, cause = %error.message, "A peer refused changes of what we export.");
                } else if known.is_none() {
                    known = Some(Known::Versions(request.initial_resource_versions));
                    due = true;
                }
            }
        }
        // As above: an acknowledgement that comes beside a change must not take the change's place.
        if !due {
            continue;
        }
        let told = discovery.told.borrow_and_update().clone();
        let snapshot = told.map(|told| Arc::clone(told.to(&asker)));
        let (Some(snapshot), Some(has)) = (snapshot, &known) else { continue };
        if matches!(has, Known::Snapshot(last) if Arc::ptr_eq(last, &snapshot)) {
            continue;
        }
        for mut part in parts(has, &snapshot) {
            count += 1;
            part.nonce = count.to_string();
            part.control_plane = Some(speaker(&snapshot));
            if !send(&sender, part).await {
                return;
            }
        }
        known = Some(Known::Snapshot(snapshot));
    }
}

/// The messages that lead from what a peer has to a snapshot; only the last carries the version.
pub(crate) fn parts(known: &Known, snapshot: &Snapshot) -> Vec<DeltaDiscoveryResponse> {
    let resource = |(name, entry): (&String, &Arc<super::snapshot::Entry>)| Resource {
        version: entry.version.clone(),
        resource: Some(entry.resource.clone()),
        name: name.clone(),
    };
    let differs = |(name, entry): &(&String, &Arc<super::snapshot::Entry>)| {
        known.version(name) != Some(entry.version.as_str())
    };
    let changed: Vec<Resource> = snapshot.entries.iter().filter(differs).map(resource).collect();
    let removed: Vec<String> =
        known.names().filter(|name| !snapshot.entries.contains_key(*name)).cloned().collect();
    let empty =
        || DeltaDiscoveryResponse { type_url: TYPE_URL.to_owned(), ..DeltaDiscoveryResponse::default() };
    let mut parts: Vec<DeltaDiscoveryResponse> = changed
        .chunks(PART)
        .map(|chunk| DeltaDiscoveryResponse { resources: chunk.to_vec(), ..empty() })
        .collect();
    parts.extend(
        removed
            .chunks(PART)
            .map(|chunk| DeltaDiscoveryResponse { removed_resources: chunk.to_vec(), ..empty() }),
    );
    if parts.is_empty() {
        parts.push(empty());
    }
    if let Some(last) = parts.last_mut() {
        last.system_version_info = snapshot.version().to_string();
    }
    parts
}
