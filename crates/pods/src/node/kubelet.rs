//! The kubelet API: what the cluster's API server asks of a node.
//!
//! Every call but the probe needs a client certificate of the cluster or a token, and a permission
//! that the cluster itself confirms.

mod access;
mod command;
mod forward;
mod logs;
mod report;
mod upgrade;
mod usage;

pub(crate) use upgrade::read_any as read_any_upgrade;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::{StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tarbet_identity::tls::{Acceptor, PeerIdentity};
use tarbet_telemetry::{Coded, Metrics, Problem};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::book::Entry;
use super::keeper::Node;
use access::Access;

/// Callers at once: logs that are followed and forwards that stay open are among them.
const CONNECTIONS: usize = 2048;
/// A caller that has not finished its headers by then is gone.
const HEADERS: Duration = Duration::from_secs(30);

/// What the handlers share.
pub(super) struct Kubelet {
    node: Arc<Node>,
    access: Access,
    metrics: Metrics,
    /// Streams that outlive their request.
    streams: TaskTracker,
    stop: CancellationToken,
    /// What was read of pods' usage before.
    readings: usage::Readings,
    began: jiff::Timestamp,
}

impl Kubelet {
    pub(super) fn new(node: Arc<Node>, metrics: Metrics, stop: CancellationToken) -> Arc<Self> {
        let access = Access::new(node.client.clone(), node.config.node_name.clone());
        Arc::new(Self {
            node,
            access,
            metrics,
            streams: TaskTracker::new(),
            stop,
            readings: usage::Readings::default(),
            began: jiff::Timestamp::now(),
        })
    }

    fn router(self: &Arc<Self>) -> Router {
        let command = || get(command::exec).post(command::exec);
        let attach = || get(command::attach).post(command::attach);
        let forward = || get(forward::forward).post(forward::forward);
        let guarded = Router::new()
            .route("/containerLogs/{namespace}/{pod}/{container}", get(logs::logs))
            .route("/exec/{namespace}/{pod}/{container}", command())
            .route(
                "/exec/{namespace}/{pod}/{uid}/{container}",
                get(command::exec_uid).post(command::exec_uid),
            )
            .route("/attach/{namespace}/{pod}/{container}", attach())
            .route(
                "/attach/{namespace}/{pod}/{uid}/{container}",
                get(command::attach_uid).post(command::attach_uid),
            )
            .route("/portForward/{namespace}/{pod}", forward())
            .route(
                "/portForward/{namespace}/{pod}/{uid}",
                get(forward::forward_uid).post(forward::forward_uid),
            )
            .route("/run/{namespace}/{pod}/{container}", post(command::run))
            .route("/pods", get(report::pods))
            .route("/runningpods/", get(report::pods))
            .route("/stats/summary", get(usage::summary))
            .route("/metrics", get(report::metrics))
            .route("/metrics/resource", get(usage::resource))
            .layer(axum::middleware::from_fn_with_state(Arc::clone(self), access::guard));
        Router::new().merge(guarded).route("/healthz", get(|| async { "ok" })).with_state(Arc::clone(self))
    }

    /// Serves until told to stop, then lets what runs go on for as long as the process does.
    pub(super) async fn serve(self: Arc<Self>, listener: TcpListener, tls: Arc<ArcSwap<Acceptor>>) {
        let (router, room) = (self.router(), Arc::new(Semaphore::new(CONNECTIONS)));
        loop {
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            let accepted = tokio::select! {
                () = self.stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, address)) => {
                    let (router, tls, stop) = (router.clone(), tls.load_full(), self.stop.clone());
                    self.streams.spawn(async move {
                        if let Err(reason) = connection(stream, tls, router, stop).await {
                            tracing::debug!(%address, reason, "A kubelet connection ended early.");
                        }
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!(error = %error, "A connection could not be accepted.");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        self.streams.close();
        self.streams.wait().await;
    }

    /// The pod that is meant, as the cluster names it.
    fn pod(&self, namespace: &str, name: &str) -> Result<Entry, Refusal> {
        let key = (namespace.to_owned(), name.to_owned());
        self.node.book.find(&key).ok_or_else(|| absent(namespace, name))
    }

    /// Refuses another pod of the same name: who means the last one must not get into its successor.
    fn has(&self, namespace: &str, name: &str, uid: &str) -> Result<(), Refusal> {
        let found = self.pod(namespace, name)?;
        if found.uid() == uid { Ok(()) } else { Err(absent(namespace, name)) }
    }
}

fn absent(namespace: &str, name: &str) -> Refusal {
    let text = format!("pod \"{name}\" is not on this node (namespace \"{namespace}\")");
    Refusal::new(StatusCode::NOT_FOUND, text)
}

async fn connection(
    stream: TcpStream,
    tls: Arc<Acceptor>,
    router: Router,
    stop: CancellationToken,
) -> Result<(), String> {
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let stream = tls.accept(stream).await.map_err(|error| error.to_string())?;
    let caller = Caller(stream.peer().cloned());
    let service = tower::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(caller.clone());
        router.clone().oneshot(request)
    });
    // HTTP/1.1 only: SPDY comes by its upgrade.
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADERS);
    let serving =
        server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).with_upgrades();
    tokio::pin!(serving);
    tokio::select! {
        served = &mut serving => served.map_err(|error| error.to_string()),
        () = stop.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await.map_err(|error| error.to_string())
        }
    }
}

/// Who is at the other end of the connection, by certificate.
#[derive(Debug, Clone)]
struct Caller(Option<PeerIdentity>);

/// An answer that says no. The API server passes its text on to whoever asked.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    text: String,
}

impl Refusal {
    fn new(status: StatusCode, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        let Problem { code, message, hop, cause, remedy, .. } = &problem;
        Self::new(problem.status(), format!("{code}: {message} ({hop}: {cause}; try: {remedy})"))
    }
}

impl From<super::interlink::InterlinkError> for Refusal {
    fn from(error: super::interlink::InterlinkError) -> Self {
        error.problem().into()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.status, [(header::CONTENT_TYPE, "text/plain; charset=utf-8")], self.text).into_response()
    }
}
