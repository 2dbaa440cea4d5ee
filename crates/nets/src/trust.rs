//! Who may call a listener, and how the two ends prove themselves to each other.
//!
//! On loopback nothing is asked unless it is configured, so that programs of other origin fit in. A
//! listener that others can reach needs TLS, and of its callers a certificate, a token, or both.

mod listen;
mod vigil;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderMap;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use socket2::{SockRef, TcpKeepalive};
use tarbet_identity::Secret;
use tarbet_identity::tls::{
    CaSource, ClientCerts, ClientTls, Connector, CredentialSource, Refresh, ServerTls,
};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, nets};
use tarbet_telemetry::problem::chain;
use tokio::net::TcpStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Status};

use crate::error::Error;
pub(crate) use listen::Gate;

/// How often a file of tokens is looked at again: one that is taken out is dead after this.
const REREAD: Duration = Duration::from_secs(2);
/// A connection that is not up by then will not be.
const DIAL: Duration = Duration::from_secs(5);
/// Notices a peer that went away without a word. TCP does it: servers written in Go close a connection on which
/// a client sends HTTP/2 pings more often than every five minutes.
const IDLE: Duration = Duration::from_secs(20);
const PROBE_EVERY: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;

/// How listeners prove themselves, and what they ask of callers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct ListenTrust {
    /// The certificate chain, leaf first. With it, listeners speak TLS only.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// Callers must show a certificate of this authority.
    pub client_ca_file: Option<PathBuf>,
    /// Callers must bring one of the tokens in this file, one a line, as `Authorization: Bearer`.
    pub tokens_file: Option<PathBuf>,
}

/// How to call a listener elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct DialTrust {
    /// TLS, verified by the system's authorities.
    pub tls: bool,
    /// TLS, verified by this authority alone.
    pub ca_file: Option<PathBuf>,
    /// The name in the certificate, where it is not the host.
    pub server_name: Option<String>,
    /// Our own certificate.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// A file with the token to bring, read again when it changes.
    pub token_file: Option<PathBuf>,
}

/// A connection that brings its token.
pub(crate) type Line = InterceptedService<Channel, Bearer>;

/// Adds the token to every call, the one that stands in its file by then.
#[derive(Debug, Clone, Default)]
pub struct Bearer(Option<Arc<Mutex<Shown>>>);

/// A token as it was read.
#[derive(Debug)]
struct Shown {
    path: PathBuf,
    at: Instant,
    value: MetadataValue<Ascii>,
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(shown) = &self.0 {
            let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
            if shown.at.elapsed() > REREAD {
                shown.at = Instant::now();
                match credential(&shown.path) {
                    Ok(value) if value == shown.value => {}
                    Ok(value) => {
                        tracing::info!(file = %shown.path.display(), "Another token is shown from now on.");
                        shown.value = value;
                    }
                    // It may be in the middle of being replaced; whoever is called decides about the old one.
                    Err(error) => {
                        tracing::warn!(error = %error, "The token is shown as it was read before.");
                    }
                }
            }
            request.metadata_mut().insert("authorization", shown.value.clone());
        }
        Ok(request)
    }
}

impl ListenTrust {
    /// What a listener at this address asks. Plaintext, and callers without proof, stay on this machine.
    pub(crate) fn gate(&self, setting: &str, address: SocketAddr, alpn: &[&str]) -> Result<Gate, Error> {
        let credential = match (&self.cert_file, &self.key_file) {
            (Some(certificate), Some(key)) => {
                Some(CredentialSource::Files { certificate: certificate.clone(), key: key.clone() })
            }
            (None, None) => None,
            _ => return Err(Error::setting("security", "certFile and keyFile belong together")),
        };
        if credential.is_none() && self.client_ca_file.is_some() {
            return Err(Error::setting("security.clientCaFile", "needs certFile and keyFile"));
        }
        if !address.ip().is_loopback() {
            if credential.is_none() {
                let message = format!("{address} is not loopback, and `security.certFile` is not set");
                return Err(Error::setting(setting, message));
            }
            if self.client_ca_file.is_none() && self.tokens_file.is_none() {
                let message = format!(
                    "{address} would be open to everybody: set `security.clientCaFile` or `security.tokensFile`"
                );
                return Err(Error::setting(setting, message));
            }
        }
        let clients = self.client_ca_file.clone().map(CaSource::File);
        let clients = clients.map_or(ClientCerts::NotAsked, ClientCerts::Required);
        let build = |source| ServerTls::new(source).clients(clients).alpn(alpn).build(Timestamp::now());
        let tls = credential.map(build).transpose().map_err(|error| unusable(setting, &error))?;
        let tokens = self.tokens_file.as_deref().map(Tokens::open).transpose()?;
        Ok(Gate::new(tls, tokens.map(Arc::new)))
    }

    /// `https` where listeners speak TLS.
    pub fn scheme(&self) -> &'static str {
        if self.cert_file.is_some() { "https" } else { "http" }
    }
}

fn unusable(what: &str, error: &dyn std::error::Error) -> Error {
    Problem::new(&ground::CERTIFICATE_UNUSABLE, format!("The certificate of {what} cannot be used."))
        .because(chain(error))
        .into()
}

impl DialTrust {
    /// A connection that is made when first used and made again when it breaks.
    pub(crate) fn line(&self, host: &str, port: u16) -> Result<Line, Error> {
        let bare = host.trim_matches(['[', ']']).to_owned();
        let host = if bare.contains(':') { format!("[{bare}]") } else { bare.clone() };
        let endpoint = Endpoint::from_shared(format!("http://{host}:{port}"))
            .map_err(|_| Error::setting("host", format!("`{host}` is not a host")))?
            .connect_timeout(DIAL)
            .tcp_nodelay(true)
            .tcp_keepalive(Some(IDLE))
            .tcp_keepalive_interval(Some(PROBE_EVERY))
            .tcp_keepalive_retries(Some(PROBES));
        let channel = match self.connector()? {
            None => endpoint.connect_lazy(),
            Some(tls) => {
                let name = self.server_name.clone().unwrap_or(bare);
                endpoint.connect_with_connector_lazy(tower::service_fn(move |at: Uri| {
                    let (tls, name) = (tls.clone(), name.clone());
                    async move { secured(&at, &tls, &name).await.map(TokioIo::new) }
                }))
            }
        };
        Ok(InterceptedService::new(channel, self.bearer()?))
    }

    fn connector(&self) -> Result<Option<Connector>, Error> {
        if !self.tls && self.ca_file.is_none() && self.cert_file.is_none() {
            return Ok(None);
        }
        let mut tls = match &self.ca_file {
            Some(file) => ClientTls::only(CaSource::File(file.clone())),
            None => ClientTls::new(),
        };
        tls = match (&self.cert_file, &self.key_file) {
            (Some(certificate), Some(key)) => {
                tls.credential(CredentialSource::Files { certificate: certificate.clone(), key: key.clone() })
            }
            (None, None) => tls,
            _ => return Err(Error::setting("trust", "certFile and keyFile belong together")),
        };
        let built = tls.alpn(["h2"]).build(Timestamp::now());
        built.map(Some).map_err(|error| unusable("this end", &error))
    }

    fn bearer(&self) -> Result<Bearer, Error> {
        let Some(path) = &self.token_file else { return Ok(Bearer::default()) };
        let shown = Shown { value: credential(path)?, path: path.clone(), at: Instant::now() };
        Ok(Bearer(Some(Arc::new(Mutex::new(shown)))))
    }
}

/// What is said with every call, from the file of a token.
fn credential(path: &Path) -> Result<MetadataValue<Ascii>, Error> {
    let token = Secret::from_file(path).map_err(|error| unreadable(path, &error))?;
    let value = MetadataValue::try_from(format!("Bearer {}", token.expose()));
    let mut value = value.map_err(|_| Error::setting("tokenFile", "the token has odd characters"))?;
    value.set_sensitive(true);
    Ok(value)
}

async fn secured(
    at: &Uri,
    tls: &Connector,
    name: &str,
) -> Result<tarbet_identity::tls::TlsStream<TcpStream>, std::io::Error> {
    let host = at.host().unwrap_or_default().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, at.port_u16().unwrap_or(443))).await?;
    stream.set_nodelay(true)?;
    let probes = TcpKeepalive::new().with_time(IDLE).with_interval(PROBE_EVERY).with_retries(PROBES);
    SockRef::from(&stream).set_tcp_keepalive(&probes)?;
    look_again(tls).await;
    tls.connect(name, stream).await.map_err(|error| std::io::Error::other(chain(&error)))
}

/// Takes over certificates that were replaced since the last connection was made.
async fn look_again(tls: &Connector) {
    let tls = tls.clone();
    // Files may sit on a network; a worker of the runtime must not wait for them.
    match tokio::task::spawn_blocking(move || tls.refresh(Timestamp::now())).await {
        Ok(Refresh::Unchanged) => {}
        Ok(Refresh::Replaced) => tracing::info!("TLS certificates of this end replaced."),
        Ok(Refresh::Refused(error)) => {
            tracing::warn!(error = %chain(&error), "New TLS files cannot be used, the old ones stay.");
        }
        Err(error) => tracing::warn!(%error, "TLS files could not be looked at."),
    }
}

fn unreadable(path: &Path, error: &dyn std::error::Error) -> Error {
    Problem::new(&ground::CONFIG_INVALID, format!("The file of tokens {} cannot be used.", path.display()))
        .because(chain(error))
        .into()
}

/// The tokens that a listener takes, read again when the file changes.
pub(crate) struct Tokens {
    path: PathBuf,
    known: Mutex<(Instant, Vec<Secret>)>,
}

impl Tokens {
    fn open(path: &Path) -> Result<Self, Error> {
        let known = read(path).map_err(|error| unreadable(path, &error))?;
        if known.is_empty() {
            return Err(Error::setting("security.tokensFile", "holds no token"));
        }
        Ok(Self { path: path.to_owned(), known: Mutex::new((Instant::now(), known)) })
    }

    /// Whether the headers bring one of them.
    fn accepts(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some(given) = given.and_then(|text| text.strip_prefix("Bearer ")) else { return false };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0.elapsed() > REREAD {
            // A file that cannot be read takes every token away, never one too many.
            *known = (Instant::now(), read(&self.path).unwrap_or_default());
        }
        known.1.iter().any(|token| token.matches(given))
    }
}

fn read(path: &Path) -> Result<Vec<Secret>, tarbet_identity::SecretError> {
    let text = Secret::from_file(path)?;
    let lines = text.expose().lines().map(str::trim);
    Ok(lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| Secret::new(line.to_owned()))
        .collect())
}

/// What a caller without proof is told.
fn stranger() -> Problem {
    Problem::new(&nets::CALLER_UNKNOWN, "The caller brought no token that this listener takes.")
}
