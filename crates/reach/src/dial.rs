//! Dialling gateways: TCP, and TLS where the URL asks for it.

use std::io;
use std::path::Path;

use futures::FutureExt;
use jiff::Timestamp;
use tarbet_identity::tls::{CaSource, ClientTls, Connector};
use tarbet_link::{GatewayUrl, Secure};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::problem::chain;
use tokio::net::TcpStream;

use crate::peers::Connect;

/// TLS towards gateways: trusts the system's authorities, and those in this file.
pub fn tls(ca_file: Option<&Path>) -> Result<Connector, Problem> {
    named(ca_file, None)
}

/// The same, expecting this name in certificates whatever the URL says.
fn named(ca_file: Option<&Path>, server_name: Option<&str>) -> Result<Connector, Problem> {
    let mut tls = ClientTls::new().alpn(["http/1.1"]);
    if let Some(name) = server_name {
        tls = tls.server_name(name);
    }
    if let Some(file) = ca_file {
        tls = tls.add_ca(CaSource::File(file.to_owned()));
    }
    tls.build(Timestamp::now()).map_err(|error| {
        Problem::new(&ground::CERTIFICATE_UNUSABLE, "The authority's certificate cannot be used.")
            .because(chain(&error))
    })
}

/// How gateways, and our own clients, dial a gateway.
pub fn to_gateways(ca_file: Option<&Path>, server_name: Option<&str>) -> Result<Connect, Problem> {
    let tls = named(ca_file, server_name)?;
    Ok(std::sync::Arc::new(move |url: String| {
        let tls = tls.clone();
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
    }))
}
