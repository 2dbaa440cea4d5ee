//! The gateway that holds the tunnel.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body::Body;
use prost::Message;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::AGENT_ID;
use crate::kas::call::{Call, CallRecv, CallSend, Part};
use crate::kas::frame::{Raw, put, put_enclosed};
use crate::kas::inbox::{BoxError, Inbox};
use crate::kas::outbox::{Outbox, OutboxBody, outbox};
use crate::kas::pool::{Tunnel, TunnelPool};
use crate::kas::prefix::MethodPath;
use crate::kas::proto::kas::{self, gateway_kas_response as response};
use crate::kas::{meta, status};

/// Answers one call of another gateway. Whether it may call has been decided before.
///
/// The response begins at once; a task of its own carries the call, and ends with it or with the other
/// side's patience, `max_wait` at the latest.
pub fn serve<B>(pool: &TunnelPool, request: Request<B>, max_wait: Duration) -> Response<OutboxBody>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let mut answer = match accept(request) {
        Ok((asked, inbox)) => {
            let (outbox, body) = outbox();
            let exchange = exchange(pool.clone(), asked, inbox, outbox, Instant::now() + max_wait);
            tokio::spawn(exchange);
            Response::new(body)
        }
        Err(status) => {
            let mut refusal = Response::new(OutboxBody::empty());
            refusal.headers_mut().extend(status::to_headers(&status));
            refusal
        }
    };
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    answer
}

/// What the routing side wants.
struct Asked {
    agent: i64,
    method: MethodPath,
    metadata: HeaderMap,
}

fn accept<B>(request: Request<B>) -> Result<(Asked, Inbox), Status>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let (head, body) = request.into_parts();
    let method =
        MethodPath::parse(head.uri.path()).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let agent = meta::agent_id(&head.headers).ok_or_else(|| {
        Status::invalid_argument(format!(
            "gateway → gateway: exactly one `{AGENT_ID}` with a number is needed"
        ))
    })?;
    let inbox = Inbox::new(&head.headers, body)?;
    Ok((Asked { agent, method, metadata: head.headers }, inbox))
}

async fn exchange(pool: TunnelPool, asked: Asked, mut inbox: Inbox, outbox: Outbox, until: Instant) {
    let outcome = tokio::select! {
        () = outbox.gone() => return,
        outcome = offer(&pool, &asked, &mut inbox, &outbox, until) => outcome,
    };
    let call = match outcome {
        Ok(Some(tunnel)) => tunnel.start(&asked.method, &asked.metadata),
        // The other side has found a tunnel elsewhere.
        Ok(None) => return outbox.answer(&Status::ok("")),
        Err(status) => Err(status),
    };
    let Call { send, mut recv } = match call {
        Ok(call) => call,
        Err(status) => return outbox.answer(&status),
    };
    let forward = async {
        let (mut inward, mut outward) =
            (std::pin::pin!(requests(inbox, send)), std::pin::pin!(replies(&mut recv, &outbox)));
        tokio::select! {
            status = &mut outward => status,
            () = &mut inward => outward.await,
        }
    };
    tokio::select! {
        // Dropping both halves of the call tells the agent.
        () = outbox.gone() => {}
        status = forward => outbox.answer(&status),
    }
}

/// Finds a tunnel, offers it, and waits for it to be taken.
async fn offer(
    pool: &TunnelPool,
    asked: &Asked,
    inbox: &mut Inbox,
    outbox: &Outbox,
    until: Instant,
) -> Result<Option<Tunnel>, Status> {
    let tunnel = if let Some(tunnel) = pool.try_find(asked.agent, &asked.method) {
        tunnel
    } else {
        say(outbox, response::Msg::NoTunnel(response::NoTunnel {}));
        outbox.flush();
        pool.find(asked.agent, &asked.method, until).await?
    };
    say(outbox, response::Msg::TunnelReady(response::TunnelReady {}));
    outbox.flush();
    let first = tokio::select! {
        first = inbox.message() => first,
        () = tunnel.lost() => {
            return Err(Status::unavailable("gateway → agent: the tunnel was lost before it was used; it is safe to repeat"));
        }
    };
    match first {
        None => Ok(None),
        Some(message) => {
            kas::StartStreaming::decode(message?).map_err(|_| {
                Status::invalid_argument("gateway → gateway: the first frame is not StartStreaming")
            })?;
            Ok(Some(tunnel))
        }
    }
}

async fn requests(mut inbox: Inbox, mut send: CallSend) {
    loop {
        let Some(message) = inbox.message().await else { return send.close() };
        // Dropping the sender cancels the call.
        let Ok(message) = message else { return };
        if send.send(&Raw(message)).await.is_err() {
            return;
        }
    }
}

async fn replies(recv: &mut CallRecv, outbox: &Outbox) -> Status {
    let mut begun = false;
    loop {
        match recv.part().await {
            None => return Status::ok(""),
            Some(Err(status)) => return status,
            Some(Ok(Part::Header(metadata))) => {
                begun = true;
                say(outbox, response::Msg::Header(response::Header { meta: wire(&metadata) }));
                outbox.flush();
            }
            Some(Ok(Part::Message(data))) => {
                if outbox.room().await.is_err() {
                    return Status::cancelled("the other gateway left");
                }
                outbox.push(|buffer| put_enclosed(buffer, 3, &Raw(data)));
                outbox.flush();
            }
            Some(Ok(Part::End { trailer, status })) => {
                // An error may only follow a trailer, and a trailer only a header. An agent's early error
                // would otherwise be taken for a broken stream.
                if !begun {
                    say(outbox, response::Msg::Header(response::Header::default()));
                }
                say(outbox, response::Msg::Trailer(response::Trailer { meta: wire(&trailer) }));
                if status.code() != Code::Ok {
                    let error = response::Error { status: Some(status::to_wire(&status)) };
                    say(outbox, response::Msg::Error(error));
                }
                return Status::ok("");
            }
        }
    }
}

fn wire(metadata: &HeaderMap) -> meta::Meta {
    // It came out of frames a moment ago.
    meta::to_wire(metadata).unwrap_or_default()
}

fn say(outbox: &Outbox, msg: response::Msg) {
    outbox.push(|buffer| put(buffer, &kas::GatewayKasResponse { msg: Some(msg) }));
}
