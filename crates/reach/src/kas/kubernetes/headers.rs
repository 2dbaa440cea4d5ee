//! HTTP headers on their way through frames.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use tonic::Status;

use crate::kas::meta::Meta;
use crate::kas::proto::prototool::Values;

/// For one connection only, whatever `Connection` says.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// For the gateway itself, never for a site.
const FOR_THE_GATEWAY: [HeaderName; 5] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::HOST,
    HeaderName::from_static("gitlab-agent-id"),
    HeaderName::from_static("x-csrf-token"),
];

/// Removes what belongs to one connection. Gives the protocol that the request or response changes to;
/// it has been put back, alone.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) -> Option<HeaderValue> {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let upgrade = headers.get(header::UPGRADE).cloned().filter(|_| named.contains(&header::UPGRADE));
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    if let Some(protocol) = &upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, protocol.clone());
    }
    upgrade
}

/// Removes what a caller sends for the gateway.
pub(super) fn strip_credentials(headers: &mut HeaderMap) {
    for name in &FOR_THE_GATEWAY {
        headers.remove(name);
    }
}

/// Removes what only the gateway may say to a browser.
pub(super) fn strip_cors(headers: &mut HeaderMap) {
    let names: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("access-control-")).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// The name as Go programs write it: `content-type` is `Content-Type`.
pub fn canonical(name: &HeaderName) -> String {
    let mut start = true;
    let letter = |byte: u8| {
        let letter = if start { byte.to_ascii_uppercase() } else { byte };
        start = byte == b'-';
        char::from(letter)
    };
    name.as_str().bytes().map(letter).collect()
}

pub(super) fn to_wire(headers: &HeaderMap) -> Result<Meta, Status> {
    let mut meta = Meta::new();
    for name in headers.keys() {
        let value = headers.get_all(name).iter().map(|value| text(name, value)).collect::<Result<_, _>>()?;
        meta.insert(canonical(name), Values { value });
    }
    Ok(meta)
}

fn text(name: &HeaderName, value: &HeaderValue) -> Result<String, Status> {
    std::str::from_utf8(value.as_bytes()).map(ToOwned::to_owned).map_err(|_| {
        Status::invalid_argument(format!(
            "the header `{name}` is not UTF-8 and cannot be carried by a tunnel"
        ))
    })
}

pub(super) fn from_wire(meta: Meta) -> Result<HeaderMap, Status> {
    let mut headers = HeaderMap::with_capacity(meta.len());
    for (name, values) in meta {
        let illegal = || {
            let shown: String = name.chars().take(40).collect();
            Status::invalid_argument(format!("the header `{shown}` is not a legal one"))
        };
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| illegal())?;
        for value in values.value {
            headers.append(&key, HeaderValue::try_from(value).map_err(|_| illegal())?);
        }
    }
    Ok(headers)
}

/// Says that we passed it on.
pub(super) fn add_via(headers: &mut HeaderMap, via: &str) {
    if let Ok(value) = HeaderValue::from_str(via) {
        headers.append(header::VIA, value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        pairs.iter().map(|(k, v)| (k.parse::<HeaderName>().unwrap(), v.parse().unwrap())).collect()
    }

    #[test]
    fn names_are_written_as_go_does() {
        let name = |text: &str| canonical(&text.parse().unwrap());
        assert_eq!(name("content-type"), "Content-Type");
        assert_eq!(name("x-stream-protocol-version"), "X-Stream-Protocol-Version");
        assert_eq!(name("te"), "Te");
        assert_eq!(name("a--b"), "A--B");
    }

    #[test]
    fn an_upgrade_survives_and_nothing_else_of_the_connection() {
        let mut all = headers(&[
            ("connection", "Upgrade, X-Private"),
            ("upgrade", "SPDY/3.1"),
            ("x-private", "1"),
            ("keep-alive", "5"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("x-stays", "1"),
        ]);
        assert_eq!(strip_hop_by_hop(&mut all).unwrap(), "SPDY/3.1");
        assert_eq!(all, headers(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1"), ("x-stays", "1")]));
        // Without the connection's consent it is only a header.
        let mut lone = headers(&[("upgrade", "h2c"), ("connection", "close")]);
        assert_eq!(strip_hop_by_hop(&mut lone), None);
        assert!(lone.is_empty());
    }

    #[test]
    fn credentials_never_reach_a_site() {
        let mut all = headers(&[
            ("authorization", "Bearer ci:1:x"),
            ("cookie", "_gitlab_kas=1"),
            ("host", "kas"),
            ("gitlab-agent-id", "1"),
            ("x-csrf-token", "x"),
            ("accept", "*/*"),
        ]);
        strip_credentials(&mut all);
        assert_eq!(all, headers(&[("accept", "*/*")]));
    }

    proptest! {
        #[test]
        fn there_and_back(pairs in proptest::collection::vec(("x-[a-z]{1,6}", "[ -~]{0,12}"), 0..8)) {
            let all: HeaderMap = pairs.iter().map(|(k, v)| (k.parse::<HeaderName>().unwrap(), v.parse().unwrap())).collect();
            prop_assert_eq!(from_wire(to_wire(&all).unwrap()).unwrap(), all);
        }
    }
}
