//! The keys of sites that were used from this machine: trusted when first seen, and no others after.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tarbet_identity::{Pin, PinSet};
use tarbet_reach::directory::SiteKey;
use tarbet_reach::gateway::SiteView;
use tarbet_reach::names::SiteName;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;

use super::endpoint::Server;
use super::state_folder;

const FILE: &str = "known-sites.json";

/// Keys by gateway and site.
type Known = BTreeMap<String, Vec<Pin>>;

/// The keys to accept for a site: those remembered here, else those that the gateway names now,
/// which are remembered. `trust_new` remembers what the gateway names in any case. Nothing if
/// nobody knows any.
pub fn keys(
    server: &str,
    site: &SiteName,
    named: &[SiteKey],
    trust_new: bool,
) -> Result<Option<PinSet>, Problem> {
    let (mut known, entry) = (read()?, format!("{server} {site}"));
    let pins = known.entry(entry).or_default();
    let news: Vec<Pin> = named.iter().map(|key| key.pin).filter(|pin| !pins.contains(pin)).collect();
    if (pins.is_empty() || trust_new) && !news.is_empty() {
        pins.extend(news);
        let accepted = pins.clone();
        write(&known)?;
        return Ok(Some(set(accepted)));
    }
    let accepted = pins.clone();
    Ok((!accepted.is_empty()).then(|| set(accepted)))
}

/// The same for what the gateway says of a site now.
pub async fn of_site(server: &Server, site: &SiteName, trust_new: bool) -> Result<Option<PinSet>, Problem> {
    let sites: Vec<SiteView> = server.ask(reqwest::Method::GET, "/v1/sites", None).await?;
    let named = sites.into_iter().find(|found| found.name == *site).map(|site| site.keys).unwrap_or_default();
    keys(&server.url, site, &named, trust_new)
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

fn write(known: &Known) -> Result<(), Problem> {
    let failed = |error: std::io::Error| unusable(error.to_string());
    std::fs::create_dir_all(state_folder()).map_err(failed)?;
    let text = serde_json::to_vec_pretty(known).map_err(|error| unusable(error.to_string()))?;
    let beside = file().with_extension("new");
    std::fs::write(&beside, text).map_err(failed)?;
    std::fs::rename(beside, file()).map_err(failed)
}
