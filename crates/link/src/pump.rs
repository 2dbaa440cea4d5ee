//! Sends a body into a stream, as fast as the peer takes it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::Reason;
use http_body::Body as _;

use crate::body::Body;
use crate::error::BodyError;
use crate::lane::Lane;

/// How sending a body ended.
#[derive(Debug)]
pub(crate) enum Sent {
    /// All of it is on its way.
    All,
    /// The peer wants no more, which is its right.
    Stopped,
    /// The body itself failed; the stream was reset.
    Failed(BodyError),
}

pub(crate) struct Pump {
    lane: Arc<Lane>,
    body: Body,
    chunk: Bytes,
    last: bool,
}

impl Pump {
    /// Sends a body that is in memory at once; one that is not needs to be pumped.
    pub(crate) fn start(lane: &Arc<Lane>, mut body: Body) -> Option<Self> {
        match body.take_full() {
            Some(bytes) => {
                lane.send(bytes, true);
                None
            }
            None => Some(Self { lane: Arc::clone(lane), body, chunk: Bytes::new(), last: false }),
        }
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Sent> {
        loop {
            if !self.chunk.is_empty() {
                // A body that always has more must not keep its task from yielding: the driver of this very link may
                // wait for the same thread, and a link that says nothing for seconds counts as dead.
                let coop = ready!(tokio::task::coop::poll_proceed(cx));
                let Some(room) = ready!(self.lane.poll_room(cx, self.chunk.len())) else {
                    return Poll::Ready(Sent::Stopped);
                };
                let piece = self.chunk.split_to(room.min(self.chunk.len()));
                let end = self.last && self.chunk.is_empty();
                coop.made_progress();
                match self.lane.send(piece, end) {
                    true if end => return Poll::Ready(Sent::All),
                    true => continue,
                    false => return Poll::Ready(Sent::Stopped),
                }
            }
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(chunk) => {
                        self.chunk = chunk;
                        self.last = self.body.is_end_stream();
                        if self.last && self.chunk.is_empty() {
                            self.lane.send(Bytes::new(), true);
                            return Poll::Ready(Sent::All);
                        }
                    }
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            self.lane.send_trailers(trailers);
                            return Poll::Ready(Sent::All);
                        }
                    }
                },
                Poll::Ready(None) => {
                    self.lane.send(Bytes::new(), true);
                    return Poll::Ready(Sent::All);
                }
                Poll::Ready(Some(Err(error))) => {
                    self.lane.reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(Sent::Failed(error));
                }
                Poll::Pending => {
                    ready!(self.lane.poll_stopped(cx));
                    return Poll::Ready(Sent::Stopped);
                }
            }
        }
    }

    pub(crate) async fn run(mut self) -> Sent {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }
}
