//! What the tests share: an authority, an echo server on loopback, and a clock.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use tarbet_identity::authority::{Authority, Issued, Leaf, Usage};
use tarbet_identity::tls::{
    Acceptor, CaSource, ClientTls, Connector, CredentialSource, HandshakeError, TlsStream,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// How hard the tests try.
pub(crate) fn effort() -> u32 {
    std::env::var("EFFORT").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// An authority in a folder that goes away with it.
pub(crate) struct Scene {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) authority: Arc<Authority>,
}

impl Scene {
    pub(crate) fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let authority = Arc::new(Authority::open(folder.path().join("authority"), now())?);
        Ok(Self { folder, authority })
    }

    pub(crate) fn server_leaf() -> Leaf {
        Leaf::new(Usage::Server).dns("localhost").ip([127, 0, 0, 1])
    }

    pub(crate) fn issue(&self, leaf: &Leaf) -> Result<Issued> {
        Ok(self.authority.issue(leaf, now())?)
    }

    pub(crate) fn source(&self, leaf: Leaf) -> CredentialSource {
        CredentialSource::Issued { authority: Arc::clone(&self.authority), leaf }
    }

    pub(crate) fn ca(&self) -> CaSource {
        CaSource::Pem(self.authority.certificate_pem().to_owned())
    }

    pub(crate) fn connector(&self) -> Result<Connector> {
        Ok(ClientTls::only(self.ca()).build(now())?)
    }
}

/// Writes a pair as `tls.crt` and `tls.key`.
pub(crate) fn write_pair(folder: &Path, issued: &Issued) -> Result<()> {
    std::fs::write(folder.join("tls.crt"), &issued.certificate_pem)?;
    std::fs::write(folder.join("tls.key"), issued.key_pem.expose())?;
    Ok(())
}

pub(crate) fn files(folder: &Path) -> CredentialSource {
    CredentialSource::Files { certificate: folder.join("tls.crt"), key: folder.join("tls.key") }
}

/// What the server made of a handshake: the peer's subject and common name, or the refusal.
pub(crate) type Seen = Result<Option<tarbet_identity::tls::PeerIdentity>, HandshakeError>;

/// A server that echoes, and tells of each handshake.
pub(crate) struct Echo {
    address: std::net::SocketAddr,
    seen: mpsc::UnboundedReceiver<Seen>,
    task: tokio::task::JoinHandle<()>,
}

impl Echo {
    pub(crate) async fn start(acceptor: Acceptor) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (sender, seen) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, sender) = (acceptor.clone(), sender.clone());
                tokio::spawn(async move {
                    match acceptor.accept(stream).await {
                        Err(error) => drop(sender.send(Err(error))),
                        Ok(stream) => {
                            drop(sender.send(Ok(stream.peer().cloned())));
                            let (mut read, mut write) = tokio::io::split(stream);
                            drop(tokio::io::copy(&mut read, &mut write).await);
                            drop(write.shutdown().await);
                        }
                    }
                });
            }
        });
        Ok(Self { address, seen, task })
    }

    pub(crate) async fn tcp(&self) -> Result<TcpStream> {
        Ok(TcpStream::connect(self.address).await?)
    }

    pub(crate) async fn dial(&self, connector: &Connector) -> Result<TlsStream<TcpStream>> {
        Ok(connector.connect("localhost", self.tcp().await?).await?)
    }

    /// What the server made of the next handshake.
    pub(crate) async fn seen(&mut self) -> Result<Seen> {
        self.seen.recv().await.context("the server is gone")
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One round trip.
pub(crate) async fn echo(stream: &mut TlsStream<TcpStream>) -> Result<()> {
    stream.write_all(b"ping").await?;
    stream.flush().await?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).await?;
    anyhow::ensure!(&answer == b"ping");
    Ok(())
}

pub(crate) fn fingerprint(stream: &TlsStream<TcpStream>) -> [u8; 32] {
    stream.peer().expect("a server always shows a certificate").fingerprint
}
