//! The reverse connection: an agent dials out, and requests come back over what it opened.
//!
//! A native link is HTTP/2 with the roles reversed: the agent serves on the connection it opened
//! and the gateway is the client. Requests are HTTP/2 streams; upgrades and raw bytes are extended
//! CONNECT streams. This crate frames, dials, redials and keeps one reader from stopping the
//! others. It knows nothing of routing, of who may do what, or of which sites exist: a credential
//! is bytes to it, and a target is a name.
//!
//! Start from the two shapes everything else is asked through, [`Dialer`] and [`Caller`]. At a
//! gateway [`accept`] makes a [`Link`] that has both; at a site an [`Agent`] keeps links up and
//! hands what arrives to a [`Handler`]. Code takes byte streams, never sockets: TLS, WebSockets
//! and memory are all the same to it.
//!
//! Tasks: the driver of a link is spawned by whoever made it and ends with the link; each request
//! that arrives at an agent has a task, which ends with the request or the link.

mod agent;
mod backoff;
mod body;
mod carrier;
mod channel;
mod duplex;
mod error;
pub mod fuzz;
mod gateway;
pub mod handshake;
mod keepalive;
mod lane;
mod ledger;
mod meter;
mod net;
mod problem;
mod pump;
mod relay;
mod settings;
mod shapes;
mod shared;
mod sniff;
mod taken;
mod target;
mod tls;
mod turn;
mod upgrade;
mod watch;
mod window;
mod wire;

pub use agent::{
    Agent, AgentConfig, AgentLink, DialError, Handler, Identity, IncomingCall, IncomingStream,
    IncomingUpgrade, SlotStatus, connect, serve,
};
pub use backoff::Backoff;
pub use body::Body;
pub use carrier::{
    BadGatewayUrl, BadProxy, Connect, ConnectError, GatewayUrl, NetConnector, ProxyError, ProxySettings,
    ProxyUrl, Secure, WebSocket, WebSocketError, WebSocketLimits, accept_websocket, connect_websocket,
    tunnel,
};
pub use duplex::{ByteStream, Duplex, Prefixed};
pub use error::{BodyError, BoxError, CloseReason, Denial, Hop, LinkError, Reached};
pub use gateway::{AcceptError, Accepted, Link, LinkInfo, accept};
pub use handshake::{
    AgentInfo, Credential, HandshakeError, Hello, Purpose, Refusal, RefusalCode, Versions, Welcome,
};
pub use keepalive::{Keepalive, Signs, Step};
pub use lane::Backlog;
pub use meter::LinkStats;
pub use net::{NetDialer, tcp};
pub use relay::{Relayed, relay};
pub use settings::Settings;
pub use shapes::{Caller, Dialer};
pub use shared::Phase;
pub use sniff::{Protocol, detect, sniff};
pub use taken::OnTaken;
pub use target::{Address, BadTarget, Target};
pub use upgrade::Upgraded;
