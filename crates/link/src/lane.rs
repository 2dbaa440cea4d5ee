//! One HTTP/2 stream: what comes in, what goes out, and how it is given up.
//!
//! Its reader, its writer and the link's ledger hold it together. The two directions have a lock
//! each, never held while foreign code runs; where both are taken, the inlet comes first.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream};
use http::HeaderMap;
use tokio::time::Instant;

use crate::error::BodyError;
use crate::ledger::Load;
use crate::shared::{Shared, Side};
use crate::wire;

/// Frames below this weigh more than they carry; HTTP/2 counts them from the same size on.
const TINY: usize = 256;

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves these states whole: each change is one assignment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Lane {
    shared: Arc<Shared>,
    id: u32,
    inlet: Mutex<Inlet>,
    outlet: Mutex<Outlet>,
}

#[derive(Default)]
struct Inlet {
    stream: Option<RecvStream>,
    // Unread bytes that were taken out of HTTP/2 to be kept in one piece.
    spill: BytesMut,
    waiting: Option<Waker>,
    // Chunks given to the reader, and how many there were at the last inspection.
    taken: u64,
    seen: u64,
    // Frames given to the reader as they came since the last inspection, and their bytes.
    frames: usize,
    framed: usize,
    stalled_since: Option<Instant>,
    evicted: bool,
}

#[derive(Default)]
struct Outlet {
    stream: Option<SendStream<Bytes>>,
    ended: bool,
}

impl Lane {
    pub(crate) fn new(shared: Arc<Shared>, id: u32) -> Arc<Self> {
        if shared.meter.opened() {
            shared.woken.notify_one();
        }
        Arc::new(Self { shared, id, inlet: Mutex::default(), outlet: Mutex::default() })
    }

    pub(crate) fn attach_recv(self: &Arc<Self>, stream: RecvStream) {
        lock(&self.inlet).stream = Some(stream);
        self.shared.ledger.add(self.id, self);
    }

    pub(crate) fn attach_send(&self, stream: SendStream<Bytes>, ended: bool) {
        *lock(&self.outlet) = Outlet { stream: Some(stream), ended };
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The next chunk, which counts as read from now on: the peer may send as much again.
    pub(crate) fn poll_data(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        // A stream that always has more must not keep its task from yielding.
        let coop = ready!(tokio::task::coop::poll_proceed(cx));
        let inlet = &mut *lock(&self.inlet);
        let Some(stream) = inlet.stream.as_mut() else {
            return Poll::Ready(inlet.evicted.then_some(Err(BodyError::Stalled)));
        };
        loop {
            let chunk = if inlet.spill.is_empty() {
                match stream.poll_data(cx) {
                    Poll::Ready(Some(Ok(chunk))) => {
                        inlet.frames += 1;
                        inlet.framed += chunk.len();
                        chunk
                    }
                    Poll::Ready(Some(Err(error))) => {
                        return Poll::Ready(Some(Err(self.shared.body_error(&error))));
                    }
                    Poll::Ready(None) => return Poll::Ready(None),
                    Poll::Pending => {
                        match &mut inlet.waiting {
                            Some(waker) => waker.clone_from(cx.waker()),
                            none => *none = Some(cx.waker().clone()),
                        }
                        return Poll::Pending;
                    }
                }
            } else {
                std::mem::take(&mut inlet.spill).freeze()
            };
            // Fails only for more than was received.
            let _ = stream.flow_control().release_capacity(chunk.len());
            inlet.taken += 1;
            self.shared.meter.took(chunk.len());
            if !chunk.is_empty() {
                coop.made_progress();
                return Poll::Ready(Some(Ok(chunk)));
            }
        }
    }

    /// What follows the last chunk.
    pub(crate) fn poll_trailers(&self, cx: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, BodyError>> {
        let inlet = &mut *lock(&self.inlet);
        let Some(stream) = inlet.stream.as_mut() else { return Poll::Ready(Ok(None)) };
        let trailers = ready!(stream.poll_trailers(cx));
        inlet.stream = None;
        Poll::Ready(trailers.map_err(|error| self.shared.body_error(&error)))
    }

    /// Whether everything was read.
    pub(crate) fn at_end(&self) -> bool {
        let inlet = lock(&self.inlet);
        inlet.spill.is_empty()
            && !inlet.evicted
            && inlet.stream.as_ref().is_none_or(RecvStream::is_end_stream)
    }

    /// How much may be sent now, at least one byte. `None` when the peer wants no more.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>, wanted: usize) -> Poll<Option<usize>> {
        let outlet = &mut *lock(&self.outlet);
        let Some(stream) = outlet.stream.as_mut() else { return Poll::Ready(None) };
        stream.reserve_capacity(wanted);
        loop {
            match stream.capacity() {
                0 => match ready!(stream.poll_capacity(cx)) {
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => return Poll::Ready(None),
                },
                room => return Poll::Ready(Some(room)),
            }
        }
    }

    /// Sends a chunk. False when the peer wants no more.
    ///
    /// An empty chunk goes out only as the end: HTTP/2 peers count empty frames as an attack.
    pub(crate) fn send(&self, chunk: Bytes, end: bool) -> bool {
        let outlet = &mut *lock(&self.outlet);
        if outlet.ended || (chunk.is_empty() && !end) {
            return !outlet.ended;
        }
        outlet.ended = end;
        outlet.stream.as_mut().is_some_and(|stream| stream.send_data(chunk, end).is_ok())
    }

    pub(crate) fn send_trailers(&self, trailers: HeaderMap) -> bool {
        if !wire::fits(&trailers) {
            self.reset(Reason::INTERNAL_ERROR);
            return false;
        }
        let outlet = &mut *lock(&self.outlet);
        outlet.ended = true;
        outlet.stream.as_mut().is_some_and(|stream| stream.send_trailers(trailers).is_ok())
    }

    /// Ready when the peer wants no more.
    pub(crate) fn poll_stopped(&self, cx: &mut Context<'_>) -> Poll<()> {
        match lock(&self.outlet).stream.as_mut() {
            Some(stream) => stream.poll_reset(cx).map(|_| ()),
            None => Poll::Ready(()),
        }
    }

    /// Gives the stream up in both directions.
    pub(crate) fn reset(&self, reason: Reason) {
        let inlet = lock(&self.inlet).stream.take();
        if let Some(mut stream) = lock(&self.outlet).stream.take() {
            stream.send_reset(reason);
        }
        drop(inlet);
    }

    /// The reader of a body has lost interest.
    pub(crate) fn forsake(&self) {
        match self.shared.side {
            // Whoever drops a response cancels the request.
            Side::Gateway => self.reset(Reason::CANCEL),
            // An answer may be given without reading the whole request.
            Side::Agent => drop(lock(&self.inlet).stream.take()),
        }
    }

    /// The user of a byte stream has gone.
    pub(crate) fn abandon(&self) {
        let ended = lock(&self.outlet).ended;
        match self.shared.side {
            // Once the last byte was sent, HTTP/2 tells the peer softly and keeps what is queued.
            Side::Agent if ended => drop(lock(&self.inlet).stream.take()),
            _ if ended && self.at_end() => {}
            _ => self.reset(Reason::CANCEL),
        }
    }

    /// How much lies here unread, and since when. The bytes of a stream that is stalled, or read more slowly than
    /// its tiny frames come, are put in one piece: many of those cost far more memory than they carry, and too many
    /// would end the link.
    pub(crate) fn inspect(&self, now: Instant) -> Load {
        let inlet = &mut *lock(&self.inlet);
        let Some(stream) = inlet.stream.as_mut() else { return Load::default() };
        let unread = stream.flow_control().used_capacity();
        let moved = std::mem::replace(&mut inlet.seen, inlet.taken) != inlet.taken;
        let tiny = inlet.framed <= inlet.frames * TINY;
        (inlet.frames, inlet.framed) = (0, 0);
        if unread == 0 {
            inlet.stalled_since = None;
            return Load::default();
        }
        let still = !moved && inlet.stalled_since.is_some();
        if !still {
            inlet.stalled_since = Some(now);
        }
        if still || (moved && tiny) {
            inlet.compact(unread);
        }
        Load { unread, stalled_for: inlet.stalled_since.map(|since| now.saturating_duration_since(since)) }
    }

    /// Resets a stream that nobody reads.
    pub(crate) fn evict(&self) {
        let waiting = {
            let mut inlet = lock(&self.inlet);
            inlet.evicted = true;
            inlet.spill = BytesMut::new();
            inlet.waiting.take()
        };
        self.reset(Reason::ENHANCE_YOUR_CALM);
        if let Some(waker) = waiting {
            waker.wake();
        }
    }
}

/// Bytes of one stream that came over a link and that nobody has read yet. Does not keep the stream.
#[derive(Clone)]
pub struct Backlog(std::sync::Weak<Lane>);

impl Backlog {
    pub(crate) fn of(lane: &Arc<Lane>) -> Self {
        Self(Arc::downgrade(lane))
    }

    /// How many there are now; none once the stream has ended.
    pub fn unread(&self) -> usize {
        let Some(lane) = self.0.upgrade() else { return 0 };
        let mut inlet = lock(&lane.inlet);
        inlet.stream.as_mut().map_or(0, |stream| stream.flow_control().used_capacity())
    }
}

impl std::fmt::Debug for Backlog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Backlog({})", self.unread())
    }
}

impl Inlet {
    fn compact(&mut self, unread: usize) {
        let Some(stream) = self.stream.as_mut() else { return };
        if self.spill.len() >= unread {
            return;
        }
        self.spill.reserve(unread - self.spill.len());
        let mut idle = Context::from_waker(Waker::noop());
        while self.spill.len() < unread {
            match stream.poll_data(&mut idle) {
                Poll::Ready(Some(Ok(chunk))) => self.spill.extend_from_slice(&chunk),
                // Ends and errors come again when the reader asks.
                Poll::Ready(_) => break,
                Poll::Pending => {
                    // The question replaced the reader's waker: it has to ask again itself.
                    if let Some(waker) = self.waiting.take() {
                        waker.wake();
                    }
                    break;
                }
            }
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.shared.ledger.remove(self.id);
        self.shared.meter.ended();
    }
}
