//! The keys of sites that were used from this machine: trusted when first seen, and no others after.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use tarbet_identity::{Pin, PinSet, files};
use tarbet_reach::gateway::SiteView;
use tarbet_reach::names::SiteName;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, reach};

use super::endpoint::Server;
use super::state_folder;

const FILE: &str = "known-sites.json";

/// An agent knows that it is connected a little before its gateway tells others.
const LOOKS: usize = 4;
const BETWEEN: Duration = Duration::from_millis(500);

/// Keys by gateway and site.
type Known = BTreeMap<String, Vec<Pin>>;

/// The keys to accept for a site: those remembered here, else those that the gateway names now,
/// which are remembered. `trust_new` remembers what the gateway names in any case. Nothing if
/// nobody knows any.
pub fn keys(
    server: &str,
    site: &SiteName,
    named: &[Pin],
    trust_new: bool,
) -> Result<Option<PinSet>, Problem> {
    let (mut known, entry) = (read()?, format!("{server} {site}"));
    if learn(&mut known, &entry, named, trust_new) {
        // Commands that start at once learn one after the other, and what one has learnt the others believe.
        let failed = |error: std::io::Error| unusable(error.to_string());
        files::private_folder(&state_folder()).map_err(failed)?;
        let _turn = files::turn(&file());
        known = read()?;
        if learn(&mut known, &entry, named, trust_new) {
            let text = serde_json::to_string_pretty(&known).map_err(|error| unusable(error.to_string()))?;
            files::replace(&file(), text.as_bytes(), files::PRIVATE).map_err(failed)?;
        }
    }
    let accepted = known.remove(&entry).unwrap_or_default();
    Ok((!accepted.is_empty()).then(|| set(accepted)))
}

/// Adds what is named now, if that is to be trusted. False if there is nothing to remember.
fn learn(known: &mut Known, entry: &str, named: &[Pin], trust_new: bool) -> bool {
    let pins = known.entry(entry.to_owned()).or_default();
    let news: Vec<Pin> = named.iter().copied().filter(|pin| !pins.contains(pin)).collect();
    let learns = (pins.is_empty() || trust_new) && !news.is_empty();
    if learns {
        pins.extend(news);
    }
    learns
}

/// The same for what the gateway says of a site now. One that it does not know yet has no keys: roles may start
/// before their site is added.
pub async fn of_site(server: &Server, site: &SiteName, trust_new: bool) -> Result<Option<PinSet>, Problem> {
    let found = match super::site_now::of(server, site).await {
        Err(problem) if problem.code == reach::SITE_UNKNOWN.id => Vec::new(),
        found => shown(&found?),
    };
    keys(&server.url, site, &found, trust_new)
}

/// The keys that agents of a site have shown, and those of agents that came just now.
fn shown(site: &SiteView) -> Vec<Pin> {
    let mut pins: Vec<Pin> = site.keys.iter().map(|key| key.pin).collect();
    for pin in site.links.iter().filter_map(|link| link.key) {
        if !pins.contains(&pin) {
            pins.push(pin);
        }
    }
    pins
}

/// The same for a person, who is told at once if there is no such site, and never led to it unsealed.
/// `instead` says what else they can do.
pub async fn must_have(
    server: &Server,
    site: &SiteName,
    trust_new: bool,
    instead: &str,
) -> Result<PinSet, Problem> {
    for look in 1..=LOOKS {
        let found = super::site_now::of(server, site).await?;
        if let Some(keys) = keys(&server.url, site, &shown(&found), trust_new)? {
            return Ok(keys);
        }
        if look < LOOKS {
            tokio::time::sleep(BETWEEN).await;
        }
    }
    Err(keyless(site, instead))
}

/// Without a key nobody can tell the agent from somebody in between.
fn keyless(site: &SiteName, instead: &str) -> Problem {
    Problem::new(&ground::BAD_REQUEST, format!("The agent of `{site}` has shown no key yet."))
        .at("tarbet command line")
        .because("without one nobody can tell it from somebody in between, so nothing can be sealed up to it")
        .advising(format!("wait until it is connected (tarbet site list), or {instead}"))
}

/// Who calls can be proven only to the agent itself.
pub fn unprovable(site: &SiteName) -> Problem {
    Problem::new(&ground::BAD_REQUEST, format!("Nobody can be proven to the site `{site}` this way."))
        .at("tarbet command line")
        .because("the proof goes inside a connection that is sealed up to the agent, and this one is not")
        .advising("leave out --plain, and run an agent that has a key; or leave out --caller-key")
}

fn set(pins: Vec<Pin>) -> PinSet {
    let set = PinSet::default();
    set.set(pins);
    set
}

fn file() -> PathBuf {
    state_folder().join(FILE)
}

fn unusable(cause: String) -> Problem {
    Problem::new(
        &ground::CONFIG_UNREADABLE,
        format!("The file of known sites {} cannot be used.", file().display()),
    )
    .at("tarbet command line")
    .because(cause)
}

fn read() -> Result<Known, Problem> {
    match std::fs::read(file()) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| unusable(error.to_string())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Known::default()),
        Err(error) => Err(unusable(error.to_string())),
    }
}
