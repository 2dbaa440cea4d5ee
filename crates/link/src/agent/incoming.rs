//! What arrives at an agent, and how it is answered.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use h2::RecvStream;
use h2::ext::Protocol;
use h2::server::SendResponse;
use http::{Method, Request, Response, StatusCode, Version, request};
use http_body::Body as _;
use tarbet_telemetry::codes::reach;

use super::control;
use crate::body::Body;
use crate::channel::Channel;
use crate::duplex::ByteStream;
use crate::error::{Denial, LinkError};
use crate::lane::Lane;
use crate::pump::Pump;
use crate::shared::Shared;
use crate::target::Target;
use crate::wire;

/// What an agent does with what arrives. Each arrival has a task of its own; it is cancelled when
/// the caller gives up or the link ends.
pub trait Handler: Send + Sync + 'static {
    /// Answers a request.
    fn call(&self, call: IncomingCall) -> BoxFuture<'_, Result<Response<Body>, Denial>>;

    /// Serves a byte stream: accept it, then use it.
    fn stream(&self, incoming: IncomingStream) -> BoxFuture<'_, ()> {
        let denial = not_offered("byte streams");
        async move { incoming.deny(&denial) }.boxed()
    }

    /// Serves a request that wants to change its protocol: accept or reject it.
    fn upgrade(&self, incoming: IncomingUpgrade) -> BoxFuture<'_, ()> {
        let denial = not_offered("upgrades");
        async move { incoming.deny(&denial).await }.boxed()
    }
}

fn not_offered(what: &str) -> Denial {
    Denial::new(StatusCode::NOT_FOUND, reach::SERVICE_NOT_OFFERED.id, format!("This agent serves no {what}."))
}

/// A request for a service of this agent.
#[derive(Debug)]
pub struct IncomingCall {
    /// Which service it is for, if it says.
    pub target: Option<Target>,
    /// The request.
    pub request: Request<Body>,
}

/// A byte stream that waits to be accepted. Bytes may have come with it.
pub struct IncomingStream {
    target: Target,
    arrival: Arrival,
}

impl IncomingStream {
    /// Where it shall lead.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The bytes that came with it, if they are here already; they do not come again. Whoever passes
    /// them on at once saves a round trip.
    pub fn early(&mut self) -> Bytes {
        match self.arrival.lane.poll_data(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(Ok(chunk))) => chunk,
            // Ends and errors come again when the stream is read.
            _ => Bytes::new(),
        }
    }

    /// Takes it.
    pub fn accept(self) -> Result<ByteStream, LinkError> {
        self.arrival.accept(Response::new(()))
    }

    /// Says no.
    pub fn deny(mut self, denial: &Denial) {
        self.arrival.deny(denial);
    }

    /// Ready when the opener has given up.
    pub async fn cancelled(&mut self) {
        self.arrival.cancelled().await;
    }
}

/// A request that wants to change its protocol, in the form it had before it crossed the link.
pub struct IncomingUpgrade {
    target: Option<Target>,
    request: Request<()>,
    arrival: Arrival,
}

impl IncomingUpgrade {
    /// Which service it is for, if it says.
    pub fn target(&self) -> Option<&Target> {
        self.target.as_ref()
    }

    /// The request, with its `Connection` and `Upgrade` headers.
    pub fn request(&self) -> &Request<()> {
        &self.request
    }

    /// Grants it with this response, usually a 101, and gives the stream.
    pub fn accept(self, response: Response<()>) -> Result<ByteStream, LinkError> {
        self.arrival.accept(wire::granted(response.into_parts().0))
    }

    /// Answers with an ordinary response instead.
    pub async fn reject(self, response: Response<Body>) {
        let Arrival { lane, respond } = self.arrival;
        answer(&lane, respond, response).await;
    }

    /// Says no.
    pub async fn deny(self, denial: &Denial) {
        let Arrival { lane, respond } = self.arrival;
        send(&lane, respond, wire::denied(denial)).await;
    }

    /// Ready when the caller has given up.
    pub async fn cancelled(&mut self) {
        self.arrival.cancelled().await;
    }
}

struct Arrival {
    lane: Arc<Lane>,
    respond: SendResponse<Bytes>,
}

impl Arrival {
    fn accept(mut self, response: Response<()>) -> Result<ByteStream, LinkError> {
        if !wire::fits(response.headers()) {
            return Err(LinkError::Request("the headers of the answer are too large".into()));
        }
        let stream = self
            .respond
            .send_response(response, false)
            .map_err(|error| self.lane.shared().call_error(&error))?;
        self.lane.attach_send(stream, false);
        Ok(ByteStream::from_duplex(Channel::open(self.lane)))
    }

    fn deny(&mut self, denial: &Denial) {
        let (parts, _) = wire::denied(denial).into_parts();
        // It fails only if the opener has given up.
        let _ = self.respond.send_response(Response::from_parts(parts, ()), true);
    }

    async fn cancelled(&mut self) {
        let _ = poll_fn(|cx| self.respond.poll_reset(cx)).await;
    }
}

/// Finds out what arrived, and starts the task that serves it.
pub(super) fn dispatch(
    shared: &Arc<Shared>,
    handler: &Arc<dyn Handler>,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
) {
    let protocol = request.extensions().get::<Protocol>().cloned();
    let protocol = protocol.as_ref().map(Protocol::as_str);
    if protocol == Some(wire::CONTROL) {
        tokio::spawn(control::attend(Arc::clone(shared), request.into_body(), respond));
        return;
    }
    let lane = Lane::new(Arc::clone(shared), respond.stream_id().as_u32());
    let (mut parts, stream) = request.into_parts();
    let whole = stream.is_end_stream();
    if !whole {
        lane.attach_recv(stream);
    }
    let mut arrival = Arrival { lane, respond };
    match prepare(protocol, &mut parts) {
        Ok((kind, target)) => {
            tokio::spawn(serve(Arc::clone(handler), kind, target, parts, whole, arrival));
        }
        Err(denial) => arrival.deny(&denial),
    }
}

enum Kind {
    Call,
    Stream(Target),
    Upgrade,
}

fn prepare(protocol: Option<&str>, parts: &mut request::Parts) -> Result<(Kind, Option<Target>), Denial> {
    let target = wire::take_target(&mut parts.headers)?;
    match (protocol, target) {
        (None, _) if parts.method == Method::CONNECT => {
            Err(wire::malformed("A plain CONNECT has no meaning here."))
        }
        (None, target) => Ok((Kind::Call, target)),
        (Some(wire::STREAM), Some(target)) => Ok((Kind::Stream(target), None)),
        (Some(wire::STREAM), None) => Err(wire::malformed("The stream names no target.")),
        (Some(wire::UPGRADE), target) => {
            wire::restore_upgrade(parts)?;
            Ok((Kind::Upgrade, target))
        }
        // Of a newer gateway; it finds out here that this agent is older.
        (Some(_), _) => Err(Denial::new(
            StatusCode::NOT_IMPLEMENTED,
            reach::VERSION_MISMATCH.id,
            "This agent does not know this kind of stream.",
        )
        .untouched()),
    }
}

async fn serve(
    handler: Arc<dyn Handler>,
    kind: Kind,
    target: Option<Target>,
    mut parts: request::Parts,
    whole: bool,
    arrival: Arrival,
) {
    match kind {
        Kind::Call => {
            let Arrival { lane, mut respond } = arrival;
            let say = wire::take_say(&mut parts.headers);
            let (body, mut begun) = if whole {
                (Body::empty(), None)
            } else if say {
                let (body, begun) = Body::awaited(Arc::clone(&lane));
                (body, Some(begun))
            } else {
                (Body::received(Arc::clone(&lane)), None)
            };
            let call = IncomingCall { target, request: Request::from_parts(parts, body) };
            let mut answering = handler.call(call);
            let result = loop {
                tokio::select! {
                    biased;
                    result = &mut answering => break result,
                    _ = poll_fn(|cx| respond.poll_reset(cx)) => return,
                    read = async { begun.as_mut()?.await.ok() }, if begun.is_some() => {
                        begun = None;
                        if read.is_some() {
                            // It fails only if the caller has given up.
                            let _ = respond.send_informational(wire::taken());
                        }
                    }
                }
            };
            match result {
                Ok(response) => answer(&lane, respond, response).await,
                Err(denial) => send(&lane, respond, wire::denied(&denial)).await,
            }
        }
        Kind::Stream(target) => handler.stream(IncomingStream { target, arrival }).await,
        Kind::Upgrade => {
            let request = Request::from_parts(parts, ());
            handler.upgrade(IncomingUpgrade { target, request, arrival }).await;
        }
    }
}

// Sends what a service answered; it may not speak with the link's own headers.
async fn answer(lane: &Arc<Lane>, respond: SendResponse<Bytes>, mut response: Response<Body>) {
    wire::clean(response.headers_mut());
    if !wire::fits(response.headers()) {
        let message = "The headers of the answer are too large to be carried.";
        let denial = Denial::new(StatusCode::BAD_GATEWAY, reach::PROTOCOL_VIOLATION.id, message);
        response = wire::denied(&denial.at("agent → target"));
    }
    send(lane, respond, response).await;
}

async fn send(lane: &Arc<Lane>, mut respond: SendResponse<Bytes>, response: Response<Body>) {
    let (mut parts, body) = response.into_parts();
    parts.version = Version::HTTP_2;
    parts.extensions.clear();
    let ended = body.is_end_stream();
    // It fails only if the caller has given up.
    let Ok(stream) = respond.send_response(Response::from_parts(parts, ()), ended) else { return };
    if !ended {
        lane.attach_send(stream, false);
        if let Some(pump) = Pump::start(lane, body) {
            let _ = pump.run().await;
        }
    }
}
