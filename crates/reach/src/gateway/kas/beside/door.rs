//! Connections to the private listeners of other replicas, one each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Uri, header};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use jiff::Timestamp;
use tarbet_identity::jwt::kas::KasSigner;
use tarbet_link::GatewayUrl;
use tarbet_telemetry::problem::chain;
use tonic::Status;

use crate::kas::locked;
use crate::kas::outbox::OutboxBody;
use crate::kas::prefix::MethodPath;
use crate::kas::private::{Knock, Offer, knock};
use crate::peers::Connect;

/// How long a connection may take; a caller waits meanwhile.
const CONNECT: Duration = Duration::from_secs(5);
/// As the original has it.
const PING: Duration = Duration::from_secs(55);
const PONG: Duration = Duration::from_secs(20);
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
const AGENT: HeaderValue = HeaderValue::from_static(concat!("tarbet-gateway/", env!("CARGO_PKG_VERSION")));

type Slot = Arc<tokio::sync::Mutex<Option<SendRequest<OutboxBody>>>>;

pub(super) struct Doors {
    connect: Connect,
    signer: KasSigner,
    open: Mutex<HashMap<String, Slot>>,
}

impl Doors {
    pub(super) fn new(connect: Connect, signer: KasSigner) -> Self {
        Self { connect, signer, open: Mutex::default() }
    }

    /// Asks the gateway at this URL for a tunnel, and waits until it has one.
    pub(super) async fn knock_at(
        &self,
        url: &str,
        method: &MethodPath,
        agent: i64,
        metadata: &HeaderMap,
    ) -> Result<Knock, Status> {
        let mut client = self.client(url).await?;
        let place: GatewayUrl =
            url.parse().map_err(|_| elsewhere(&format!("`{url}` is no URL of a gateway")))?;
        let mut metadata = metadata.clone();
        metadata.insert(header::USER_AGENT, AGENT);
        let token = self.signer.token(Timestamp::now());
        let base = format!("{}://{}", if place.tls() { "https" } else { "http" }, place.address());
        let mut knock = knock(method, agent, &token, &metadata, move |mut request| {
            // Both halves were parsed before.
            if let Ok(uri) = format!("{base}{}", request.uri().path()).parse::<Uri>() {
                *request.uri_mut() = uri;
            }
            client.send_request(request)
        })?;
        loop {
            match knock.offer().await? {
                Some(Offer::Ready) => return Ok(knock),
                Some(Offer::NotYet) => {}
                None => return Err(elsewhere("it ended the call without a tunnel")),
            }
        }
    }

    async fn client(&self, url: &str) -> Result<SendRequest<OutboxBody>, Status> {
        let slot = Arc::clone(locked(&self.open).entry(url.to_owned()).or_default());
        // Held while connecting: those who come meanwhile share the one connection.
        let mut slot = slot.lock().await;
        if let Some(client) = slot.as_ref().filter(|client| !client.is_closed()) {
            return Ok(client.clone());
        }
        let connecting = async {
            let stream = (self.connect)(url.to_owned()).await.map_err(|error| elsewhere(&chain(&error)))?;
            Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(PING)
                .keep_alive_timeout(PONG)
                .keep_alive_while_idle(true)
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .handshake(TokioIo::new(stream))
                .await
                .map_err(|error| elsewhere(&chain(&error)))
        };
        let timed = tokio::time::timeout(CONNECT, connecting).await;
        let (client, connection) = timed.unwrap_or_else(|_| Err(elsewhere("it does not answer")))?;
        let at = url.to_owned();
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(url = at, error = %chain(&error), "The connection to another replica broke.");
            }
        });
        *slot = Some(client.clone());
        Ok(client)
    }
}

fn elsewhere(cause: &str) -> Status {
    Status::unavailable(format!("entry gateway → holding gateway: {cause}"))
}
