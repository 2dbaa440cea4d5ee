//! Where agents reach the gateways, for the command that `tarbet site add` prints.

use std::convert::Infallible;
use std::net::IpAddr;

use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use tarbet_telemetry::problem::chain;
use url::{Host, Url};

use crate::gateway::Hub;

/// The host by which whoever asks reaches this gateway.
pub(super) struct AskedAt(Option<String>);

impl<S: Sync> FromRequestParts<S> for AskedAt {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let named = || parts.headers.get(header::HOST)?.to_str().ok()?.parse::<Authority>().ok();
        let authority = parts.uri.authority().cloned().or_else(named);
        Ok(Self(authority.map(|authority| authority.host().to_owned())))
    }
}

/// The doors of all gateways that know theirs, this one's first.
pub(super) async fn all(hub: &Hub, asked: &AskedAt) -> Vec<String> {
    let own = hub.config().agents_url.clone();
    let mut found: Vec<String> = own.and_then(|url| named(&url, asked.0.as_deref())).into_iter().collect();
    if let Some(registry) = &hub.registry {
        match registry.colleagues().await {
            Ok(others) => found.extend(others.into_iter().filter_map(|other| other.agents)),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "Where agents reach other gateways is not known.");
            }
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|url| seen.insert(url.clone()));
    found
}

/// Whether a URL names every address of a machine, and so none that could be dialled.
pub(in crate::gateway) fn is_everywhere(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_unspecified(),
        Some(Host::Ipv6(address)) => address.is_unspecified(),
        // Of a scheme that is not the web's, addresses are names to the library.
        Some(Host::Domain(name)) => name.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified()),
        None => false,
    }
}

/// A URL that can be dialled: with the host by which the API was asked, where it has none of its own.
fn named(url: &str, asked: Option<&str>) -> Option<String> {
    if !is_everywhere(url) {
        return Some(url.to_owned());
    }
    let (scheme, rest) = url.split_once("://")?;
    let after = rest.rfind(':').map_or("", |colon| &rest[colon..]);
    Some(format!("{scheme}://{}{after}", asked?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_door_has_a_host_that_can_be_dialled() {
        for (url, told) in [
            ("grpcs://10.0.0.5:8150", Some("grpcs://10.0.0.5:8150")),
            ("wss://gateway.example.org/agents", Some("wss://gateway.example.org/agents")),
            ("grpcs://0.0.0.0:8150", Some("grpcs://gw.example.org:8150")),
            ("grpc://[::]:8150", Some("grpc://gw.example.org:8150")),
        ] {
            assert_eq!(named(url, Some("gw.example.org")).as_deref(), told, "{url}");
        }
        assert_eq!(named("grpcs://0.0.0.0:8150", None), None);
        assert_eq!(named("grpcs://0.0.0.0:8150", Some("[fd00::7]")).unwrap(), "grpcs://[fd00::7]:8150");
    }
}
