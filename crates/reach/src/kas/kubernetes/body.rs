//! Bodies that are made of frames.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use prost::Message;
use tonic::{Code, Status};

use crate::kas::agent::Requests;
use crate::kas::call::{CallRecv, Part};
use crate::kas::order::{HTTP_REQUEST, HTTP_RESPONSE, Track};
use crate::kas::proto::grpctool;

/// How long an agent may take to end a call whose response is complete.
const FAREWELL: Duration = Duration::from_secs(5);

/// The frames of a response, read in order.
pub(super) struct Responses {
    recv: CallRecv,
    track: Track,
}

impl Responses {
    pub(super) fn new(recv: CallRecv) -> Self {
        Self { recv, track: Track::new(&HTTP_RESPONSE) }
    }

    /// The next frame; `None` when the call ended well.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<grpctool::http_response::Message>, Status>> {
        use grpctool::http_response::Message as Kind;
        loop {
            let part = match ready!(self.recv.poll_part(cx)) {
                None => return Poll::Ready(Ok(None)),
                Some(part) => part?,
            };
            match part {
                Part::Header(_) => {}
                Part::Message(data) => {
                    let frame = grpctool::HttpResponse::decode(data)
                        .map_err(|_| self.refuse("a frame that is not this message"))?
                        .message;
                    let step = self.track.step(frame.as_ref().map(|kind| match kind {
                        Kind::Header(_) => 1,
                        Kind::Data(_) => 2,
                        Kind::Trailer(_) => 3,
                        Kind::UpgradeData(_) => 4,
                    }));
                    if let Err(violation) = step {
                        let status = Status::from(violation);
                        self.recv.refuse(&status);
                        return Poll::Ready(Err(status));
                    }
                    return Poll::Ready(Ok(frame));
                }
                Part::End { status, .. } if status.code() == Code::Ok => {
                    self.track.end()?;
                    return Poll::Ready(Ok(None));
                }
                Part::End { status, .. } => return Poll::Ready(Err(status)),
            }
        }
    }

    pub(super) fn refuse(&mut self, what: &'static str) -> Status {
        let status = Status::from(self.track.malformed(what));
        self.recv.refuse(&status);
        status
    }
}

/// The body of a response that an agent sends.
pub(super) struct ReplyBody {
    responses: Option<Responses>,
    /// Bytes still to come, where the response says how many there are.
    left: Option<u64>,
    complete: bool,
}

impl ReplyBody {
    pub(super) fn new(responses: Responses, length: Option<u64>) -> Self {
        Self { responses: Some(responses), left: length, complete: length == Some(0) }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        use grpctool::http_response::Message as Kind;
        let this = self.get_mut();
        loop {
            let Some(responses) = &mut this.responses else { return Poll::Ready(None) };
            let frame = ready!(responses.poll_frame(cx));
            match frame {
                Ok(Some(Kind::Data(data))) if data.data.is_empty() => {}
                Ok(Some(Kind::Data(data))) => {
                    if let Some(left) = &mut this.left {
                        *left = left.saturating_sub(data.data.len() as u64);
                        this.complete = *left == 0;
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data.data))));
                }
                Ok(Some(Kind::Trailer(_))) => this.complete = true,
                Ok(Some(_)) => {
                    let status = responses.refuse("a frame of an upgrade without one");
                    this.responses = None;
                    return Poll::Ready(Some(Err(status)));
                }
                Ok(None) => {
                    this.responses = None;
                    return Poll::Ready(None);
                }
                Err(status) => {
                    this.responses = None;
                    return Poll::Ready(Some(Err(status)));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.responses.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for ReplyBody {
    /// Whoever reads a body of known length stops at its last byte, when the end of the call is not read
    /// yet. Letting go of it then would look like a caller that went away.
    fn drop(&mut self) {
        let Some(mut responses) = self.responses.take().filter(|_| self.complete) else { return };
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            match responses.poll_frame(&mut cx) {
                Poll::Ready(Ok(Some(_))) => {}
                Poll::Ready(_) => return,
                Poll::Pending => break,
            }
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(tokio::time::timeout(FAREWELL, async move {
                while let Ok(Some(_)) = std::future::poll_fn(|cx| responses.poll_frame(cx)).await {}
            }));
        }
    }
}

/// The frames of a request, read in order.
pub(super) struct RequestFrames {
    requests: Requests,
    track: Track,
}

impl RequestFrames {
    pub(super) fn new(requests: Requests) -> Self {
        Self { requests, track: Track::new(&HTTP_REQUEST) }
    }

    /// The next frame; `None` when the caller has no more.
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<grpctool::http_request::Message>, Status>> {
        use grpctool::http_request::Message as Kind;
        let Some(data) = ready!(self.requests.poll_message(cx))? else {
            self.track.end()?;
            return Poll::Ready(Ok(None));
        };
        let frame = grpctool::HttpRequest::decode(data)
            .map_err(|_| self.malformed("a frame that is not this message"))?
            .message;
        self.track.step(frame.as_ref().map(|kind| match kind {
            Kind::Header(_) => 1,
            Kind::Data(_) => 2,
            Kind::Trailer(_) => 3,
            Kind::UpgradeData(_) => 4,
        }))?;
        Poll::Ready(Ok(frame))
    }

    pub(super) async fn frame(&mut self) -> Result<Option<grpctool::http_request::Message>, Status> {
        std::future::poll_fn(|cx| self.poll_frame(cx)).await
    }

    pub(super) fn malformed(&self, what: &'static str) -> Status {
        self.track.malformed(what).into()
    }
}

/// The body of a request, on its way to the API server.
pub(super) struct RequestBody {
    frames: RequestFrames,
    left: Option<u64>,
    done: bool,
}

impl RequestBody {
    pub(super) fn new(frames: RequestFrames, length: Option<u64>) -> Self {
        Self { frames, left: length, done: false }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        use grpctool::http_request::Message as Kind;
        let this = self.get_mut();
        while !this.done {
            match ready!(this.frames.poll_frame(cx)) {
                Ok(Some(Kind::Data(data))) if data.data.is_empty() => {}
                Ok(Some(Kind::Data(data))) => {
                    if let Some(left) = &mut this.left {
                        *left = left.saturating_sub(data.data.len() as u64);
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data.data))));
                }
                Ok(Some(Kind::Trailer(_)) | None) => this.done = true,
                Ok(Some(_)) => {
                    this.done = true;
                    return Poll::Ready(Some(Err(this
                        .frames
                        .malformed("a frame of an upgrade without one"))));
                }
                Err(status) => {
                    this.done = true;
                    return Poll::Ready(Some(Err(status)));
                }
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.done
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
