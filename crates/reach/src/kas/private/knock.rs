//! The gateway that a request entered at.

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Body;
use prost::Message;
use tarbet_identity::Secret;
use tonic::Status;

use super::AGENT_ID;
use crate::kas::call::{Call, Envelope};
use crate::kas::frame::put;
use crate::kas::inbox::{BoxError, Inbox, broken};
use crate::kas::order::{GATEWAY_RESPONSE, Track};
use crate::kas::outbox::{Outbox, OutboxBody, outbox};
use crate::kas::prefix::MethodPath;
use crate::kas::proto::kas::{self, gateway_kas_response as response};
use crate::kas::status;

/// What another gateway says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    /// It has a tunnel, and holds it for us.
    Ready,
    /// It has none now; it may still say [`Offer::Ready`] later.
    NotYet,
}

/// A call that another gateway has been asked for. Dropped before it is started, it is taken back, and
/// the tunnel that was offered stays whole.
pub struct Knock {
    outbox: Outbox,
    opening: Option<BoxFuture<'static, Result<Inbox, Status>>>,
    inbox: Option<Inbox>,
    track: Track,
}

/// Asks another gateway for a call to an agent.
///
/// The request has a path but no address: `send` puts it on a connection. The token is one for the
/// private API and lives for seconds.
pub fn knock<F, B, E>(
    method: &MethodPath,
    agent: i64,
    token: &Secret,
    metadata: &HeaderMap,
    send: impl FnOnce(Request<OutboxBody>) -> F,
) -> Result<Knock, Status>
where
    F: Future<Output = Result<Response<B>, E>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    E: Into<BoxError>,
{
    let (outbox, body) = outbox();
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = http::uri::PathAndQuery::try_from(method.as_str())
        .map(Into::into)
        .map_err(|_| Status::invalid_argument("gateway → gateway: the method makes no path"))?;
    let headers = request.headers_mut();
    *headers = metadata.clone();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.remove("grpc-encoding");
    headers.insert(AGENT_ID, HeaderValue::from(agent));
    let mut bearer = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
        .map_err(|_| Status::internal("gateway → gateway: the token makes no header"))?;
    bearer.set_sensitive(true);
    headers.insert(header::AUTHORIZATION, bearer);
    let sent = send(request);
    let opening = async move {
        match sent.await {
            Ok(response) => open(response),
            Err(error) => Err(hop(&broken(error.into().as_ref()))),
        }
    };
    let track = Track::new(&GATEWAY_RESPONSE);
    Ok(Knock { outbox, opening: Some(opening.boxed()), inbox: None, track })
}

fn open<B>(response: Response<B>) -> Result<Inbox, Status>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (head, body) = response.into_parts();
    if head.status != StatusCode::OK {
        return Err(Status::unavailable(format!(
            "entry gateway → holding gateway: the answer is HTTP {}, not gRPC",
            head.status
        )));
    }
    if let Some(status) = Status::from_header_map(&head.headers) {
        return Err(hop(&status));
    }
    Ok(Inbox::new(&head.headers, body)?)
}

impl Knock {
    /// What the other gateway says next; `None` when it ended the call without a tunnel, which may be
    /// tried again at once. Nothing is lost when the wait is given up.
    pub async fn offer(&mut self) -> Result<Option<Offer>, Status> {
        if let Some(opening) = &mut self.opening {
            let opened = opening.await;
            self.opening = None;
            self.inbox = Some(opened?);
        }
        let Some(inbox) = &mut self.inbox else { return Ok(None) };
        let Some(frame) = inbox.message().await else {
            let outcome = status::of_response(inbox.trailers());
            self.track.end()?;
            return if outcome.code() == tonic::Code::Ok { Ok(None) } else { Err(hop(&outcome)) };
        };
        let frame = kas::GatewayKasResponse::decode(frame.map_err(|status| hop(&status))?)
            .map_err(|_| self.track.malformed("a frame that is not this message"))?;
        let (field, offer) = match frame.msg {
            Some(response::Msg::TunnelReady(_)) => (Some(1), Some(Offer::Ready)),
            Some(response::Msg::NoTunnel(_)) => (Some(6), Some(Offer::NotYet)),
            Some(response::Msg::Header(_)) => (Some(2), None),
            Some(response::Msg::Message(_)) => (Some(3), None),
            Some(response::Msg::Trailer(_)) => (Some(4), None),
            Some(response::Msg::Error(_)) => (Some(5), None),
            None => (None, None),
        };
        self.track.step(field)?;
        match offer {
            Some(offer) => Ok(Some(offer)),
            None => Err(self.track.malformed("an answer before the call was started").into()),
        }
    }

    /// Takes the tunnel that was offered. Nothing is sent before the first flush of the call.
    pub fn start(self) -> Result<Call, Status> {
        let Self { outbox, inbox, track, .. } = self;
        let inbox = inbox.ok_or_else(|| Status::internal("a call was started before it was offered"))?;
        outbox.push(|buffer| put(buffer, &kas::StartStreaming {}));
        Ok(Call::new(inbox, outbox, track, Envelope::Gateway))
    }
}

impl std::fmt::Debug for Knock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Knock").finish_non_exhaustive()
    }
}

fn hop(status: &Status) -> Status {
    if status.message().starts_with("gateway → agent") {
        return status.clone();
    }
    Status::new(status.code(), format!("entry gateway → holding gateway: {}", status.message()))
}
