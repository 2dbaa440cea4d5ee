//! The handle on a link: calls, streams and upgrades go out through it.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use h2::RecvStream;
use h2::client::{ResponseFuture, SendRequest};
use http::{Request, Response};
use http_body::Body as _;
use tokio::sync::watch;

use super::LinkInfo;
use crate::body::Body;
use crate::channel::Channel;
use crate::duplex::ByteStream;
use crate::error::{CloseReason, LinkError, Reached};
use crate::handshake::Refusal;
use crate::lane::{Lane, lock};
use crate::meter::LinkStats;
use crate::pump::{Pump, Sent};
use crate::shapes::{Caller, Dialer};
use crate::shared::{Phase, Shared};
use crate::taken::OnTaken;
use crate::target::Target;
use crate::upgrade::Upgraded;
use crate::wire;

/// A stream id from which on the agent is asked for a fresh link. Ids are used up at half of
/// 2³¹ requests, which a busy link reaches within hours.
const LATE_STREAM: u32 = 0x7000_0000;

/// A link to an agent. Cheap to clone; when the last clone is dropped the link drains.
#[derive(Clone)]
pub struct Link(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    sender: Mutex<SendRequest<Bytes>>,
    info: LinkInfo,
}

impl Link {
    pub(super) fn new(shared: Arc<Shared>, sender: SendRequest<Bytes>, info: LinkInfo) -> Self {
        Self(Arc::new(Inner { shared, sender: Mutex::new(sender), info }))
    }

    /// What the handshake said.
    pub fn info(&self) -> &LinkInfo {
        &self.0.info
    }

    /// The counters now.
    pub fn stats(&self) -> LinkStats {
        self.0.shared.meter.read()
    }

    /// Where the link is in its life.
    pub fn phase(&self) -> Phase {
        self.0.shared.phase()
    }

    /// Whether it takes new requests.
    pub fn takes_requests(&self) -> bool {
        self.0.shared.takes_requests()
    }

    /// Changes of the phase.
    pub fn watch(&self) -> watch::Receiver<Phase> {
        self.0.shared.watch()
    }

    /// Ready when the link has ended.
    pub async fn closed(&self) -> CloseReason {
        self.0.shared.closed().await
    }

    /// Asks the agent to open a link elsewhere and then to leave this one. Until it does, this
    /// link goes on taking requests; then those under way finish, and it ends.
    pub fn drain(&self) {
        self.0.shared.advance(Phase::Moving);
    }

    /// Ends the link now, telling the agent why. Requests under way fail.
    pub fn dismiss(&self, refusal: Refusal) {
        self.0.shared.dismiss(refusal);
    }

    /// Sends a request; see [`Caller`].
    pub async fn call(&self, request: Request<Body>) -> Result<Response<Body>, LinkError> {
        let (parts, body) = request.into_parts();
        if let Some(token) = wire::upgrade_token(&parts.headers) {
            return self.upgrade(wire::upgrade(parts, token)?).await;
        }
        let mut taken = parts.extensions.get::<OnTaken>().cloned();
        let request = wire::call(parts)?;
        let ended = body.is_end_stream();
        let (mut answer, lane) = self.start(request, ended)?;
        let mut pump = if ended { None } else { Pump::start(&lane, body) };
        let response = poll_fn(|cx| {
            if taken.is_some()
                && let Poll::Ready(Some(Ok(_))) = answer.poll_informational(cx)
                && let Some(taken) = taken.take()
            {
                taken.tell();
            }
            if let Some(sending) = &mut pump
                && let Poll::Ready(sent) = sending.poll(cx)
            {
                pump = None;
                if let Sent::Failed(error) = sent {
                    return Poll::Ready(Err(LinkError::RequestBody(error)));
                }
            }
            Pin::new(&mut answer).poll(cx).map_err(|error| self.0.shared.call_error(&error))
        })
        .await?;
        // What was refused is not read any further: the body may be wanted elsewhere.
        let response = receive(response, lane)?;
        if let Some(taken) = taken {
            taken.tell();
        }
        if let Some(rest) = pump {
            // The answer began before the question ended; each must be able to go on alone.
            tokio::spawn(rest.run());
        }
        Ok(response)
    }

    async fn upgrade(&self, request: Request<()>) -> Result<Response<Body>, LinkError> {
        let (answer, lane) = self.start(request, false)?;
        let response = answer.await.map_err(|error| self.0.shared.call_error(&error))?;
        let (mut parts, stream) = response.into_parts();
        if !wire::restore_granted(&mut parts) {
            lane.send(Bytes::new(), true);
            return receive(Response::from_parts(parts, stream), lane);
        }
        lane.attach_recv(stream);
        let mut response = Response::from_parts(parts, Body::empty());
        Upgraded::put(&mut response, ByteStream::from_duplex(Channel::open(lane)));
        Ok(response)
    }

    /// A stream to a target, at once: what is written goes out before the agent has answered, and
    /// a refusal comes with the first read. One round trip to the first byte of the answer.
    pub fn open_now(&self, target: &Target, first: Bytes) -> Result<ByteStream, LinkError> {
        Ok(ByteStream::from_duplex(self.channel(target, first)?))
    }

    fn channel(&self, target: &Target, first: Bytes) -> Result<Channel, LinkError> {
        let (answer, lane) = self.start(wire::stream(target), false)?;
        lane.send(first, false);
        Ok(Channel::opening(lane, answer))
    }

    // Hands a request to the connection; it does not wait for anything.
    fn start(&self, request: Request<()>, ended: bool) -> Result<(ResponseFuture, Arc<Lane>), LinkError> {
        let shared = &self.0.shared;
        shared.admit()?;
        let limit = shared.settings.max_streams as usize;
        if shared.meter.open() >= limit {
            return Err(LinkError::Busy { limit });
        }
        let (answer, stream) = {
            let mut sender = lock(&self.0.sender);
            match sender.poll_ready(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Err(not_sent(shared, &error)),
                Poll::Pending => return Err(LinkError::Busy { limit: sender.current_max_send_streams() }),
            }
            sender.send_request(request, ended).map_err(|error| not_sent(shared, &error))?
        };
        let id = stream.stream_id().as_u32();
        if id >= LATE_STREAM {
            self.drain();
        }
        let lane = Lane::new(Arc::clone(shared), id);
        lane.attach_send(stream, ended);
        Ok((answer, lane))
    }
}

// Nothing of the request has left this process.
fn not_sent(shared: &Shared, error: &h2::Error) -> LinkError {
    match shared.call_error(error) {
        LinkError::Closed { reason, .. } if error.is_io() || error.is_go_away() => {
            LinkError::Closed { reason, reached: Reached::No }
        }
        // Not the connection's fault: the request has a form HTTP/2 does not allow.
        LinkError::Closed { .. } => LinkError::Request(error.to_string().into()),
        other => other,
    }
}

fn receive(response: Response<RecvStream>, lane: Arc<Lane>) -> Result<Response<Body>, LinkError> {
    let (mut parts, stream) = response.into_parts();
    if let Some(denial) = wire::read_denial(&parts) {
        lane.reset(h2::Reason::CANCEL);
        return Err(LinkError::Denied(Box::new(denial)));
    }
    wire::clean(&mut parts.headers);
    if stream.is_end_stream() {
        return Ok(Response::from_parts(parts, Body::empty()));
    }
    lane.attach_recv(stream);
    Ok(Response::from_parts(parts, Body::received(lane)))
}

impl Caller for Link {
    fn call(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, LinkError>> {
        Self::call(self, request).boxed()
    }
}

impl Dialer for Link {
    fn open_with(&self, target: Target, first: Bytes) -> BoxFuture<'_, Result<ByteStream, LinkError>> {
        async move {
            let mut channel = self.channel(&target, first)?;
            poll_fn(|cx| channel.poll_opened(cx)).await?;
            Ok(ByteStream::from_duplex(channel))
        }
        .boxed()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Nobody can send anything any more; what is under way may finish.
        self.shared.advance(Phase::Draining);
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("id", &self.0.info.id).field("phase", &self.phase()).finish()
    }
}
