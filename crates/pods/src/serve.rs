//! Listeners of interLink's servers: an address or a socket, with TLS, and who may call.

use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use ipnet::IpNet;
use sha2::{Digest, Sha256};
use tarbet_identity::tls::Acceptor;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::{Coded, Problem};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

/// A caller that sends its head more slowly holds a connection for nothing.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the file of tokens is looked at.
const TOKENS_AGE: Duration = Duration::from_secs(1);
/// How long running calls have once the server is told to end.
const DRAIN: Duration = Duration::from_secs(10);

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bind {
    /// An address.
    Tcp(SocketAddr),
    /// A socket that only its owner may use.
    Unix(PathBuf),
}

/// A bound listener.
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A socket, removed at the end.
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Binds. A socket file that nobody listens on any more is replaced.
    pub async fn bind(bind: &Bind) -> Result<Self, Problem> {
        let failed = |what: String, error: io::Error| {
            Problem::new(&ground::ADDRESS_IN_USE, format!("The listener cannot bind {what}."))
                .because(error.to_string())
        };
        match bind {
            Bind::Tcp(address) => TcpListener::bind(address)
                .await
                .map(Self::Tcp)
                .map_err(|error| failed(address.to_string(), error)),
            Bind::Unix(path) => {
                bind_socket(path).await.map_err(|error| failed(path.display().to_string(), error))
            }
        }
    }

    /// Where it listens, for people.
    pub fn name(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|error| error.to_string(), |at| at.to_string())
            }
            Self::Unix(_, path) => format!("unix://{}", path.display()),
        }
    }

    /// Its port, if it has one.
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok().map(|at| at.port()),
            Self::Unix(..) => None,
        }
    }
}

async fn bind_socket(path: &Path) -> io::Result<Listener> {
    if path.exists() {
        if UnixStream::connect(path).await.is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens on it"));
        }
        fs::remove_file(path)?;
    }
    // Made where nobody else can reach it, then moved: it is private from its first moment.
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy().into_owned();
    let safe = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let _ = fs::remove_dir_all(&safe);
    fs::create_dir(&safe)?;
    fs::set_permissions(&safe, fs::Permissions::from_mode(0o700))?;
    let inner = safe.join("s");
    let made = UnixListener::bind(&inner).and_then(|listener| {
        fs::set_permissions(&inner, fs::Permissions::from_mode(0o600))?;
        fs::rename(&inner, path)?;
        Ok(listener)
    });
    let _ = fs::remove_dir_all(&safe);
    Ok(Listener::Unix(made?, path.to_owned()))
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

/// Who may call.
#[derive(Clone, Default)]
pub struct Guard {
    tokens: Option<Arc<Tokens>>,
    /// Who may connect at all; anybody if `None`.
    callers: Option<Arc<[IpNet]>>,
}

struct Tokens {
    file: PathBuf,
    read: Mutex<Option<(Instant, Vec<[u8; 32]>)>>,
}

impl Guard {
    /// Everybody who can reach the listener.
    pub fn open() -> Self {
        Self::default()
    }

    /// Callers with one of the tokens in this file, one a line. The file may change at any time.
    pub fn tokens(file: PathBuf) -> Self {
        Self { tokens: Some(Arc::new(Tokens { file, read: Mutex::default() })), callers: None }
    }

    /// Of these, only those who connect from one of these networks.
    #[must_use]
    pub fn only_from(mut self, networks: Vec<IpNet>) -> Self {
        self.callers = Some(networks.into());
        self
    }

    fn lets_in(&self, peer: SocketAddr) -> bool {
        let Some(networks) = &self.callers else { return true };
        let ip = peer.ip().to_canonical();
        ip.is_loopback() || networks.iter().any(|network| network.contains(&ip))
    }

    /// Whether callers have to show anything.
    pub fn is_open(&self) -> bool {
        self.tokens.is_none()
    }

    fn admits(&self, request: &Request<Incoming>) -> bool {
        let Some(tokens) = &self.tokens else { return true };
        let shown =
            request.headers().get(header::AUTHORIZATION).map(http::HeaderValue::as_bytes).unwrap_or_default();
        let Some((scheme, token)) = shown.split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"bearer ") && tokens.holds(token.trim_ascii())
    }
}

impl Tokens {
    fn holds(&self, token: &[u8]) -> bool {
        // Hashes are compared: how long that takes says nothing about the token.
        let shown: [u8; 32] = Sha256::digest(token).into();
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if read.as_ref().is_none_or(|(at, _)| at.elapsed() > TOKENS_AGE) {
            match fs::read_to_string(&self.file) {
                Ok(text) => {
                    let lines =
                        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
                    let hashes = lines.map(|line| Sha256::digest(line).into()).collect();
                    *read = Some((Instant::now(), hashes));
                }
                // Nobody is let in on the word of a file that cannot be read.
                Err(error) => {
                    tracing::warn!(file = %self.file.display(), error = %error, "The accepted tokens cannot be read.");
                    *read = None;
                }
            }
        }
        !token.is_empty() && read.as_ref().is_some_and(|(_, hashes)| hashes.contains(&shown))
    }
}

/// What a handler knows of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// It showed a token or a certificate, or uses a socket that is the owner's alone.
    Known,
    /// It can reach the listener, and that is all.
    Anybody,
}

/// Serves until `stop`, then lets running calls finish for a while.
pub async fn serve(
    listener: Listener,
    tls: Option<Acceptor>,
    guard: Guard,
    router: Router,
    stop: CancellationToken,
) {
    let tasks = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept(&listener) => accepted,
        };
        let stream = match accepted {
            Ok((_, Some(peer))) if !guard.lets_in(peer) => {
                tracing::warn!(%peer, "A caller from elsewhere was turned away.");
                continue;
            }
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: others have to end first.
                tracing::warn!(error = %error, "A connection could not be accepted.");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (tls, guard, router, stop) = (tls.clone(), guard.clone(), router.clone(), stop.clone());
        let private = matches!(listener, Listener::Unix(..));
        tasks.spawn(async move {
            match tls {
                None => connection(stream, private, guard, router, stop).await,
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => {
                        let known = private || stream.peer().is_some();
                        connection(Box::new(stream), known, guard, router, stop).await;
                    }
                    Err(error) => tracing::debug!(error = %error, "A TLS handshake failed."),
                },
            }
        });
    }
    drop(listener);
    tasks.close();
    let _ = tokio::time::timeout(DRAIN, tasks.wait()).await;
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

async fn accept(listener: &Listener) -> io::Result<(Box<dyn Io>, Option<SocketAddr>)> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, peer) = listener.accept().await?;
            stream.set_nodelay(true)?;
            Ok((Box::new(stream), Some(peer)))
        }
        Listener::Unix(listener, _) => Ok((Box::new(listener.accept().await?.0), None)),
    }
}

async fn connection(stream: Box<dyn Io>, known: bool, guard: Guard, router: Router, stop: CancellationToken) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (guard, router) = (guard.clone(), router.clone());
        async move {
            if !guard.admits(&request) {
                let problem = Problem::new(&ground::TOKEN_REFUSED, "The caller showed no accepted token.");
                return Ok::<_, Infallible>(refusal(&problem));
            }
            let caller = if known || !guard.is_open() { Caller::Known } else { Caller::Anybody };
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(caller);
            Ok(router.oneshot(request).await.unwrap_or_else(|never| match never {}))
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        // A caller that leaves is no failure of ours.
        _ = connection.as_mut() => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// A problem as an answer.
pub fn refusal(problem: &Problem) -> Response {
    let body = serde_json::to_vec(problem).unwrap_or_default();
    (problem.status(), [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// An error of ours as an answer.
pub fn failure(error: &impl Coded) -> Response {
    refusal(&error.problem())
}

/// A body that cannot be understood, as an answer.
pub fn bad_request(reason: &impl ToString) -> Response {
    refusal(&Problem::new(&ground::BAD_REQUEST, "The call cannot be understood.").because(reason.to_string()))
}

/// Bodies may hold many pods with all their contents.
pub const MAX_BODY: usize = 256 * 1024 * 1024;

/// Reads a whole body.
pub async fn whole(body: Body) -> Result<bytes::Bytes, Response> {
    axum::body::to_bytes(body, MAX_BODY).await.map_err(|error| {
        let problem =
            Problem::new(&ground::BAD_REQUEST, "The body cannot be read.").because(error.to_string());
        let mut response = refusal(&problem);
        *response.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
        response
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_networks_and_this_machine_may_connect() {
        let networks = ["10.1.0.0/16", "2001:db8::/32", "192.0.2.7/32"].map(|text| text.parse().unwrap());
        let guard = Guard::open().only_from(networks.to_vec());
        for good in
            ["10.1.2.3:5", "[::ffff:10.1.2.3]:5", "[2001:db8::1]:5", "192.0.2.7:5", "127.0.0.1:5", "[::1]:5"]
        {
            assert!(guard.lets_in(good.parse().unwrap()), "{good}");
        }
        for bad in ["10.2.0.1:5", "[2001:db9::1]:5", "192.0.2.8:5", "0.0.0.0:5"] {
            assert!(!guard.lets_in(bad.parse().unwrap()), "{bad}");
        }
        assert!(Guard::open().lets_in("192.0.2.8:5".parse().unwrap()));
    }
}
