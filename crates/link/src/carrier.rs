//! What brings the bytes of a link to a gateway: TCP, TLS, a proxy, a WebSocket.

mod connector;
mod proxy;
mod url;
mod websocket;

pub use connector::{Connect, ConnectError, NetConnector, Secure};
pub use proxy::{BadProxy, ProxyError, ProxySettings, ProxyUrl, tunnel};
pub use url::{BadGatewayUrl, GatewayUrl};
pub use websocket::{WebSocket, WebSocketError, WebSocketLimits, accept_websocket, connect_websocket};
