//! APIs that a gateway carries without knowing them: the counterpart of an agent's
//! [`Service`](crate::agent::Service).

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request as HttpRequest, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response as HttpResponse};
use http::{Request, Response};
use jiff::Timestamp;
use tarbet_link::{Body, Target};
use tarbet_telemetry::{Coded, Problem, RequestId};
use tokio::time::Instant;

use super::api::Caller;
use super::{Hub, kube};
use crate::directory::Principal;
use crate::guarded::guard_body;
use crate::names::SiteName;

/// An API of its own on the API listener, under `/v1/modules/NAME`.
pub trait Module: Send + Sync + 'static {
    /// The last part of its path.
    fn name(&self) -> &str;

    /// Its routes. Who asks has been proven before, and is found among a request's extensions as
    /// [`Asker`].
    fn routes(&self) -> Router;
}

/// Who asks, and the way to sites with the rights of that caller.
#[derive(Clone)]
pub struct Asker {
    hub: Arc<Hub>,
    principal: Arc<Principal>,
}

impl Asker {
    /// Who asks.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Sends a request to a service of a site, if the caller may use the site. It waits for a site that is
    /// not connected, counts against the quotas, and is on record like any other.
    pub async fn call(
        &self,
        site: &SiteName,
        service: Target,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Problem> {
        let Self { hub, principal } = self;
        let id = RequestId::fresh();
        let wants = format!("{service} {} {}", request.method(), request.uri().path());
        let ticket = hub.admit(principal, site, id, &wants).await?;
        kube::stamp(request.headers_mut(), id, &principal.name);
        request.extensions_mut().insert(service);
        let deadline = Instant::now() + hub.config().max_wait;
        match hub.router.call(site, request, deadline, ticket.story()).await {
            Ok(response) => {
                let permit = ticket.answered(response.status());
                permit.follow(response.body().backlog());
                Ok(if permit.counts() { response.map(|body| guard_body(body, permit)) } else { response })
            }
            Err(error) => {
                let problem = error.problem().of(id);
                ticket.failed(&problem);
                Err(problem)
            }
        }
    }
}

/// The routes of all modules, behind the proof of who asks.
pub(super) fn routes(hub: &Arc<Hub>) -> Router<Arc<Hub>> {
    let modules = hub.modules.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    modules.iter().fold(Router::new(), |router, module| {
        let guarded = module.routes().layer(from_fn_with_state(Arc::clone(hub), prove));
        router.nest_service(&format!("/v1/modules/{}", module.name()), guarded)
    })
}

async fn prove(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    mut request: HttpRequest,
    next: Next,
) -> HttpResponse {
    tracing::debug!(principal = %caller.0.name, path = %request.uri().path(), at = %Timestamp::now(), "A module is asked.");
    request.extensions_mut().insert(Asker { hub, principal: caller.0 });
    next.run(request).await.into_response()
}
