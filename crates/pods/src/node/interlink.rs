//! The other side: an interLink API server, or a plugin that is asked directly.
//!
//! Methods and bodies are those of the original virtual kubelet, so that any generation answers.
//! What only our own parts know ([`Extensions`]) is used once they have said so.

mod calls;
mod endpoint;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tarbet_cluster::Connect;
use tarbet_telemetry::codes::pods;
use tarbet_telemetry::{Coded, Problem, problem};

pub use calls::{FrameSink, FrameSource, Frames, Ping};
pub use endpoint::Endpoint;

use crate::wire::SESSION_HEADER;
use crate::wire::extension::{EXTENSIONS, EXTENSIONS_HEADER};

/// Answers that are read whole stay below this: a list of very many states.
const MAX_ANSWER: usize = 256 * 1024 * 1024;
/// Words of the other side in our messages.
const MAX_WORDS: usize = 2000;

/// A call that did not work.
#[derive(Debug, thiserror::Error)]
pub enum InterlinkError {
    /// Nothing is known of what became of it.
    #[error("interLink did not answer {path}: {reason}")]
    Away {
        /// The call.
        path: &'static str,
        /// Why.
        reason: String,
    },
    /// It answered that it did not work.
    #[error("interLink answered {path} with {status}: {words}")]
    Answer {
        /// The call.
        path: &'static str,
        /// The status.
        status: StatusCode,
        /// What it said.
        words: String,
    },
    /// It answered something that makes no sense.
    #[error("the answer of interLink to {path} cannot be read: {reason}")]
    Unreadable {
        /// The call.
        path: &'static str,
        /// Why.
        reason: String,
    },
    /// The other side does not know this call.
    #[error("the other side of the node does not offer {0}")]
    Unsupported(&'static str),
}

impl InterlinkError {
    /// Whether the same call may work later.
    pub fn retry(&self) -> bool {
        match self {
            Self::Away { .. } => true,
            Self::Unreadable { .. } | Self::Unsupported(_) => false,
            Self::Answer { status, words, .. } => match serde_json::from_str::<Problem>(words) {
                Ok(problem) => problem.retry(),
                // The original says so, without a word, when its plugin cannot be reached.
                Err(_) if words.trim().is_empty() => status.is_server_error(),
                Err(_) => match status.as_u16() {
                    408 | 429 | 502 | 503 => true,
                    // The original's plugin for Slurm says so of a job that Slurm refuses, and its API server
                    // passes it on; from anybody else it is the word of a proxy.
                    504 => !["exit status", "sbatch"].iter().any(|said| words.contains(said)),
                    _ => false,
                },
            },
        }
    }

    /// Whether it is certain that nothing came of the call: the other side itself refused it. An error of a
    /// server that is not in our words may be that of a proxy, which does not know what became of the call.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Away { .. } | Self::Unreadable { .. } => false,
            Self::Unsupported(_) => true,
            Self::Answer { status, words, .. } => match serde_json::from_str::<Problem>(words) {
                Ok(problem) => !problem.retry(),
                Err(_) => status.is_client_error() && !self.retry(),
            },
        }
    }

    /// What the other side said, in its own words where it had any.
    pub fn words(&self) -> String {
        match self {
            Self::Answer { words, .. } => match serde_json::from_str::<Problem>(words) {
                Ok(problem) => format!("{} ({}; {})", problem.message, problem.code, problem.cause),
                Err(_) => words.clone(),
            },
            other => other.to_string(),
        }
    }
}

impl Coded for InterlinkError {
    fn problem(&self) -> Problem {
        let message = format!("{self}.");
        match self {
            Self::Away { reason, .. } => Problem::new(&pods::INTERLINK_AWAY, message).because(reason.clone()),
            Self::Answer { words, .. } => match serde_json::from_str::<Problem>(words) {
                Ok(problem) => problem,
                Err(_) => Problem::new(&pods::PLUGIN_ANSWER, message),
            },
            Self::Unreadable { .. } => Problem::new(&pods::PLUGIN_ANSWER, message),
            Self::Unsupported(_) => Problem::new(&pods::NOT_SUPPORTED, message),
        }
    }
}

/// What our own parts offer beyond interLink.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is one call that is there or not")]
pub struct Extensions {
    /// Changed pods are taken over.
    pub update: bool,
    /// Commands can be run.
    pub exec: bool,
    /// States are pushed.
    pub watch: bool,
    /// All pods can be listed.
    pub list: bool,
    /// What pods use is told.
    pub usage: bool,
}

impl Extensions {
    fn of(headers: &HeaderMap) -> Self {
        let named: Vec<&str> = headers
            .get_all(EXTENSIONS_HEADER)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(',').map(str::trim))
            .collect();
        let has = |name: &str| named.contains(&name);
        Self {
            update: has("update"),
            exec: has("exec"),
            watch: has("watch"),
            list: has("list"),
            usage: has("usage"),
        }
    }
}

/// Calls interLink. Cheap to clone.
#[derive(Clone)]
pub struct Interlink {
    client: Client<Connect, Full<Bytes>>,
    endpoint: Arc<Endpoint>,
    token_file: Option<Arc<PathBuf>>,
}

impl Interlink {
    /// Calls `endpoint` over connections of `connect`, which brings TLS and sockets with it.
    pub fn new(endpoint: Endpoint, connect: Connect, token_file: Option<PathBuf>) -> Self {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_mins(1))
            .build(connect);
        Self { client, endpoint: Arc::new(endpoint), token_file: token_file.map(Arc::new) }
    }

    /// Where it is.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn request(
        &self,
        method: Method,
        path: &'static str,
        session: &str,
        body: Option<Bytes>,
    ) -> Result<Request<Full<Bytes>>, InterlinkError> {
        let away = |reason: String| InterlinkError::Away { path, reason };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.endpoint.base()))
            .header(SESSION_HEADER, format!("{session}#{}", rand::random_range(0..100_000)))
            .header(EXTENSIONS_HEADER, EXTENSIONS);
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(file) = &self.token_file {
            // Read each time: somebody else keeps it fresh. It is small and on a memory disk.
            let token = std::fs::read_to_string(file.as_path()).map_err(|error| {
                away(format!("the token file {} cannot be read: {error}", file.display()))
            })?;
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.trim()));
        }
        request.body(Full::new(body.unwrap_or_default())).map_err(|error| away(error.to_string()))
    }

    /// Sends a request and waits for the head of the answer.
    async fn send(
        &self,
        path: &'static str,
        request: Request<Full<Bytes>>,
        patience: Duration,
    ) -> Result<Response<Incoming>, InterlinkError> {
        let away = |reason: String| InterlinkError::Away { path, reason };
        match tokio::time::timeout(patience, self.client.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(away(problem::chain(&error))),
            Err(_) => Err(away(format!("no answer within {} s", patience.as_secs()))),
        }
    }

    /// Sends a request and reads the whole answer.
    async fn call(
        &self,
        method: Method,
        path: &'static str,
        session: &str,
        body: Option<Bytes>,
        patience: Duration,
    ) -> Result<(HeaderMap, Bytes), InterlinkError> {
        let request = self.request(method, path, session, body)?;
        let whole = async {
            let response = self.send(path, request, patience).await?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_ANSWER).collect().await;
            let body =
                body.map_err(|error| InterlinkError::Away { path, reason: error.to_string() })?.to_bytes();
            if head.status.is_success() {
                Ok((head.headers, body))
            } else {
                Err(refusal(path, head.status, &body))
            }
        };
        tokio::time::timeout(patience * 2, whole).await.unwrap_or_else(|_| {
            Err(InterlinkError::Away { path, reason: "the answer did not come to its end".into() })
        })
    }
}

fn refusal(path: &'static str, status: StatusCode, body: &[u8]) -> InterlinkError {
    let text = String::from_utf8_lossy(body);
    let end =
        (0..=text.len().min(MAX_WORDS)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or_default();
    InterlinkError::Answer { path, status, words: text[..end].trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, words: &str) -> InterlinkError {
        let status = StatusCode::from_u16(status).unwrap();
        InterlinkError::Answer { path: "/create", status, words: words.into() }
    }

    #[test]
    fn only_a_clear_refusal_of_the_other_side_itself_is_one() {
        let page = "<html><center><h1>nginx</h1></center></html>";
        for status in [408, 429, 502, 503, 504] {
            let error = answer(status, page);
            assert!(error.retry() && !error.is_refusal(), "{status}");
        }
        for (status, words) in [
            (500, page),
            (501, "no"),
            (504, "sbatch: error: Invalid account"),
            (504, "HTTP InterLink session 1:  call exit status: 500. Body: x"),
        ] {
            let error = answer(status, words);
            assert!(!error.retry() && !error.is_refusal(), "{status} {words}");
        }
        assert!(answer(500, "").retry());
        for status in [400, 401, 403, 404, 413, 422] {
            assert!(answer(status, page).is_refusal() && !answer(status, page).retry(), "{status}");
        }
        let ours = |code| serde_json::to_string(&Problem::new(code, "x.")).unwrap();
        let (no, away) = (ours(&pods::NOT_SUPPORTED), ours(&pods::PLUGIN_AWAY));
        assert!(answer(501, &no).is_refusal());
        assert!(answer(502, &away).retry() && !answer(502, &away).is_refusal());
    }
}
