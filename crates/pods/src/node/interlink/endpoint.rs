//! Where interLink is, and how connections to it are opened.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use http::Uri;
use hyper_util::rt::TokioIo;
use tarbet_cluster::{Connect, Stream};
use tarbet_identity::tls::Connector;
use tokio::net::UnixStream;
use tower::Service;

use crate::node::address::is_loopback;

/// An address of interLink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// `http://host:port` or `https://host:port`.
    Network {
        /// Whether TLS is spoken.
        tls: bool,
        /// The host's name or address.
        host: String,
        /// Host and port as they are written.
        authority: String,
    },
    /// A socket on this machine.
    Socket(PathBuf),
}

impl Endpoint {
    /// Reads interLink's two settings; the port is for a URL without one.
    pub fn new(url: &str, port: &str) -> Result<Self, String> {
        if let Some(path) = url.strip_prefix("unix://") {
            return if path.starts_with('/') {
                Ok(Self::Socket(path.into()))
            } else {
                Err(format!("`{url}` names no absolute path"))
            };
        }
        let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri =
            with_scheme.trim_end_matches('/').parse().map_err(|_| format!("`{url}` is not a URL"))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(format!("`{url}` begins with none of http, https and unix")),
        };
        let host =
            uri.host().filter(|host| !host.is_empty()).ok_or_else(|| format!("`{url}` names no host"))?;
        let authority = match (uri.port_u16(), port.trim()) {
            (Some(port), _) => format!("{host}:{port}"),
            (None, "") => host.to_owned(),
            (None, port) => {
                let port: u16 = port.parse().map_err(|_| format!("`{port}` is not a port"))?;
                format!("{host}:{port}")
            }
        };
        Ok(Self::Network { tls, host: host.trim_matches(['[', ']']).to_owned(), authority })
    }

    /// Whether it is on this machine.
    pub fn is_here(&self) -> bool {
        match self {
            Self::Network { host, .. } => is_loopback(host),
            Self::Socket(_) => true,
        }
    }

    /// The beginning of every URL. To the HTTP client it is plain: TLS is the connection's affair.
    pub fn base(&self) -> String {
        match self {
            Self::Network { authority, .. } => format!("http://{authority}"),
            Self::Socket(_) => "http://unix".into(),
        }
    }

    /// Opens connections to it: over `carrier`, or to its socket, with TLS where it is spoken.
    pub fn connect(&self, carrier: Connect, tls: Option<Connector>) -> Connect {
        let endpoint = Arc::new(self.clone());
        Connect::new(move |uri| {
            let (endpoint, mut carrier, tls) = (Arc::clone(&endpoint), carrier.clone(), tls.clone());
            async move {
                let Endpoint::Network { tls: wanted, host, .. } = &*endpoint else {
                    let Endpoint::Socket(path) = &*endpoint else { unreachable!("there are two kinds") };
                    return Ok(Box::new(UnixStream::connect(path).await?) as Box<dyn Stream>);
                };
                let stream = carrier.call(with_port(uri, *wanted)).await.map(TokioIo::into_inner)?;
                match tls.filter(|_| *wanted) {
                    None => Ok(Box::new(stream) as Box<dyn Stream>),
                    Some(tls) => {
                        let stream = tls.connect(host, stream).await.map_err(io::Error::other)?;
                        Ok(Box::new(stream) as Box<dyn Stream>)
                    }
                }
            }
        })
    }
}

/// The usual port of https, since the client sees http.
fn with_port(uri: Uri, tls: bool) -> Uri {
    if !tls || uri.port().is_some() {
        return uri;
    }
    let host = uri.host().unwrap_or_default().to_owned();
    format!("http://{host}:443").parse().unwrap_or(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        let base = |url, port| Endpoint::new(url, port).map(|endpoint| endpoint.base());
        assert_eq!(base("http://edge", "3000").as_deref(), Ok("http://edge:3000"));
        assert_eq!(base("http://edge:4000/", "3000").as_deref(), Ok("http://edge:4000"));
        assert_eq!(base("edge", "3000").as_deref(), Ok("http://edge:3000"));
        assert_eq!(base("https://[::1]", "3000").as_deref(), Ok("http://[::1]:3000"));
        assert_eq!(base("https://edge", "").as_deref(), Ok("http://edge"));
        assert_eq!(Endpoint::new("unix:///run/x.sock", "3000"), Ok(Endpoint::Socket("/run/x.sock".into())));
        for (url, port) in
            [("ftp://x", ""), ("unix://x", ""), ("http://", ""), ("http://x", "port"), ("", "")]
        {
            assert!(Endpoint::new(url, port).is_err(), "{url}");
        }
    }
}
