//! Ports of a gateway that lead to a host behind a site, for clients that know nothing of us.
//!
//! Whoever reaches the port is let through to that one host, if the site's policy permits it; it is
//! the operator of the gateway who opens it, by name, in the configuration.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tarbet_link::{Address, ByteStream, Duplex, Target, relay};
use tarbet_telemetry::{Coded, RequestId};
use tokio::time::Instant;

use super::Hub;
use crate::directory::{Principal, Role};
use crate::names::SiteName;

/// A TCP port that leads to a host behind a site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// Where it listens.
    #[schemars(with = "String")]
    pub listen: SocketAddr,
    /// The site.
    #[schemars(with = "String")]
    pub site: SiteName,
    /// The host and port as the site's agent sees them.
    pub target: String,
}

impl PortConfig {
    /// What the types alone cannot refuse.
    pub fn check(&self) -> Result<(), String> {
        Port::new(self).map(drop)
    }
}

/// Where connections to one port go.
pub(super) struct Port {
    site: SiteName,
    target: Target,
    principal: Principal,
}

impl Port {
    pub(super) fn new(config: &PortConfig) -> Result<Self, String> {
        let address: Address = config.target.parse().map_err(|error| format!("{error}"))?;
        let roles = [(config.site.to_string(), Role::User)].into();
        let name = format!("port:{}", config.listen.port());
        Ok(Self {
            site: config.site.clone(),
            target: Target::tcp(address),
            principal: Principal { name, admin: false, roles },
        })
    }
}

/// How long the client's first bytes are waited for, so that they travel with the opening and cost no
/// further round trip. Where the other side speaks first, it costs this much once.
const FIRST_WORD: Duration = Duration::from_millis(2);

async fn first_word(stream: &mut ByteStream) -> io::Result<Bytes> {
    let chunk = tokio::time::timeout(FIRST_WORD, poll_fn(|cx| stream.poll_read_chunk(cx)));
    // An end is read again by the relay, which passes it on.
    Ok(chunk.await.ok().transpose()?.flatten().unwrap_or_default())
}

pub(super) async fn serve(hub: Arc<Hub>, port: Arc<Port>, mut stream: ByteStream, peer: SocketAddr) {
    let Port { site, target, principal } = &*port;
    let ticket = match hub.admit(principal, site, RequestId::fresh(), &target.to_string()).await {
        Ok(ticket) => ticket,
        Err(problem) => {
            return tracing::info!(%peer, %site, code = %problem.code, "A connection to a port was refused.");
        }
    };
    let deadline = Instant::now() + hub.config().max_wait;
    // A client that has gone already needs no stream.
    let Ok(first) = first_word(&mut stream).await else { return };
    match hub.router.open(site, target.clone(), first, deadline, ticket.story()).await {
        Ok(far) => {
            let permit = ticket.opened();
            permit.follow(far.backlog());
            // Either end may break off at any time; both know why by themselves.
            let _ = relay(stream, far).await;
            drop(permit);
        }
        Err(error) => ticket.failed(&error.problem()),
    }
}
