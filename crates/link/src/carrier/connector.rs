//! Connects to a gateway: network or proxy, then TLS, then WebSocket, as its URL says.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::HeaderMap;

use super::proxy::{ProxyError, ProxySettings, tunnel};
use super::url::GatewayUrl;
use super::websocket::{WebSocketError, WebSocketLimits, connect_websocket};
use crate::duplex::ByteStream;
use crate::error::LinkError;
use crate::shapes::Dialer;
use crate::target::{Address, Target};

/// The subprotocol of native links.
pub(crate) const SUBPROTOCOL: &str = "tarbet-link";

/// Makes the connections on which links begin.
pub trait Connect: Send + Sync {
    /// A connection to a gateway, ready for the handshake.
    fn connect<'a>(&'a self, gateway: &'a GatewayUrl) -> BoxFuture<'a, Result<ByteStream, ConnectError>>;
}

/// Puts a stream into TLS as its client.
pub trait Secure: Send + Sync {
    /// Proves that the server is `host` and gives the encrypted stream.
    fn secure<'a>(&'a self, stream: ByteStream, host: &'a str) -> BoxFuture<'a, io::Result<ByteStream>>;
}

/// Why there is no connection, and how far it came.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The first hop could not be reached.
    #[error("cannot reach {target}")]
    Network {
        /// The gateway or the proxy before it.
        target: Address,
        /// What the network said.
        #[source]
        source: LinkError,
    },
    /// The proxy did not let us through.
    #[error("cannot pass the proxy {proxy}")]
    Proxy {
        /// The proxy.
        proxy: Address,
        /// What it said.
        #[source]
        source: ProxyError,
    },
    /// TLS failed.
    #[error("TLS with {target} failed")]
    Tls {
        /// The gateway or the proxy before it.
        target: Address,
        /// What TLS said.
        #[source]
        source: io::Error,
    },
    /// The URL wants TLS and this agent has none.
    #[error("{gateway} wants TLS, which is not set up here")]
    NoTls {
        /// The URL.
        gateway: GatewayUrl,
    },
    /// The WebSocket was not opened.
    #[error("cannot open a WebSocket to {gateway}")]
    WebSocket {
        /// The URL.
        gateway: GatewayUrl,
        /// What went wrong.
        #[source]
        source: WebSocketError,
    },
    /// It took too long.
    #[error("connecting to {gateway} took longer than {} s", .limit.as_secs())]
    TimedOut {
        /// The URL.
        gateway: GatewayUrl,
        /// The limit.
        limit: Duration,
    },
}

/// The usual way to a gateway.
#[derive(Clone)]
pub struct NetConnector {
    /// What opens TCP connections.
    pub dialer: Arc<dyn Dialer>,
    /// What does TLS; without it only unencrypted URLs work.
    pub tls: Option<Arc<dyn Secure>>,
    /// Proxies.
    pub proxies: ProxySettings,
    /// Headers to send with a WebSocket upgrade.
    pub headers: HeaderMap,
    /// The subprotocol to ask for in a WebSocket.
    pub subprotocol: String,
    /// How long all of it may take.
    pub timeout: Duration,
}

impl NetConnector {
    /// Over this dialer, without proxies or TLS.
    pub fn new(dialer: Arc<dyn Dialer>) -> Self {
        Self {
            dialer,
            tls: None,
            proxies: ProxySettings::default(),
            headers: HeaderMap::new(),
            subprotocol: SUBPROTOCOL.into(),
            timeout: Duration::from_secs(15),
        }
    }

    async fn establish(&self, gateway: &GatewayUrl) -> Result<ByteStream, ConnectError> {
        let mut stream = match self.proxies.choose(gateway.tls(), gateway.address()) {
            None => self.reach(gateway.address()).await?,
            Some(proxy) => {
                let mut stream = self.reach(&proxy.address).await?;
                if proxy.tls {
                    stream = self.secure(stream, &proxy.address, gateway).await?;
                }
                let through = tunnel(stream, gateway.address(), proxy)
                    .await
                    .map_err(|source| ConnectError::Proxy { proxy: proxy.address.clone(), source })?;
                ByteStream::new(through)
            }
        };
        if gateway.tls() {
            stream = self.secure(stream, gateway.address(), gateway).await?;
        }
        if gateway.websocket() {
            let limits = WebSocketLimits::default();
            let socket =
                connect_websocket(stream, &gateway.to_string(), &self.subprotocol, &self.headers, limits)
                    .await
                    .map_err(|source| ConnectError::WebSocket { gateway: gateway.clone(), source })?;
            stream = ByteStream::new(socket);
        }
        Ok(stream)
    }

    async fn reach(&self, address: &Address) -> Result<ByteStream, ConnectError> {
        let opened = self.dialer.open(Target::tcp(address.clone())).await;
        opened.map_err(|source| ConnectError::Network { target: address.clone(), source })
    }

    async fn secure(
        &self,
        stream: ByteStream,
        address: &Address,
        gateway: &GatewayUrl,
    ) -> Result<ByteStream, ConnectError> {
        let tls = self.tls.as_ref().ok_or_else(|| ConnectError::NoTls { gateway: gateway.clone() })?;
        let secured = tls.secure(stream, address.host()).await;
        secured.map_err(|source| ConnectError::Tls { target: address.clone(), source })
    }
}

impl Connect for NetConnector {
    fn connect<'a>(&'a self, gateway: &'a GatewayUrl) -> BoxFuture<'a, Result<ByteStream, ConnectError>> {
        async move {
            let limit = self.timeout;
            tokio::time::timeout(limit, self.establish(gateway))
                .await
                .unwrap_or_else(|_| Err(ConnectError::TimedOut { gateway: gateway.clone(), limit }))
        }
        .boxed()
    }
}
