//! Callers with a client of ours: one connection to the API listener that opens ways to sites.

use std::net::SocketAddr;
use std::sync::Arc;

use http::{Request, Response};
use jiff::Timestamp;
use tarbet_link::handshake::{Hello, Refusal, RefusalCode};
use tarbet_link::{Body, ByteStream, Denial, Handler, Target};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, reach};
use tarbet_telemetry::problem::chain;
use tokio::time::Instant;

use super::Hub;
use crate::directory::{DirectoryError, Principal, Role};
use crate::forward::{Forwarder, NOTHING, Onward, denial};
use crate::names::SiteName;
use crate::peers::receive_peer;

pub(super) async fn serve(hub: Arc<Hub>, stream: ByteStream, peer: SocketAddr) {
    let name = hub.name.clone();
    let ended = receive_peer(stream, &name, |hello| async move { admit(hub, hello).await }).await;
    match ended {
        Ok(reason) => tracing::debug!(%peer, %reason, "A caller hung up."),
        Err(error) => tracing::info!(%peer, cause = %chain(&error), "A caller was not taken in."),
    }
}

async fn admit(hub: Arc<Hub>, hello: Hello) -> Result<Arc<dyn Handler>, Refusal> {
    let refused = || Refusal::new(RefusalCode::Credential, tarbet_identity::Refusal::PUBLIC);
    let token = std::str::from_utf8(hello.credential.reveal()).map_err(|_| refused())?;
    match hub.directory.authenticate(token, Timestamp::now()).await {
        Ok(principal) => Ok(Arc::new(Forwarder(Arc::new(ToSites { hub, principal })))),
        Err(error @ DirectoryError::Refused(_)) => {
            tracing::info!(caller = %hello.agent.name, cause = %chain(&error), "A caller's token was refused.");
            Err(refused())
        }
        Err(error) => {
            tracing::warn!(error = %chain(&error), "A caller's token cannot be checked.");
            Err(Refusal::new(RefusalCode::Unavailable, "The gateway cannot check tokens at the moment."))
        }
    }
}

/// Routes what a caller sends to the site that its target names.
struct ToSites {
    hub: Arc<Hub>,
    principal: Principal,
}

impl ToSites {
    fn judge(&self, target: &Target) -> Result<(SiteName, Target), Denial> {
        let parts = target.name().strip_prefix("site/").and_then(|rest| rest.split_once('/'));
        let Some((site, service)) = parts else {
            let problem = Problem::new(&ground::BAD_REQUEST, "The request does not say for which site it is.");
            return Err(denial(&problem, false));
        };
        let unknown = || denial(&Problem::new(&reach::SITE_UNKNOWN, format!("There is no site `{site}` for you.")), false);
        let site: SiteName = site.parse().map_err(|_| unknown())?;
        // Absent and forbidden look alike.
        if !self.principal.may(Role::User, &site) {
            return Err(unknown());
        }
        let inner = Target::service(service).map_err(|_| unknown())?;
        let inner = target.address().map_or_else(|| inner.clone(), |address| inner.clone().at(address.clone()));
        Ok((site, inner))
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.hub.config.max_wait
    }
}

impl Onward for ToSites {
    async fn call(&self, target: Target, mut request: Request<Body>) -> Result<Response<Body>, Denial> {
        let (site, inner) = self.judge(&target)?;
        request.extensions_mut().insert(inner);
        Ok(self.hub.router.call(&site, request, self.deadline()).await?)
    }

    async fn open(&self, target: Target) -> Result<ByteStream, Denial> {
        let (site, inner) = self.judge(&target)?;
        Ok(self.hub.router.open(&site, inner, NOTHING, self.deadline()).await?)
    }
}
