//! The agent: dials out, offers services over its links, and judges every request by the site's
//! own policy before anything at the site is touched.
//!
//! A service is anything that implements [`Service`]; the tunnel knows nothing of what it does.
//! [`Dispatcher`] is the one place where what arrives meets the policy and then its service.

pub mod kubernetes;
pub mod policy;
pub mod tcp;

mod info;
mod run;

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use tarbet_link::{Body, Denial, Handler, IncomingCall, IncomingStream, IncomingUpgrade, Target};
use tarbet_telemetry::codes::{ground, reach};

pub use info::Info;
pub use run::{AgentConfig, Surroundings, start};

use policy::{Policy, Verdict};

/// How an agent names the key under which it is reached end to end, among the services it offers.
pub const END_TO_END: &str = "tls/";

/// What an agent offers under one name.
///
/// Requests that reach it were permitted by the policy. What it does not override it refuses.
pub trait Service: Send + Sync + 'static {
    /// The name callers ask for.
    fn name(&self) -> &str;

    /// What the policy must know of a request to judge it.
    fn describe(&self, target: &Target, request: Option<&Request<()>>) -> Result<policy::Wanted, Denial>;

    /// Answers a request.
    fn call(&self, target: Target, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, Denial>> {
        let denial = not_offered(&format!("requests to `{}`", target.name()));
        drop(request);
        async move { Err(denial) }.boxed()
    }

    /// Serves a byte stream.
    fn stream(&self, incoming: IncomingStream) -> BoxFuture<'_, ()> {
        let denial = not_offered(&format!("streams to `{}`", incoming.target().name()));
        async move { incoming.deny(&denial) }.boxed()
    }

    /// Serves a request that changes its protocol.
    fn upgrade(&self, incoming: IncomingUpgrade) -> BoxFuture<'_, ()> {
        async move { incoming.deny(&not_offered("upgrades")).await }.boxed()
    }
}

/// Brings what arrives to its service, if the policy permits.
pub struct Dispatcher {
    services: BTreeMap<String, Arc<dyn Service>>,
    policy: Policy,
}

impl Dispatcher {
    /// These services under this policy. A service that no rule could ever permit is not offered.
    pub fn new(services: Vec<Arc<dyn Service>>, policy: Policy) -> Self {
        let services = services.into_iter().filter(|service| policy.offers(service.name()));
        Self { services: services.map(|service| (service.name().to_owned(), service)).collect(), policy }
    }

    /// The names of what is offered.
    pub fn offered(&self) -> Vec<String> {
        self.services.keys().cloned().collect()
    }

    fn admit(
        &self,
        target: Option<&Target>,
        request: Option<&Request<()>>,
    ) -> Result<(Arc<dyn Service>, Target), Denial> {
        let target = target.ok_or_else(|| {
            let text = "The request does not say which service it is for.";
            Denial::new(StatusCode::BAD_REQUEST, ground::BAD_REQUEST.id, text).at("agent")
        })?;
        let service =
            self.services.get(target.name()).ok_or_else(|| not_offered(&format!("`{}`", target.name())))?;
        let wanted = service.describe(target, request)?;
        match self.policy.judge(&wanted) {
            Verdict::Permit => Ok((Arc::clone(service), target.clone())),
            Verdict::Refuse(reason) => {
                tracing::info!(?wanted, reason, "The policy refused a request.");
                let text = format!("The site's policy does not permit this: {reason}.");
                Err(Denial::new(StatusCode::FORBIDDEN, reach::AGENT_REFUSED_POLICY.id, text)
                    .at("agent: policy"))
            }
        }
    }
}

impl Handler for Dispatcher {
    fn call(&self, call: IncomingCall) -> BoxFuture<'_, Result<Response<Body>, Denial>> {
        async move {
            let IncomingCall { target, request } = call;
            let (parts, body) = request.into_parts();
            let head = Request::from_parts(parts, ());
            let (service, target) = self.admit(target.as_ref(), Some(&head))?;
            service.call(target, head.map(|()| body)).await
        }
        .boxed()
    }

    fn stream(&self, incoming: IncomingStream) -> BoxFuture<'_, ()> {
        async move {
            match self.admit(Some(incoming.target()), None) {
                Ok((service, _)) => service.stream(incoming).await,
                Err(denial) => incoming.deny(&denial),
            }
        }
        .boxed()
    }

    fn upgrade(&self, incoming: IncomingUpgrade) -> BoxFuture<'_, ()> {
        async move {
            match self.admit(incoming.target(), Some(incoming.request())) {
                Ok((service, _)) => service.upgrade(incoming).await,
                Err(denial) => incoming.deny(&denial).await,
            }
        }
        .boxed()
    }
}

fn not_offered(what: &str) -> Denial {
    Denial::new(
        StatusCode::NOT_FOUND,
        reach::SERVICE_NOT_OFFERED.id,
        format!("This agent does not offer {what}."),
    )
    .at("agent")
}
