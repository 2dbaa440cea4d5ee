//! gRPC calls to the services of agents, on the API listener: whatever is not a service of the gateway
//! itself is for the agent that the caller names, and reaches it like any other request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, Version, header};
use jiff::Timestamp;
use tarbet_link::{Body, Target};
use tarbet_telemetry::codes::{ground, reach};
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Coded, Problem};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::{gitlab_site, services};
use crate::directory::{DirectoryError, Principal, Role};
use crate::gateway::{Hub, kube};
use crate::guarded::guard_body;
use crate::kas::private::AGENT_ID;
use crate::kas::{grpc, meta};
use crate::names::SiteName;
use crate::vouch::{Vouched, looks_like_jwt};

/// What belongs to one hop begins so.
const HOP: &str = "kas-hop-";
/// GitLab as a caller: it may use every agent, and decides itself for whom.
const GITLAB: &str = "gitlab:api";

/// Answers what no route is for.
pub(in crate::gateway) async fn to_agent(State(hub): State<Arc<Hub>>, request: Request) -> Response {
    if !grpc::is_grpc(request.headers()) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let answer = match call(&hub, request).await {
        Ok(answer) => answer,
        Err(status) => {
            tracing::debug!(code = ?status.code(), cause = status.message(), "A gRPC call was not passed on.");
            grpc::only_status(HeaderMap::new(), &status)
        }
    };
    answer.map(axum::body::Body::new)
}

async fn call(hub: &Arc<Hub>, request: Request) -> Result<http::Response<Body>, Status> {
    let (parts, body) = request.into_parts();
    let head = http::Request::from_parts(parts, ());
    let unknown = || Status::unimplemented(format!("gateway: unknown method {}", head.uri().path()));
    let method = grpc::method(&head).ok_or_else(unknown)?;
    let target = Target::service(method.service()).map_err(|_| unknown())?;
    if !head.headers().contains_key(AGENT_ID) {
        return Err(Status::unimplemented(format!(
            "gateway: unknown method {method}; for a service of an agent name the agent by `{AGENT_ID}`"
        )));
    }
    if head.version() < Version::HTTP_2 {
        return Err(Status::internal("caller → gateway: gRPC needs HTTP/2"));
    }
    let caller = identify(hub, &head).await?;
    let agent = meta::agent_id(head.headers()).ok_or_else(|| {
        Status::invalid_argument(format!(
            "caller → gateway: exactly one `{AGENT_ID}` with a number is needed"
        ))
    })?;
    let (principal, site) = caller.at(hub, agent).await?;
    let id = kube::request_id(head.headers());
    let wants = format!("{} {}", target.name(), method.method());
    let ticket = hub.admit(&principal, &site, id, &wants).await.map_err(|problem| {
        // A number that is nobody's and one that is not the caller's look alike.
        if problem.code == reach::SITE_UNKNOWN.id { nobody(agent) } else { to_status(&problem) }
    })?;
    let wait = grpc::timeout(head.headers()).unwrap_or(Duration::MAX);
    let deadline = Instant::now() + wait.min(hub.config().max_wait);
    let mut request = for_agent(head.map(|()| Body::new(body)), target);
    kube::stamp(request.headers_mut(), id, &principal.name);
    match hub.router.call(&site, request, deadline, ticket.story()).await {
        Ok(response) => {
            let permit = ticket.answered(response.status());
            if !grpc::is_grpc(response.headers()) {
                return Err(grpc::of_http(response.status()));
            }
            permit.follow(response.body().backlog());
            Ok(if permit.counts() { response.map(|body| guard_body(body, permit)) } else { response })
        }
        Err(error) => {
            let problem = error.problem().of(id);
            if problem.code == reach::SITE_NOT_CONNECTED.id {
                hub.metrics.routing_timeouts.inc();
            }
            ticket.failed(&problem);
            Err(to_status(&problem))
        }
    }
}

/// The call as it goes on: without what was meant for the gateway.
fn for_agent(mut request: http::Request<Body>, target: Target) -> http::Request<Body> {
    let headers = request.headers_mut();
    headers.remove(header::AUTHORIZATION);
    let of_hop: Vec<_> = headers.keys().filter(|name| name.as_str().starts_with(HOP)).cloned().collect();
    for name in of_hop {
        headers.remove(name);
    }
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    request.extensions_mut().clear();
    request.extensions_mut().insert(target);
    request
}

/// Who calls.
enum Caller {
    Gitlab,
    User(Arc<Principal>),
}

/// GitLab by its JWT, as for the gateway's own services; else a user by a token of ours or a certificate.
async fn identify(hub: &Hub, request: &http::Request<()>) -> Result<Caller, Status> {
    let now = Timestamp::now();
    let refused = || Status::unauthenticated("caller → gateway: JWT validation failed");
    let Some(token) = meta::bearer(request.headers()) else {
        let bare = !request.headers().contains_key(header::AUTHORIZATION);
        let vouched = request.extensions().get::<Vouched>().filter(|_| bare);
        return vouched.and_then(|vouched| vouched.at(now)).map(Caller::User).ok_or_else(refused);
    };
    if looks_like_jwt(token) && services::admit(hub, request.headers()).is_ok() {
        return Ok(Caller::Gitlab);
    }
    match hub.known.caller(token, now).await {
        Ok(principal) => Ok(Caller::User(principal)),
        Err(DirectoryError::Refused(_)) => Err(refused()),
        Err(error) => {
            tracing::warn!(error = %chain(&error), "A caller's token cannot be checked.");
            Err(Status::unavailable("gateway → store: tokens cannot be checked at the moment"))
        }
    }
}

impl Caller {
    /// The caller with its rights, and the site of the agent with this number.
    async fn at(self, hub: &Hub, agent: i64) -> Result<(Arc<Principal>, SiteName), Status> {
        let failed = |error: DirectoryError| to_status(&error.problem());
        let site = if hub.kas.gitlab.is_some() {
            gitlab_site(agent)
        } else {
            hub.known.site_numbered(agent).await.map_err(failed)?
        };
        let site = site.ok_or_else(|| nobody(agent))?;
        let principal = match self {
            Self::User(principal) => principal,
            Self::Gitlab => {
                if hub.kas.gitlab.is_some() {
                    // GitLab knows its agents; one that never connected can be waited for.
                    hub.known.ensure_site(&site, agent, Timestamp::now()).await.map_err(failed)?;
                }
                let roles = BTreeMap::from([(site.to_string(), Role::User)]);
                Arc::new(Principal { name: GITLAB.to_owned(), admin: false, roles })
            }
        };
        Ok((principal, site))
    }
}

fn nobody(agent: i64) -> Status {
    Status::not_found(format!(
        "There is no agent with the number {agent} for you. [{}]",
        reach::SITE_UNKNOWN.id
    ))
}

/// A problem in the form in which callers of gRPC get it.
fn to_status(problem: &Problem) -> Status {
    const CODES: [(&tarbet_telemetry::codes::Code, Code); 10] = [
        (&reach::SITE_UNKNOWN, Code::NotFound),
        (&reach::SITE_NOT_CONNECTED, Code::DeadlineExceeded),
        (&reach::SERVICE_NOT_OFFERED, Code::Unimplemented),
        (&reach::AGENT_REFUSED_POLICY, Code::PermissionDenied),
        (&reach::CALLER_REFUSED, Code::PermissionDenied),
        (&reach::CREDENTIALS_MISSING, Code::Unauthenticated),
        (&reach::QUOTA_EXCEEDED, Code::ResourceExhausted),
        (&reach::PROTOCOL_VIOLATION, Code::InvalidArgument),
        (&ground::BAD_REQUEST, Code::InvalidArgument),
        (&ground::INTERNAL, Code::Internal),
    ];
    let known = CODES.iter().find(|(code, _)| code.id == problem.code).map(|(_, code)| *code);
    let text = format!("{} [{}; {}]", problem.message, problem.code, problem.hop);
    Status::new(known.unwrap_or(Code::Unavailable), text)
}
