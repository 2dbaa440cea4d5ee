//! What the directory said lately, so that a request needs no store and a store that is away takes
//! nobody's access.
//!
//! An answer is used for a few seconds, then asked for again by one request while others go on
//! using it. If the store does not answer, what it said last stands for a while: nobody can be
//! given or refused anything new meanwhile. A refusal is never remembered.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tarbet_identity::{TokenHash, hash_opaque};
use tokio::time::Instant;

use crate::directory::{Admitted, Directory, DirectoryError, Principal};
use crate::kas::Agent;
use crate::names::SiteName;
use crate::vouch::{Oidc, looks_like_jwt};

/// How long an answer is used without asking: well below the minute in which a revocation must act.
const FRESH: Duration = Duration::from_secs(5);
/// How long one who has an older answer waits for a newer one.
const PATIENCE: Duration = Duration::from_secs(2);
/// Answers that are kept of each kind; beyond that the oldest go.
const MOST: usize = 50_000;

struct Answer<T> {
    value: T,
    /// When the store said so.
    told: Instant,
    /// When it was last asked.
    asked: Instant,
}

struct Memory<K, T>(Mutex<HashMap<K, Answer<T>>>);

enum Recalled<T> {
    /// Good as it is.
    Fresh(T),
    /// To be asked for again, and good meanwhile.
    Stale(T),
    Nothing,
}

impl<K: Eq + Hash + Clone, T: Clone> Memory<K, T> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Answer<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is remembered. Whoever gets it stale has the duty to ask; others are told it is fresh.
    fn recall(&self, key: &K, now: Instant, grace: Duration) -> Recalled<T> {
        let mut answers = self.lock();
        let Some(answer) = answers.get_mut(key) else { return Recalled::Nothing };
        if now - answer.told > grace.max(FRESH) {
            answers.remove(key);
            return Recalled::Nothing;
        }
        let value = answer.value.clone();
        if now - answer.asked <= FRESH {
            return Recalled::Fresh(value);
        }
        answer.asked = now;
        Recalled::Stale(value)
    }

    fn remember(&self, key: K, value: T, now: Instant) {
        let mut answers = self.lock();
        if answers.len() >= MOST && !answers.contains_key(&key) {
            let oldest = answers.iter().min_by_key(|(_, answer)| answer.asked).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| answers.remove(&oldest));
        }
        answers.insert(key, Answer { value, told: now, asked: now });
    }

    fn forget(&self, key: &K) {
        self.lock().remove(key);
    }

    async fn consult<F>(&self, key: K, grace: Duration, ask: F) -> Result<T, DirectoryError>
    where
        F: Future<Output = Result<T, DirectoryError>>,
    {
        let before = match self.recall(&key, Instant::now(), grace) {
            Recalled::Fresh(value) => return Ok(value),
            Recalled::Stale(value) => Some(value),
            Recalled::Nothing => None,
        };
        let asked = match &before {
            None => ask.await,
            Some(before) => match tokio::time::timeout(PATIENCE, ask).await {
                Ok(Err(DirectoryError::Store(..))) | Err(_) => return Ok(before.clone()),
                Ok(asked) => asked,
            },
        };
        match &asked {
            Ok(value) => self.remember(key, value.clone(), Instant::now()),
            Err(_) => self.forget(&key),
        }
        asked
    }
}

impl<K, T> Default for Memory<K, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// The directory, and what it said lately. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Known(Arc<Inner>);

struct Inner {
    directory: Directory,
    grace: Duration,
    callers: Memory<String, Caller>,
    sites: Memory<SiteName, i64>,
    numbers: Memory<i64, SiteName>,
    agents: Memory<String, KnownAgent>,
    issuers: Vec<Arc<Oidc>>,
}

#[derive(Clone)]
struct KnownAgent {
    hash: TokenHash,
    agent: Arc<Agent>,
    expires: Option<Timestamp>,
}

#[derive(Clone)]
struct Caller {
    hash: TokenHash,
    principal: Arc<Principal>,
    expires: Option<Timestamp>,
}

impl Known {
    /// What this directory says, for `grace` also while it cannot be asked; and these identity providers.
    pub(crate) fn new(directory: Directory, grace: Duration, issuers: Vec<Arc<Oidc>>) -> Self {
        let inner = Inner {
            directory,
            grace,
            callers: Memory::default(),
            sites: Memory::default(),
            numbers: Memory::default(),
            agents: Memory::default(),
            issuers,
        };
        Self(Arc::new(inner))
    }

    /// Who an identity provider says the bearer of this token is.
    fn vouched(&self, presented: &str, now: Timestamp) -> Option<(Principal, Timestamp)> {
        self.0.issuers.iter().find_map(|issuer| issuer.caller(presented, now))
    }

    /// The directory itself.
    pub(crate) fn directory(&self) -> &Directory {
        &self.0.directory
    }

    /// Who presents this token: a user's, or one of an identity provider.
    pub(crate) async fn caller(
        &self,
        presented: &str,
        now: Timestamp,
    ) -> Result<Arc<Principal>, DirectoryError> {
        let refused = || DirectoryError::Refused(tarbet_identity::Refusal::Mismatch);
        let hash = hash_opaque(presented);
        let caller = if looks_like_jwt(presented) && !self.0.issuers.is_empty() {
            let ask = async {
                let (principal, expires) = self.vouched(presented, now).ok_or_else(refused)?;
                Ok(Caller { hash, principal: Arc::new(principal), expires: Some(expires) })
            };
            // No store is asked, so that there is nothing to bridge.
            self.0.callers.consult(hash.id(), Duration::ZERO, ask).await?
        } else {
            let ask = async {
                let (principal, expires) = self.0.directory.authenticate(presented, now).await?;
                Ok(Caller { hash, principal: Arc::new(principal), expires })
            };
            self.0.callers.consult(hash.id(), self.0.grace, ask).await?
        };
        // The name under which it is remembered is only the beginning of the hash.
        if caller.hash != hash || caller.expires.is_some_and(|end| end <= now) {
            return Err(refused());
        }
        Ok(caller.principal)
    }

    /// Who presents this agent token, for one who asks often.
    pub(crate) async fn agent(&self, presented: &str, now: Timestamp) -> Result<Arc<Agent>, DirectoryError> {
        let hash = hash_opaque(presented);
        let ask = async {
            let Admitted { site, expires, .. } = self.0.directory.admit_agent(presented, now).await?;
            let agent = Arc::new(Agent { id: site.id, name: site.name.to_string(), project_id: 0 });
            Ok(KnownAgent { hash, agent, expires })
        };
        let known = self.0.agents.consult(hash.id(), self.0.grace, ask).await?;
        if known.hash != hash || known.expires.is_some_and(|end| end <= now) {
            return Err(DirectoryError::Refused(tarbet_identity::Refusal::Mismatch));
        }
        Ok(known.agent)
    }

    /// The site with this number, among those that were added here.
    pub(crate) async fn site_numbered(&self, id: i64) -> Result<Option<SiteName>, DirectoryError> {
        let ask = async {
            let missing = || DirectoryError::Missing(format!("the site {id}"));
            self.0.directory.site_numbered(id).await?.ok_or_else(missing)
        };
        match self.0.numbers.consult(id, self.0.grace, ask).await {
            Ok(name) => Ok(Some(name)),
            Err(DirectoryError::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes sure that there is a site for an agent that somebody else vouches for.
    pub(crate) async fn ensure_site(
        &self,
        name: &SiteName,
        id: i64,
        now: Timestamp,
    ) -> Result<(), DirectoryError> {
        if !self.has_site(name).await? {
            self.0.directory.ensure_site(name, id, now).await?;
        }
        Ok(())
    }

    /// Whether there is a site of this name.
    pub(crate) async fn has_site(&self, name: &SiteName) -> Result<bool, DirectoryError> {
        self.number(name).await.map(|number| number.is_some())
    }

    /// The number of the site of this name.
    pub(crate) async fn number(&self, name: &SiteName) -> Result<Option<i64>, DirectoryError> {
        let ask = async {
            let missing = || DirectoryError::Missing(format!("the site `{name}`"));
            self.0.directory.site(name).await?.map(|site| site.id).ok_or_else(missing)
        };
        match self.0.sites.consult(name.clone(), self.0.grace, ask).await {
            Ok(number) => Ok(Some(number)),
            Err(DirectoryError::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{self, Unreliable};
    use std::collections::BTreeMap;
    use tarbet_store::Store;

    const HOUR: Duration = Duration::from_hours(1);

    async fn world() -> (Known, Unreliable, String) {
        let backend = Unreliable::default();
        let directory = Directory::new(&Store::new(backend.clone())).unwrap();
        let ann = Principal { name: "ann".into(), admin: true, roles: BTreeMap::new() };
        let token = directory.add_principal(&ann, Timestamp::now()).await.unwrap();
        directory.add_site(&rig::site("lab"), Timestamp::now()).await.unwrap();
        (Known::new(directory, HOUR, Vec::new()), backend, token.text().expose().to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_known_stands_while_the_store_is_away_and_no_longer_than_the_grace() {
        let (known, backend, token) = world().await;
        let now = Timestamp::now();
        assert_eq!(known.caller(&token, now).await.unwrap().name, "ann");
        assert!(known.has_site(&rig::site("lab")).await.unwrap());
        backend.set_down(true);
        for _ in 0..10 {
            tokio::time::advance(HOUR / 11).await;
            assert!(known.caller(&token, now).await.is_ok());
            assert!(known.has_site(&rig::site("lab")).await.unwrap());
        }
        assert!(matches!(known.caller("tbu_unknown", now).await, Err(DirectoryError::Store(..))));
        tokio::time::advance(HOUR / 5).await;
        assert!(known.caller(&token, now).await.is_err());
        backend.set_down(false);
        assert!(known.caller(&token, now).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_removed_caller_is_refused_within_seconds_and_at_once_if_it_was_never_seen() {
        let (known, _, token) = world().await;
        let now = Timestamp::now();
        assert!(known.caller(&token, now).await.is_ok());
        known.directory().remove_principal("ann").await.unwrap();
        tokio::time::advance(FRESH + Duration::from_millis(1)).await;
        assert!(matches!(known.caller(&token, now).await, Err(DirectoryError::Refused(_))));
        assert!(matches!(known.caller("tbu_x", now).await, Err(DirectoryError::Refused(_))));
        assert!(!known.has_site(&rig::site("nowhere")).await.unwrap());
    }
}
