//! The connections to a kas: kept up, and shared by everything that calls it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tarbet_link::{Backoff, Connect, GatewayUrl};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;

use super::{KasAgentConfig, KasAgentStatus};
use crate::kas::inbox::{Inbox, broken};
use crate::kas::outbox::OutboxBody;
use crate::kas::status;

/// A connection that lasted so long may be replaced at once; one that did not might never last.
const SETTLED: Duration = Duration::from_secs(1);

type Handle = SendRequest<OutboxBody>;

pub(super) struct Channel {
    slots: Vec<Slot>,
    next: AtomicUsize,
    changed: watch::Sender<()>,
    headers: HeaderMap,
    origin: String,
}

#[derive(Clone)]
struct Slot {
    connector: Arc<dyn Connect>,
    address: GatewayUrl,
    backoff: Backoff,
    ping_after: Duration,
    ping_timeout: Duration,
    handle: watch::Sender<Option<Handle>>,
}

impl Channel {
    pub(super) fn new(config: &KasAgentConfig, connector: Arc<dyn Connect>) -> Self {
        let slot = || Slot {
            connector: Arc::clone(&connector),
            address: config.address.clone(),
            backoff: config.reconnect,
            ping_after: config.ping_after,
            ping_timeout: config.ping_timeout,
            handle: watch::Sender::default(),
        };
        let address = config.address.address();
        let host = if address.host().contains(':') {
            format!("[{}]", address.host())
        } else {
            address.host().to_owned()
        };
        Self {
            slots: std::iter::repeat_with(slot).take(config.connections.max(1)).collect(),
            next: AtomicUsize::new(0),
            changed: watch::Sender::new(()),
            headers: call_headers(config),
            origin: format!(
                "{}://{host}:{}",
                if config.address.tls() { "https" } else { "http" },
                address.port()
            ),
        }
    }

    /// Keeps all connections up until told to stop.
    pub(super) fn keep_up(
        &self,
        tracker: &TaskTracker,
        stop: &CancellationToken,
        status: &watch::Sender<KasAgentStatus>,
    ) {
        for slot in &self.slots {
            let work = slot.clone().keep_up(self.changed.clone(), status.clone());
            let stop = stop.clone();
            tracker.spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = work => {}
                }
            });
        }
    }

    /// Opens a call. Waits for a connection as long as it takes.
    pub(super) async fn call(&self, path: &'static str, body: OutboxBody) -> Result<Answer, Status> {
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = format!("{}{path}", self.origin)
            .parse()
            .map_err(|_| Status::internal("agent → kas: the address makes no URL"))?;
        *request.headers_mut() = self.headers.clone();
        let response = loop {
            let mut handle = self.ready().await;
            match handle.try_send_request(request).await {
                Ok(response) => break response,
                Err(mut error) => match error.take_message() {
                    // It never left: the connection was closing. Another will come.
                    Some(back) => {
                        request = back;
                        tokio::task::yield_now().await;
                    }
                    None => return Err(hop(&broken(error.error()))),
                },
            }
        };
        Answer::read(response)
    }

    /// A connection that takes calls, in turn.
    async fn ready(&self) -> Handle {
        let mut changed = self.changed.subscribe();
        loop {
            let start = self.next.fetch_add(1, Ordering::Relaxed);
            for offset in 0..self.slots.len() {
                let slot = &self.slots[(start + offset) % self.slots.len()];
                let handle = slot.handle.borrow().clone();
                if let Some(handle) = handle.filter(|handle| !handle.is_closed()) {
                    return handle;
                }
            }
            // The channel itself holds a sender, so this never fails.
            let _ = changed.changed().await;
        }
    }
}

impl Slot {
    async fn keep_up(self, changed: watch::Sender<()>, status: watch::Sender<KasAgentStatus>) {
        let mut failures = 0;
        loop {
            let begun = Instant::now();
            let mut moved = false;
            let trouble = match self.connect().await {
                Ok((handle, connection)) => {
                    self.handle.send_replace(Some(handle));
                    changed.send_replace(());
                    status.send_modify(|status| {
                        status.connections += 1;
                        status.trouble = None;
                    });
                    tracing::info!(kas = %self.address, "Connected to the kas.");
                    let outcome = connection.await;
                    self.handle.send_replace(None);
                    status.send_modify(|status| status.connections -= 1);
                    if begun.elapsed() >= self.backoff.stable {
                        failures = 0;
                    }
                    match outcome {
                        // It asked us to move, or it just ended: that is no failure.
                        Ok(()) => {
                            moved = begun.elapsed() >= SETTLED;
                            None
                        }
                        Err(error) => {
                            Some(format!("agent → kas {}: the connection broke ({error})", self.address))
                        }
                    }
                }
                Err(trouble) => Some(trouble),
            };
            if let Some(trouble) = trouble {
                tracing::warn!(kas = %self.address, cause = trouble, failures, "No connection to the kas.");
                status.send_modify(|status| status.trouble = Some(trouble));
            }
            if moved {
                continue;
            }
            tokio::time::sleep(self.backoff.delay(failures, rand::random())).await;
            failures = failures.saturating_add(1);
        }
    }

    async fn connect(&self) -> Result<(Handle, impl Future<Output = hyper::Result<()>> + use<>), String> {
        let stream = self.connector.connect(&self.address).await.map_err(|error| {
            format!("agent → kas {}: {}", self.address, tarbet_telemetry::problem::chain(&error))
        })?;
        http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(self.ping_after)
            .keep_alive_timeout(self.ping_timeout)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(64 << 20)
            .max_frame_size(64 << 10)
            // Until the kas says otherwise; it allows more than the tunnels we open.
            .initial_max_send_streams(1024)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| format!("agent → kas {}: it does not speak HTTP/2 ({error})", self.address))
    }
}

/// The beginning of an answer.
pub(super) struct Answer {
    pub(super) inbox: Inbox,
}

impl Answer {
    fn read(response: Response<Incoming>) -> Result<Self, Status> {
        let (head, body) = response.into_parts();
        if head.status != http::StatusCode::OK {
            return Err(Status::unavailable(format!(
                "agent → kas: the answer is HTTP {}, not gRPC; a proxy may stand in between",
                head.status
            )));
        }
        if let Some(status) = Status::from_header_map(&head.headers) {
            // An answer without a body.
            return match status.code() {
                tonic::Code::Ok => Ok(Self { inbox: Inbox::ended(head.headers) }),
                _ => Err(hop(&status)),
            };
        }
        Ok(Self { inbox: Inbox::new(&head.headers, body)? })
    }

    /// The next message; `None` when the kas ended the call with success.
    pub(super) async fn message(&mut self) -> Result<Option<bytes::Bytes>, Status> {
        match self.inbox.message().await {
            Some(Ok(message)) => Ok(Some(message)),
            Some(Err(error)) => Err(hop(&error)),
            None => match status::of_response(self.inbox.trailers()) {
                status if status.code() == tonic::Code::Ok => Ok(None),
                status => Err(hop(&status)),
            },
        }
    }
}

fn hop(status: &Status) -> Status {
    if status.message().starts_with("agent → ") {
        return status.clone();
    }
    Status::new(status.code(), format!("agent → kas: {}", status.message()))
}

fn call_headers(config: &KasAgentConfig) -> HeaderMap {
    let mut headers = config.metadata.clone();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    if let Ok(agent) = HeaderValue::from_str(&config.user_agent) {
        headers.insert(header::USER_AGENT, agent);
    }
    if let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", config.token.expose())) {
        value.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, value);
    }
    headers
}
