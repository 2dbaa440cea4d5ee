//! The writing half of a stream: a buffer that becomes an HTTP/2 body.
//!
//! Several small frames written before the connection gets round to sending leave as one DATA frame.
//! An idle stream holds no buffer. Nothing here waits but [`Outbox::room`] and [`Outbox::gone`].

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Frame;
use tonic::Status;

use super::{locked, status};

/// Above this a writer that asks for room waits. Two chunks of the largest kind.
const HIGH_WATER: usize = 64 << 10;

/// How a stream ends.
#[derive(Debug)]
pub(crate) enum End {
    /// Plainly: a client's half-close.
    Eof,
    /// With trailers: a server's answer.
    Trailers(HeaderMap),
    /// By reset.
    Cancel,
}

/// The reader of the stream is no longer there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other side has left the stream")]
pub struct Gone;

#[derive(Default)]
struct State {
    buffer: BytesMut,
    end: Option<End>,
    ended: bool,
    gone: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    watcher: Option<Waker>,
}

struct Shared {
    state: Mutex<State>,
    writers: AtomicUsize,
}

/// Where frames are written. When the last clone goes without an end, the stream is reset.
pub(crate) struct Outbox(Arc<Shared>);

/// The body that the connection sends.
pub struct OutboxBody {
    shared: Arc<Shared>,
    /// Dropped with the body, which is how its owner learns that the stream is over.
    on_drop: Option<Box<dyn Send + Sync>>,
}

/// A new stream.
pub(crate) fn outbox() -> (Outbox, OutboxBody) {
    let shared = Arc::new(Shared { state: Mutex::default(), writers: AtomicUsize::new(1) });
    (Outbox(Arc::clone(&shared)), OutboxBody { shared, on_drop: None })
}

impl Outbox {
    /// Writes without waiting and without sending yet.
    pub(crate) fn push(&self, write: impl FnOnce(&mut BytesMut)) {
        let mut state = locked(&self.0.state);
        if !state.gone && !state.ended {
            write(&mut state.buffer);
        }
    }

    /// Lets what was pushed go out.
    pub(crate) fn flush(&self) {
        let waker = locked(&self.0.state).reader.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends the stream after what was pushed. Only the first end counts.
    pub(crate) fn finish(&self, end: End) {
        let mut state = locked(&self.0.state);
        if state.ended {
            return;
        }
        if matches!(end, End::Cancel) {
            state.buffer = BytesMut::new();
        }
        state.ended = true;
        state.end = Some(end);
        let wakers = [state.reader.take(), state.writer.take()];
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Ends a server's stream with a status.
    pub(crate) fn answer(&self, status: &Status) {
        self.finish(End::Trailers(status::to_headers(status)));
    }

    /// Waits until more may be written. One writer at a time.
    pub(crate) async fn room(&self) -> Result<(), Gone> {
        poll_fn(|cx| self.poll_room(cx)).await
    }

    pub(crate) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        let mut state = locked(&self.0.state);
        if state.gone || state.ended {
            return Poll::Ready(Err(Gone));
        }
        if state.buffer.len() < HIGH_WATER {
            return Poll::Ready(Ok(()));
        }
        state.writer = Some(cx.waker().clone());
        let reader = state.reader.take();
        drop(state);
        // Whoever waits for room wants what is there to leave.
        if let Some(reader) = reader {
            reader.wake();
        }
        Poll::Pending
    }

    /// Waits until the connection has dropped the stream, finished or not. One watcher at a time.
    pub(crate) async fn gone(&self) {
        poll_fn(|cx| {
            let mut state = locked(&self.0.state);
            if state.gone {
                return Poll::Ready(());
            }
            state.watcher = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Whether the connection has dropped the stream.
    pub(crate) fn is_gone(&self) -> bool {
        locked(&self.0.state).gone
    }
}

impl Clone for Outbox {
    fn clone(&self) -> Self {
        self.0.writers.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        if self.0.writers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finish(End::Cancel);
        }
    }
}

impl OutboxBody {
    /// Keeps something until the stream is over.
    pub(crate) fn holding(mut self, guard: impl Send + Sync + 'static) -> Self {
        self.on_drop = Some(Box::new(guard));
        self
    }

    /// Whether its end has been decided.
    #[cfg(test)]
    pub(crate) fn has_end(&self) -> bool {
        locked(&self.shared.state).ended
    }

    /// A body without content.
    pub(crate) fn empty() -> Self {
        let (outbox, body) = outbox();
        outbox.finish(End::Eof);
        body
    }
}

impl http_body::Body for OutboxBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let mut state = locked(&self.shared.state);
        if !state.buffer.is_empty() {
            // Taken whole, so that an idle stream keeps no capacity.
            let data = std::mem::take(&mut state.buffer).freeze();
            let writer = state.writer.take();
            drop(state);
            if let Some(writer) = writer {
                writer.wake();
            }
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        match state.end.take() {
            Some(End::Trailers(trailers)) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            Some(End::Cancel) => Poll::Ready(Some(Err(h2::Reason::CANCEL.into()))),
            Some(End::Eof) => {
                state.end = Some(End::Eof);
                Poll::Ready(None)
            }
            None if state.ended => Poll::Ready(None),
            None => {
                state.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let state = locked(&self.shared.state);
        state.buffer.is_empty() && state.ended && matches!(state.end, None | Some(End::Eof))
    }
}

impl Drop for OutboxBody {
    fn drop(&mut self) {
        let mut state = locked(&self.shared.state);
        state.gone = true;
        state.buffer = BytesMut::new();
        let wakers = [state.writer.take(), state.watcher.take()];
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
        drop(self.on_drop.take());
    }
}

impl std::fmt::Debug for OutboxBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutboxBody").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn small_frames_leave_together_and_trailers_follow() {
        let (outbox, mut body) = outbox();
        outbox.push(|buffer| buffer.extend_from_slice(b"one "));
        outbox.push(|buffer| buffer.extend_from_slice(b"two"));
        outbox.answer(&Status::ok(""));
        outbox.push(|buffer| buffer.extend_from_slice(b"too late"));
        let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(data, "one two");
        let trailers = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
        assert_eq!(trailers["grpc-status"], "0");
        assert!(body.frame().await.is_none());
    }

    #[tokio::test]
    async fn an_abandoned_stream_is_reset() {
        let (outbox, mut body) = outbox();
        drop(outbox.clone());
        assert!(body.frame().now_or_never().is_none());
        drop(outbox);
        let error = body.frame().await.unwrap().unwrap_err();
        assert_eq!(error.reason(), Some(h2::Reason::CANCEL));
    }

    #[tokio::test]
    async fn a_writer_waits_for_room_and_learns_of_the_end() {
        let (outbox, mut body) = outbox();
        outbox.room().await.unwrap();
        outbox.push(|buffer| buffer.resize(HIGH_WATER, 0));
        assert!(outbox.room().now_or_never().is_none());
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), HIGH_WATER);
        outbox.room().await.unwrap();
        outbox.push(|buffer| buffer.resize(HIGH_WATER, 0));
        let waiting = tokio::spawn({
            let outbox = outbox.clone();
            async move { outbox.room().await }
        });
        drop(body);
        assert_eq!(waiting.await.unwrap(), Err(Gone));
        outbox.gone().await;
        assert!(outbox.is_gone());
    }

    #[tokio::test]
    async fn the_guard_goes_with_the_body() {
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let (_outbox, body) = outbox();
        let body = body.holding(sender);
        drop(body);
        assert!(receiver.await.is_err());
        assert!(http_body::Body::is_end_stream(&OutboxBody::empty()));
    }
}
