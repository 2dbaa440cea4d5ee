//! A role's way to a site by its name alone: through a gateway, sealed up to the site's own agent.

use tarbet_identity::{Pin, PinSet};
use tarbet_reach::client::RemoteSite;
use tarbet_reach::names::SiteName;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;

use crate::cli::endpoint::ServerArgs;
use crate::cli::known_sites;

/// The way to a site for what is sealed by itself: it need not be sealed once more, unless the site shall be
/// told who calls.
pub async fn open_way(server: &ServerArgs, site: &str) -> Result<RemoteSite, Problem> {
    if server.vouches() {
        return way(server, site, &[]).await;
    }
    let name: SiteName = site.parse().map_err(|error| unusable(site, format!("{error}")))?;
    Ok(server.connect()?.client()?.site(name))
}

fn unusable(site: &str, cause: String) -> Problem {
    Problem::new(&ground::CONFIG_INVALID, format!("The site `{site}` cannot be used.")).because(cause)
}

/// The way to a site. Only an agent with one of these keys is spoken to; without any, those that
/// were seen first from this machine, else those that the gateway names now. Agents too old to
/// have a key are reached through the gateway's own TLS only.
pub async fn way(server: &ServerArgs, site: &str, keys: &[String]) -> Result<RemoteSite, Problem> {
    let name: SiteName = site.parse().map_err(|error| unusable(site, format!("{error}")))?;
    let pins: Result<Vec<Pin>, Problem> = keys
        .iter()
        .map(|key| key.parse::<Pin>().map_err(|error| unusable(site, format!("the key `{key}`: {error}"))))
        .collect();
    let pins = pins?;
    let server = server.connect()?;
    let way = server.client()?.site(name.clone());
    let known = if pins.is_empty() {
        known_sites::of_site(&server, &name, false).await?
    } else {
        Some(pins.into_iter().collect::<PinSet>())
    };
    if let Some(keys) = known {
        tracing::info!(site = %name, "The way to the site is sealed up to its agent.");
        way.sealed(keys, server.prove(&name)?)
    } else if server.voucher.is_some() {
        Err(known_sites::unprovable(&name))
    } else {
        tracing::warn!(site = %name, "The site's agent has no key yet: the gateway could read what passes.");
        Ok(way)
    }
}
