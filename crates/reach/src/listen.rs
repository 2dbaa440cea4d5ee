//! A listener: bound before anything starts, plain or with TLS, each connection in its own task.

mod pages;
mod place;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tarbet_identity::authority::{Authority, Leaf, Usage};
use tarbet_identity::tls::{
    Acceptor, CaSource, ClientCerts, CredentialSource, PeerIdentity, Refresh, ServerTls, Turns,
};
use tarbet_link::ByteStream;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::problem::chain;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::place::Bound;
pub use self::place::Place;
use crate::config::{TlsFiles, TlsSource};

/// How often certificate files are looked at for a change.
const CERTIFICATE_CHECK: Duration = Duration::from_secs(10);
/// A pause after the kernel refused a connection, most often for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where a connection comes from.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The address.
    pub address: SocketAddr,
    /// The certificate it showed, if it was asked for one and an authority of ours has signed it.
    pub certificate: Option<Box<PeerIdentity>>,
}

impl From<SocketAddr> for Origin {
    fn from(address: SocketAddr) -> Self {
        Self { address, certificate: None }
    }
}

/// A bound listener.
pub struct Listener {
    name: &'static str,
    bound: Bound,
    tls: Option<Certificates>,
    /// Absent where handshakes need not wait for each other.
    turns: Option<Turns>,
    address: SocketAddr,
    /// Places for connections.
    places: Arc<Semaphore>,
}

/// What a listener proves itself with; may be replaced while it runs. Clones are the same.
#[derive(Clone)]
pub struct Certificates {
    name: &'static str,
    alpn: &'static [&'static str],
    current: Arc<ArcSwap<Acceptor>>,
}

/// Certificates that were read and found good, and are not in use yet.
#[must_use = "they are used only once this is put into use"]
pub struct Ready(Certificates, Acceptor);

impl Certificates {
    fn open(name: &'static str, files: &TlsFiles, alpn: &'static [&'static str]) -> Result<Self, Problem> {
        let current = Arc::new(ArcSwap::from_pointee(acceptor(name, files, alpn)?));
        Ok(Self { name, alpn, current })
    }

    /// Which listener they are of.
    pub fn listener(&self) -> &'static str {
        self.name
    }

    /// Reads what these settings name.
    pub fn read(&self, files: &TlsFiles) -> Result<Ready, Problem> {
        Ok(Ready(self.clone(), acceptor(self.name, files, self.alpn)?))
    }

    /// Looks at the files again and again, for ever; what cannot be used changes nothing.
    async fn follow(self) {
        let mut timer = tokio::time::interval(CERTIFICATE_CHECK);
        loop {
            timer.tick().await;
            let (acceptor, listener) = (self.current.load_full(), self.name);
            // Files may sit on a network; a worker of the runtime must not wait for them.
            match tokio::task::spawn_blocking(move || acceptor.refresh(Timestamp::now())).await {
                Ok(Refresh::Unchanged) => {}
                Ok(Refresh::Replaced) => tracing::info!(listener, "TLS certificates replaced."),
                Ok(Refresh::Refused(error)) => {
                    tracing::error!(listener, error = %chain(&error), "New TLS files cannot be used, the old ones stay.");
                }
                Err(error) => tracing::error!(listener, %error, "TLS files could not be looked at."),
            }
        }
    }
}

impl Ready {
    /// New connections see them from now on; those that exist go on.
    pub fn put_into_use(self) {
        let Self(certificates, acceptor) = self;
        certificates.current.store(Arc::new(acceptor));
    }
}

impl Listener {
    /// Binds, and reads the certificate if there is one.
    pub async fn bind(
        name: &'static str,
        listen: impl Into<Place<'_>>,
        tls: Option<&TlsFiles>,
        alpn: &'static [&'static str],
    ) -> Result<Self, Problem> {
        let listen = listen.into();
        let tls = tls.map(|files| Certificates::open(name, files, alpn)).transpose()?;
        let failed = |error: std::io::Error| {
            Problem::new(&ground::ADDRESS_IN_USE, format!("The {name} listener cannot bind {listen}."))
                .because(error.to_string())
        };
        let bound = Bound::new(listen).await.map_err(failed)?;
        let address = bound.address().map_err(failed)?;
        let at = if bound.is_socket() { listen.to_string() } else { address.to_string() };
        tracing::info!(listener = name, address = at, tls = tls.is_some(), "Listening.");
        let places = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        Ok(Self { name, bound, tls, turns: None, address, places })
    }

    /// The same with so many connections at once, at most.
    #[must_use]
    pub fn at_most(self, connections: usize) -> Self {
        let places = Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS)));
        Self { places, ..self }
    }

    /// The same, with its TLS handshakes in turn.
    #[must_use]
    pub fn in_turn(self, turns: Turns) -> Self {
        Self { turns: Some(turns), ..self }
    }

    /// Whether it is a socket in the file system, which nobody elsewhere can dial.
    pub fn is_socket(&self) -> bool {
        self.bound.is_socket()
    }

    /// Where it listens; no port, if it is a socket in the file system.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its certificates, if it speaks TLS.
    pub fn certificates(&self) -> Option<Certificates> {
        self.tls.clone()
    }

    /// Whether it speaks TLS.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Hands each connection to `serve` until `stop`. Connections go on after that; `tasks` knows
    /// them.
    pub async fn run<S, F>(self, stop: CancellationToken, tasks: TaskTracker, serve: S)
    where
        S: Fn(ByteStream, Origin) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let serve = Arc::new(serve);
        if let Some(certificates) = self.tls.clone() {
            let stop = stop.clone();
            tokio::spawn(async move { stop.run_until_cancelled(certificates.follow()).await });
        }
        let mut stopped = std::pin::pin!(stop.cancelled());
        let mut crowded = false;
        loop {
            let accepted = tokio::select! {
                accepted = self.bound.accept() => accepted,
                () = &mut stopped => return,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(listener = self.name, %error, "A connection could not be accepted.");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // Closed before anything is computed for it: whoever fills the places must not cost more.
            let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
                if !std::mem::replace(&mut crowded, true) {
                    tracing::warn!(listener = self.name, %peer, "max_connections is reached: further ones are closed.");
                }
                continue;
            };
            crowded = false;
            let tls = self.tls.as_ref().map(|certificates| certificates.current.load_full());
            let (serve, name, turns) = (Arc::clone(&serve), self.name, self.turns.clone());
            tasks.spawn(async move {
                let _place = place;
                match secure(stream, tls, turns).await {
                    Ok((stream, certificate)) => serve(stream, Origin { address: peer, certificate }).await,
                    Err(error) => {
                        tracing::debug!(listener = name, %peer, %error, "A connection was not secured.");
                    }
                }
            });
        }
    }
}

type Certificate = Option<Box<PeerIdentity>>;

async fn secure(
    stream: ByteStream,
    tls: Option<Arc<Acceptor>>,
    turns: Option<Turns>,
) -> Result<(ByteStream, Certificate), String> {
    match tls {
        None => Ok((stream, None)),
        Some(tls) => {
            // Boxed, so that what only a handshake needs is not kept for as long as the connection lasts.
            let secured = match &turns {
                Some(turns) => Box::pin(tls.accept_in_turn(stream, turns)).await,
                None => Box::pin(tls.accept(stream)).await,
            };
            let stream = secured.map_err(|error| chain(&error))?;
            let certificate = stream.peer().cloned().map(Box::new);
            Ok((ByteStream::new(stream), certificate))
        }
    }
}

fn acceptor(name: &str, files: &TlsFiles, alpn: &[&str]) -> Result<Acceptor, Problem> {
    let unusable = |cause: String| {
        Problem::new(
            &ground::CERTIFICATE_UNUSABLE,
            format!("The certificate of the {name} listener cannot be used."),
        )
        .because(cause)
    };
    let now = Timestamp::now();
    let source = match files.source().map_err(|message| unusable(message.to_owned()))? {
        TlsSource::Files(cert, key) => {
            CredentialSource::Files { certificate: cert.to_owned(), key: key.to_owned() }
        }
        TlsSource::Authority(folder) => {
            let authority = Authority::open(folder, now).map_err(|error| unusable(chain(&error)))?;
            CredentialSource::Issued { authority: Arc::new(authority), leaf: leaf(&files.names) }
        }
    };
    let clients = match &files.client_ca_file {
        Some(file) => ClientCerts::Optional(CaSource::File(file.clone())),
        None => ClientCerts::NotAsked,
    };
    ServerTls::new(source).clients(clients).alpn(alpn).build(now).map_err(|error| unusable(chain(&error)))
}

fn leaf(names: &[String]) -> Leaf {
    let local = Leaf::new(Usage::Server).dns("localhost").ip(Ipv4Addr::LOCALHOST).ip(Ipv6Addr::LOCALHOST);
    names.iter().fold(local, |leaf, name| match name.parse::<IpAddr>() {
        Ok(address) => leaf.ip(address),
        Err(_) => leaf.dns(name),
    })
}
