//! Dialling gateways: TCP, and TLS where the URL asks for it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use futures::FutureExt;
use jiff::Timestamp;
use tarbet_identity::tls::{CaSource, ClientTls, Connector, CredentialSource};
use tarbet_link::{GatewayUrl, Secure};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::problem::chain;
use tokio::net::TcpStream;

use crate::peers::Connect;

/// What a connection carries that begins with a handshake of ours.
const OURS: &str = "http/1.1";
/// What one carries that is HTTP/2 from its first byte.
const HTTP2: &str = "h2";

/// TLS towards gateways: trusts the system's authorities, and those in this file.
pub fn tls(ca_file: Option<&Path>) -> Result<Connector, Problem> {
    build(ClientTls::new().alpn([OURS]), ca_file, None)
}

/// The same, expecting this name in certificates whatever the URL says.
fn build(
    mut tls: ClientTls,
    ca_file: Option<&Path>,
    server_name: Option<&str>,
) -> Result<Connector, Problem> {
    if let Some(name) = server_name {
        tls = tls.server_name(name);
    }
    if let Some(file) = ca_file {
        tls = tls.add_ca(CaSource::File(file.to_owned()));
    }
    tls.build(Timestamp::now()).map_err(|error| {
        Problem::new(
            &ground::CERTIFICATE_UNUSABLE,
            "The certificates for the connection to a gateway cannot be used.",
        )
        .because(chain(&error))
    })
}

/// The certificate that a caller shows instead of a token, and its key.
#[derive(Debug, Clone, Copy)]
pub struct ClientFiles<'a> {
    /// The certificate and those that lead to its authority, in PEM.
    pub certificate: &'a Path,
    /// The key.
    pub key: &'a Path,
}

/// Whom a gateway trusts when it dials another one; may be replaced while it runs. Clones are the same.
#[derive(Clone)]
pub struct Trust(Arc<ArcSwap<Connector>>);

impl Trust {
    /// The system's authorities and those in this file, expecting this name if one is given.
    pub fn new(ca_file: Option<&Path>, server_name: Option<&str>) -> Result<Self, Problem> {
        Ok(Self(Arc::new(ArcSwap::from_pointee(build(ClientTls::new().alpn([OURS]), ca_file, server_name)?))))
    }

    /// The same, for connections that are HTTP/2 from their first byte.
    pub fn for_http2(ca_file: Option<&Path>, server_name: Option<&str>) -> Result<Self, Problem> {
        Ok(Self(Arc::new(ArcSwap::from_pointee(build(
            ClientTls::new().alpn([HTTP2]),
            ca_file,
            server_name,
        )?))))
    }

    /// The same, showing a certificate of our own.
    pub fn showing(ca_file: Option<&Path>, own: ClientFiles<'_>) -> Result<Self, Problem> {
        let ClientFiles { certificate, key } = own;
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        let tls = ClientTls::new().alpn([OURS]).credential(CredentialSource::Files { certificate, key });
        Ok(Self(Arc::new(ArcSwap::from_pointee(build(tls, ca_file, None)?))))
    }

    /// Trusts what `other` trusts, from the next connection on.
    pub fn become_like(&self, other: &Self) {
        self.0.store(other.0.load_full());
    }

    /// Dials with this trust.
    pub fn dial(&self) -> Connect {
        let Self(tls) = self.clone();
        Arc::new(move |url: String| {
            let tls = tls.load_full();
            async move {
                let url: GatewayUrl =
                    url.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
                let address = url.address();
                let stream = TcpStream::connect((address.host(), address.port())).await?;
                stream.set_nodelay(true)?;
                let stream = tarbet_link::tcp(stream);
                if url.tls() { tls.secure(stream, address.host()).await } else { Ok(stream) }
            }
            .boxed()
        })
    }
}

/// How our own clients dial a gateway.
pub fn to_gateways(ca_file: Option<&Path>, server_name: Option<&str>) -> Result<Connect, Problem> {
    Ok(Trust::new(ca_file, server_name)?.dial())
}
