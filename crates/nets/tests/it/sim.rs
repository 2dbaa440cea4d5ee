//! A frame for stand-ins of clouds: an HTTP server that holds every request against the vendor's own
//! schema, keeps state behind it, and can be made to throttle, fail, take its time, or lose an answer.
//!
//! It is plain HTTP on loopback, so the vendor's own SDK can drive it as well as our client.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Method, StatusCode, Uri};
use serde_json::Value;
use tarbet_nets::clouds::pace::Clock;
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Time that passes only when somebody waits.
#[derive(Clone, Default)]
pub(crate) struct SimClock(Arc<AtomicU64>);

#[async_trait]
impl Clock for SimClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }

    fn unix(&self) -> u64 {
        1_800_000_000 + self.now().as_secs()
    }

    async fn wait(&self, pause: Duration) {
        self.pass(pause);
        tokio::task::yield_now().await;
    }
}

impl SimClock {
    pub(crate) fn pass(&self, pause: Duration) {
        // A pause of nothing still lets the next thing happen later.
        self.0.fetch_add(u64::try_from(pause.as_millis()).unwrap().max(1), Ordering::SeqCst);
    }
}

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) headers: HeaderMap,
    /// As JSON; null if it is none.
    pub(crate) body: Value,
    pub(crate) text: String,
}

impl Seen {
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn named(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// An answer.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Value,
}

impl Reply {
    pub(crate) fn new(status: u16, body: Value) -> Self {
        Self { status, headers: Vec::new(), body }
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// One cloud: its contract and its state.
pub(crate) trait Vendor: Send + 'static {
    /// What the vendor's schema says against a request; it is then a violation, and answered with 400.
    fn check(&self, seen: &Seen) -> Result<(), String>;
    /// Answers a sound request. `clock` may be moved by long polls.
    fn answer(&mut self, seen: &Seen, clock: &SimClock) -> Reply;
    /// How this cloud words an error.
    fn error(&self, status: u16, message: &str) -> Value;
    /// Whether a request is of the client that is tried; others are never disturbed, nor counted.
    fn counts(&self, _seen: &Seen) -> bool {
        true
    }
    /// Whether the answer to this request never comes, though it was carried out.
    fn cuts(&mut self, _seen: &Seen) -> bool {
        false
    }
    /// Whether a request changes something (and is no question about an operation).
    fn changes(&self, seen: &Seen) -> bool {
        seen.method != Method::GET
    }
}

/// What goes wrong.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    /// Every n-th request is throttled; 0 is never.
    pub(crate) throttle_every: usize,
    /// Every n-th request fails after it was carried out; 0 is never.
    pub(crate) fail_every: usize,
    /// The answer to this request (counted from 0 since the last reset) never comes.
    pub(crate) cut_at: Option<usize>,
}

struct Inner<V> {
    vendor: V,
    faults: Faults,
    counted: usize,
    seen: Vec<Seen>,
    violations: Vec<String>,
}

/// A running stand-in. It ends when dropped.
pub(crate) struct Sim<V> {
    inner: Arc<Mutex<Inner<V>>>,
    cut: Arc<Notify>,
    pub(crate) clock: SimClock,
    pub(crate) url: String,
    _stop: DropGuard,
}

struct Shared<V> {
    inner: Arc<Mutex<Inner<V>>>,
    cut: Arc<Notify>,
    clock: SimClock,
}

impl<V> Clone for Shared<V> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), cut: self.cut.clone(), clock: self.clock.clone() }
    }
}

impl<V: Vendor> Sim<V> {
    pub(crate) async fn start(vendor: V) -> Self {
        let inner =
            Inner { vendor, faults: Faults::default(), counted: 0, seen: Vec::new(), violations: Vec::new() };
        let shared =
            Shared { inner: Arc::new(Mutex::new(inner)), cut: Arc::default(), clock: SimClock::default() };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let router = Router::new().fallback(serve::<V>).with_state(shared.clone());
        let serving = axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
        tokio::spawn(async move { serving.await });
        Self { inner: shared.inner, cut: shared.cut, clock: shared.clock, url, _stop: stop.drop_guard() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<V>> {
        self.inner.lock().unwrap()
    }

    /// Looks at the state behind.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut V) -> T) -> T {
        look(&mut self.lock().vendor)
    }

    /// Begins to count anew, with these faults.
    pub(crate) fn faults(&self, faults: Faults) {
        let mut inner = self.lock();
        inner.faults = faults;
        inner.counted = 0;
        inner.seen.clear();
    }

    /// Requests since the last reset.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.lock().seen.clone()
    }

    /// Those of them that change something, as `METHOD path`.
    pub(crate) fn changes(&self) -> Vec<String> {
        let inner = self.lock();
        inner.seen.iter().filter(|seen| inner.vendor.changes(seen)).map(Seen::named).collect()
    }

    /// Returns when the answer that never comes is due.
    pub(crate) async fn cut(&self) {
        self.cut.notified().await;
    }

    /// Fails if the schema refused any request.
    #[track_caller]
    pub(crate) fn assert_sound(&self) {
        assert_eq!(
            self.lock().violations,
            Vec::<String>::new(),
            "the vendor's schema refuses these requests"
        );
    }
}

async fn serve<V: Vendor>(
    State(shared): State<Shared<V>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let text = String::from_utf8_lossy(&body).into_owned();
    let query =
        url::form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
    let seen = Seen {
        method,
        path: uri.path().to_owned(),
        query,
        headers,
        body: serde_json::from_str(&text).unwrap_or(Value::Null),
        text,
    };
    let (reply, lost) = {
        let mut inner = shared.inner.lock().unwrap();
        let number = inner.counted;
        let counts = inner.vendor.counts(&seen);
        if counts {
            inner.counted += 1;
            inner.seen.push(seen.clone());
        }
        let every = |n: usize| counts && n != 0 && number % n == n - 1;
        let lost = counts && inner.faults.cut_at == Some(number);
        if every(inner.faults.throttle_every) {
            (
                Reply::new(429, inner.vendor.error(429, "rate limit exceeded")).header("retry-after", "3"),
                false,
            )
        } else if let Err(message) = inner.vendor.check(&seen) {
            inner.violations.push(format!("{}: {message}", seen.named()));
            (Reply::new(400, inner.vendor.error(400, &message)), false)
        } else {
            let reply = inner.vendor.answer(&seen, &shared.clock);
            let lost = lost || inner.vendor.cuts(&seen);
            let failed = every(inner.faults.fail_every);
            (if failed { Reply::new(503, inner.vendor.error(503, "backend error")) } else { reply }, lost)
        }
    };
    if lost {
        shared.cut.notify_one();
        std::future::pending::<()>().await;
    }
    let status = StatusCode::from_u16(reply.status).unwrap();
    let mut response = if reply.body.is_null() {
        status.into_response()
    } else if let Value::String(text) = &reply.body {
        (status, text.clone()).into_response()
    } else {
        (status, axum::Json(reply.body)).into_response()
    };
    for (name, value) in reply.headers {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}
