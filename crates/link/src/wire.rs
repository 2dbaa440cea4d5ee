//! How requests, upgrades, streams and refusals look on the link.
//!
//! A call is an ordinary HTTP/2 request. Upgrades and byte streams are extended CONNECT requests
//! whose `:protocol` says which; what HTTP/2 has no place for travels in `tarbet-*` headers. The
//! headers named here belong to the link: they are removed from what callers and services send.

use std::fmt::Write as _;

use h2::ext::Protocol;
use http::header::{
    CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE as UPGRADE_HEADER,
};
use http::{Method, Request, Response, StatusCode, Uri, Version, request, response};

use crate::body::Body;
use crate::error::{Denial, LinkError};
use crate::taken::OnTaken;
use crate::target::Target;

pub(crate) const UPGRADE: &str = "tarbet-upgrade";
pub(crate) const STREAM: &str = "tarbet-stream";
pub(crate) const CONTROL: &str = "tarbet-control";

const TARGET: HeaderName = HeaderName::from_static("tarbet-target");
const METHOD: HeaderName = HeaderName::from_static("tarbet-method");
const TOKEN: HeaderName = HeaderName::from_static("tarbet-upgrade");
const STATUS: HeaderName = HeaderName::from_static("tarbet-status");
const CODE: HeaderName = HeaderName::from_static("tarbet-code");
const HOP: HeaderName = HeaderName::from_static("tarbet-hop");
const MESSAGE: HeaderName = HeaderName::from_static("tarbet-message");
const UNTOUCHED: HeaderName = HeaderName::from_static("tarbet-untouched");
const SAY: HeaderName = HeaderName::from_static("tarbet-say-when-taken");
const OWN: [HeaderName; 9] = [TARGET, METHOD, TOKEN, STATUS, CODE, HOP, MESSAGE, UNTOUCHED, SAY];

/// The largest header list that is ever sent. A peer that is sent too much ends the connection, so
/// what is too much is found out before; every peer takes twice this.
pub(crate) const MAX_HEADERS: usize = 128 * 1024;

/// The longest text of a refusal, encoded.
const MAX_TEXT: usize = 2048;

/// The authority of requests that have none of their own.
const NOWHERE: &str = "http://link/";

/// Removes what belongs to one connection, and what belongs to the link.
pub(crate) fn clean(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let listed: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|name| name.trim().parse().ok())
            .collect();
        for name in listed {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    headers.remove(TRANSFER_ENCODING);
    headers.remove(UPGRADE_HEADER);
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
    if headers.get(TE).is_some_and(|value| value != "trailers") {
        headers.remove(TE);
    }
    for name in OWN {
        headers.remove(name);
    }
}

/// The protocol a request asks to change to, if it asks.
pub(crate) fn upgrade_token(headers: &HeaderMap) -> Option<HeaderValue> {
    let asks = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|option| option.trim().eq_ignore_ascii_case("upgrade"));
    asks.then(|| headers.get(UPGRADE_HEADER).cloned()).flatten()
}

/// Whether headers are small enough to be sent, counted as HTTP/2 counts them.
pub(crate) fn fits(headers: &HeaderMap) -> bool {
    let size = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + 32;
    headers.iter().map(size).sum::<usize>() <= MAX_HEADERS
}

fn check_size(parts: &request::Parts) -> Result<(), LinkError> {
    // The longest URI `http` knows is half of what is allowed, so it need not be counted.
    if fits(&parts.headers) {
        return Ok(());
    }
    let text = format!("its headers have more than {} KiB", MAX_HEADERS / 1024);
    Err(LinkError::Request(text.into()))
}

fn set_target(headers: &mut HeaderMap, target: Option<&Target>) {
    if let Some(value) = target.and_then(|target| target.to_string().parse().ok()) {
        headers.insert(TARGET, value);
    }
}

pub(crate) fn take_target(headers: &mut HeaderMap) -> Result<Option<Target>, Denial> {
    let Some(value) = headers.remove(TARGET) else { return Ok(None) };
    let target = value.to_str().ok().and_then(|text| text.parse().ok());
    target.map(Some).ok_or_else(|| malformed("The target of the request cannot be read."))
}

/// A call as it goes on the link.
pub(crate) fn call(mut parts: request::Parts) -> Result<Request<()>, LinkError> {
    if parts.method == Method::CONNECT {
        return Err(LinkError::Request("CONNECT is not a call; open a stream instead".into()));
    }
    clean(&mut parts.headers);
    check_size(&parts)?;
    set_target(&mut parts.headers, parts.extensions.get::<Target>());
    if parts.extensions.get::<OnTaken>().is_some() {
        parts.headers.insert(SAY, HeaderValue::from_static("1"));
    }
    settle_authority(&mut parts);
    parts.extensions.clear();
    Ok(Request::from_parts(parts, ()))
}

/// Whether the one who sent a call waits to hear that it was taken.
pub(crate) fn take_say(headers: &mut HeaderMap) -> bool {
    headers.remove(SAY).is_some()
}

/// The word that a call was taken.
pub(crate) fn taken() -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::CONTINUE;
    response
}

// HTTP/2 wants a scheme and an authority or neither; a request that came by HTTP/1 has neither.
fn settle_authority(parts: &mut request::Parts) {
    if parts.uri.authority().is_some() && parts.uri.scheme().is_some() {
        parts.headers.remove(HOST);
        parts.version = Version::HTTP_2;
    } else {
        parts.version = Version::HTTP_11;
    }
}

/// An upgrade as it goes on the link.
pub(crate) fn upgrade(mut parts: request::Parts, token: HeaderValue) -> Result<Request<()>, LinkError> {
    let method = HeaderValue::from_str(parts.method.as_str())
        .map_err(|_| LinkError::Request("its method is not text".into()))?;
    clean(&mut parts.headers);
    check_size(&parts)?;
    set_target(&mut parts.headers, parts.extensions.get::<Target>());
    parts.headers.insert(METHOD, method);
    parts.headers.insert(TOKEN, token);
    parts.method = Method::CONNECT;
    // An extended CONNECT has a scheme and a path, so it needs an authority as well.
    if parts.uri.authority().is_none() {
        let authority = parts.headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("link");
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        parts.uri = Uri::builder()
            .scheme("http")
            .authority(authority)
            .path_and_query(path)
            .build()
            .map_err(|_| LinkError::Request("its Host header or path is not part of a URI".into()))?;
    }
    settle_authority(&mut parts);
    parts.extensions.clear();
    parts.extensions.insert(Protocol::from_static(UPGRADE));
    Ok(Request::from_parts(parts, ()))
}

/// The opening of a byte stream.
pub(crate) fn stream(target: &Target) -> Request<()> {
    let mut request = connect(STREAM);
    set_target(request.headers_mut(), Some(target));
    request
}

/// The opening of the stream over which the two ends talk about the link itself.
pub(crate) fn control() -> Request<()> {
    connect(CONTROL)
}

fn connect(protocol: &'static str) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = Uri::from_static(NOWHERE);
    *request.version_mut() = Version::HTTP_2;
    request.extensions_mut().insert(Protocol::from_static(protocol));
    request
}

/// At the agent: the request as it was before it became an extended CONNECT.
pub(crate) fn restore_upgrade(parts: &mut request::Parts) -> Result<(), Denial> {
    let method = parts.headers.remove(METHOD).and_then(|value| Method::from_bytes(value.as_bytes()).ok());
    let token = parts.headers.remove(TOKEN);
    let (Some(method), Some(token)) = (method, token) else {
        return Err(malformed("The upgrade lacks its method or its protocol."));
    };
    parts.method = method;
    parts.version = Version::HTTP_11;
    parts.extensions.remove::<Protocol>();
    parts.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    parts.headers.insert(UPGRADE_HEADER, token);
    Ok(())
}

/// At the agent: the answer to an upgrade that was granted.
pub(crate) fn granted(mut parts: response::Parts) -> Response<()> {
    let token = parts.headers.get(UPGRADE_HEADER).cloned();
    clean(&mut parts.headers);
    parts.headers.insert(STATUS, HeaderValue::from(parts.status.as_u16()));
    if let Some(token) = token {
        parts.headers.insert(TOKEN, token);
    }
    parts.status = StatusCode::OK;
    parts.version = Version::HTTP_2;
    Response::from_parts(parts, ())
}

/// At the gateway: whether an answer grants an upgrade; if so it is restored to what it was.
pub(crate) fn restore_granted(parts: &mut response::Parts) -> bool {
    let Some(status) = parts.headers.remove(STATUS) else { return false };
    let Ok(status) = StatusCode::from_bytes(status.as_bytes()) else { return false };
    parts.status = status;
    parts.version = Version::HTTP_11;
    parts.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Some(token) = parts.headers.remove(TOKEN) {
        parts.headers.insert(UPGRADE_HEADER, token);
    }
    true
}

pub(crate) fn malformed(message: &str) -> Denial {
    Denial::new(StatusCode::BAD_REQUEST, tarbet_telemetry::codes::reach::PROTOCOL_VIOLATION.id, message)
}

/// A refusal as a response.
pub(crate) fn denied(denial: &Denial) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = denial.status;
    let headers = response.headers_mut();
    for (name, text) in [(CODE, &denial.code), (HOP, &denial.hop), (MESSAGE, &denial.message)] {
        if let Ok(value) = HeaderValue::from_str(&escape(text)) {
            headers.insert(name, value);
        }
    }
    if denial.untouched {
        headers.insert(UNTOUCHED, HeaderValue::from_static("1"));
    }
    response
}

/// The refusal in a response, if it is one.
pub(crate) fn read_denial(parts: &response::Parts) -> Option<Denial> {
    let text = |name| parts.headers.get(name).map(|value: &HeaderValue| unescape(value.as_bytes()));
    Some(Denial {
        status: parts.status,
        code: text(CODE)?,
        hop: text(HOP).unwrap_or_default(),
        message: text(MESSAGE).unwrap_or_default(),
        untouched: parts.headers.contains_key(UNTOUCHED),
    })
}

// Percent-encodes what a header cannot hold.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if out.len() > MAX_TEXT {
            break;
        }
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}

fn unescape(bytes: &[u8]) -> String {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&byte, tail)) = rest.split_first() {
        let code = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(value) if byte == b'%' => {
                out.push(value);
                rest = &tail[2..];
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests;
