//! A request body that can be sent again: a link may break, or refuse a stream, after it took the first bytes.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tarbet_link::{Body, BodyError};

/// How much is kept of what an attempt has read. A longer body can be sent once only.
const KEPT: usize = 64 * 1024;

/// Keeps a body between attempts to send it.
pub(crate) struct Lender {
    source: Arc<Mutex<Source>>,
    hint: SizeHint,
    empty: bool,
}

/// The body, and what was read of it so far.
struct Source {
    body: Body,
    read: Vec<Bytes>,
    kept: usize,
    ended: bool,
    /// More was read than is kept.
    gone: bool,
}

/// The body as one attempt sees it.
struct Lent {
    source: Arc<Mutex<Source>>,
    next: usize,
    hint: SizeHint,
}

impl Lender {
    pub(crate) fn new(body: Body) -> Self {
        let (hint, empty) = (body.size_hint(), body.is_end_stream());
        let source = Source { body, read: Vec::new(), kept: 0, ended: false, gone: false };
        Self { source: Arc::new(Mutex::new(source)), hint, empty }
    }

    /// Whether there is nothing in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.empty
    }

    /// Whether all of it is kept, however far an attempt comes.
    pub(crate) fn is_kept_whole(&self) -> bool {
        self.empty || self.hint.exact().is_some_and(|size| size <= KEPT as u64)
    }

    /// The body for another attempt; nothing if an earlier attempt has read more than is kept.
    pub(crate) fn lend(&self) -> Option<Body> {
        if self.empty {
            return Some(Body::empty());
        }
        let whole = !lock(&self.source).gone;
        whole.then(|| Body::new(Lent { source: Arc::clone(&self.source), next: 0, hint: self.hint }))
    }
}

impl Source {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        match frame.as_ref().map(|frame| frame.as_ref().map(Frame::data_ref)) {
            None => self.ended = true,
            Some(Ok(Some(data))) if !self.gone && self.kept + data.len() <= KEPT => {
                self.kept += data.len();
                self.read.push(data.clone());
            }
            // Too much, trailers, or an error: none of them can be said again.
            Some(_) => {
                self.gone = true;
                self.read.clear();
            }
        }
        Poll::Ready(frame)
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
        let mut source = lock(&this.source);
        let frame = match source.read.get(this.next) {
            Some(data) => Some(Ok(Frame::data(data.clone()))),
            None => std::task::ready!(source.poll_next(cx)),
        };
        this.next += 1;
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let source = lock(&self.source);
        self.next >= source.read.len() && (source.ended || source.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        if self.next == 0 { self.hint } else { SizeHint::default() }
    }
}

fn lock(source: &Mutex<Source>) -> MutexGuard<'_, Source> {
    source.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt, StreamBody};

    fn pieces(sizes: &'static [usize]) -> Body {
        let frames = sizes
            .iter()
            .map(|size| Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(vec![7; *size]))));
        Body::new(StreamBody::new(futures::stream::iter(frames)))
    }

    #[tokio::test]
    async fn what_was_read_can_be_read_again() {
        let lender = Lender::new(Body::from("payload"));
        drop(lender.lend().unwrap());
        for _ in 0..3 {
            let body = lender.lend().unwrap();
            assert_eq!(body.size_hint().exact(), Some(7));
            assert_eq!(body.collect().await.unwrap().to_bytes(), "payload");
        }
        let lender = Lender::new(pieces(&[3, 5, 7]));
        let mut begun = lender.lend().unwrap();
        assert_eq!(begun.frame().await.unwrap().unwrap().into_data().unwrap().len(), 3);
        drop(begun);
        assert_eq!(lender.lend().unwrap().collect().await.unwrap().to_bytes().len(), 15);
    }

    #[tokio::test]
    async fn a_long_body_goes_once_and_whole() {
        let lender = Lender::new(pieces(&[KEPT, 1, KEPT]));
        assert_eq!(lender.lend().unwrap().collect().await.unwrap().to_bytes().len(), 2 * KEPT + 1);
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
