//! One raw gRPC call to an agent, seen from the caller's side.
//!
//! It does not matter whether the agent's tunnel ends in this process ([`TunnelPool`]) or at another
//! gateway (`private::Offer`): the messages are the same, only the envelope differs.
//!
//! [`TunnelPool`]: super::pool::TunnelPool

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use prost::Message;
use tonic::Status;

use super::frame::{put, put_enclosed};
use super::inbox::Inbox;
use super::order::{Track, Violation};
use super::outbox::{End, Gone, Outbox};
use super::proto::{kas, reverse_tunnel as tunnel, rpc};
use super::{meta, status};

/// A call under way.
#[derive(Debug)]
pub struct Call {
    /// The caller's messages.
    pub send: CallSend,
    /// The agent's answer.
    pub recv: CallRecv,
}

/// What an agent answers: a header, messages, and an end; or only an end.
#[derive(Debug)]
pub enum Part {
    /// Initial metadata.
    Header(HeaderMap),
    /// One message.
    Message(Bytes),
    /// The end, with trailing metadata. The status may be a failure.
    End {
        /// Trailing metadata.
        trailer: HeaderMap,
        /// How it went.
        status: Status,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Envelope {
    /// Straight into a tunnel: `ConnectResponse` out, `ConnectRequest` in.
    Tunnel,
    /// Through another gateway: plain messages out, `GatewayKasResponse` in.
    Gateway,
}

/// The caller's side of a call. Dropping it before [`CallSend::close`] cancels the call.
#[derive(Debug)]
pub struct CallSend {
    outbox: Outbox,
    envelope: Envelope,
    open: bool,
}

impl CallSend {
    /// Adds a message without waiting for room and without sending it yet.
    pub fn push(&mut self, message: &impl Message) {
        self.outbox.push(|buffer| match self.envelope {
            Envelope::Tunnel => put_enclosed(buffer, 2, message),
            Envelope::Gateway => put(buffer, message),
        });
    }

    /// Sends what was pushed.
    pub fn flush(&self) {
        self.outbox.flush();
    }

    /// Waits until there is room, then sends a message. An error means that the call is over: its
    /// [`CallRecv`] says how.
    pub async fn send(&mut self, message: &impl Message) -> Result<(), Gone> {
        self.outbox.room().await?;
        self.push(message);
        self.flush();
        Ok(())
    }

    /// Waits until the call is over, whoever ended it.
    pub async fn over(&self) {
        self.outbox.gone().await;
    }

    pub(crate) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        self.outbox.poll_room(cx)
    }

    /// Says that the caller has nothing more to send. The answer may still be coming.
    pub fn close(mut self) {
        self.shut();
    }

    pub(crate) fn shut(&mut self) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        match self.envelope {
            Envelope::Tunnel => {
                let msg = tunnel::connect_response::Msg::CloseSend(tunnel::CloseSend {});
                self.outbox.push(|buffer| put(buffer, &tunnel::ConnectResponse { msg: Some(msg) }));
                self.outbox.flush();
            }
            Envelope::Gateway => self.outbox.finish(End::Eof),
        }
    }
}

impl Drop for CallSend {
    fn drop(&mut self) {
        if self.open {
            abandon(&self.outbox, self.envelope);
        }
    }
}

/// The agent's side of a call. Dropping it before the end cancels the call.
#[derive(Debug)]
pub struct CallRecv {
    inbox: Inbox,
    outbox: Outbox,
    envelope: Envelope,
    track: Track,
    trailer: Option<HeaderMap>,
    done: bool,
}

impl Call {
    pub(crate) fn new(inbox: Inbox, outbox: Outbox, track: Track, envelope: Envelope) -> Self {
        let send = CallSend { outbox: outbox.clone(), envelope, open: true };
        Self { send, recv: CallRecv { inbox, outbox, envelope, track, trailer: None, done: false } }
    }
}

impl CallRecv {
    /// The next part. After [`Part::End`] or an error there is `None`.
    pub fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Status>>> {
        if self.done {
            return Poll::Ready(None);
        }
        self.outbox.flush();
        loop {
            let outcome = match ready!(self.inbox.poll_message(cx)) {
                Some(Ok(message)) => self.take(message),
                Some(Err(status)) => Err(self.hop(status)),
                None => self.ended().map(Some),
            };
            match outcome {
                Ok(None) => {}
                Ok(Some(Part::End { trailer, status })) => {
                    self.done = true;
                    if self.envelope == Envelope::Tunnel {
                        self.outbox.answer(&Status::ok(""));
                    } else {
                        self.outbox.finish(End::Cancel);
                    }
                    return Poll::Ready(Some(Ok(Part::End { trailer, status })));
                }
                Ok(Some(part)) => return Poll::Ready(Some(Ok(part))),
                Err(status) => {
                    self.done = true;
                    if self.envelope == Envelope::Tunnel {
                        self.outbox.answer(&status);
                    } else {
                        self.outbox.finish(End::Cancel);
                    }
                    return Poll::Ready(Some(Err(status)));
                }
            }
        }
    }

    /// [`Self::poll_part`] to wait for. Nothing is lost when the wait is given up.
    pub async fn part(&mut self) -> Option<Result<Part, Status>> {
        poll_fn(|cx| self.poll_part(cx)).await
    }

    /// Ends the call towards the agent with a reason of the caller's.
    pub fn refuse(&mut self, status: &Status) {
        if !std::mem::replace(&mut self.done, true) {
            match self.envelope {
                Envelope::Tunnel => self.outbox.answer(status),
                Envelope::Gateway => self.outbox.finish(End::Cancel),
            }
        }
    }

    fn take(&mut self, message: Bytes) -> Result<Option<Part>, Status> {
        let answer = match self.envelope {
            Envelope::Tunnel => decode_tunnel(&self.track, message)?,
            Envelope::Gateway => decode_gateway(&self.track, message)?,
        };
        self.track.step(Some(answer.field()))?;
        match answer {
            Answer::Header(entries) => Ok(Some(Part::Header(meta::from_wire(entries)?))),
            Answer::Message(data) => Ok(Some(Part::Message(data))),
            Answer::Trailer(entries) => {
                self.trailer = Some(meta::from_wire(entries)?);
                Ok(None)
            }
            Answer::Error(error) => {
                let trailer = self.trailer.take().unwrap_or_default();
                Ok(Some(Part::End { trailer, status: status::from_wire(error) }))
            }
        }
    }

    /// The stream ended without an `error` frame: a success, if it may end here.
    fn ended(&mut self) -> Result<Part, Status> {
        if self.envelope == Envelope::Gateway {
            let outcome = status::of_response(self.inbox.trailers());
            if outcome.code() != tonic::Code::Ok {
                return Err(outcome);
            }
        }
        self.track.end()?;
        match self.trailer.take() {
            Some(trailer) => Ok(Part::End { trailer, status: Status::ok("") }),
            None => Err(self.track.malformed("it ended without an answer").into()),
        }
    }

    fn hop(&self, status: Status) -> Status {
        let hop = match self.envelope {
            Envelope::Tunnel => "gateway → agent",
            Envelope::Gateway => "entry gateway → holding gateway",
        };
        Status::new(status.code(), format!("{hop}: {}", status.message()))
    }
}

impl Drop for CallRecv {
    fn drop(&mut self) {
        if !self.done {
            abandon(&self.outbox, self.envelope);
        }
    }
}

/// Tells the far side that the caller went away.
fn abandon(outbox: &Outbox, envelope: Envelope) {
    match envelope {
        Envelope::Tunnel => outbox.answer(&Status::cancelled("the caller went away")),
        Envelope::Gateway => outbox.finish(End::Cancel),
    }
}

/// The frames both envelopes have in common.
enum Answer {
    Header(meta::Meta),
    Message(Bytes),
    Trailer(meta::Meta),
    Error(rpc::Status),
}

impl Answer {
    fn field(&self) -> u8 {
        match self {
            Self::Header(_) => 2,
            Self::Message(_) => 3,
            Self::Trailer(_) => 4,
            Self::Error(_) => 5,
        }
    }
}

fn decode_tunnel(track: &Track, message: Bytes) -> Result<Answer, Violation> {
    use tunnel::connect_request::Msg;
    let frame = tunnel::ConnectRequest::decode(message).map_err(|_| track.malformed(UNREADABLE))?;
    Ok(match frame.msg {
        Some(Msg::Header(header)) => Answer::Header(header.meta),
        Some(Msg::Message(message)) => Answer::Message(message.data),
        Some(Msg::Trailer(trailer)) => Answer::Trailer(trailer.meta),
        Some(Msg::Error(error)) => Answer::Error(error.status.ok_or_else(|| track.malformed(NO_STATUS))?),
        // Both are out of order here, and the track says so.
        Some(Msg::Descriptor(_)) => return Err(refused(track, Some(1))),
        None => return Err(refused(track, None)),
    })
}

fn decode_gateway(track: &Track, message: Bytes) -> Result<Answer, Violation> {
    use kas::gateway_kas_response::Msg;
    let frame = kas::GatewayKasResponse::decode(message).map_err(|_| track.malformed(UNREADABLE))?;
    Ok(match frame.msg {
        Some(Msg::Header(header)) => Answer::Header(header.meta),
        Some(Msg::Message(message)) => Answer::Message(message.data),
        Some(Msg::Trailer(trailer)) => Answer::Trailer(trailer.meta),
        Some(Msg::Error(error)) => Answer::Error(error.status.ok_or_else(|| track.malformed(NO_STATUS))?),
        Some(Msg::TunnelReady(_)) => return Err(refused(track, Some(1))),
        Some(Msg::NoTunnel(_)) => return Err(refused(track, Some(6))),
        None => return Err(refused(track, None)),
    })
}

fn refused(track: &Track, field: Option<u8>) -> Violation {
    match track.clone().step(field) {
        Err(violation) => violation,
        Ok(()) => track.malformed("a frame of the handshake after it"),
    }
}

const UNREADABLE: &str = "a frame that is not this message";
const NO_STATUS: &str = "an error frame without a status";

/// The first frame of a call inside a tunnel.
pub(crate) fn put_request_info(buffer: &mut BytesMut, method: &str, entries: meta::Meta) {
    let info = tunnel::RequestInfo { method_name: method.to_owned(), meta: entries };
    let msg = tunnel::connect_response::Msg::RequestInfo(info);
    put(buffer, &tunnel::ConnectResponse { msg: Some(msg) });
}
