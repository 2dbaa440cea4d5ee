//! Metadata: HTTP/2 headers on one side, a map of strings on the other.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD_NO_PAD};
use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::Status;

use super::private::AGENT_ID;
use super::proto::prototool::Values;

/// Metadata as the frames carry it: lower-case keys, all values in order, `-bin` values raw.
pub type Meta = BTreeMap<String, Values>;

/// The most that keys and values of one map may hold together.
pub const MAX_METADATA: usize = 64 << 10;

/// gRPC sends base64 without padding and accepts it with.
const PADDED_OR_NOT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Metadata that cannot cross.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// Text that is not UTF-8, for which the frames have no place.
    #[error("the value of metadata `{0}` is not UTF-8 and cannot be carried by a tunnel")]
    NotText(String),
    /// A `-bin` value that is not base64.
    #[error("the value of metadata `{0}` is not base64")]
    NotBase64(String),
    /// A key or value that HTTP/2 cannot carry.
    #[error("metadata `{0}` is not a legal header")]
    NotHeader(String),
    /// Too much of it.
    #[error("metadata of more than {MAX_METADATA} bytes")]
    TooLarge,
}

impl From<MetaError> for Status {
    fn from(error: MetaError) -> Self {
        match error {
            MetaError::TooLarge => Self::resource_exhausted(error.to_string()),
            _ => Self::invalid_argument(error.to_string()),
        }
    }
}

/// Whether a key belongs to one hop only, so that it never enters a tunnel.
///
/// Besides what gRPC itself owns this is the routing of gateways among themselves and the secret they
/// know each other by, which no agent may ever see.
fn is_private(key: &str) -> bool {
    key.starts_with(':')
        || key.starts_with("kas-hop-")
        || matches!(
            key,
            "authorization"
                | "connection"
                | "content-length"
                | "content-type"
                | "grpc-accept-encoding"
                | "grpc-encoding"
                | "grpc-message"
                | "grpc-status"
                | "grpc-status-details-bin"
                | "host"
                | "te"
                | "transfer-encoding"
        )
}

/// Headers to frames. Keys of one hop are left out.
pub fn to_wire(headers: &HeaderMap) -> Result<Meta, MetaError> {
    let mut meta = Meta::new();
    let mut size = 0;
    for (name, value) in headers {
        let key = name.as_str();
        if is_private(key) {
            continue;
        }
        let text = if key.ends_with("-bin") {
            let raw =
                PADDED_OR_NOT.decode(value.as_bytes()).map_err(|_| MetaError::NotBase64(key.to_owned()))?;
            String::from_utf8(raw).map_err(|_| MetaError::NotText(key.to_owned()))?
        } else {
            std::str::from_utf8(value.as_bytes()).map_err(|_| MetaError::NotText(key.to_owned()))?.to_owned()
        };
        size += key.len() + text.len();
        if size > MAX_METADATA {
            return Err(MetaError::TooLarge);
        }
        if let Some(values) = meta.get_mut(key) {
            values.value.push(text);
        } else {
            meta.insert(key.to_owned(), Values { value: vec![text] });
        }
    }
    Ok(meta)
}

/// Frames to headers. Keys of one hop are left out.
pub fn from_wire(meta: Meta) -> Result<HeaderMap, MetaError> {
    let mut headers = HeaderMap::with_capacity(meta.len());
    let mut size = 0;
    for (key, values) in meta {
        let key = key.to_ascii_lowercase();
        if is_private(&key) {
            continue;
        }
        let name = HeaderName::from_bytes(key.as_bytes()).map_err(|_| MetaError::NotHeader(key.clone()))?;
        for text in values.value {
            size += key.len() + text.len();
            if size > MAX_METADATA {
                return Err(MetaError::TooLarge);
            }
            let value = if key.ends_with("-bin") {
                HeaderValue::try_from(STANDARD_NO_PAD.encode(text))
            } else {
                HeaderValue::try_from(text)
            };
            headers.append(&name, value.map_err(|_| MetaError::NotHeader(key.clone()))?);
        }
    }
    Ok(headers)
}

/// The token of an `authorization: Bearer …` header.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(http::header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// The agent that a call is for: exactly one number.
pub fn agent_id(headers: &HeaderMap) -> Option<i64> {
    let mut ids = headers.get_all(AGENT_ID).iter();
    let (Some(id), None) = (ids.next(), ids.next()) else { return None };
    id.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(k, v)| (HeaderName::from_static(k), v.parse().unwrap())).collect()
    }

    #[test]
    fn what_belongs_to_one_hop_stays_there() {
        let all = headers(&[
            ("authorization", "Bearer gateways-only"),
            ("kas-hop-routing-agent-id", "7"),
            ("kas-hop-anything", "x"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("grpc-encoding", "gzip"),
            ("traceparent", "00-1-2-00"),
            ("x-many", "a"),
            ("x-many", "b"),
        ]);
        let meta = to_wire(&all).unwrap();
        assert_eq!(meta.keys().collect::<Vec<_>>(), ["traceparent", "x-many"]);
        assert_eq!(meta["x-many"].value, ["a", "b"]);
    }

    #[test]
    fn binary_values_cross_raw_or_not_at_all() {
        let meta = to_wire(&headers(&[("a-bin", "aGVsbG8="), ("b-bin", "aGVsbG8")])).unwrap();
        assert_eq!((&meta["a-bin"].value[0][..], &meta["b-bin"].value[0][..]), ("hello", "hello"));
        assert_eq!(from_wire(meta).unwrap()["a-bin"], "aGVsbG8");

        let refused = to_wire(&headers(&[("c-bin", "//79")])).unwrap_err();
        assert_eq!(refused, MetaError::NotText("c-bin".into()));
        assert_eq!(Status::from(refused).code(), tonic::Code::InvalidArgument);
        assert_eq!(to_wire(&headers(&[("c-bin", "***")])), Err(MetaError::NotBase64("c-bin".into())));
        let latin =
            HeaderMap::from_iter([(HeaderName::from_static("x"), HeaderValue::from_bytes(b"\xe9").unwrap())]);
        assert_eq!(to_wire(&latin), Err(MetaError::NotText("x".into())));
    }

    #[test]
    fn too_much_is_refused() {
        let meta = Meta::from([("x".to_owned(), Values { value: vec!["y".repeat(MAX_METADATA)] })]);
        assert_eq!(from_wire(meta), Err(MetaError::TooLarge));
    }

    #[test]
    fn bearers() {
        assert_eq!(bearer(&headers(&[("authorization", "Bearer abc")])), Some("abc"));
        assert_eq!(bearer(&headers(&[("authorization", "bearer  abc")])), Some("abc"));
        for bad in ["", "Bearer", "Bearer ", "Basic abc", "abc"] {
            assert_eq!(bearer(&headers(&[("authorization", bad)])), None, "{bad}");
        }
        assert_eq!(bearer(&headers(&[("authorization", "Bearer a"), ("authorization", "Bearer b")])), None);
    }

    proptest! {
        #[test]
        fn there_and_back(pairs in proptest::collection::btree_map("x-[a-z]{1,8}(-bin)?", proptest::collection::vec("[ -~]{0,20}", 1..4), 0..6)) {
            let meta: Meta = pairs.into_iter().map(|(k, value)| (k, Values { value })).collect();
            prop_assert_eq!(to_wire(&from_wire(meta.clone()).unwrap()).unwrap(), meta);
        }

        #[test]
        fn anything_is_taken_or_refused(pairs in proptest::collection::btree_map(".{0,12}", proptest::collection::vec(".{0,12}", 0..3), 0..6)) {
            let _ = from_wire(pairs.into_iter().map(|(k, value)| (k, Values { value })).collect());
        }
    }
}
