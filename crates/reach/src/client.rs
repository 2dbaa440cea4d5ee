//! A caller's connection to a gateway: the two shapes of a link, towards any site the caller may
//! use, from any machine that reaches the gateway's API listener.

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use std::path::Path;
use std::sync::Arc;
use tarbet_identity::Secret;
use tarbet_link::handshake::Credential;
use tarbet_link::{Body, ByteStream, Caller, Dialer, LinkError, Target};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::reach;
use tarbet_telemetry::problem::chain;

use crate::names::SiteName;
use crate::peers::{PeerError, Peers};

/// Opens ways to sites through one gateway. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    url: Arc<str>,
    peers: Peers,
}

impl Client {
    /// A client of the gateway whose API listener is at `url`, with the caller's token.
    pub fn new(url: &str, token: Secret, ca_file: Option<&Path>) -> Result<Self, Problem> {
        let introduce = Arc::new(move || ("tarbet client".to_owned(), Credential::new(token.expose())));
        let peers = Peers::new(crate::dial::to_gateways(ca_file)?, introduce);
        Ok(Self { url: url.into(), peers })
    }

    /// The way to a site. Nothing is connected before it is used.
    pub fn site(&self, name: SiteName) -> RemoteSite {
        RemoteSite { client: self.clone(), name }
    }
}

/// A site seen through a gateway.
#[derive(Clone)]
pub struct RemoteSite {
    client: Client,
    name: SiteName,
}

impl RemoteSite {
    async fn way(&self) -> Result<Arc<dyn crate::local::Way>, LinkError> {
        let Client { url, peers } = &self.client;
        peers.way(url).await.map_err(|error| {
            let source = match error {
                PeerError::Connect(source) => source,
                other => std::io::Error::other(chain(&other)),
            };
            LinkError::Connect { target: format!("the gateway at {url}"), source }
        })
    }

    fn wrap(&self, target: &Target) -> Result<Target, LinkError> {
        let wrapped = Target::service(format!("site/{}/{}", self.name, target.name()))
            .map_err(|error| LinkError::Request(error.to_string().into()))?;
        Ok(match target.address() {
            Some(address) => wrapped.at(address.clone()),
            None => wrapped,
        })
    }
}

impl Dialer for RemoteSite {
    fn open_with(&self, target: Target, first: Bytes) -> BoxFuture<'_, Result<ByteStream, LinkError>> {
        async move { self.way().await?.open_with(self.wrap(&target)?, first).await }.boxed()
    }
}

impl Caller for RemoteSite {
    fn call(&self, mut request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, LinkError>> {
        async move {
            let target = request.extensions().get::<Target>().cloned();
            let target =
                target.ok_or_else(|| LinkError::Request("it does not say which service it is for".into()))?;
            request.extensions_mut().insert(self.wrap(&target)?);
            self.way().await?.call(request).await
        }
        .boxed()
    }
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
            .because(chain(other)),
    }
}
