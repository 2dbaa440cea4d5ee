//! Limits for each site and each caller, so that none of them can starve the others.
//!
//! A limit counts what one gateway carries; with several gateways each has its own count. Rates
//! are kept by one moment per key (GCRA), so a limit costs the same whatever its value.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tarbet_link::Backlog;
use tarbet_telemetry::codes::reach;
use tarbet_telemetry::{Coded, Problem};
use tokio::time::Instant;

use crate::names::SiteName;

/// Keys that are remembered only for their rate are looked through when there are this many more.
const SWEEP: usize = 1024;
/// How long a sum of waiting bytes is good enough.
const ADD_UP: Duration = Duration::from_millis(20);

/// The limits of a gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QuotaConfig {
    /// For each site.
    pub site: SiteLimits,
    /// For each person or program that calls.
    pub principal: PrincipalLimits,
}

/// The limits of each site at each gateway. A limit that is absent does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SiteLimits {
    /// Links that agents may have.
    pub links: usize,
    /// Requests and streams under way.
    pub streams: Option<usize>,
    /// Bytes that wait in this gateway because the other side does not read them; beyond that nothing new
    /// is begun.
    pub bytes_in_flight: Option<u64>,
    /// Requests and streams begun in a second.
    pub requests_per_second: Option<u32>,
    /// How many may come at once before the rate counts; a second's worth if absent.
    pub burst: Option<u32>,
}

impl Default for SiteLimits {
    fn default() -> Self {
        Self { links: 256, streams: None, bytes_in_flight: None, requests_per_second: None, burst: None }
    }
}

/// The limits of each caller at each gateway. A limit that is absent does not exist.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PrincipalLimits {
    /// Connections of our own clients.
    pub links: Option<usize>,
    /// Requests and streams under way.
    pub streams: Option<usize>,
    /// Bytes that wait in this gateway because the other side does not read them; beyond that nothing new
    /// is begun.
    pub bytes_in_flight: Option<u64>,
    /// Requests and streams begun in a second.
    pub requests_per_second: Option<u32>,
    /// How many may come at once before the rate counts; a second's worth if absent.
    pub burst: Option<u32>,
}

impl QuotaConfig {
    /// What the types alone cannot refuse: setting and message.
    pub fn mistakes(&self) -> Vec<(String, String)> {
        let Self { site, principal } = self;
        let values = [
            ("site.links", Some(site.links as u64)),
            ("site.streams", site.streams.map(|value| value as u64)),
            ("site.bytes_in_flight", site.bytes_in_flight),
            ("site.requests_per_second", site.requests_per_second.map(u64::from)),
            ("site.burst", site.burst.map(u64::from)),
            ("principal.links", principal.links.map(|value| value as u64)),
            ("principal.streams", principal.streams.map(|value| value as u64)),
            ("principal.bytes_in_flight", principal.bytes_in_flight),
            ("principal.requests_per_second", principal.requests_per_second.map(u64::from)),
            ("principal.burst", principal.burst.map(u64::from)),
        ];
        let zero = values.into_iter().filter(|(_, value)| *value == Some(0));
        zero.map(|(name, _)| (name.to_owned(), "must be at least 1; leave it out for no limit".to_owned()))
            .collect()
    }
}

/// A limit that was met.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{owner} has reached {limit} ({setting}: {value})")]
pub struct Exceeded {
    /// Whose limit, in words.
    pub owner: String,
    /// What is limited, in words.
    pub limit: &'static str,
    /// The setting.
    pub setting: &'static str,
    /// Its value.
    pub value: u64,
    /// When it is worth trying again, if that is known.
    pub retry_after: Option<Duration>,
}

impl Coded for Exceeded {
    fn problem(&self) -> Problem {
        let Self { owner, limit, setting, value, .. } = self;
        Problem::new(&reach::QUOTA_EXCEEDED, format!("{owner} has reached its limit of {value} {limit}."))
            .at("entry gateway")
            .because(format!("gateway.quotas.{setting} is {value}"))
    }
}

/// The moment from which on the next request is on time, after a request at `now`; or how long it
/// comes too early.
fn gcra(due: Option<Instant>, now: Instant, rate: u32, burst: u32) -> Result<Instant, Duration> {
    let interval = Duration::from_secs(1) / rate.max(1);
    let due = due.map_or(now, |due| due.max(now));
    let tolerance = interval.saturating_mul(burst.max(1) - 1);
    match (due - now).checked_sub(tolerance) {
        Some(early) if !early.is_zero() => Err(early),
        _ => Ok(due + interval),
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Site(SiteName),
    Principal(Arc<str>),
}

#[derive(Debug, Default)]
struct Usage {
    streams: usize,
    links: usize,
    due: Option<Instant>,
    /// What waits to be read, by the number of its permit.
    backlogs: HashMap<u64, Backlog>,
    /// What they came to when they were last added up.
    waiting: Option<(Instant, u64)>,
}

struct Rule {
    streams: Option<(usize, &'static str)>,
    bytes: Option<(u64, &'static str)>,
    rate: Option<(u32, u32, &'static str)>,
}

/// What is used now, against the limits. Cheap to clone.
#[derive(Clone)]
pub struct Quotas(Arc<Inner>);

struct Inner {
    config: RwLock<Arc<QuotaConfig>>,
    used: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    usage: HashMap<Key, Usage>,
    sweep_at: usize,
    permits: u64,
}

/// The right to one request or stream; gives it back when dropped.
#[must_use = "the request counts only while this is held"]
#[derive(Default)]
pub struct Permit(Option<Counted>);

struct Counted {
    quotas: Quotas,
    keys: [Key; 2],
    number: u64,
}

/// The right to one connection; gives it back when dropped.
#[must_use = "the connection counts only while this is held"]
pub struct LinkPermit(Quotas, Key);

impl Quotas {
    /// These limits, and nothing used yet.
    pub fn new(config: QuotaConfig) -> Self {
        Self(Arc::new(Inner { config: RwLock::new(Arc::new(config)), used: Mutex::default() }))
    }

    /// The limits.
    pub fn config(&self) -> Arc<QuotaConfig> {
        Arc::clone(&self.0.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Other limits from now on. What is under way goes on, and counts if it was counted before.
    pub fn replace(&self, config: QuotaConfig) {
        *self.0.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    }

    /// Counts one request or stream of a caller to a site, or says which limit it meets.
    pub fn enter(&self, site: &SiteName, principal: &str, now: Instant) -> Result<Permit, Exceeded> {
        let config = self.config();
        let (of_site, of_principal) = (site_rule(&config), principal_rule(&config));
        if of_site.is_empty() && of_principal.is_empty() {
            return Ok(Permit::default());
        }
        let keys = [Key::Site(site.clone()), Key::Principal(principal.into())];
        let mut books = self.lock();
        books.sweep(now);
        // Both must agree before either is charged.
        let first = books.check(&keys[0], &of_site, now)?;
        let second = books.check(&keys[1], &of_principal, now)?;
        books.permits += 1;
        let number = books.permits;
        for (key, due) in keys.iter().zip([first, second]) {
            let usage = books.usage.entry(key.clone()).or_default();
            usage.streams += 1;
            usage.due = due;
        }
        drop(books);
        Ok(Permit(Some(Counted { quotas: self.clone(), keys, number })))
    }

    /// Counts one connection of a caller, or says that it has too many.
    pub fn connect(&self, principal: &str) -> Result<LinkPermit, Exceeded> {
        let key = Key::Principal(principal.into());
        let mut books = self.lock();
        let usage = books.usage.entry(key.clone()).or_default();
        if let Some(limit) = self.config().principal.links
            && usage.links >= limit
        {
            return Err(Exceeded {
                owner: key.owner(),
                limit: "connections",
                setting: "principal.links",
                value: limit as u64,
                retry_after: None,
            });
        }
        usage.links += 1;
        drop(books);
        Ok(LinkPermit(self.clone(), key))
    }

    /// Requests and streams that are counted now.
    pub fn counted(&self) -> usize {
        let used = self.lock();
        used.usage.iter().filter(|(key, _)| matches!(key, Key::Site(_))).map(|(_, usage)| usage.streams).sum()
    }

    fn leave(&self, key: &Key, change: impl FnOnce(&mut Usage)) {
        let mut books = self.lock();
        if let Some(usage) = books.usage.get_mut(key) {
            change(usage);
            if usage.is_idle(Instant::now()) {
                books.usage.remove(key);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.0.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn site_rule(config: &QuotaConfig) -> Rule {
    let SiteLimits { streams, bytes_in_flight, requests_per_second, burst, .. } = config.site;
    Rule {
        streams: streams.map(|limit| (limit, "site.streams")),
        bytes: bytes_in_flight.map(|limit| (limit, "site.bytes_in_flight")),
        rate: requests_per_second.map(|rate| (rate, burst.unwrap_or(rate), "site.requests_per_second")),
    }
}

fn principal_rule(config: &QuotaConfig) -> Rule {
    let PrincipalLimits { streams, bytes_in_flight, requests_per_second, burst, .. } = config.principal;
    Rule {
        streams: streams.map(|limit| (limit, "principal.streams")),
        bytes: bytes_in_flight.map(|limit| (limit, "principal.bytes_in_flight")),
        rate: requests_per_second.map(|rate| (rate, burst.unwrap_or(rate), "principal.requests_per_second")),
    }
}

impl Rule {
    fn is_empty(&self) -> bool {
        self.streams.is_none() && self.bytes.is_none() && self.rate.is_none()
    }
}

impl Usage {
    fn is_idle(&self, now: Instant) -> bool {
        self.streams == 0 && self.links == 0 && self.due.is_none_or(|due| due <= now)
    }

    /// Bytes that wait to be read. Adding them up touches every stream, so it is not done for every request.
    fn waiting(&mut self, now: Instant) -> u64 {
        match self.waiting {
            Some((at, bytes)) if now < at + ADD_UP => bytes,
            _ => {
                let bytes = self.backlogs.values().map(|backlog| backlog.unread() as u64).sum();
                self.waiting = Some((now, bytes));
                bytes
            }
        }
    }
}

impl Books {
    fn check(&mut self, key: &Key, rule: &Rule, now: Instant) -> Result<Option<Instant>, Exceeded> {
        let mut usage = self.usage.get_mut(key);
        let met = |limit, setting, value, retry_after| Exceeded {
            owner: key.owner(),
            limit,
            setting,
            value,
            retry_after,
        };
        if let Some((limit, setting)) = rule.streams
            && usage.as_ref().is_some_and(|usage| usage.streams >= limit)
        {
            return Err(met("requests under way", setting, limit as u64, None));
        }
        if let Some((limit, setting)) = rule.bytes
            && usage.as_mut().is_some_and(|usage| usage.waiting(now) >= limit)
        {
            return Err(met("bytes that wait to be read", setting, limit, None));
        }
        let due = usage.and_then(|usage| usage.due);
        match rule.rate {
            None => Ok(due),
            Some((rate, burst, setting)) => gcra(due, now, rate, burst)
                .map(Some)
                .map_err(|early| met("requests a second", setting, u64::from(rate), Some(early))),
        }
    }

    fn sweep(&mut self, now: Instant) {
        if self.usage.len() >= self.sweep_at.max(SWEEP) {
            self.usage.retain(|_, usage| !usage.is_idle(now));
            self.sweep_at = self.usage.len() + SWEEP;
        }
    }
}

impl Key {
    fn owner(&self) -> String {
        match self {
            Self::Site(site) => format!("The site `{site}`"),
            Self::Principal(name) => format!("The caller `{name}`"),
        }
    }
}

impl Permit {
    /// Whether anything is counted at all.
    pub fn counts(&self) -> bool {
        self.0.is_some()
    }

    /// Counts what waits in this stream to be read, too.
    pub fn follow(&self, backlog: Option<Backlog>) {
        let (Some(Counted { quotas, keys, number }), Some(backlog)) = (&self.0, backlog) else { return };
        let mut books = quotas.lock();
        for key in keys {
            if let Some(usage) = books.usage.get_mut(key) {
                usage.backlogs.insert(*number, backlog.clone());
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(Counted { quotas, keys, number }) = self.0.take() {
            for key in &keys {
                quotas.leave(key, |usage| {
                    usage.streams -= 1;
                    usage.backlogs.remove(&number);
                });
            }
        }
    }
}

impl Drop for LinkPermit {
    fn drop(&mut self) {
        self.0.leave(&self.1, |usage| usage.links -= 1);
    }
}

#[cfg(test)]
mod tests;
