//! The page itself, built from `web/` and compiled in: no file is read, nothing is fetched from elsewhere.

use std::io::Read;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};

macro_rules! packed {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".gz"))
    };
}

const FILES: &[(&str, &str, &[u8])] = &[
    ("/", "text/html; charset=utf-8", packed!("index.html")),
    ("/app.js", "text/javascript; charset=utf-8", packed!("app.js")),
    ("/app.css", "text/css; charset=utf-8", packed!("app.css")),
    ("/icon.svg", "image/svg+xml", packed!("icon.svg")),
];

const HEADERS: &[(&str, &str)] = &[
    (
        "content-security-policy",
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
];

pub(crate) fn routes() -> Router {
    FILES.iter().fold(Router::new(), |router, &(path, kind, packed)| {
        // Weak, because it stands for the packed and the plain form alike.
        let tag = format!("W/\"{}\"", hex::encode(&Sha256::digest(packed)[..12]));
        router.route(path, get(async move |asked: HeaderMap| file(&asked, &tag, kind, packed)))
    })
}

/// The names of the files never change, so a browser asks each time and is told when nothing did.
fn file(asked: &HeaderMap, tag: &str, kind: &'static str, packed: &'static [u8]) -> Response {
    let fresh = [
        (header::ETAG, tag.to_owned()),
        (header::CACHE_CONTROL, "no-cache".to_owned()),
        (header::VARY, header::ACCEPT_ENCODING.to_string()),
    ];
    let mut known = words(asked, &header::IF_NONE_MATCH);
    if known.any(|value| value.trim_start_matches("W/") == tag.trim_start_matches("W/")) {
        return (StatusCode::NOT_MODIFIED, fresh).into_response();
    }
    let kind = [(header::CONTENT_TYPE, kind)];
    if words(asked, &header::ACCEPT_ENCODING).any(takes_gzip) {
        return (fresh, kind, [(header::CONTENT_ENCODING, "gzip")], packed).into_response();
    }
    let mut plain = Vec::new();
    match GzDecoder::new(packed).read_to_end(&mut plain) {
        Ok(_) => (fresh, kind, plain).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// The comma-separated words of a header.
fn words<'a>(asked: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> + use<'a> {
    let values = asked.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

/// Whether a word of Accept-Encoding takes gzip: with any weight but none.
fn takes_gzip(word: &str) -> bool {
    let mut parts = word.split(';').map(str::trim);
    let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
    named && parts.filter_map(|part| part.strip_prefix("q=")).all(|weight| weight.parse() != Ok(0.0))
}

/// What every answer says to the browser about what it may do with it.
pub(crate) async fn harden(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in HEADERS {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    if !response.headers().contains_key(header::CACHE_CONTROL) {
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_taken_unless_it_weighs_nothing() {
        for word in ["gzip", "GZIP", "gzip;q=0.5", "gzip; q=1"] {
            assert!(takes_gzip(word), "{word}");
        }
        for word in ["", "br", "gzip;q=0", "gzip; q=0.0", "identity"] {
            assert!(!takes_gzip(word), "{word}");
        }
    }
}
