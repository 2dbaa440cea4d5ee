//! From a site's name to a link: the decision where a request goes next.
//!
//! The gateway at which a request enters finds the way and alone retries. It prefers its own
//! links, then those the registry knows at other gateways, and otherwise waits until one appears
//! or the deadline passes. A gateway asked by another one only follows the instruction.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use tarbet_link::{Address, Body, ByteStream, Caller, Dialer, LinkError, Target};
use tarbet_telemetry::codes::reach;
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Coded, Problem};
use tokio::time::Instant;

use crate::lent::Lender;
use crate::local::{LinkId, LocalLinks, Way};
use crate::names::SiteName;
use crate::peers::{PeerError, Peers};
use crate::registry::Registry;

/// How often one request may be sent again: more would only hide a site that is broken.
const ATTEMPTS: usize = 6;

/// Why a request did not reach its site.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// Nobody connected in time.
    #[error("no agent of the site `{site}` was connected within {} s", .waited.as_secs())]
    NotConnected {
        /// The site.
        site: SiteName,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The registry cannot be asked, and this gateway holds no link to the site itself.
    #[error("the registry cannot say who holds the site `{site}`")]
    Registry {
        /// The site.
        site: SiteName,
        /// Why.
        #[source]
        source: tarbet_store::Error,
    },
    /// The gateway that holds the link cannot be reached.
    #[error("the gateway at {url} cannot be reached")]
    Peer {
        /// Its private listener.
        url: String,
        /// Why.
        #[source]
        source: PeerError,
    },
    /// The link failed, or the agent said no.
    #[error("the request to the site `{site}` failed on its link")]
    Link {
        /// The site.
        site: SiteName,
        /// How.
        #[source]
        source: LinkError,
    },
}

impl Coded for RouteError {
    fn problem(&self) -> Problem {
        match self {
            Self::NotConnected { site, waited } => Problem::new(
                &reach::SITE_NOT_CONNECTED,
                format!("No agent of the site `{site}` was connected within {} s.", waited.as_secs()),
            )
            .at(format!("gateway → site `{site}`")),
            Self::Registry { site, source } => {
                Problem::new(&reach::REGISTRY_UNAVAILABLE, format!("The registry cannot say who holds the site `{site}`."))
                    .because(chain(source))
            }
            Self::Peer { url, source } => {
                Problem::new(&reach::GATEWAY_UNREACHABLE, "The gateway that holds the site's agent cannot be reached.")
                    .at(format!("entry gateway → gateway at {url}"))
                    .because(chain(source))
            }
            Self::Link { site, source } => link_problem(site, source),
        }
    }
}

/// What a failed link means to the caller.
fn link_problem(site: &SiteName, error: &LinkError) -> Problem {
    match error {
        LinkError::Denied(denial) => {
            let code = tarbet_telemetry::codes::find(&denial.code).unwrap_or(&reach::LINK_LOST);
            Problem::new(code, denial.message.clone()).at(format!("site `{site}`: {}", denial.hop))
        }
        LinkError::Request(_) | LinkError::RequestBody(_) => {
            Problem::new(&tarbet_telemetry::codes::ground::BAD_REQUEST, "The request cannot be carried to the site.")
                .because(chain(error))
        }
        LinkError::Unsupported(_) => {
            Problem::new(&reach::SERVICE_NOT_OFFERED, "The agent's connection cannot carry this.").because(chain(error))
        }
        LinkError::Busy { limit } => {
            Problem::new(&reach::QUOTA_EXCEEDED, format!("The link to the site `{site}` has {limit} streams open."))
        }
        _ => Problem::new(&reach::LINK_LOST, format!("The connection to the agent of `{site}` broke."))
            .at(format!("gateway → agent of `{site}`: {}", error.hop()))
            .because(chain(error)),
    }
}

/// Finds ways to sites. Cheap to clone.
#[derive(Clone)]
pub struct Router {
    local: LocalLinks,
    /// Absent for a gateway that stands alone.
    registry: Option<Registry>,
    peers: Peers,
}

impl Router {
    /// A router over these links.
    pub fn new(local: LocalLinks, registry: Option<Registry>, peers: Peers) -> Self {
        Self { local, registry, peers }
    }

    /// Sends a request to a site. The service is the [`Target`] among the request's extensions.
    pub async fn call(
        &self,
        site: &SiteName,
        request: Request<Body>,
        deadline: Instant,
    ) -> Result<Response<Body>, RouteError> {
        let (parts, body) = request.into_parts();
        let lender = Lender::new(body);
        let target = parts.extensions.get::<Target>().cloned();
        self.attempt(site, deadline, |way, via| {
            let body = lender.lend();
            let mut parts = parts.clone();
            if let (Some(via), Some(target)) = (via, &target) {
                parts.extensions.insert(through(via, target));
            }
            async move {
                let Some(body) = body else {
                    return Err(LinkError::Request("its body was already on the way when the link broke".into()));
                };
                way.call(Request::from_parts(parts, body)).await
            }
        })
        .await
    }

    /// Opens a byte stream to a target at a site.
    pub async fn open(
        &self,
        site: &SiteName,
        target: Target,
        first: Bytes,
        deadline: Instant,
    ) -> Result<ByteStream, RouteError> {
        self.attempt(site, deadline, |way, via| {
            let target = via.map_or_else(|| target.clone(), |via| through(via, &target));
            let first = first.clone();
            async move { way.open_with(target, first).await }
        })
        .await
    }

    /// Tries one way after another until the request got through, failed for good, or time is up.
    async fn attempt<T, F, R>(&self, site: &SiteName, deadline: Instant, mut send: F) -> Result<T, RouteError>
    where
        F: FnMut(Arc<dyn Way>, Option<LinkId>) -> R,
        R: Future<Output = Result<T, LinkError>>,
    {
        let begun = Instant::now();
        let mut tried = Vec::new();
        loop {
            let (way, via, link) = self.find(site, &tried, begun, deadline).await?;
            let error = match send(way, via).await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            tried.push(link);
            if let (Some(_), Some(registry)) = (via, &self.registry) {
                registry.distrust(site);
            }
            if !error.safe_to_retry() || tried.len() >= ATTEMPTS || Instant::now() >= deadline {
                return Err(RouteError::Link { site: site.clone(), source: error });
            }
            tracing::debug!(%site, %link, error = %chain(&error), "Trying another link.");
        }
    }

    /// The next way to the site; waits for one if there is none.
    async fn find(
        &self,
        site: &SiteName,
        tried: &[LinkId],
        begun: Instant,
        deadline: Instant,
    ) -> Result<(Arc<dyn Way>, Option<LinkId>, LinkId), RouteError> {
        if let Some(held) = self.local.pick(site, tried) {
            return Ok((Arc::clone(&held.way), None, held.id));
        }
        let waiting = self.local.wait_for(site);
        let _following = self.registry.as_ref().map(|registry| registry.following(site));
        loop {
            // Made before looking, so that what appears meanwhile rings it.
            let mut ring = std::pin::pin!(waiting.ring());
            ring.as_mut().enable();
            if let Some(held) = self.local.pick(site, tried) {
                return Ok((Arc::clone(&held.way), None, held.id));
            }
            if let Some(found) = self.find_elsewhere(site, tried).await? {
                return Ok(found);
            }
            tokio::select! {
                () = &mut ring => {}
                () = tokio::time::sleep_until(deadline) => {
                    return Err(RouteError::NotConnected { site: site.clone(), waited: begun.elapsed() });
                }
            }
        }
    }

    async fn find_elsewhere(
        &self,
        site: &SiteName,
        tried: &[LinkId],
    ) -> Result<Option<(Arc<dyn Way>, Option<LinkId>, LinkId)>, RouteError> {
        let Some(registry) = &self.registry else { return Ok(None) };
        let remotes = registry.elsewhere(site).await;
        let remotes = remotes.map_err(|source| RouteError::Registry { site: site.clone(), source })?;
        let mut unreachable = None;
        for remote in remotes.into_iter().filter(|remote| !tried.contains(&remote.link)) {
            match self.peers.way(&remote.url).await {
                Ok(way) => return Ok(Some((way, Some(remote.link), remote.link))),
                Err(source) => {
                    tracing::debug!(%site, url = %remote.url, error = %chain(&source), "A gateway cannot be reached.");
                    unreachable = Some(RouteError::Peer { url: remote.url, source });
                }
            }
        }
        // A gateway that just died is still listed for a few seconds: wait for the agent to come
        // back elsewhere rather than fail at once.
        if let Some(error) = unreachable {
            registry.distrust(site);
            tracing::debug!(error = %chain(&error), "Waiting for the site to come back.");
        }
        Ok(None)
    }
}

/// The target as another gateway is told it: which of its links, then what is wanted there.
pub(crate) fn through(link: LinkId, target: &Target) -> Target {
    let name = format!("via/{link}/{}", target.name());
    // Names that are too long to be wrapped stay as they are and are refused by the other side.
    let wrapped = Target::service(name).unwrap_or_else(|_| target.clone());
    match target.address() {
        Some(address) => wrapped.at(address.clone()),
        None => wrapped,
    }
}

/// Reads what [`through`] wrote.
pub(crate) fn instructed(target: &Target) -> Option<(LinkId, Target)> {
    let (link, service) = target.name().strip_prefix("via/")?.split_once('/')?;
    let inner = Target::service(service).ok()?;
    let inner = match target.address() {
        Some(address) => inner.at(Address::clone(address)),
        None => inner,
    };
    Some((LinkId::parse(link)?, inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_survives_the_way_to_another_gateway() {
        let link = LinkId::fresh();
        for text in ["kubernetes", "tcp db.local:5432", "gitlab.agent.x.Y/Z"] {
            let target: Target = text.parse().unwrap();
            assert_eq!(instructed(&through(link, &target)), Some((link, target)));
        }
        for text in ["kubernetes", "via/x/kubernetes", "via/kubernetes"] {
            assert_eq!(instructed(&text.parse().unwrap()), None, "{text}");
        }
    }
}
