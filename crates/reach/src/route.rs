//! From a site's name to a link: the decision where a request goes next.
//!
//! The gateway at which a request enters finds the way and alone retries. It prefers its own
//! links, then those the registry knows at other gateways, and otherwise waits until one appears
//! or the deadline passes. A gateway asked by another one only follows the instruction.

mod wait;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use tarbet_link::handshake::Purpose;
use tarbet_link::{Address, Body, ByteStream, Caller, Dialer, LinkError, OnTaken, Reached, Target};
use tarbet_telemetry::codes::reach;
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Coded, Problem};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use self::wait::Until;
use self::wait::{Rounds, is_busy};
use crate::lent::Lender;
use crate::local::{Held, LinkId, LocalLinks, Way};
use crate::names::SiteName;
use crate::peers::{PeerError, Peers};
use crate::registry::{Registry, Remote};
use crate::story::{Step, Story};

/// How often one request may be sent again: more would only hide a site that is broken.
const ATTEMPTS: usize = 6;
/// How often a harmless request may be sent again when it may have reached an agent: it may be what
/// breaks the links.
const UNCERTAIN: usize = 2;
/// How soon a gateway that is listed and does not answer is tried again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

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
    /// A gateway is listed as holding the site and did not answer in time.
    #[error("the gateway {url}, which holds the site `{site}`, did not answer within {} s", .waited.as_secs())]
    Gateway {
        /// The site.
        site: SiteName,
        /// How that gateway is dialled.
        url: String,
        /// How long it was waited for.
        waited: Duration,
        /// What came of the last attempt.
        #[source]
        source: PeerError,
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
    /// This gateway is shutting down.
    #[error("this gateway is shutting down")]
    Leaving,
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
            Self::Gateway { site, url, waited, source } => Problem::new(
                &reach::GATEWAY_UNREACHABLE,
                format!(
                    "The gateway that holds the site `{site}` did not answer within {} s.",
                    waited.as_secs()
                ),
            )
            .at(format!("entry gateway → {url}"))
            .because(chain(source)),
            Self::Registry { site, source } => Problem::new(
                &reach::REGISTRY_UNAVAILABLE,
                format!("The registry cannot say who holds the site `{site}`."),
            )
            .because(chain(source)),
            Self::Leaving => Problem::new(&reach::DRAINING, "The gateway is shutting down."),
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
        LinkError::Request(_) | LinkError::RequestBody(_) => Problem::new(
            &tarbet_telemetry::codes::ground::BAD_REQUEST,
            "The request cannot be carried to the site.",
        )
        .because(chain(error)),
        LinkError::Unsupported(_) => {
            Problem::new(&reach::SERVICE_NOT_OFFERED, "The agent's connection cannot carry this.")
                .because(chain(error))
        }
        LinkError::Busy { limit } => Problem::new(
            &reach::QUOTA_EXCEEDED,
            format!("The link to the site `{site}` has {limit} streams open."),
        ),
        _ => Problem::new(&reach::LINK_LOST, format!("The connection to the agent of `{site}` broke."))
            .at(format!("gateway → agent of `{site}`: {}", error.hop()))
            .because(chain(error)),
    }
}

/// Whether nobody can tell how far a request came: its link was lost before there was an answer.
fn is_unknown(error: &LinkError) -> bool {
    match error {
        LinkError::Closed { reached, .. } => *reached == Reached::Unknown,
        // Another gateway lost the link in the same way.
        LinkError::Denied(denial) => !denial.untouched && denial.code == reach::LINK_LOST.id,
        _ => false,
    }
}

/// Whether a link is there and will not take the request: others may, if they are there as well.
fn is_no_way(error: &LinkError) -> bool {
    match error {
        LinkError::Busy { .. } => true,
        LinkError::Denied(denial) if denial.untouched => {
            denial.code == reach::SERVICE_NOT_OFFERED.id || is_busy(error)
        }
        _ => false,
    }
}

/// Whether a request does nothing that may not be done twice. A request that changes its protocol
/// may do anything whatever its method: `exec` is a GET.
fn is_harmless(parts: &http::request::Parts, empty: bool) -> bool {
    let safe = matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS);
    safe && empty && !parts.headers.contains_key(http::header::UPGRADE)
}

/// Gateways of another make, which may hold a site that none of ours does.
pub trait Beside: Send + Sync {
    /// The way through them, if any of them has the site.
    fn way<'a>(&'a self, site: &'a SiteName) -> BoxFuture<'a, Option<Neighbour>>;

    /// Looks for the site again and again while the guard lives, and wakes those who wait for it when it
    /// is found.
    fn follow(&self, site: &SiteName) -> Box<dyn Send>;
}

/// A way through gateways of another make.
pub struct Neighbour {
    /// A name for it.
    pub link: LinkId,
    /// Where it leads, for people.
    pub at: String,
    /// The way.
    pub way: Arc<dyn Way>,
}

/// What kind of thing is sent.
#[derive(Clone, Copy)]
struct Errand<'a> {
    /// Whether it may be done twice.
    harmless: bool,
    /// Which links suit it best.
    purpose: Purpose,
    /// What is sent with it, if there is anything.
    body: Option<&'a Lender>,
}

impl Errand<'_> {
    /// Whether it can be sent again after a gateway that is reached by this way had it without an agent.
    fn comes_back(&self, way: &dyn Way) -> bool {
        self.body.is_none_or(|body| body.is_kept_whole() || way.says_when_taken())
    }

    /// Whether it can be sent again now.
    fn is_there(&self) -> bool {
        !self.body.is_some_and(Lender::is_gone)
    }
}

/// A way that was found.
struct Found {
    way: Arc<dyn Way>,
    link: LinkId,
    /// Where it leads.
    place: Place,
}

/// Where a way leads.
enum Place {
    Here,
    /// Through another gateway of ours, which is told which link to use.
    There(String),
    /// Through gateways of another make.
    Beside(String),
}

/// What the registry led to.
enum Elsewhere {
    Found(Found),
    Nobody,
    /// A gateway is listed and does not answer.
    Unreachable(String, PeerError),
}

/// Finds ways to sites. Cheap to clone.
#[derive(Clone)]
pub struct Router {
    local: LocalLinks,
    /// Absent for a gateway that stands alone.
    registry: Option<Registry>,
    peers: Peers,
    /// Nobody waits at a gateway that leaves.
    leaving: CancellationToken,
    beside: Option<Arc<dyn Beside>>,
}

impl Router {
    /// A router over these links, until `leaving`.
    pub fn new(
        local: LocalLinks,
        registry: Option<Registry>,
        peers: Peers,
        leaving: CancellationToken,
    ) -> Self {
        Self { local, registry, peers, leaving, beside: None }
    }

    /// The same, with gateways of another make beside ours.
    #[must_use]
    pub fn beside(self, beside: Option<Arc<dyn Beside>>) -> Self {
        Self { beside, ..self }
    }

    /// Sends a request to a site. The service is the [`Target`] among the request's extensions.
    pub async fn call(
        &self,
        site: &SiteName,
        request: Request<Body>,
        deadline: Instant,
        story: &Story,
    ) -> Result<Response<Body>, RouteError> {
        let (parts, body) = request.into_parts();
        let lender = Lender::new(body);
        let harmless = is_harmless(&parts, lender.is_empty());
        let target = parts.extensions.get::<Target>().cloned();
        let errand = Errand { harmless, purpose: Purpose::General, body: Some(&lender) };
        self.attempt(site, deadline, errand, story, |way, via, until| {
            let mut parts = parts.clone();
            parts.extensions.insert(until);
            let body = if via.is_some() && !lender.is_kept_whole() && way.says_when_taken() {
                lender.lend_kept().map(|(body, release)| {
                    parts.extensions.insert(OnTaken::new(release));
                    body
                })
            } else {
                lender.lend()
            };
            if let (Some(via), Some(target)) = (via, &target) {
                parts.extensions.insert(through(via, target));
                until.tell(&mut parts.headers);
            }
            async move {
                let Some(body) = body else {
                    return Err(LinkError::Request(
                        "its body was already on the way when the link broke".into(),
                    ));
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
        story: &Story,
    ) -> Result<ByteStream, RouteError> {
        let errand = Errand { harmless: false, purpose: Purpose::Bulk, body: None };
        self.attempt(site, deadline, errand, story, |way, via, _| {
            let target = via.map_or_else(|| target.clone(), |via| through(via, &target));
            let first = first.clone();
            async move { way.open_with(target, first).await }
        })
        .await
    }

    /// Tries one way after another until the request got through, failed for good, or time is up.
    async fn attempt<T, F, R>(
        &self,
        site: &SiteName,
        deadline: Instant,
        errand: Errand<'_>,
        story: &Story,
        mut send: F,
    ) -> Result<T, RouteError>
    where
        F: FnMut(Arc<dyn Way>, Option<LinkId>, Until) -> R,
        R: Future<Output = Result<T, LinkError>>,
    {
        let mut tried = Vec::new();
        let mut last: Option<LinkError> = None;
        let mut uncertain = if errand.harmless { UNCERTAIN } else { 0 };
        let mut rounds = Rounds::new(deadline, self.knows_others(site));
        loop {
            // A link that is full is no reason to wait for another one, nor is an agent that lacks the service
            // or has no tunnel free.
            let patience = if last.as_ref().is_some_and(is_no_way) { Instant::now() } else { deadline };
            let passed = [&tried, rounds.busy()].concat();
            let found = self.find(site, errand.purpose, &passed, patience, story).await;
            let Found { way, link, place } = match (found, last.take()) {
                (Ok(found), _) => found,
                (Err(RouteError::Leaving), _) => return Err(RouteError::Leaving),
                // None of those that are there has a tunnel free; they are asked again.
                (Err(_), Some(error)) if is_busy(&error) && rounds.again() => continue,
                // What broke says more than that nothing came after it.
                (Err(RouteError::NotConnected { .. } | RouteError::Gateway { .. }), Some(source)) => {
                    return Err(RouteError::Link { site: site.clone(), source });
                }
                (Err(error), _) => return Err(error),
            };
            story.note(match &place {
                Place::There(url) | Place::Beside(url) => Step::Gateway(url.clone(), link),
                Place::Here => Step::Link(link),
            });
            let there = matches!(place, Place::There(_));
            let until = match place {
                // What has left for a gateway that does not say what becomes of it may be gone, so that it stays there.
                Place::There(_) if !errand.comes_back(&*way) => Until { at: deadline, last: true },
                Place::Here | Place::There(_) => rounds.until(false),
                Place::Beside(_) => rounds.until(true),
            };
            let error = match send(way, there.then_some(link), until).await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            if is_busy(&error) && !until.last {
                tracing::debug!(%site, %link, "No tunnel is free; others are asked.");
                rounds.put_off(link);
                last = Some(error);
                continue;
            }
            tried.push(link);
            if let (true, Some(registry)) = (there, &self.registry) {
                registry.distrust(site);
            }
            let repeat = error.safe_to_retry() || (uncertain > 0 && is_unknown(&error));
            if !repeat || !errand.is_there() || tried.len() >= ATTEMPTS || Instant::now() >= deadline {
                return Err(RouteError::Link { site: site.clone(), source: error });
            }
            uncertain -= usize::from(!error.safe_to_retry());
            tracing::debug!(%site, %link, error = %chain(&error), "Trying another link.");
            story.note(Step::Broke(chain(&error)));
            last = Some(error);
        }
    }

    /// Whether there may be more than one way to the site.
    fn knows_others(&self, site: &SiteName) -> bool {
        self.registry.is_some() || self.beside.is_some() || self.local.count_of(site) > 1
    }

    /// The next way to the site; waits for one if there is none.
    async fn find(
        &self,
        site: &SiteName,
        purpose: Purpose,
        tried: &[LinkId],
        deadline: Instant,
        story: &Story,
    ) -> Result<Found, RouteError> {
        let own = || self.local.pick(site, purpose, tried).map(Found::here);
        if let Some(found) = own() {
            return Ok(found);
        }
        let begun = Instant::now();
        // Nearly always somebody is there, and nobody needs to wait or to follow what becomes of the site.
        let mut known = match self.find_listed(site, purpose, tried).await {
            Ok(Elsewhere::Found(found)) => return Ok(found),
            // Who came between this look and the next step is found by another look.
            Ok(Elsewhere::Nobody) => None,
            // It was tried just now; a gateway that cannot be reached is tried again in a moment.
            outcome @ (Ok(Elsewhere::Unreachable(..)) | Err(_)) => Some(outcome),
        };
        let waiting = self.local.wait_for(site);
        let _following = self.registry.as_ref().map(|registry| registry.following(site));
        let _looking = self.beside.as_ref().map(|beside| beside.follow(site));
        let mut told = false;
        loop {
            // Made before looking, so that what appears meanwhile rings it.
            let mut ring = std::pin::pin!(waiting.ring());
            ring.as_mut().enable();
            if let Some(found) = own() {
                return Ok(found);
            }
            let listed = match known.take() {
                Some(outcome) => outcome,
                None => self.find_listed(site, purpose, tried).await,
            };
            let (again, silent) = match self.or_beside(site, tried, listed).await? {
                Elsewhere::Found(found) => return Ok(found),
                Elsewhere::Nobody => (deadline, None),
                Elsewhere::Unreachable(url, why) => {
                    (deadline.min(Instant::now() + LOOK_AGAIN), Some((url, why)))
                }
            };
            if !std::mem::replace(&mut told, true) {
                story.note(Step::Waits);
            }
            tokio::select! {
                () = &mut ring => {}
                () = self.leaving.cancelled() => return Err(RouteError::Leaving),
                () = tokio::time::sleep_until(again) => if Instant::now() >= deadline {
                    let (site, waited) = (site.clone(), begun.elapsed());
                    return Err(match silent {
                        Some((url, source)) => RouteError::Gateway { site, url, waited, source },
                        None => RouteError::NotConnected { site, waited },
                    });
                }
            }
        }
    }

    /// What the registry gave if that is a way, else one through gateways of another make, which are found in
    /// a place of their own, else what came of the registry.
    async fn or_beside(
        &self,
        site: &SiteName,
        tried: &[LinkId],
        listed: Result<Elsewhere, tarbet_store::Error>,
    ) -> Result<Elsewhere, RouteError> {
        if let Ok(Elsewhere::Found(found)) = listed {
            return Ok(Elsewhere::Found(found));
        }
        match self.find_beside(site, tried).await {
            Elsewhere::Nobody => listed.map_err(|source| RouteError::Registry { site: site.clone(), source }),
            found => Ok(found),
        }
    }

    /// A way through a gateway that the registry lists.
    async fn find_listed(
        &self,
        site: &SiteName,
        purpose: Purpose,
        tried: &[LinkId],
    ) -> Result<Elsewhere, tarbet_store::Error> {
        let Some(registry) = &self.registry else { return Ok(Elsewhere::Nobody) };
        let remotes = registry.elsewhere(site).await?;
        let mut outcome = Elsewhere::Nobody;
        let mut silent: Vec<Arc<str>> = Vec::new();
        for Remote { link, url, .. } in
            remotes.in_turn(purpose).filter(|remote| !tried.contains(&remote.link))
        {
            if silent.contains(url) {
                continue;
            }
            let (link, place) = (*link, url.to_string());
            match self.peers.way(url).await {
                Ok(way) => return Ok(Elsewhere::Found(Found { way, link, place: Place::There(place) })),
                // A gateway that just died is still listed for a few seconds: the agent comes back
                // elsewhere, so it is worth waiting rather than failing at once.
                Err(source) => {
                    tracing::debug!(%site, url = place, error = %chain(&source), "A gateway cannot be reached.");
                    registry.distrust(site);
                    silent.push(Arc::clone(url));
                    outcome = Elsewhere::Unreachable(place, source);
                }
            }
        }
        Ok(outcome)
    }

    async fn find_beside(&self, site: &SiteName, tried: &[LinkId]) -> Elsewhere {
        let Some(beside) = &self.beside else { return Elsewhere::Nobody };
        let found = beside.way(site).await.filter(|found| !tried.contains(&found.link));
        found.map_or(Elsewhere::Nobody, |Neighbour { link, at, way }| {
            Elsewhere::Found(Found { way, link, place: Place::Beside(at) })
        })
    }
}

impl Found {
    fn here(held: Arc<Held>) -> Self {
        Self { way: Arc::clone(&held.way), link: held.id, place: Place::Here }
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
mod tests;
