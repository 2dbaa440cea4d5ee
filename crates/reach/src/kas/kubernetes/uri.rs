//! Paths and queries: frames carry them decoded.

use http::Uri;
use http::uri::PathAndQuery;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tonic::Status;
use url::form_urlencoded;

use crate::kas::meta::Meta;

/// What a path may hold as it is.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~')
    .remove(b'$')
    .remove(b'&')
    .remove(b'+')
    .remove(b',')
    .remove(b'/')
    .remove(b':')
    .remove(b';')
    .remove(b'=')
    .remove(b'@');

/// The decoded path and the parsed query.
pub(super) fn take_apart(uri: &Uri) -> Result<(String, Meta), Status> {
    let path = percent_decode_str(uri.path())
        .decode_utf8()
        .map_err(|_| Status::invalid_argument("the path is not UTF-8 and cannot be carried by a tunnel"))?;
    let mut query = Meta::new();
    for (key, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
        query.entry(key.into_owned()).or_default().value.push(value.into_owned());
    }
    Ok((path.into_owned(), query))
}

/// A path with its query, from what frames carry.
pub(super) fn put_together(path: &str, query: &Meta) -> Result<Uri, Status> {
    if !path.starts_with('/') {
        return Err(Status::invalid_argument("HttpRequest: a path that does not begin with a slash"));
    }
    let mut text = utf8_percent_encode(path, IN_PATH).to_string();
    if !query.is_empty() {
        let mut pairs = form_urlencoded::Serializer::new(String::new());
        for (key, values) in query {
            for value in &values.value {
                pairs.append_pair(key, value);
            }
        }
        text.push('?');
        text.push_str(&pairs.finish());
    }
    PathAndQuery::try_from(text)
        .map(Uri::from)
        .map_err(|_| Status::invalid_argument("HttpRequest: a path that makes no URL"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn escapes_are_lost_and_order_is_kept_by_key() {
        let (path, query) = take_apart(&"/api/v1/x%2Fy?b=2&a=1&b=3".parse().unwrap()).unwrap();
        assert_eq!(path, "/api/v1/x/y");
        assert_eq!(
            (&query["a"].value[..], &query["b"].value[..]),
            (&["1".into()][..], &["2".into(), "3".into()][..])
        );
        assert_eq!(put_together(&path, &query).unwrap(), "/api/v1/x/y?a=1&b=2&b=3");
    }

    #[test]
    fn odd_characters_are_escaped_again() {
        let (path, query) = take_apart(&"/a%20b/%3Fc;d?q=x%26y+z".parse().unwrap()).unwrap();
        assert_eq!(put_together(&path, &query).unwrap(), "/a%20b/%3Fc;d?q=x%26y+z");
        assert!(take_apart(&"/%ff".parse().unwrap()).is_err());
        for bad in ["", "api", "*", "http://elsewhere/"] {
            assert!(put_together(bad, &Meta::new()).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_decoded_path_survives(path in "/\\PC{0,30}", query in proptest::collection::btree_map("\\PC{1,8}", "\\PC{0,8}", 0..4)) {
            let query: Meta = query.into_iter().map(|(k, v)| (k, crate::kas::proto::prototool::Values { value: vec![v] })).collect();
            let uri = put_together(&path, &query).unwrap();
            prop_assert_eq!(take_apart(&uri).unwrap(), (path, query));
        }
    }
}
