//! The listener for Kubernetes clients: `https://gateway/sites/NAME/…` is the API server of that
//! site, for kubectl and everything like it.

pub(crate) mod refusal;
mod round;

use std::convert::Infallible;
use std::sync::Arc;

use http::header::{AUTHORIZATION, COOKIE, HeaderName, HeaderValue};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use jiff::Timestamp;
use tarbet_link::{Body, ByteStream, Duplex, Target, Upgraded, relay};
use tarbet_telemetry::codes::reach;
use tarbet_telemetry::intake::Prompt;
use tarbet_telemetry::{Coded, Problem, RequestId, request};
use tokio::time::Instant;

use self::refusal::Manner;
use super::Hub;
use super::kas::callers;
use super::kas::cors::Page;
use super::leaving::until_leaving;
use crate::directory::{DirectoryError, Principal};
use crate::guarded::guard_body;
use crate::listen::Origin;
use crate::names::SiteName;
use crate::vouch::{Vouched, certified};

/// The service of an agent that stands for the API server of its site.
pub(crate) const SERVICE: &str = "kubernetes";

const REQUEST_ID: HeaderName = HeaderName::from_static(request::HEADER);
/// Tells clients of GitLab that the refusal is the gateway's, not the API server's.
const UNAUTHORIZED: HeaderName = HeaderName::from_static("gitlab-unauthorized");
/// Who calls, as this gateway says; no site believes it.
pub(super) const CALLER: HeaderName = HeaderName::from_static("tarbet-caller");
/// A client has this long to send the headers of a request, and may be as long without one on a connection
/// that it keeps: clients of the original reuse theirs for a minute.
const HEADER_TIMEOUT: std::time::Duration = std::time::Duration::from_mins(1);

pub(super) async fn serve(hub: Arc<Hub>, stream: ByteStream, peer: Origin) {
    let Origin { address: peer, certificate } = peer;
    let vouched = certificate.and_then(|certificate| certified(&hub.config().certificates, &certificate));
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    server.http2().timer(TokioTimer::new());
    let leaving = hub.leaving.clone();
    let service = service_fn(move |request| {
        let (hub, vouched) = (Arc::clone(&hub), vouched.clone());
        async move { Ok::<_, Infallible>(answer(&hub, request, vouched.as_ref()).await) }
    });
    let connection =
        server.serve_connection_with_upgrades(TokioIo::new(Prompt::new(stream, HEADER_TIMEOUT)), service);
    if let Err(error) = until_leaving(connection, &leaving).await {
        tracing::debug!(%peer, %error, "A Kubernetes client's connection ended early.");
    }
}

async fn answer(hub: &Arc<Hub>, request: Request<Incoming>, vouched: Option<&Vouched>) -> Response<Body> {
    let id = request_id(request.headers());
    let manner = Manner::of(request.headers(), hub.kas.asks_gitlab());
    let page = Page::of(hub.kas.origin(), request.headers());
    let answered = match &page {
        Ok(page) => match page.preflight(request.method(), request.headers()) {
            Some(answer) => Ok(answer),
            None => proxy(hub, id, request, vouched).await,
        },
        Err(problem) => Err(problem.clone()),
    };
    let mut response = answered.unwrap_or_else(|problem| {
        tracing::debug!(request = %id, code = %problem.code, "A request was answered with a problem.");
        let mut refusal = manner.put(&problem);
        if refusal.status() == StatusCode::UNAUTHORIZED && hub.kas.asks_gitlab() {
            refusal.headers_mut().insert(UNAUTHORIZED, HeaderValue::from_static("true"));
        }
        refusal
    });
    if let Ok(page) = &page {
        page.admit(response.headers_mut());
    }
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// The id a request has, or a new one.
pub(super) fn request_id(headers: &HeaderMap) -> RequestId {
    let traced = headers.get("traceparent").and_then(|value| value.to_str().ok());
    traced.and_then(RequestId::from_traceparent).unwrap_or_else(RequestId::fresh)
}

/// Says to those further on which request this is and who asks; the latter for their logs only.
pub(super) fn stamp(headers: &mut HeaderMap, id: RequestId, principal: &str) {
    for (name, value) in [(REQUEST_ID, id.to_string().as_str()), (CALLER, principal)] {
        match HeaderValue::from_str(value) {
            Ok(value) => headers.insert(name, value),
            Err(_) => headers.remove(name),
        };
    }
}

async fn proxy(
    hub: &Arc<Hub>,
    id: RequestId,
    mut request: Request<Incoming>,
    vouched: Option<&Vouched>,
) -> Result<Response<Body>, Problem> {
    let (principal, named) = match callers::identify(hub, id, &mut request).await? {
        Some((principal, site)) => (principal, Some(site)),
        None => authenticate(hub, &request, vouched).await?,
    };
    let (site, path) = split(request.uri(), named)?;
    round::pass(request.headers_mut())?;
    let wants = format!("{SERVICE} {} {}", request.method(), path.path());
    let ticket = hub.admit(&principal, &site, id, &wants).await?;
    *request.uri_mut() = path;
    let headers = request.headers_mut();
    headers.remove(AUTHORIZATION);
    headers.remove(COOKIE);
    stamp(headers, id, &principal.name);
    let upgrade =
        request.headers().contains_key(http::header::UPGRADE).then(|| hyper::upgrade::on(&mut request));
    let mut request = request.map(Body::new);
    request.extensions_mut().clear();
    request.extensions_mut().insert(
        Target::service(SERVICE)
            .map_err(|error| Problem::new(&tarbet_telemetry::codes::ground::INTERNAL, error.to_string()))?,
    );
    let deadline = Instant::now() + hub.config().max_wait;
    let mut response = match hub.router.call(&site, request, deadline, ticket.story()).await {
        Ok(response) => response,
        Err(error) => {
            let problem = error.problem().of(id);
            if problem.code == reach::SITE_NOT_CONNECTED.id {
                hub.metrics.routing_timeouts.inc();
            }
            ticket.failed(&problem);
            return Err(problem);
        }
    };
    let permit = ticket.answered(response.status());
    permit.follow(response.body().backlog());
    if let (Some(upgrade), Some(far)) = (upgrade, Upgraded::take(&mut response)) {
        permit.follow(far.backlog());
        hub.requests.spawn(async move {
            let _permit = permit;
            match upgrade.await {
                Ok(near) => {
                    let moved = relay(ByteStream::new(TokioIo::new(near)), far).await;
                    tracing::debug!(request = %id, ?moved, "An upgraded connection ended.");
                }
                Err(error) => tracing::debug!(request = %id, %error, "The client did not take its upgrade."),
            }
        });
        return Ok(response);
    }
    Ok(if permit.counts() { response.map(|body| guard_body(body, permit)) } else { response })
}

/// Who calls, and the site if the credential names one: `Bearer TOKEN` or `Bearer site:NAME:TOKEN`.
/// Without a token, the holder of the connection's certificate.
async fn authenticate(
    hub: &Hub,
    request: &Request<Incoming>,
    vouched: Option<&Vouched>,
) -> Result<(Arc<Principal>, Option<SiteName>), Problem> {
    let missing =
        || Problem::new(&reach::CREDENTIALS_MISSING, "The request has no credentials this listener accepts.");
    let Some(value) = request.headers().get(AUTHORIZATION) else {
        let holder = vouched.and_then(|vouched| vouched.at(Timestamp::now()));
        return holder.map(|principal| (principal, None)).ok_or_else(missing);
    };
    let bearer =
        value.to_str().ok().and_then(|value| value.strip_prefix("Bearer ")).ok_or_else(missing)?.trim();
    let (site, token) = match bearer.strip_prefix("site:").and_then(|rest| rest.split_once(':')) {
        Some((site, token)) => (Some(site.parse().map_err(|_| missing())?), token),
        None => (None, bearer),
    };
    match hub.known.caller(token, Timestamp::now()).await {
        Ok(principal) => Ok((principal, site)),
        Err(DirectoryError::Refused(_)) => Err(missing()),
        Err(error) => Err(error.problem()),
    }
}

/// `/sites/NAME/rest?query` → the site and `/rest?query`. A path without the prefix belongs to the site
/// that the credential names: `kubectl get --raw` leaves the prefix of the server's URL out.
fn split(uri: &Uri, named: Option<SiteName>) -> Result<(SiteName, Uri), Problem> {
    let whole = uri.path_and_query().map_or("/", |path| path.as_str());
    let unknown = || Problem::new(&reach::SITE_UNKNOWN, "The path does not begin with /sites/NAME/.");
    let Some(rest) = whole.strip_prefix("/sites/") else {
        return named.map(|site| (site, uri.clone())).ok_or_else(unknown);
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let site: SiteName = rest[..end].parse().map_err(|_| unknown())?;
    if named.is_some_and(|named| named != site) {
        return Err(Problem::new(&reach::SITE_UNKNOWN, "The path and the credential name different sites."));
    }
    let path = match &rest[end..] {
        path if path.starts_with('/') => path.to_owned(),
        query => format!("/{query}"),
    };
    Ok((site, path.parse().map_err(|_| unknown())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_site_is_cut_off_the_path_and_the_rest_stays_as_it_is() {
        for (given, site, rest) in [
            ("/sites/lab/api/v1/pods?a=1&b=%2F", "lab", "/api/v1/pods?a=1&b=%2F"),
            ("/sites/lab", "lab", "/"),
            ("/sites/lab/", "lab", "/"),
            ("/sites/lab?x=1", "lab", "/?x=1"),
            ("/sites/lab/a%2Fb//c", "lab", "/a%2Fb//c"),
        ] {
            let (found, path) = split(&given.parse().unwrap(), None).unwrap();
            assert_eq!((found.as_str(), path.to_string().as_str()), (site, rest));
        }
        for bad in ["/", "/api/v1", "/sites/", "/sites//api", "/sites/LAB/api", "/sites/../x"] {
            assert!(split(&bad.parse().unwrap(), None).is_err(), "{bad}");
        }
        let lab: SiteName = "lab".parse().unwrap();
        let raw = split(&"/version".parse().unwrap(), Some(lab.clone())).unwrap();
        assert_eq!((raw.0, raw.1.to_string().as_str()), (lab.clone(), "/version"));
        assert!(split(&"/sites/other/api".parse().unwrap(), Some(lab)).is_err(), "two sites at once");
    }
}
