//! The page itself, built from `web/` and compiled in: no file is read, nothing is fetched from elsewhere.

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

const FILES: &[(&str, &str, &[u8])] = &[
    ("/", "text/html; charset=utf-8", include_bytes!("../dist/index.html")),
    ("/app.js", "text/javascript; charset=utf-8", include_bytes!("../dist/app.js")),
    ("/app.css", "text/css; charset=utf-8", include_bytes!("../dist/app.css")),
    ("/icon.svg", "image/svg+xml", include_bytes!("../dist/icon.svg")),
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
    FILES.iter().fold(Router::new(), |router, &(path, kind, content)| {
        let tag = format!("\"{}\"", hex::encode(&Sha256::digest(content)[..12]));
        router.route(path, get(async move |asked: HeaderMap| file(&asked, &tag, kind, content)))
    })
}

/// The names of the files never change, so a browser asks each time and is told when nothing did.
fn file(asked: &HeaderMap, tag: &str, kind: &'static str, content: &'static [u8]) -> Response {
    let fresh = [(header::ETAG, tag.to_owned()), (header::CACHE_CONTROL, "no-cache".to_owned())];
    let known = asked.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    if known.flat_map(|value| value.split(',')).any(|value| value.trim().trim_start_matches("W/") == tag) {
        return (StatusCode::NOT_MODIFIED, fresh).into_response();
    }
    (fresh, [(header::CONTENT_TYPE, kind)], content).into_response()
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
