//! What is counted on a link.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// The counters of a link at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkStats {
    /// Streams open now: calls, upgrades and byte streams.
    pub streams_open: usize,
    /// Streams ever opened.
    pub streams: u64,
    /// Bytes received on the connection, framing included.
    pub bytes_in: u64,
    /// Bytes sent on the connection, framing included.
    pub bytes_out: u64,
    /// Streams reset because nobody read them.
    pub stalled: u64,
    /// The round trip of the last PING.
    pub round_trip: Option<Duration>,
    /// How long ago bytes last came in.
    pub silent_for: Duration,
    /// How long the link has been up.
    pub age: Duration,
}

#[derive(Debug)]
pub(crate) struct Meter {
    started: Instant,
    open: AtomicUsize,
    streams: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    stalled: AtomicU64,
    // Bytes of all streams that were read here, framing excluded.
    taken: AtomicU64,
    // Microseconds since the start.
    heard: AtomicU64,
    // Microseconds, zero before the first PONG.
    round_trip: AtomicU64,
    // The shortest so far: without what queues on a busy link.
    distance: AtomicU64,
}

impl Meter {
    pub(crate) fn new(started: Instant) -> Self {
        Self {
            started,
            open: AtomicUsize::new(0),
            streams: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            stalled: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            round_trip: AtomicU64::new(0),
            distance: AtomicU64::new(u64::MAX),
        }
    }

    /// Counts a stream; tells whether it is the only one open.
    pub(crate) fn opened(&self) -> bool {
        self.streams.fetch_add(1, Relaxed);
        self.open.fetch_add(1, Relaxed) == 0
    }

    pub(crate) fn ended(&self) {
        self.open.fetch_sub(1, Relaxed);
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Relaxed)
    }

    pub(crate) fn stalled(&self, count: usize) {
        self.stalled.fetch_add(count as u64, Relaxed);
    }

    /// A reader took so many bytes.
    pub(crate) fn took(&self, count: usize) {
        self.taken.fetch_add(count as u64, Relaxed);
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    pub(crate) fn bytes_in(&self) -> u64 {
        self.bytes_in.load(Relaxed)
    }

    pub(crate) fn heard(&self) -> Instant {
        self.started + Duration::from_micros(self.heard.load(Relaxed))
    }

    pub(crate) fn round_trip(&self, time: Duration) {
        let micros = (time.as_micros() as u64).max(1);
        self.round_trip.store(micros, Relaxed);
        self.distance.fetch_min(micros, Relaxed);
    }

    /// The shortest round trip so far.
    pub(crate) fn distance(&self) -> Option<Duration> {
        let micros = self.distance.load(Relaxed);
        (micros < u64::MAX).then(|| Duration::from_micros(micros))
    }

    pub(crate) fn read(&self) -> LinkStats {
        let now = Instant::now();
        let round_trip = self.round_trip.load(Relaxed);
        LinkStats {
            streams_open: self.open(),
            streams: self.streams.load(Relaxed),
            bytes_in: self.bytes_in(),
            bytes_out: self.bytes_out.load(Relaxed),
            stalled: self.stalled.load(Relaxed),
            round_trip: (round_trip > 0).then(|| Duration::from_micros(round_trip)),
            silent_for: now.saturating_duration_since(self.heard()),
            age: now.saturating_duration_since(self.started),
        }
    }
}

/// How long the end that closes first waits for the other to have read everything.
const LINGER: Duration = Duration::from_secs(2);

/// A stream whose bytes are counted, and which is not closed in the middle of a word: a socket
/// closed with unread bytes in it takes back what it has sent.
pub(crate) struct Metered<S> {
    inner: S,
    meter: Arc<Meter>,
    // Set once this end has nothing more to send.
    lingering: Option<Pin<Box<Sleep>>>,
}

impl<S> Metered<S> {
    pub(crate) fn new(inner: S, meter: Arc<Meter>) -> Self {
        Self { inner, meter, lingering: None }
    }

    fn sent(&self, count: usize) {
        self.meter.bytes_out.fetch_add(count as u64, Relaxed);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
        let count = buf.filled().len() - before;
        this.meter.bytes_in.fetch_add(count as u64, Relaxed);
        this.meter.heard.store(this.meter.started.elapsed().as_micros() as u64, Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let count = ready!(Pin::new(&mut this.inner).poll_write(cx, buf))?;
        this.sent(count);
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let count = ready!(Pin::new(&mut this.inner).poll_write_vectored(cx, bufs))?;
        this.sent(count);
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    // Says that nothing more comes, then reads until the other end says so too.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.lingering.is_none() {
            ready!(Pin::new(&mut this.inner).poll_shutdown(cx))?;
        }
        let lingering = this.lingering.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        let mut scratch = [0; 2048];
        while lingering.as_mut().poll(cx).is_pending() {
            let mut buf = ReadBuf::new(&mut scratch);
            match ready!(Pin::new(&mut this.inner).poll_read(cx, &mut buf)) {
                Ok(()) if !buf.filled().is_empty() => {}
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}
