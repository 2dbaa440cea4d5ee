//! What is remembered of sites and people: durable records, written rarely, in the store.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tarbet_identity::{NoEntropy, Pin, Token, TokenKind, TokenRecord, hash_opaque};
use tarbet_store::{Commit, OPERATIONS_MAX, Operation, Record, Store, Table};
use tarbet_telemetry::codes::{ground, reach};
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Coded, Problem};

use crate::names::SiteName;

/// A place that dials in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// Its name.
    pub name: SiteName,
    /// Its number, for clients of kas.
    pub id: i64,
    /// When it was added.
    pub created: Timestamp,
    /// The keys under which its agents are reached end to end, the newest last.
    #[serde(default)]
    pub keys: Vec<SiteKey>,
}

/// A key that an agent of a site showed when it joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteKey {
    /// The key.
    pub pin: Pin,
    /// When it was first seen.
    pub since: Timestamp,
}

/// Keys that are remembered of one site: as many as it may sensibly have agents on hosts of their own.
const MAX_KEYS: usize = 32;

impl Record for Site {
    const KIND: &'static str = "site";
}

/// What a principal may do at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// See the site and its state.
    Viewer,
    /// Also send requests to it.
    User,
    /// Also change its entry and revoke its tokens.
    Operator,
}

/// A person or program that calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    /// Its name.
    pub name: String,
    /// May change everything: sites, users, tokens.
    #[serde(default)]
    pub admin: bool,
    /// Roles by site name; `*` stands for every site.
    #[serde(default)]
    pub roles: BTreeMap<String, Role>,
}

impl Record for Principal {
    const KIND: &'static str = "principal";
}

impl Principal {
    /// Whether it has at least this role at the site.
    pub fn may(&self, role: Role, site: &SiteName) -> bool {
        let held = self.roles.get(site.as_str()).max(self.roles.get("*"));
        self.admin || held.is_some_and(|held| *held >= role)
    }
}

#[derive(Serialize, Deserialize)]
struct Kept(TokenRecord);

impl Record for Kept {
    const KIND: &'static str = "token";
}

#[derive(Serialize, Deserialize)]
struct Counter(i64);

impl Record for Counter {
    const KIND: &'static str = "counter";
}

/// The site behind a number.
#[derive(Serialize, Deserialize)]
struct Numbered(SiteName);

impl Record for Numbered {
    const KIND: &'static str = "site-number";
}

/// Who an agent turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// The site it speaks for.
    pub site: Site,
    /// The public name of its token, for logs and for checking it again.
    pub token_id: String,
    /// When the token ends.
    pub expires: Option<Timestamp>,
}

/// Why the directory could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The store failed.
    #[error("the directory of sites could not {0}")]
    Store(&'static str, #[source] tarbet_store::Error),
    /// There is one already.
    #[error("{0} exists already")]
    Exists(String),
    /// There is none.
    #[error("{0} does not exist")]
    Missing(String),
    /// A token was not accepted; the reason is for the log only.
    #[error("the token was refused")]
    Refused(#[source] tarbet_identity::Refusal),
    /// No token could be made.
    #[error("no token could be made")]
    Entropy(#[source] NoEntropy),
}

/// The durable tables. Cheap to clone.
#[derive(Clone)]
pub struct Directory {
    store: Store,
    sites: Table<String, Site>,
    tokens: Table<String, Kept>,
    principals: Table<String, Principal>,
    counters: Table<String, Counter>,
    numbers: Table<String, Numbered>,
}

impl Directory {
    /// The directory in this store.
    pub fn new(store: &Store) -> Result<Self, tarbet_store::Invalid> {
        // A token that was revoked must not come back with the power, nor may a site go that was added.
        let store = store.clone().on_disk();
        Ok(Self {
            sites: Table::new(&store, "sites")?,
            tokens: Table::new(&store, "tokens")?,
            principals: Table::new(&store, "principals")?,
            counters: Table::new(&store, "counters")?,
            numbers: Table::new(&store, "site-numbers")?,
            store,
        })
    }

    /// Adds a site, with its first agent token.
    pub async fn add_site(&self, name: &SiteName, now: Timestamp) -> Result<(Site, Token), DirectoryError> {
        let failed = |error| DirectoryError::Store("add a site", error);
        let token = Token::generate(TokenKind::Agent).map_err(DirectoryError::Entropy)?;
        let record = TokenRecord::new(&token, name.as_str(), now);
        loop {
            // Number, site and token are one change: no site is ever half made.
            let key = "site".to_owned();
            let last = self.counters.get(&key).await.map_err(failed)?;
            let id = last.as_ref().map_or(0, |last| last.value.0) + 1;
            let site = Site { name: name.clone(), id, created: now, keys: Vec::new() };
            let unmoved = match &last {
                Some(last) => self.counters.at(&key, last.revision),
                None => self.counters.absent(&key),
            };
            let commit = Commit::new()
                .expect(self.sites.absent(&name.to_string()))
                .expect(unmoved)
                .with(self.counters.put_op(&key, &Counter(id)).map_err(failed)?)
                .with(self.sites.put_op(&name.to_string(), &site).map_err(failed)?)
                .with(self.numbers.put_op(&id.to_string(), &Numbered(name.clone())).map_err(failed)?)
                .with(self.tokens.put_op(&record.id(), &Kept(record.clone())).map_err(failed)?);
            match self.store.commit(commit).await {
                Ok(_) => return Ok((site, token)),
                Err(tarbet_store::Error::Conflict { .. }) => {
                    if self.site(name).await?.is_some() {
                        return Err(DirectoryError::Exists(format!("the site `{name}`")));
                    }
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// The site of this name.
    pub async fn site(&self, name: &SiteName) -> Result<Option<Site>, DirectoryError> {
        let found = self.sites.get(&name.to_string()).await;
        Ok(found.map_err(|error| DirectoryError::Store("look up a site", error))?.map(|found| found.value))
    }

    /// The site with this number, among those that were added here.
    pub async fn site_numbered(&self, id: i64) -> Result<Option<SiteName>, DirectoryError> {
        let found = self.numbers.get(&id.to_string()).await;
        Ok(found.map_err(|error| DirectoryError::Store("look up a site", error))?.map(|found| found.value.0))
    }

    /// Makes sure that there is a site whose agents somebody else vouches for, under that one's number.
    pub async fn ensure_site(&self, name: &SiteName, id: i64, now: Timestamp) -> Result<(), DirectoryError> {
        let site = Site { name: name.clone(), id, created: now, keys: Vec::new() };
        match self.sites.create(&name.to_string(), &site).await {
            Ok(_) | Err(tarbet_store::Error::Conflict { .. }) => Ok(()),
            Err(error) => Err(DirectoryError::Store("add a site", error)),
        }
    }

    /// Every site, by name.
    pub async fn sites(&self) -> Result<Vec<Site>, DirectoryError> {
        let listing = self.sites.list().await.map_err(|error| DirectoryError::Store("list sites", error))?;
        Ok(listing.records.into_iter().map(|(_, found)| found.value).collect())
    }

    /// Removes a site and all its tokens. Its live links end when their tokens are next checked.
    pub async fn remove_site(&self, name: &SiteName) -> Result<(), DirectoryError> {
        let failed = |error| DirectoryError::Store("remove a site", error);
        let Some(site) = self.site(name).await? else {
            return Err(DirectoryError::Missing(format!("the site `{name}`")));
        };
        let tokens = self.tokens.list().await.map_err(failed)?.records.into_iter();
        let its = tokens.filter(|(_, token)| {
            token.value.0.kind != TokenKind::User && token.value.0.subject == name.as_str()
        });
        let mut last = vec![self.sites.delete_op(&name.to_string())];
        if self.site_numbered(site.id).await?.as_ref() == Some(name) {
            last.push(self.numbers.delete_op(&site.id.to_string()));
        }
        self.remove(its.map(|(id, _)| id), &last).await.map_err(failed)
    }

    /// One more token for a site's agents.
    pub async fn issue_agent_token(
        &self,
        name: &SiteName,
        now: Timestamp,
        expires: Option<Timestamp>,
    ) -> Result<Token, DirectoryError> {
        let failed = |error| DirectoryError::Store("keep a token", error);
        let token = Token::generate(TokenKind::Agent).map_err(DirectoryError::Entropy)?;
        let record = TokenRecord { expires, ..TokenRecord::new(&token, name.as_str(), now) };
        let write = self.tokens.put_op(&record.id(), &Kept(record)).map_err(failed)?;
        // A token that outlived its site would open a later one of the same name.
        let commit = Commit::new().expect(self.sites.present(&name.to_string())).with(write);
        match self.store.commit(commit).await {
            Ok(_) => Ok(token),
            Err(tarbet_store::Error::Conflict { .. }) => {
                Err(DirectoryError::Missing(format!("the site `{name}`")))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// The tokens of a site, or of a user.
    pub async fn tokens(&self, subject: &str, kind: TokenKind) -> Result<Vec<TokenRecord>, DirectoryError> {
        let listing =
            self.tokens.list().await.map_err(|error| DirectoryError::Store("list tokens", error))?;
        let records = listing.records.into_iter().map(|(_, found)| found.value.0);
        Ok(records.filter(|record| record.subject == subject && record.kind == kind).collect())
    }

    /// Takes a token back.
    pub async fn revoke_token(&self, id: &str, now: Timestamp) -> Result<(), DirectoryError> {
        let updated = self
            .tokens
            .update(&id.to_owned(), |kept| kept.map(|Kept(record)| Kept(record.revoke(now))))
            .await;
        match updated.map_err(|error| DirectoryError::Store("revoke a token", error))? {
            Some(_) => Ok(()),
            None => Err(DirectoryError::Missing(format!("the token `{id}`"))),
        }
    }

    /// Who presents this agent token.
    pub async fn admit_agent(&self, presented: &str, now: Timestamp) -> Result<Admitted, DirectoryError> {
        let record = self.redeem(presented, TokenKind::Agent, now).await?;
        let refused = || DirectoryError::Refused(tarbet_identity::Refusal::Mismatch);
        let name = record.subject.parse().map_err(|_| refused())?;
        let site = self.site(&name).await?.ok_or_else(refused)?;
        Ok(Admitted { site, token_id: record.id(), expires: record.expires })
    }

    /// Whether a token that was accepted before still would be.
    pub async fn still_good(&self, token_id: &str, now: Timestamp) -> Result<bool, DirectoryError> {
        let found = self.tokens.get(&token_id.to_owned()).await;
        let found = found.map_err(|error| DirectoryError::Store("check a token again", error))?;
        Ok(found.is_some_and(|found| {
            let TokenRecord { revoked, expires, .. } = found.value.0;
            revoked.is_none() && expires.is_none_or(|at| now < at)
        }))
    }

    /// Adds a person or program and gives its token.
    pub async fn add_principal(
        &self,
        principal: &Principal,
        now: Timestamp,
    ) -> Result<Token, DirectoryError> {
        let failed = |error| DirectoryError::Store("add a user", error);
        let token = Token::generate(TokenKind::User).map_err(DirectoryError::Entropy)?;
        let record = TokenRecord::new(&token, &principal.name, now);
        let commit = Commit::new()
            .expect(self.principals.absent(&principal.name))
            .with(self.principals.put_op(&principal.name, principal).map_err(failed)?)
            .with(self.tokens.put_op(&record.id(), &Kept(record.clone())).map_err(failed)?);
        match self.store.commit(commit).await {
            Ok(_) => Ok(token),
            Err(tarbet_store::Error::Conflict { .. }) => {
                Err(DirectoryError::Exists(format!("the user `{}`", principal.name)))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Makes sure that a principal with exactly this token exists, for the first start of a gateway.
    pub async fn ensure_principal(
        &self,
        principal: &Principal,
        token: &Token,
        now: Timestamp,
    ) -> Result<(), DirectoryError> {
        let failed = |error| DirectoryError::Store("add the first user", error);
        let record = TokenRecord::new(token, &principal.name, now);
        if self.tokens.get(&record.id()).await.map_err(failed)?.is_none() {
            self.keep(record).await?;
        }
        self.principals.update(&principal.name, |_| Some(principal.clone())).await.map_err(failed)?;
        Ok(())
    }

    /// Every person and program.
    pub async fn principals(&self) -> Result<Vec<Principal>, DirectoryError> {
        let listing =
            self.principals.list().await.map_err(|error| DirectoryError::Store("list users", error))?;
        Ok(listing.records.into_iter().map(|(_, found)| found.value).collect())
    }

    /// Removes a principal with all its tokens.
    pub async fn remove_principal(&self, name: &str) -> Result<(), DirectoryError> {
        let failed = |error| DirectoryError::Store("remove a user", error);
        if self.principals.get(&name.to_owned()).await.map_err(failed)?.is_none() {
            return Err(DirectoryError::Missing(format!("the user `{name}`")));
        }
        let tokens = self.tokens(name, TokenKind::User).await?;
        let last = [self.principals.delete_op(&name.to_owned())];
        self.remove(tokens.iter().map(TokenRecord::id), &last).await.map_err(failed)
    }

    /// Who presents this user token, and until when it is good.
    pub async fn authenticate(
        &self,
        presented: &str,
        now: Timestamp,
    ) -> Result<(Principal, Option<Timestamp>), DirectoryError> {
        let record = self.redeem(presented, TokenKind::User, now).await?;
        let found = self.principals.get(&record.subject).await;
        let found = found.map_err(|error| DirectoryError::Store("look up a user", error))?;
        let found = found.ok_or(DirectoryError::Refused(tarbet_identity::Refusal::Mismatch))?;
        Ok((found.value, record.expires))
    }

    /// Remembers a key that an agent of the site showed.
    pub async fn learn_key(&self, name: &SiteName, pin: Pin, now: Timestamp) -> Result<(), DirectoryError> {
        let key = name.to_string();
        let learned = self.sites.update(&key, |site| {
            site.map(|mut site| {
                if !site.keys.iter().any(|key| key.pin == pin) {
                    site.keys.push(SiteKey { pin, since: now });
                    let excess = site.keys.len().saturating_sub(MAX_KEYS);
                    site.keys.drain(..excess);
                }
                site
            })
        });
        learned.await.map(drop).map_err(|error| DirectoryError::Store("remember a site's key", error))
    }

    /// Removes tokens and then their owner, in as many commits as it takes: whoever is cut off in between is still
    /// there to be removed again.
    async fn remove(
        &self,
        tokens: impl Iterator<Item = String>,
        owner: &[Operation],
    ) -> Result<(), tarbet_store::Error> {
        let tokens: Vec<Operation> = tokens.map(|id| self.tokens.delete_op(&id)).collect();
        for some in tokens.chunks(OPERATIONS_MAX).chain([owner]) {
            self.store.commit(some.iter().cloned().fold(Commit::new(), Commit::with)).await?;
        }
        Ok(())
    }

    async fn keep(&self, record: TokenRecord) -> Result<(), DirectoryError> {
        let kept = self.tokens.put(&record.id(), &Kept(record)).await;
        kept.map(drop).map_err(|error| DirectoryError::Store("keep a token", error))
    }

    /// Accepts a token and records the use, if uses are counted.
    async fn redeem(
        &self,
        presented: &str,
        kind: TokenKind,
        now: Timestamp,
    ) -> Result<TokenRecord, DirectoryError> {
        let failed = |error| DirectoryError::Store("look up a token", error);
        let id = hash_opaque(presented).id();
        loop {
            let Some(found) = self.tokens.get(&id).await.map_err(failed)? else {
                return Err(DirectoryError::Refused(tarbet_identity::Refusal::Mismatch));
            };
            let before = found.value.0;
            let after = before.redeem(kind, presented, now).map_err(DirectoryError::Refused)?;
            if after == before {
                return Ok(after);
            }
            match self.tokens.replace(&id, found.revision, &Kept(after.clone())).await {
                Ok(_) => return Ok(after),
                Err(tarbet_store::Error::Conflict { .. }) => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

impl Coded for DirectoryError {
    fn problem(&self) -> Problem {
        match self {
            Self::Store(_, source) => {
                let inner = source.problem();
                Problem::new(inner.row(), format!("{}.", capitalised(&self.to_string()))).because(inner.cause)
            }
            Self::Exists(what) => {
                Problem::new(&ground::STORE_CONFLICT, format!("{} exists already.", capitalised(what)))
                    .because("a record of this name is there")
                    .advising("choose another name, or remove the old one first")
            }
            Self::Missing(what) => {
                Problem::new(&reach::SITE_UNKNOWN, format!("{} does not exist.", capitalised(what)))
                    .because("no record of this name is there")
            }
            Self::Refused(_) => Problem::new(&ground::TOKEN_REFUSED, "The token was refused."),
            Self::Entropy(source) => {
                Problem::new(&ground::INTERNAL, "No token could be made.").because(chain(source))
            }
        }
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig;
    use std::time::Duration;
    use tarbet_identity::PrivateKey;
    use tarbet_store::backend::Memory;

    fn directory() -> Directory {
        Directory::new(&Store::new(Memory::new(tarbet_store::Clock::system()))).unwrap()
    }

    fn now() -> Timestamp {
        Timestamp::now()
    }

    fn presented(token: &Token) -> &str {
        token.text().expose()
    }

    #[tokio::test]
    async fn sites_have_different_numbers_and_names_of_their_own() {
        let directory = directory();
        let added = (0..20).map(|i| {
            let directory = directory.clone();
            async move { directory.add_site(&rig::site(&format!("s{i}")), now()).await.unwrap().0.id }
        });
        let mut ids = futures::future::join_all(added).await;
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 20);
        assert!(matches!(directory.add_site(&rig::site("s1"), now()).await, Err(DirectoryError::Exists(_))));
        assert_eq!(directory.sites().await.unwrap().len(), 20);
    }

    #[tokio::test]
    async fn a_site_with_more_tokens_than_one_commit_takes_goes_with_all_of_them() {
        let (directory, lab) = (directory(), rig::site("lab"));
        directory.add_site(&lab, now()).await.unwrap();
        for _ in 0..OPERATIONS_MAX {
            directory.issue_agent_token(&lab, now(), None).await.unwrap();
        }
        directory.remove_site(&lab).await.unwrap();
        assert!(directory.site(&lab).await.unwrap().is_none());
        assert_eq!(directory.tokens("lab", TokenKind::Agent).await.unwrap().len(), 0);
        let late = directory.issue_agent_token(&lab, now(), None).await;
        assert!(matches!(late, Err(DirectoryError::Missing(_))));
    }

    #[tokio::test]
    async fn a_token_admits_to_its_own_site_until_it_is_revoked_expires_or_the_site_goes() {
        let directory = directory();
        let (lab, den) = (rig::site("lab"), rig::site("den"));
        let (_, first) = directory.add_site(&lab, now()).await.unwrap();
        let (_, other) = directory.add_site(&den, now()).await.unwrap();
        let admitted = directory.admit_agent(presented(&first), now()).await.unwrap();
        assert_eq!(admitted.site.name, lab);
        assert_eq!(directory.admit_agent(presented(&other), now()).await.unwrap().site.name, den);
        assert!(directory.still_good(&admitted.token_id, now()).await.unwrap());

        directory.revoke_token(&admitted.token_id, now()).await.unwrap();
        assert!(!directory.still_good(&admitted.token_id, now()).await.unwrap());
        assert!(matches!(
            directory.admit_agent(presented(&first), now()).await,
            Err(DirectoryError::Refused(_))
        ));

        let end = now() + Duration::from_mins(1);
        let short = directory.issue_agent_token(&lab, now(), Some(end)).await.unwrap();
        assert!(directory.admit_agent(presented(&short), now()).await.is_ok());
        assert!(!directory.still_good(&short.hash().id(), end).await.unwrap());
        assert!(directory.admit_agent(presented(&short), end).await.is_err());

        directory.remove_site(&den).await.unwrap();
        assert!(directory.admit_agent(presented(&other), now()).await.is_err());
        assert!(matches!(directory.remove_site(&den).await, Err(DirectoryError::Missing(_))));
    }

    #[tokio::test]
    async fn one_kind_of_token_is_never_taken_for_another() {
        let directory = directory();
        let (_, agent) = directory.add_site(&rig::site("lab"), now()).await.unwrap();
        let ann = Principal { name: "ann".into(), admin: false, roles: BTreeMap::new() };
        let user = directory.add_principal(&ann, now()).await.unwrap();
        assert_eq!(directory.authenticate(presented(&user), now()).await.unwrap().0, ann);
        assert!(directory.authenticate(presented(&agent), now()).await.is_err());
        assert!(directory.admit_agent(presented(&user), now()).await.is_err());
        assert!(matches!(directory.add_principal(&ann, now()).await, Err(DirectoryError::Exists(_))));
        directory.remove_principal("ann").await.unwrap();
        assert!(directory.authenticate(presented(&user), now()).await.is_err());
    }

    #[test]
    fn roles_are_ordered_and_a_site_of_its_own_beats_none() {
        let roles = [("lab".to_owned(), Role::Operator), ("*".to_owned(), Role::Viewer)];
        let ann = Principal { name: "ann".into(), admin: false, roles: roles.into() };
        assert!(ann.may(Role::User, &rig::site("lab")) && ann.may(Role::Viewer, &rig::site("den")));
        assert!(!ann.may(Role::User, &rig::site("den")));
        assert!(!Principal { roles: BTreeMap::new(), ..ann.clone() }.may(Role::Viewer, &rig::site("lab")));
        assert!(
            Principal { admin: true, roles: BTreeMap::new(), ..ann }.may(Role::Operator, &rig::site("x"))
        );
    }

    #[tokio::test]
    async fn a_site_remembers_its_newest_keys_each_once() {
        let directory = directory();
        let lab = rig::site("lab");
        directory.add_site(&lab, now()).await.unwrap();
        let pins: Vec<Pin> =
            (0..MAX_KEYS + 3).map(|_| PrivateKey::generate().unwrap().public().pin()).collect();
        for pin in pins.iter().chain(pins.last()) {
            directory.learn_key(&lab, *pin, now()).await.unwrap();
        }
        let keys = directory.site(&lab).await.unwrap().unwrap().keys;
        assert_eq!(keys.iter().map(|key| key.pin).collect::<Vec<_>>(), pins[3..]);
    }
}
