//! A body that holds something for as long as it lasts.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tarbet_link::{Body, BodyError};

struct Guarded<G> {
    body: Body,
    guard: Option<G>,
}

/// The same body, letting go of `guard` when it ends or is dropped.
pub(crate) fn guard_body<G: Send + Unpin + 'static>(body: Body, guard: G) -> Body {
    if body.is_end_stream() { body } else { Body::new(Guarded { body, guard: Some(guard) }) }
}

impl<G: Unpin> HttpBody for Guarded<G> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = std::task::ready!(Pin::new(&mut this.body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            this.guard = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
