//! Between the plugin and moto: sees every call, and loses answers when told to.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

#[derive(Default)]
struct Seen {
    actions: Vec<String>,
    /// Bodies of changes whose answers were lost already; nothing if none are to be lost.
    lost: Option<BTreeSet<String>>,
    /// Bodies of changes whose success was denied already; nothing if none is to be denied.
    denied: Option<BTreeSet<String>>,
    /// Bodies of calls that were told that what they need is not there; nothing if none is to be told so.
    slow: Option<BTreeSet<String>>,
    trouble: Trouble,
}

/// What goes wrong; 0 is never.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Trouble {
    /// Every n-th call is told that there were too many.
    pub(super) throttle_every: usize,
    /// Every n-th call fails within AWS, before anything is done.
    pub(super) fail_every: usize,
}

impl Trouble {
    /// What is answered instead of passing a call on.
    fn answer(self, number: usize) -> Option<(StatusCode, &'static str)> {
        let every = |n: usize| n != 0 && number % n == n - 1;
        if every(self.throttle_every) {
            return Some((StatusCode::SERVICE_UNAVAILABLE, "RequestLimitExceeded"));
        }
        every(self.fail_every).then_some((StatusCode::INTERNAL_SERVER_ERROR, "InternalError"))
    }
}

#[derive(Clone)]
struct Shared {
    to: String,
    http: reqwest::Client,
    seen: Arc<Mutex<Seen>>,
    cut: Arc<Notify>,
}

pub(super) struct Proxy {
    pub(super) url: String,
    shared: Shared,
    _stop: DropGuard,
}

impl Proxy {
    pub(super) async fn start(to: String) -> Self {
        let shared = Shared { to, http: reqwest::Client::new(), seen: Arc::default(), cut: Arc::default() };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let router = Router::new().fallback(pass).with_state(shared.clone());
        let serving = axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
        tokio::spawn(async move { serving.await });
        Self { url, shared, _stop: stop.drop_guard() }
    }

    /// From now on the first answer to each change is lost.
    pub(super) fn cut_each_change(&self) {
        self.shared.seen.lock().unwrap().lost = Some(BTreeSet::new());
    }

    /// From now on the first success of each change is told as a failure of AWS, or its connection breaks.
    pub(super) fn deny_each_success(&self) {
        self.shared.seen.lock().unwrap().denied = Some(BTreeSet::new());
    }

    /// From now on AWS knows of what was just made only when it is asked a second time.
    pub(super) fn be_slow_to_know(&self) {
        self.shared.seen.lock().unwrap().slow = Some(BTreeSet::new());
    }

    /// How often a success was told as a failure.
    pub(super) fn denied(&self) -> usize {
        self.shared.seen.lock().unwrap().denied.as_ref().map_or(0, BTreeSet::len)
    }

    /// From now on calls are noted anew, and this goes wrong.
    pub(super) fn trouble(&self, trouble: Trouble) {
        let mut seen = self.shared.seen.lock().unwrap();
        seen.actions.clear();
        seen.trouble = trouble;
    }

    /// Returns when an answer was lost.
    pub(super) async fn cut(&self) {
        self.shared.cut.notified().await;
    }

    /// Begins to note calls anew.
    pub(super) fn begin(&self) {
        self.shared.seen.lock().unwrap().actions.clear();
    }

    pub(super) fn actions(&self) -> Vec<String> {
        self.shared.seen.lock().unwrap().actions.clone()
    }

    pub(super) fn changes(&self) -> Vec<String> {
        self.actions().into_iter().filter(|action| !action.starts_with("Describe")).collect()
    }
}

async fn pass(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> Response {
    let text = String::from_utf8_lossy(&body).into_owned();
    let action = url::form_urlencoded::parse(text.as_bytes()).find(|(key, _)| key == "Action");
    let action = action.map(|(_, value)| value.into_owned()).unwrap_or_default();
    let refused = {
        let mut seen = shared.seen.lock().unwrap();
        let needs = ["CreateSubnet", "CreateSecurityGroup", "CreateRoute", "Accept", "Attach", "Associate"];
        let needs = needs.iter().any(|verb| action.starts_with(verb));
        let slow = needs && seen.slow.as_mut().is_some_and(|slow| slow.insert(text.clone()));
        let slow = slow.then_some((StatusCode::BAD_REQUEST, "InvalidVpcID.NotFound"));
        let refused = slow.or_else(|| seen.trouble.answer(seen.actions.len()));
        if refused.is_some() {
            seen.actions.push(action.clone());
        }
        refused
    };
    if let Some((status, code)) = refused {
        let error = format!("<Error><Code>{code}</Code><Message>later</Message></Error>");
        return (status, format!("<Response><Errors>{error}</Errors><RequestID>r</RequestID></Response>"))
            .into_response();
    }
    let mut request = shared.http.post(&shared.to).body(body);
    for name in ["authorization", "content-type", "x-amz-date", "x-amz-security-token"] {
        if let Some(value) = headers.get(name) {
            request = request.header(name, value);
        }
    }
    let answer = request.send().await.unwrap();
    let status = StatusCode::from_u16(answer.status().as_u16()).unwrap();
    let answer = answer.text().await.unwrap();
    let changes = !action.starts_with("Describe");
    let lost = {
        let mut seen = shared.seen.lock().unwrap();
        seen.actions.push(action);
        changes && seen.lost.as_mut().is_some_and(|lost| lost.insert(text.clone()))
    };
    if lost {
        shared.cut.notify_one();
        std::future::pending::<()>().await;
    }
    let denied = {
        let mut seen = shared.seen.lock().unwrap();
        let told = seen.denied.as_mut().filter(|_| changes && status.is_success());
        told.filter(|denied| !denied.contains(&text)).map(|denied| {
            denied.insert(text);
            denied.len()
        })
    };
    match denied {
        Some(number) if number % 2 == 0 => {
            let broken = futures::stream::iter([Ok("<"), Err(std::io::Error::other("broken"))]);
            return Body::from_stream(broken).into_response();
        }
        Some(_) => {
            let error = "<Error><Code>InternalError</Code><Message>later</Message></Error>";
            let error = format!("<Response><Errors>{error}</Errors><RequestID>r</RequestID></Response>");
            return (StatusCode::INTERNAL_SERVER_ERROR, error).into_response();
        }
        None => {}
    }
    (status, answer).into_response()
}
