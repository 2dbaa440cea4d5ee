//! A caller's connection to a gateway: the two shapes of a link, towards any site the caller may
//! use, from any machine that reaches the gateway's API listener.
//!
//! A [`RemoteSite`] that is [`sealed`](RemoteSite::sealed) speaks to the agent itself: the gateway
//! carries what it sends and can neither read nor change it.

mod kubernetes;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use tarbet_identity::tls::{ClientTls, Connector};
use tarbet_identity::{PinSet, Secret};
use tarbet_link::handshake::Credential;
use tarbet_link::{Body, ByteStream, Caller, Denial, Dialer, Link, LinkError, Target};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, reach};
use tarbet_telemetry::problem::chain;
use tokio::sync::Mutex;
use tokio::time::Instant;

pub use self::kubernetes::LocalKubernetes;
use crate::agent::end_to_end;
pub use crate::dial::ClientFiles;
use crate::lent::Lender;
use crate::local::Way;
use crate::names::SiteName;
use crate::peers::{self, PeerError, Peers};

/// A connection that proved its caller is opened anew before the proof ends: tokens live for five
/// minutes at most.
const PROOF_LASTS: Duration = Duration::from_mins(4);

/// How often something is sent that certainly reached nobody: a connection may be left by its other end in the
/// very moment in which it is used.
const TRIES: usize = 3;

/// What the caller says about itself.
const NAME: &str = "tarbet client";

/// Opens ways to sites through one gateway. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    url: Arc<str>,
    peers: Peers,
}

impl Client {
    /// A client of the gateway whose API listener is at `url`, with the caller's token.
    pub fn new(url: &str, token: Secret, ca_file: Option<&Path>) -> Result<Self, Problem> {
        Ok(Self::with(url, token, crate::dial::to_gateways(ca_file, None)?))
    }

    /// The same for a caller whom the gateway knows by a certificate.
    pub fn certified(url: &str, own: ClientFiles<'_>, ca_file: Option<&Path>) -> Result<Self, Problem> {
        // An empty credential: the certificate says who calls.
        let connect = crate::dial::Trust::showing(ca_file, own)?.dial();
        Ok(Self::with(url, Secret::new(String::new()), connect))
    }

    /// The same over any way to make connections.
    pub fn with(url: &str, token: Secret, connect: peers::Connect) -> Self {
        let introduce = Arc::new(move || (NAME.to_owned(), Credential::new(token.expose())));
        Self { url: url.into(), peers: Peers::new(connect, introduce) }
    }

    /// The way to a site. Nothing is connected before it is used.
    pub fn site(&self, name: SiteName) -> RemoteSite {
        RemoteSite { client: self.clone(), name, seal: None }
    }
}

/// Makes a caller's token for a site, if the site asks callers to prove themselves.
pub type Prove = Arc<dyn Fn() -> Option<Secret> + Send + Sync>;

/// A site seen through a gateway. Clones share their connection.
#[derive(Clone)]
pub struct RemoteSite {
    client: Client,
    name: SiteName,
    seal: Option<Arc<Seal>>,
}

struct Seal {
    tls: Connector,
    prove: Prove,
    link: Mutex<Option<(Link, Instant)>>,
}

impl RemoteSite {
    /// The same site, end to end: only an agent that holds one of these keys is spoken to, and
    /// nobody in between can read or change anything. `prove` makes the token by which the site
    /// knows the caller.
    pub fn sealed(self, pins: impl Into<PinSet>, prove: Prove) -> Result<Self, Problem> {
        let tls = ClientTls::pinned(pins).build(Timestamp::now()).map_err(|error| {
            Problem::new(&ground::CERTIFICATE_UNUSABLE, "End-to-end TLS cannot be set up.")
                .because(chain(&error))
        })?;
        Ok(Self { seal: Some(Arc::new(Seal { tls, prove, link: Mutex::default() })), ..self })
    }

    async fn gateway(&self) -> Result<Arc<dyn Way>, LinkError> {
        let Client { url, peers } = &self.client;
        peers.way(url).await.map_err(|error| connect_error(&format!("the gateway at {url}"), error))
    }

    /// What a target is called on the way, and the way itself.
    async fn way(&self, target: &Target) -> Result<(Arc<dyn Way>, Target), LinkError> {
        match &self.seal {
            Some(seal) => Ok((self.through(seal).await?, target.clone())),
            None => Ok((self.gateway().await?, self.wrap(target)?)),
        }
    }

    /// The connection that ends at the agent, opened if there is none.
    async fn through(&self, seal: &Seal) -> Result<Arc<dyn Way>, LinkError> {
        // Held while connecting: those who come meanwhile share the one connection.
        let mut slot = seal.link.lock().await;
        if let Some((link, until)) = &*slot
            && link.phase().takes_requests()
            && Instant::now() < *until
        {
            return Ok(Arc::new(link.clone()));
        }
        let service = Target::service(end_to_end::SERVICE).map_err(bad_target)?;
        let stream = self.gateway().await?.open(self.wrap(&service)?).await?;
        let secured =
            seal.tls.connect("agent", stream).await.map_err(|error| self.unproven(&chain(&error)))?;
        let proof = (seal.prove)();
        let credential =
            proof.as_ref().map_or_else(Credential::default, |proof| Credential::new(proof.expose()));
        let (link, driver) = match peers::introduce(ByteStream::new(secured), NAME, credential).await {
            Ok(opened) => opened,
            Err(PeerError::Refused(refusal)) => {
                let text = format!("The agent did not believe who calls: {}", refusal.text);
                let denial = Denial::new(StatusCode::FORBIDDEN, reach::AGENT_REFUSED_POLICY.id, text);
                return Err(LinkError::Denied(Box::new(denial.at("agent"))));
            }
            Err(error) => return Err(connect_error(&format!("the agent of `{}`", self.name), error)),
        };
        tokio::spawn(driver);
        let until = Instant::now() + if proof.is_some() { PROOF_LASTS } else { FOR_EVER };
        *slot = Some((link.clone(), until));
        Ok(Arc::new(link))
    }

    fn unproven(&self, why: &str) -> LinkError {
        let text = format!("The agent of `{}` did not prove that it holds a known key: {why}.", self.name);
        let denial = Denial::new(StatusCode::BAD_GATEWAY, reach::SITE_KEY_UNKNOWN.id, text);
        LinkError::Denied(Box::new(denial.at("this machine → agent, end to end")))
    }

    fn wrap(&self, target: &Target) -> Result<Target, LinkError> {
        let wrapped = Target::service(format!("site/{}/{}", self.name, target.name())).map_err(bad_target)?;
        Ok(match target.address() {
            Some(address) => wrapped.at(address.clone()),
            None => wrapped,
        })
    }
}

/// Longer than any process.
const FOR_EVER: Duration = Duration::from_hours(24 * 365);

fn bad_target(error: tarbet_link::BadTarget) -> LinkError {
    LinkError::Request(error.to_string().into())
}

fn connect_error(target: &str, error: PeerError) -> LinkError {
    let source = match error {
        PeerError::Connect(source) => source,
        other => std::io::Error::other(chain(&other)),
    };
    LinkError::Connect { target: target.to_owned(), source }
}

impl Dialer for RemoteSite {
    fn open_with(&self, target: Target, first: Bytes) -> BoxFuture<'_, Result<ByteStream, LinkError>> {
        async move {
            let mut tried = 1;
            loop {
                let (way, named) = self.way(&target).await?;
                match way.open_with(named, first.clone()).await {
                    Err(error) if tried < TRIES && was_left(&error) => tried += 1,
                    outcome => return outcome,
                }
            }
        }
        .boxed()
    }
}

impl Caller for RemoteSite {
    fn call(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, LinkError>> {
        async move {
            let (parts, body) = request.into_parts();
            let target = parts.extensions.get::<Target>().cloned();
            let target =
                target.ok_or_else(|| LinkError::Request("it does not say which service it is for".into()))?;
            let lender = Lender::new(body);
            let mut tried = 1;
            loop {
                let (way, named) = self.way(&target).await?;
                let body = lender.lend().ok_or_else(|| {
                    LinkError::Request("its body was already on the way when the connection was left".into())
                })?;
                let mut request = Request::from_parts(parts.clone(), body);
                request.extensions_mut().insert(named);
                match way.call(request).await {
                    Err(error) if tried < TRIES && was_left(&error) && !lender.is_gone() => tried += 1,
                    outcome => return outcome,
                }
            }
        }
        .boxed()
    }
}

/// Whether the other end left the connection before this reached it, so that another one is to be opened.
fn was_left(error: &LinkError) -> bool {
    let of_connection =
        matches!(error, LinkError::Draining | LinkError::Closed { .. } | LinkError::Reset { .. });
    of_connection && error.safe_to_retry()
}

/// What a failed use of a gateway means to a person at a terminal.
pub fn problem(error: &LinkError) -> Problem {
    match error {
        LinkError::Denied(denial) => {
            let code = tarbet_telemetry::codes::find(&denial.code).unwrap_or(&reach::LINK_LOST);
            Problem::new(code, denial.message.clone()).at(denial.hop.clone())
        }
        other => Problem::new(&reach::GATEWAY_UNREACHABLE, "The gateway cannot be used.")
            .at("this machine → gateway")
            .because(chain(other))
            .advising(
                "check that the gateway runs and that its URL is right; another gateway leads there too",
            ),
    }
}
