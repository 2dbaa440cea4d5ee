//! Callers with a client of ours: one connection to the API listener that opens ways to sites.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use jiff::Timestamp;
use tarbet_identity::Secret;
use tarbet_link::handshake::{Hello, Refusal, RefusalCode};
use tarbet_link::{Body, ByteStream, Denial, Handler, Target};
use tarbet_telemetry::codes::{ground, reach};
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Coded, Problem, RequestId};
use tokio::time::Instant;

use super::ticket::Ticket;
use super::{Hub, kube};
use crate::directory::{DirectoryError, Principal};
use crate::forward::{Forwarder, Onward, denial};
use crate::names::SiteName;
use crate::peers::receive_peer;
use crate::quota::{LinkPermit, Permit};
use crate::vouch::Vouched;

pub(super) async fn serve(hub: Arc<Hub>, stream: ByteStream, peer: SocketAddr, vouched: Option<Vouched>) {
    let (name, leaving) = (hub.name.clone(), hub.leaving.clone());
    let ended =
        receive_peer(stream, &name, &leaving, |hello| async move { admit(hub, hello, vouched).await }).await;
    match ended {
        Ok(reason) => tracing::debug!(%peer, %reason, "A caller hung up."),
        Err(error) => tracing::info!(%peer, cause = %chain(&error), "A caller was not taken in."),
    }
}

async fn admit(hub: Arc<Hub>, hello: Hello, vouched: Option<Vouched>) -> Result<Arc<dyn Handler>, Refusal> {
    let proof = match (text(&hello)?, vouched) {
        ("", Some(vouched)) => Proof::Certificate(vouched),
        (token, _) => Proof::Token(Secret::new(token.to_owned())),
    };
    let principal = identify(&hub, &proof).await?;
    let counted = hub.quotas.connect(&principal.name).map_err(|exceeded| {
        hub.metrics.over_quota(exceeded.setting);
        Refusal::new(RefusalCode::Quota, exceeded.problem().message)
    })?;
    Ok(Arc::new(Forwarder(Arc::new(ToSites { hub, proof, _counted: counted }))))
}

fn text(hello: &Hello) -> Result<&str, Refusal> {
    std::str::from_utf8(hello.credential.reveal()).map_err(|_| refused())
}

fn refused() -> Refusal {
    Refusal::new(RefusalCode::Credential, tarbet_identity::Refusal::PUBLIC)
}

/// What a caller has to show for itself.
enum Proof {
    Token(Secret),
    Certificate(Vouched),
}

async fn identify(hub: &Hub, proof: &Proof) -> Result<Arc<Principal>, Refusal> {
    let token = match proof {
        Proof::Token(token) => token,
        Proof::Certificate(vouched) => return vouched.at(Timestamp::now()).ok_or_else(refused),
    };
    match hub.known.caller(token.expose(), Timestamp::now()).await {
        Ok(principal) => Ok(principal),
        Err(error @ DirectoryError::Refused(_)) => {
            tracing::info!(cause = %chain(&error), "A caller's token was refused.");
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
    /// Looked at again for every request, so that a revoked one ends with the next.
    proof: Proof,
    _counted: LinkPermit,
}

impl ToSites {
    async fn admit(
        &self,
        target: &Target,
        id: RequestId,
        what: &str,
    ) -> Result<(SiteName, Target, Ticket), Denial> {
        let principal = identify(&self.hub, &self.proof).await.map_err(|refusal| {
            let code = match refusal.code {
                RefusalCode::Credential => &reach::CREDENTIALS_MISSING,
                _ => &ground::STORE_UNAVAILABLE,
            };
            denial(&Problem::new(code, refusal.text), false)
        })?;
        let parts = target.name().strip_prefix("site/").and_then(|rest| rest.split_once('/'));
        let Some((site, service)) = parts else {
            let problem =
                Problem::new(&ground::BAD_REQUEST, "The request does not say for which site it is.");
            return Err(denial(&problem, false));
        };
        let unknown = || {
            denial(&Problem::new(&reach::SITE_UNKNOWN, format!("There is no site `{site}` for you.")), false)
        };
        let site: SiteName = site.parse().map_err(|_| unknown())?;
        let inner = Target::service(service).map_err(|_| unknown())?;
        let inner =
            target.address().map_or_else(|| inner.clone(), |address| inner.clone().at(address.clone()));
        let wants = format!("{inner}{what}");
        let ticket =
            self.hub.admit(&principal, &site, id, &wants).await.map_err(|problem| denial(&problem, false))?;
        Ok((site, inner, ticket))
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.hub.config().max_wait
    }
}

impl Onward for ToSites {
    async fn call(
        &self,
        target: Target,
        mut request: Request<Body>,
    ) -> Result<(Response<Body>, Permit), Denial> {
        let id = kube::request_id(request.headers());
        let what = format!(" {} {}", request.method(), request.uri().path());
        let (site, inner, ticket) = self.admit(&target, id, &what).await?;
        request.extensions_mut().insert(inner);
        kube::stamp(request.headers_mut(), id, &ticket.story().subject().principal);
        match self.hub.router.call(&site, request, self.deadline(), ticket.story()).await {
            Ok(response) => {
                let permit = ticket.answered(response.status());
                Ok((response, permit))
            }
            Err(error) => {
                ticket.failed(&error.problem());
                Err(error.into())
            }
        }
    }

    async fn open(&self, target: Target, first: Bytes) -> Result<(ByteStream, Permit), Denial> {
        let (site, inner, ticket) = self.admit(&target, RequestId::fresh(), "").await?;
        match self.hub.router.open(&site, inner, first, self.deadline(), ticket.story()).await {
            Ok(stream) => Ok((stream, ticket.opened())),
            Err(error) => {
                ticket.failed(&error.problem());
                Err(error.into())
            }
        }
    }
}
