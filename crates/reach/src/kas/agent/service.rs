//! What an agent offers to callers, and one call as the agent sees it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::HeaderMap;
use prost::Message;
use tokio::sync::oneshot;
use tonic::Status;

use crate::kas::descriptor::Descriptor;
use crate::kas::frame::{put, put_enclosed};
use crate::kas::inbox::Inbox;
use crate::kas::order::{CONNECT_RESPONSE, Track};
use crate::kas::outbox::{End, Gone, Outbox};
use crate::kas::prefix::MethodPath;
use crate::kas::proto::reverse_tunnel as tunnel;
use crate::kas::{meta, status};

/// A gRPC service that callers reach through tunnels.
pub trait Service: Send + Sync + 'static {
    /// Its full name.
    fn name(&self) -> &str;

    /// The bare names of its methods.
    fn methods(&self) -> Vec<&str>;

    /// Serves one call. The future is dropped when the caller goes away.
    fn serve<'a>(&'a self, call: ServiceCall, replies: &'a mut Replies) -> BoxFuture<'a, Result<(), Status>>;
}

/// One call.
#[derive(Debug)]
pub struct ServiceCall {
    /// What is called.
    pub method: MethodPath,
    /// The caller's metadata.
    pub metadata: HeaderMap,
    /// The caller's messages.
    pub requests: Requests,
}

/// Everything an agent offers.
#[derive(Clone, Default)]
pub struct Services(Vec<Arc<dyn Service>>);

impl Services {
    /// One more.
    #[must_use]
    pub fn with(mut self, service: impl Service) -> Self {
        self.0.push(Arc::new(service));
        self
    }

    /// What to announce.
    pub fn descriptor(&self) -> Descriptor {
        Descriptor::new(self.0.iter().map(|service| (service.name(), service.methods())))
    }

    pub(super) fn find(&self, method: &MethodPath) -> Option<Arc<dyn Service>> {
        let offers = |service: &&Arc<dyn Service>| {
            service.name() == method.service() && service.methods().contains(&method.method())
        };
        self.0.iter().find(offers).cloned()
    }
}

/// The caller's messages, in order. They may be taken elsewhere, such as into the body of a request.
#[derive(Debug)]
pub struct Requests {
    reader: Option<Reader>,
    /// A call that comes by itself and not through a tunnel.
    plain: Option<Inbox>,
    /// Where the stream goes when nobody reads it any more: it must still be read to its end.
    home: Option<oneshot::Sender<Reader>>,
}

#[derive(Debug)]
pub(super) struct Reader {
    pub(super) inbox: Inbox,
    pub(super) track: Track,
    closed: bool,
}

impl Reader {
    /// Behind the descriptor that was sent.
    pub(super) fn new(inbox: Inbox) -> Self {
        Self { inbox, track: Track::new(&CONNECT_RESPONSE), closed: false }
    }

    /// The request that ends the tunnel's idleness; `None` when the kas has none and wants a new tunnel.
    pub(super) fn request_info(&mut self, frame: Bytes) -> Result<tunnel::RequestInfo, Status> {
        use tunnel::connect_response::Msg;
        let frame = tunnel::ConnectResponse::decode(frame)
            .map_err(|_| self.track.malformed("a first frame that is not this message"))?;
        self.track.step(frame.msg.as_ref().map(field))?;
        match frame.msg {
            Some(Msg::RequestInfo(info)) => Ok(info),
            _ => Err(self.track.malformed("a first frame that is not a request").into()),
        }
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        use tunnel::connect_response::Msg;
        if self.closed {
            return Poll::Ready(Ok(None));
        }
        let frame = match ready!(self.inbox.poll_message(cx)) {
            Some(frame) => frame?,
            None => return Poll::Ready(Err(self.gone())),
        };
        let frame = tunnel::ConnectResponse::decode(frame)
            .map_err(|_| self.track.malformed("a frame that is not this message"))?;
        self.track.step(frame.msg.as_ref().map(field))?;
        Poll::Ready(match frame.msg {
            Some(Msg::Message(message)) => Ok(Some(message.data)),
            Some(Msg::CloseSend(_)) => {
                self.closed = true;
                Ok(None)
            }
            _ => Err(self.track.malformed("a second request in one tunnel").into()),
        })
    }

    /// The kas ended the tunnel in the middle of the call.
    fn gone(&self) -> Status {
        match status::of_response(self.inbox.trailers()) {
            status if status.code() == tonic::Code::Ok => {
                Status::cancelled("kas → agent: the call was ended before its last message")
            }
            status => status,
        }
    }
}

fn field(msg: &tunnel::connect_response::Msg) -> u8 {
    use tunnel::connect_response::Msg;
    match msg {
        Msg::RequestInfo(_) => 1,
        Msg::Message(_) => 2,
        Msg::CloseSend(_) => 3,
    }
}

impl Requests {
    pub(super) fn new(reader: Reader) -> (Self, oneshot::Receiver<Reader>) {
        let (home, back) = oneshot::channel();
        (Self { reader: Some(reader), plain: None, home: Some(home) }, back)
    }

    /// Those of a call that comes by itself.
    pub(in crate::kas) fn plain(inbox: Inbox) -> Self {
        Self { reader: None, plain: Some(inbox), home: None }
    }

    /// The next message; `None` when the caller has no more. An error means that it went away.
    pub fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Status>> {
        match (&mut self.reader, &mut self.plain) {
            (Some(reader), _) => reader.poll_message(cx),
            (None, Some(inbox)) => inbox.poll_message(cx).map(Option::transpose),
            (None, None) => Poll::Ready(Ok(None)),
        }
    }

    /// [`Self::poll_message`] to wait for. Nothing is lost when the wait is given up.
    pub async fn message(&mut self) -> Result<Option<Bytes>, Status> {
        poll_fn(|cx| self.poll_message(cx)).await
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        if let (Some(reader), Some(home)) = (self.reader.take(), self.home.take()) {
            let _ = home.send(reader);
        }
    }
}

/// The answer to one call.
#[derive(Debug)]
pub struct Replies {
    outbox: Outbox,
    /// Whether it goes through a tunnel, which has frames of its own.
    enclosed: bool,
    begun: bool,
    trailer: HeaderMap,
}

impl Replies {
    pub(super) fn new(outbox: Outbox) -> Self {
        Self { outbox, enclosed: true, begun: false, trailer: HeaderMap::new() }
    }

    /// The answer to a call that came by itself; its headers are under way already.
    pub(in crate::kas) fn plain(outbox: Outbox) -> Self {
        Self { outbox, enclosed: false, begun: true, trailer: HeaderMap::new() }
    }

    /// Sends initial metadata. Without it the first message does so, with none.
    pub fn header(&mut self, metadata: &HeaderMap) -> Result<(), Status> {
        if !std::mem::replace(&mut self.begun, true) {
            let header = tunnel::Header { meta: meta::to_wire(metadata)? };
            self.put(tunnel::connect_request::Msg::Header(header));
        }
        Ok(())
    }

    /// Sends a message when there is room for it. An error means that the caller went away.
    pub async fn message(&mut self, message: &impl Message) -> Result<(), Gone> {
        self.outbox.room().await?;
        self.push(message);
        self.outbox.flush();
        Ok(())
    }

    /// Adds a message without waiting and without sending it yet.
    pub fn push(&mut self, message: &impl Message) {
        if !self.begun {
            self.begun = true;
            self.put(tunnel::connect_request::Msg::Header(tunnel::Header::default()));
        }
        self.outbox.push(
            |buffer| if self.enclosed { put_enclosed(buffer, 3, message) } else { put(buffer, message) },
        );
    }

    /// Sends what was pushed.
    pub fn flush(&self) {
        self.outbox.flush();
    }

    /// What to send behind the last message.
    pub fn trailer(&mut self, metadata: HeaderMap) {
        self.trailer = metadata;
    }

    /// Ends the call. A trailer follows a header always, an error only a failure.
    pub(in crate::kas) fn finish(&mut self, outcome: Result<(), Status>) {
        use tunnel::connect_request::Msg;
        if !self.enclosed {
            return self.outbox.answer(&outcome.err().unwrap_or_else(|| Status::ok("")));
        }
        if outcome.is_ok() {
            let _ = self.header(&HeaderMap::new());
        }
        if self.begun {
            let meta = meta::to_wire(&self.trailer).unwrap_or_default();
            self.put(Msg::Trailer(tunnel::Trailer { meta }));
        }
        if let Err(status) = outcome {
            self.put(Msg::Error(tunnel::Error { status: Some(status::to_wire(&status)) }));
        }
        self.outbox.finish(End::Eof);
    }

    fn put(&self, msg: tunnel::connect_request::Msg) {
        self.outbox.push(|buffer| put(buffer, &tunnel::ConnectRequest { msg: Some(msg) }));
    }
}
