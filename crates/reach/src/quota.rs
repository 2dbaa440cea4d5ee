//! Limits for each site and each caller, so that none of them can starve the others.
//!
//! A limit counts what one gateway carries; with several gateways each has its own count. Rates
//! are kept by one moment per key (GCRA), so a limit costs the same whatever its value.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tarbet_telemetry::codes::reach;
use tarbet_telemetry::{Coded, Problem};
use tokio::time::Instant;

use crate::names::SiteName;

/// Keys that are remembered only for their rate are looked through when there are this many more.
const SWEEP: usize = 1024;

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
    /// Requests and streams begun in a second.
    pub requests_per_second: Option<u32>,
    /// How many may come at once before the rate counts; a second's worth if absent.
    pub burst: Option<u32>,
}

impl Default for SiteLimits {
    fn default() -> Self {
        Self { links: 256, streams: None, requests_per_second: None, burst: None }
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
            ("site.requests_per_second", site.requests_per_second.map(u64::from)),
            ("site.burst", site.burst.map(u64::from)),
            ("principal.links", principal.links.map(|value| value as u64)),
            ("principal.streams", principal.streams.map(|value| value as u64)),
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
}

struct Rule {
    streams: Option<(usize, &'static str)>,
    rate: Option<(u32, u32, &'static str)>,
}

/// What is used now, against the limits. Cheap to clone.
#[derive(Clone)]
pub struct Quotas(Arc<Inner>);

struct Inner {
    config: QuotaConfig,
    used: Mutex<Books>,
}

#[derive(Default)]
struct Books {
    usage: HashMap<Key, Usage>,
    sweep_at: usize,
}

/// The right to one request or stream; gives it back when dropped.
#[must_use = "the request counts only while this is held"]
#[derive(Default)]
pub struct Permit(Option<(Quotas, [Key; 2])>);

/// The right to one connection; gives it back when dropped.
#[must_use = "the connection counts only while this is held"]
pub struct LinkPermit(Quotas, Key);

impl Quotas {
    /// These limits, and nothing used yet.
    pub fn new(config: QuotaConfig) -> Self {
        Self(Arc::new(Inner { config, used: Mutex::default() }))
    }

    /// The limits.
    pub fn config(&self) -> &QuotaConfig {
        &self.0.config
    }

    /// Counts one request or stream of a caller to a site, or says which limit it meets.
    pub fn enter(&self, site: &SiteName, principal: &str, now: Instant) -> Result<Permit, Exceeded> {
        let (of_site, of_principal) = (self.site_rule(), self.principal_rule());
        if of_site.is_empty() && of_principal.is_empty() {
            return Ok(Permit::default());
        }
        let keys = [Key::Site(site.clone()), Key::Principal(principal.into())];
        let mut books = self.lock();
        books.sweep(now);
        // Both must agree before either is charged.
        let first = books.check(&keys[0], &of_site, now)?;
        let second = books.check(&keys[1], &of_principal, now)?;
        for (key, due) in keys.iter().zip([first, second]) {
            let usage = books.usage.entry(key.clone()).or_default();
            usage.streams += 1;
            usage.due = due;
        }
        drop(books);
        Ok(Permit(Some((self.clone(), keys))))
    }

    /// Counts one connection of a caller, or says that it has too many.
    pub fn connect(&self, principal: &str) -> Result<LinkPermit, Exceeded> {
        let key = Key::Principal(principal.into());
        let mut books = self.lock();
        let usage = books.usage.entry(key.clone()).or_default();
        if let Some(limit) = self.0.config.principal.links
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

    fn site_rule(&self) -> Rule {
        let SiteLimits { streams, requests_per_second, burst, .. } = self.0.config.site;
        Rule {
            streams: streams.map(|limit| (limit, "site.streams")),
            rate: requests_per_second.map(|rate| (rate, burst.unwrap_or(rate), "site.requests_per_second")),
        }
    }

    fn principal_rule(&self) -> Rule {
        let PrincipalLimits { streams, requests_per_second, burst, .. } = self.0.config.principal;
        Rule {
            streams: streams.map(|limit| (limit, "principal.streams")),
            rate: requests_per_second
                .map(|rate| (rate, burst.unwrap_or(rate), "principal.requests_per_second")),
        }
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

impl Rule {
    fn is_empty(&self) -> bool {
        self.streams.is_none() && self.rate.is_none()
    }
}

impl Usage {
    fn is_idle(&self, now: Instant) -> bool {
        self.streams == 0 && self.links == 0 && self.due.is_none_or(|due| due <= now)
    }
}

impl Books {
    fn check(&self, key: &Key, rule: &Rule, now: Instant) -> Result<Option<Instant>, Exceeded> {
        let usage = self.usage.get(key);
        let met = |limit, setting, value, retry_after| Exceeded {
            owner: key.owner(),
            limit,
            setting,
            value,
            retry_after,
        };
        if let Some((limit, setting)) = rule.streams
            && usage.is_some_and(|usage| usage.streams >= limit)
        {
            return Err(met("requests under way", setting, limit as u64, None));
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
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some((quotas, keys)) = self.0.take() {
            for key in &keys {
                quotas.leave(key, |usage| usage.streams -= 1);
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn quotas(site: SiteLimits, principal: PrincipalLimits) -> Quotas {
        Quotas::new(QuotaConfig { site, principal })
    }

    fn lab() -> SiteName {
        "lab".parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn streams_are_counted_until_they_end_and_nothing_is_left_behind() {
        let quotas =
            quotas(SiteLimits { streams: Some(2), ..SiteLimits::default() }, PrincipalLimits::default());
        let now = Instant::now();
        let first = quotas.enter(&lab(), "ann", now).unwrap();
        let second = quotas.enter(&lab(), "bob", now).unwrap();
        let refused = quotas.enter(&lab(), "ann", now).err().unwrap();
        assert_eq!((refused.setting, refused.value), ("site.streams", 2));
        assert!(refused.problem().message.contains("`lab`"), "{refused}");
        drop(quotas.enter(&"other".parse().unwrap(), "ann", now).unwrap());
        drop(first);
        drop(quotas.enter(&lab(), "ann", now).unwrap());
        drop(second);
        assert_eq!(quotas.counted(), 0);
        assert!(quotas.lock().usage.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_by_one_limit_does_not_charge_the_other() {
        let rate = PrincipalLimits { requests_per_second: Some(1), ..PrincipalLimits::default() };
        let quotas = quotas(SiteLimits { streams: Some(1), ..SiteLimits::default() }, rate);
        let held = quotas.enter(&lab(), "ann", Instant::now()).unwrap();
        for _ in 0..5 {
            assert_eq!(quotas.enter(&lab(), "bob", Instant::now()).err().unwrap().setting, "site.streams");
        }
        drop(held);
        drop(quotas.enter(&lab(), "bob", Instant::now()).unwrap());
        let early = quotas.enter(&lab(), "bob", Instant::now()).err().unwrap();
        assert_eq!(early.setting, "principal.requests_per_second");
        tokio::time::advance(early.retry_after.unwrap()).await;
        drop(quotas.enter(&lab(), "bob", Instant::now()).unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn connections_of_one_caller_are_limited() {
        let quotas =
            quotas(SiteLimits::default(), PrincipalLimits { links: Some(1), ..PrincipalLimits::default() });
        let held = quotas.connect("ann").unwrap();
        assert!(quotas.connect("ann").is_err());
        let _other = quotas.connect("bob").unwrap();
        drop(held);
        let _again = quotas.connect("ann").unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn without_limits_nothing_is_remembered() {
        let quotas = quotas(SiteLimits::default(), PrincipalLimits::default());
        let _permit = quotas.enter(&lab(), "ann", Instant::now()).unwrap();
        assert!(quotas.lock().usage.is_empty());
    }

    proptest! {
        #[test]
        fn no_second_has_more_than_rate_and_burst(
            rate in 1u32..50, burst in 1u32..20, gaps in prop::collection::vec(0u64..200, 1..300),
        ) {
            let start = Instant::now();
            let (mut now, mut due, mut passed) = (start, None, Vec::new());
            for gap in gaps {
                now += Duration::from_millis(gap);
                if let Ok(next) = gcra(due, now, rate, burst) {
                    due = Some(next);
                    passed.push(now);
                }
            }
            for (i, from) in passed.iter().enumerate() {
                let within = passed[i..].iter().take_while(|at| **at - *from < Duration::from_secs(1)).count();
                prop_assert!(within <= (rate + burst) as usize, "{within} in a second");
            }
        }

        #[test]
        fn who_waits_as_long_as_told_gets_through(rate in 1u32..50, burst in 1u32..20) {
            let now = Instant::now();
            let mut due = None;
            while let Ok(next) = gcra(due, now, rate, burst) {
                due = Some(next);
            }
            let early = gcra(due, now, rate, burst).unwrap_err();
            prop_assert!(gcra(due, now + early, rate, burst).is_ok());
        }
    }
}
