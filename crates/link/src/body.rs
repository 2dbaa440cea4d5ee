//! The body of a request or a response: bytes as they come, then perhaps trailers.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::sync::oneshot;

use crate::error::{BodyError, BoxError};
use crate::lane::{Backlog, Lane};

/// A body that is empty, in memory, received from a link, or any other [`http_body::Body`].
///
/// Dropping a received body before its end cancels the stream it came from.
#[derive(Default)]
pub struct Body(Kind);

#[derive(Default)]
enum Kind {
    #[default]
    Empty,
    Full(Bytes),
    Received(Received),
    Boxed(UnsyncBoxBody<Bytes, BodyError>),
}

impl Body {
    /// No bytes.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Any body of the `http` ecosystem.
    pub fn new<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        // One body of ours wrapped in another would hide what it is from the pump.
        let mut body = Some(body);
        if let Some(ours) = (&mut body as &mut dyn std::any::Any).downcast_mut::<Option<Self>>() {
            return ours.take().unwrap_or_default();
        }
        match body {
            Some(body) => {
                Self(Kind::Boxed(body.map_err(|error| BodyError::Source(error.into())).boxed_unsync()))
            }
            None => Self::empty(),
        }
    }

    pub(crate) fn received(lane: Arc<Lane>) -> Self {
        Self(Kind::Received(Received { lane, finished: false, begun: None }))
    }

    /// The same, with one who is told when it is read for the first time.
    pub(crate) fn awaited(lane: Arc<Lane>) -> (Self, oneshot::Receiver<()>) {
        let (begun, told) = oneshot::channel();
        (Self(Kind::Received(Received { lane, finished: false, begun: Some(begun) })), told)
    }

    /// What of it lies at this end of a link unread, if it comes over one.
    pub fn backlog(&self) -> Option<Backlog> {
        match &self.0 {
            Kind::Received(received) => Some(Backlog::of(&received.lane)),
            _ => None,
        }
    }

    // The whole body, if it is in memory already.
    pub(crate) fn take_full(&mut self) -> Option<Bytes> {
        match &mut self.0 {
            Kind::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                self.0 = Kind::Empty;
                Some(bytes)
            }
            _ => None,
        }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let kind = &mut self.get_mut().0;
        match kind {
            Kind::Empty => Poll::Ready(None),
            Kind::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                *kind = Kind::Empty;
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Kind::Received(received) => received.poll_frame(cx),
            Kind::Boxed(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Empty => true,
            Kind::Full(bytes) => bytes.is_empty(),
            Kind::Received(received) => received.finished || received.lane.at_end(),
            Kind::Boxed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Received(_) => SizeHint::default(),
            Kind::Boxed(body) => body.size_hint(),
        }
    }
}

struct Received {
    lane: Arc<Lane>,
    finished: bool,
    begun: Option<oneshot::Sender<()>>,
}

impl Received {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.finished {
            return Poll::Ready(None);
        }
        if let Some(begun) = self.begun.take() {
            // Nobody listens any more once the request is answered.
            let _ = begun.send(());
        }
        match ready!(self.lane.poll_data(cx)) {
            Some(Ok(bytes)) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Some(Err(error)) => {
                self.finished = true;
                return Poll::Ready(Some(Err(error)));
            }
            None => {}
        }
        let trailers = ready!(self.lane.poll_trailers(cx));
        self.finished = true;
        Poll::Ready(trailers.transpose().map(|result| result.map(Frame::trailers)))
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if !self.finished {
            self.lane.forsake();
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Kind::Empty => "Body::Empty",
            Kind::Full(_) => "Body::Full",
            Kind::Received(_) => "Body::Received",
            Kind::Boxed(_) => "Body::Boxed",
        })
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self::empty() } else { Self(Kind::Full(bytes)) }
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_in_memory_comes_whole_and_once() {
        let body = Body::from("hello");
        assert_eq!(body.size_hint().exact(), Some(5));
        assert!(!body.is_end_stream());
        assert_eq!(body.collect().await.unwrap().to_bytes(), "hello");
        assert!(Body::from(Bytes::new()).is_end_stream());
    }

    #[test]
    fn wrapping_a_body_twice_changes_nothing() {
        assert_eq!(format!("{:?}", Body::new(Body::from("x"))), "Body::Full");
    }
}
