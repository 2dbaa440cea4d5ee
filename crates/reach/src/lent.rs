//! A request body that can be sent again: a link may break, or refuse a stream, after it took the first bytes.
//!
//! What goes through another gateway may wait there for an agent and come back. So what is not kept is held
//! here until that gateway says that an agent has the request; from then on it flows, and goes nowhere else.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

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
    /// More was given away than is kept.
    gone: bool,
    /// Nothing may be given away that is not kept.
    held: bool,
    /// What was read and may not be given away yet, and who waits for it.
    next: Option<Frame<Bytes>>,
    waiting: Option<Waker>,
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
        let source = Source {
            body,
            read: Vec::new(),
            kept: 0,
            ended: false,
            gone: false,
            held: false,
            next: None,
            waiting: None,
        };
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

    /// Whether an attempt has read more than is kept, so that there can be no other.
    pub(crate) fn is_gone(&self) -> bool {
        lock(&self.source).gone
    }

    /// The body for another attempt; nothing if it [is gone](Self::is_gone).
    pub(crate) fn lend(&self) -> Option<Body> {
        if self.empty {
            return Some(Body::empty());
        }
        let mut source = lock(&self.source);
        source.held = false;
        let whole = !source.gone;
        whole.then(|| Body::new(Lent { source: Arc::clone(&self.source), next: 0, hint: self.hint }))
    }

    /// The same, but only as much as is kept until somebody calls what comes with it.
    pub(crate) fn lend_kept(&self) -> Option<(Body, impl Fn() + Send + Sync + use<>)> {
        let body = self.lend()?;
        lock(&self.source).held = true;
        let source = Arc::clone(&self.source);
        Some((body, move || lock(&source).release()))
    }
}

impl Source {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let frame = match self.next.take() {
            Some(frame) => frame,
            None => match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    self.lose();
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    self.ended = true;
                    return Poll::Ready(None);
                }
            },
        };
        match frame.data_ref() {
            Some(data) if !self.gone && self.kept + data.len() <= KEPT => {
                self.kept += data.len();
                self.read.push(data.clone());
            }
            // Too much, or trailers: neither can be said again.
            _ if self.held => {
                self.next = Some(frame);
                self.waiting = Some(cx.waker().clone());
                return Poll::Pending;
            }
            _ => self.lose(),
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn lose(&mut self) {
        self.gone = true;
        self.read.clear();
    }

    fn release(&mut self) {
        self.held = false;
        if let Some(waker) = self.waiting.take() {
            waker.wake();
        }
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
        self.next >= source.read.len()
            && source.next.is_none()
            && (source.ended || source.body.is_end_stream())
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
    async fn what_is_not_kept_is_held_until_somebody_has_the_request() {
        for sizes in [&[KEPT, 1, KEPT], &[2 * KEPT, 1, KEPT], &[KEPT - 1, 2, 7]] {
            let lender = Lender::new(pieces(sizes));
            // Nobody takes it, again and again.
            for _ in 0..3 {
                let (mut body, _) = lender.lend_kept().unwrap();
                let mut read = 0;
                while let std::task::Poll::Ready(frame) = futures::poll!(body.frame()) {
                    read += frame.unwrap().unwrap().into_data().unwrap().len();
                }
                assert!(read <= KEPT && !body.is_end_stream() && !lender.is_gone(), "{read}");
            }
            // Then somebody does.
            let (body, release) = lender.lend_kept().unwrap();
            let whole = tokio::spawn(body.collect());
            while lock(&lender.source).waiting.is_none() {
                tokio::task::yield_now().await;
            }
            release();
            assert_eq!(whole.await.unwrap().unwrap().to_bytes().len(), sizes.iter().sum::<usize>());
            assert!(lender.is_gone() && lender.lend().is_none());
        }
        // What was held back goes to whoever comes without conditions.
        let lender = Lender::new(pieces(&[KEPT, 1]));
        let (mut body, _) = lender.lend_kept().unwrap();
        body.frame().await.unwrap().unwrap();
        assert!(futures::poll!(body.frame()).is_pending());
        assert_eq!(lender.lend().unwrap().collect().await.unwrap().to_bytes().len(), KEPT + 1);
    }

    #[tokio::test]
    async fn an_empty_body_can_be_lent_for_ever() {
        let lender = Lender::new(Body::empty());
        for _ in 0..3 {
            assert!(lender.lend().unwrap().is_end_stream());
        }
    }
}
