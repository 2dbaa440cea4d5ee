//! A request body that can be taken back as long as nobody has begun to read it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tarbet_link::{Body, BodyError};

/// Keeps a body between attempts to send it.
pub(crate) struct Lender {
    slot: Arc<Mutex<Option<Body>>>,
    hint: SizeHint,
    empty: bool,
}

/// The body as one attempt sees it: taken out of the slot at the first read.
struct Lent {
    slot: Arc<Mutex<Option<Body>>>,
    taken: Option<Body>,
    hint: SizeHint,
    empty: bool,
}

impl Lender {
    pub(crate) fn new(body: Body) -> Self {
        let (hint, empty) = (body.size_hint(), body.is_end_stream());
        Self { slot: Arc::new(Mutex::new(Some(body))), hint, empty }
    }

    /// Whether there is nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.empty
    }

    /// The body for another attempt; nothing if an earlier attempt has begun to read it.
    pub(crate) fn lend(&self) -> Option<Body> {
        if self.empty {
            return Some(Body::empty());
        }
        lock(&self.slot).is_some().then(|| {
            Body::new(Lent { slot: Arc::clone(&self.slot), taken: None, hint: self.hint, empty: self.empty })
        })
    }
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if this.taken.is_none() {
            this.taken = lock(&this.slot).take();
        }
        match &mut this.taken {
            Some(body) => Pin::new(body).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.taken.as_ref().map_or(self.empty, HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.taken.as_ref().map_or_else(|| self.hint, HttpBody::size_hint)
    }
}

fn lock(slot: &Mutex<Option<Body>>) -> MutexGuard<'_, Option<Body>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn an_unread_body_can_be_lent_again_and_a_read_one_cannot() {
        let lender = Lender::new(Body::from("payload"));
        drop(lender.lend().unwrap());
        let second = lender.lend().unwrap();
        assert_eq!(second.size_hint().exact(), Some(7));
        assert_eq!(second.collect().await.unwrap().to_bytes(), "payload");
        assert!(lender.lend().is_none());
    }

    #[tokio::test]
    async fn an_empty_body_can_be_lent_for_ever() {
        let lender = Lender::new(Body::empty());
        for _ in 0..3 {
            assert!(lender.lend().unwrap().is_end_stream());
        }
    }
}
