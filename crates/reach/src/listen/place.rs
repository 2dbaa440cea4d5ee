//! Where a listener is: a port, or a socket in the file system.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use tarbet_link::ByteStream;
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// Where a listener shall be.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// At an address.
    Tcp(SocketAddr),
    /// At a path, for processes of this machine that may write there.
    Socket(&'a Path),
}

impl From<SocketAddr> for Place<'_> {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl std::fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Socket(path) => path.display().fmt(f),
        }
    }
}

/// How those who come through a socket are called: they are on this machine and have no port.
const THIS_MACHINE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// What is bound there.
pub(super) enum Bound {
    Tcp(TcpListener),
    Socket(UnixListener, PathBuf),
}

impl Bound {
    pub(super) async fn new(place: Place<'_>) -> io::Result<Self> {
        match place {
            Place::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Place::Socket(path) => {
                clear(path).await?;
                Ok(Self::Socket(UnixListener::bind(path)?, path.to_owned()))
            }
        }
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr(),
            Self::Socket(..) => Ok(THIS_MACHINE),
        }
    }

    pub(super) fn is_socket(&self) -> bool {
        matches!(self, Self::Socket(..))
    }

    pub(super) async fn accept(&self) -> io::Result<(ByteStream, SocketAddr)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // One that has hung up already is noticed when it is read.
                let _ = stream.set_nodelay(true);
                Ok((tarbet_link::tcp(stream), peer))
            }
            Self::Socket(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((ByteStream::new(stream), THIS_MACHINE))
            }
        }
    }
}

/// Takes away a socket that a process left behind when it was killed. Anything else stays.
async fn clear(path: &Path) -> io::Result<()> {
    let left = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if left
        && UnixStream::connect(path)
            .await
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Self::Socket(_, path) = self {
            // Another process may have taken it away.
            let _ = std::fs::remove_file(path);
        }
    }
}
