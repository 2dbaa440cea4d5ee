//! Replicas of the original beside this gateway: found by their keys in Redis, called by their private API,
//! and served by ours, so that both kinds hold agents of one installation.
//!
//! Only agents of the kas protocol are written where the others look. A request for an agent that none of
//! our gateways holds goes to whichever of the others first has a tunnel for it.

mod book;
mod door;
mod race;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tarbet_identity::jwt::SharedSecrets;
use tarbet_identity::jwt::kas::KasSigner;
use tarbet_store::Hashes;
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Coded, Problem};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::sync::CancellationToken;

pub(super) use self::book::Book;
use self::book::Word;
use self::door::Doors;
use self::race::Through;
use super::gitlab_site;
use crate::config::GatewayConfig;
use crate::dial::Trust;
use crate::kas::locked;
use crate::kas::prefix::Prefix;
use crate::known::Known;
use crate::local::{LinkId, LocalLinks};
use crate::names::SiteName;
use crate::route::{self, Neighbour};

/// How often somebody looks for an agent that is waited for.
const LOOK: Duration = Duration::from_millis(100);

/// The replicas of the original. Cheap to clone.
#[derive(Clone)]
pub(in crate::gateway) struct Beside(Arc<Inner>);

struct Inner {
    book: Arc<Book>,
    doors: Doors,
    trust: Trust,
    prefix: Prefix,
    known: Known,
    /// Whether numbers are in the names of sites.
    of_gitlab: bool,
    local: LocalLinks,
    leaving: CancellationToken,
    words: mpsc::UnboundedSender<Word>,
    keeping: Mutex<Option<JoinHandle<()>>>,
    /// One name for the ways to each agent, so that a request does not try the same twice.
    names: Mutex<HashMap<i64, LinkId>>,
    followed: Mutex<HashMap<SiteName, (usize, AbortHandle)>>,
}

impl Beside {
    /// Those whom the configuration names; `None` if it names none.
    pub(in crate::gateway) fn new(
        config: &GatewayConfig,
        secret: Option<&SharedSecrets>,
        known: &Known,
        local: &LocalLinks,
        leaving: &CancellationToken,
    ) -> Result<Option<Self>, Problem> {
        let Some(section) = &config.kas.beside else { return Ok(None) };
        let missing = |what: &str| {
            Problem::new(&ground::CONFIG_INVALID, format!("gateway.kas.beside needs {what}."))
                .because("replicas call each other through their private listeners")
        };
        let secret = secret.ok_or_else(|| missing("gateway.private.secret_file"))?;
        let own = config.private.advertise.clone().ok_or_else(|| missing("gateway.private.advertise"))?;
        let hashes = Hashes::at(&section.redis).map_err(|error| error.problem())?;
        let book = Arc::new(Book::new(hashes, section, config.kas.prefix, own));
        let private = &config.private;
        let trust = Trust::for_http2(private.ca_file.as_deref(), private.tls_server_name.as_deref())?;
        let (words, said) = mpsc::unbounded_channel();
        let keeping = tokio::spawn(book::keep(Arc::clone(&book), said, leaving.clone()));
        Ok(Some(Self(Arc::new(Inner {
            book,
            doors: Doors::new(trust.dial(), KasSigner::private_api(secret.clone())),
            trust,
            prefix: config.kas.prefix,
            known: known.clone(),
            of_gitlab: config.kas.gitlab.is_some(),
            local: local.clone(),
            leaving: leaving.clone(),
            words,
            keeping: Mutex::new(Some(keeping)),
            names: Mutex::default(),
            followed: Mutex::default(),
        }))))
    }

    /// Trusts what `trust` does, from the next connection on.
    pub(in crate::gateway) fn trust(&self, trust: &Trust) {
        self.0.trust.become_like(trust);
    }

    /// What is written where the others look.
    pub(super) fn book(&self) -> Arc<Book> {
        Arc::clone(&self.0.book)
    }

    /// This gateway has tunnels of the agent.
    pub(super) fn holds(&self, agent: i64) {
        // Nobody listens any more when the gateway has left.
        let _ = self.0.words.send(Word::Holds(agent));
    }

    /// It has none any more. What this gives is done when the others can know.
    pub(super) fn lost(&self, agent: i64) -> oneshot::Receiver<()> {
        let (told, done) = oneshot::channel();
        let _ = self.0.words.send(Word::Lost(agent, told));
        done
    }

    /// Waits until nobody is sent here any more; the gateway is leaving.
    pub(super) async fn leave(&self) {
        let keeping = locked(&self.0.keeping).take();
        if let Some(keeping) = keeping {
            // It has its own limit of time, and says what went wrong.
            let _ = keeping.await;
        }
    }
}

impl Inner {
    async fn number(&self, site: &SiteName) -> Option<i64> {
        if self.of_gitlab
            && let Some(number) = site.as_str().strip_prefix("gitlab-").and_then(|digits| digits.parse().ok())
            && gitlab_site(number).as_ref() == Some(site)
        {
            return Some(number);
        }
        self.known.number(site).await.unwrap_or_else(|error| {
            tracing::debug!(%site, error = %chain(&error), "The number of a site cannot be had.");
            None
        })
    }
}

impl route::Beside for Beside {
    fn way<'a>(&'a self, site: &'a SiteName) -> BoxFuture<'a, Option<Neighbour>> {
        async move {
            let agent = self.0.number(site).await?;
            let at = self.0.book.holders(agent).await.into_iter().next()?;
            let link = *locked(&self.0.names).entry(agent).or_insert_with(LinkId::fresh);
            let way = Arc::new(Through::new(Arc::clone(&self.0), agent, site.clone()));
            Some(Neighbour { link, at, way })
        }
        .boxed()
    }

    fn follow(&self, site: &SiteName) -> Box<dyn Send> {
        let mut followed = locked(&self.0.followed);
        let look = || {
            let (inner, site) = (Arc::downgrade(&self.0), site.clone());
            (0, tokio::spawn(look_for(inner, site)).abort_handle())
        };
        followed.entry(site.clone()).or_insert_with(look).0 += 1;
        Box::new(Following { inner: Arc::clone(&self.0), site: site.clone() })
    }
}

/// Looks for a site until it is found, and again after that: those who wait are woken each time.
async fn look_for(inner: Weak<Inner>, site: SiteName) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(inner) = inner.upgrade() else { return };
        if let Some(agent) = inner.number(&site).await
            && !inner.book.holders(agent).await.is_empty()
        {
            inner.local.ring(&site);
        }
    }
}

/// Somebody waits for a site.
struct Following {
    inner: Arc<Inner>,
    site: SiteName,
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut followed = locked(&self.inner.followed);
        if let Some((count, task)) = followed.get_mut(&self.site) {
            *count -= 1;
            if *count == 0 {
                task.abort();
                followed.remove(&self.site);
            }
        }
    }
}
