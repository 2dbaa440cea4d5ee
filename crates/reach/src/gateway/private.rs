//! The listener for other gateways: it follows the instruction in each request and looks for
//! nothing itself, so requests cannot go round in circles.

use std::net::SocketAddr;
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use jiff::Timestamp;
use tarbet_link::handshake::{Hello, Refusal, RefusalCode};
use tarbet_link::{Body, ByteStream, Denial, Handler, Target};
use tarbet_telemetry::codes::reach;
use tarbet_telemetry::problem::chain;

use super::Hub;
use crate::forward::{Forwarder, NOTHING, Onward, link_denial};
use crate::local::{Held, LocalLinks};
use crate::peers::receive_peer;
use crate::route::instructed;

pub(super) async fn serve(hub: Arc<Hub>, stream: ByteStream, peer: SocketAddr) {
    let name = hub.name.clone();
    let ended = receive_peer(stream, &name, |hello| async move { admit(&hub, &hello) }).await;
    match ended {
        Ok(reason) => tracing::debug!(%peer, %reason, "A gateway hung up."),
        Err(error) => tracing::info!(%peer, cause = %chain(&error), "A gateway was not taken in."),
    }
}

fn admit(hub: &Arc<Hub>, hello: &Hello) -> Result<Arc<dyn Handler>, Refusal> {
    let refused = |text: &str| Refusal::new(RefusalCode::Credential, text);
    let Some(verifier) = &hub.colleagues else {
        return Err(refused("This gateway has no secret in common with others."));
    };
    let token = std::str::from_utf8(hello.credential.reveal()).map_err(|_| refused("The credential is not text."))?;
    verifier.verify(token, Timestamp::now()).map_err(|error| {
        tracing::warn!(gateway = %hello.agent.name, cause = %chain(&error), "A gateway's token was refused.");
        refused("The gateways do not have the same secret, or their clocks differ by more than a few seconds.")
    })?;
    Ok(Arc::new(Forwarder(Arc::new(ByInstruction { local: hub.local.clone(), gateway: hub.name.clone() }))))
}

/// Sends each thing over exactly the link it names.
struct ByInstruction {
    local: LocalLinks,
    gateway: String,
}

impl ByInstruction {
    fn follow(&self, target: &Target) -> Result<(Arc<Held>, Target), Denial> {
        let Some((link, inner)) = instructed(target) else {
            let code = reach::PROTOCOL_VIOLATION.id;
            return Err(Denial::new(StatusCode::BAD_REQUEST, code, "The request does not say over which link it goes."));
        };
        let held = self.local.get(link).ok_or_else(|| {
            let text = "The link is no longer here.";
            Denial::new(StatusCode::BAD_GATEWAY, reach::LINK_LOST.id, text).at(self.hop()).untouched()
        })?;
        Ok((held, inner))
    }

    fn hop(&self) -> String {
        format!("gateway `{}` → agent", self.gateway)
    }
}

impl Onward for ByInstruction {
    async fn call(&self, target: Target, mut request: Request<Body>) -> Result<Response<Body>, Denial> {
        let (held, inner) = self.follow(&target)?;
        request.extensions_mut().insert(inner);
        held.way.call(request).await.map_err(|error| link_denial(error, &self.hop()))
    }

    async fn open(&self, target: Target) -> Result<ByteStream, Denial> {
        let (held, inner) = self.follow(&target)?;
        held.way.open_with(inner, NOTHING).await.map_err(|error| link_denial(error, &self.hop()))
    }
}
