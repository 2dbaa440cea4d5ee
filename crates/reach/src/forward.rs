//! Passing on what arrives over one connection to a way that leads further.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use tarbet_link::{
    Body, ByteStream, Denial, Duplex, Handler, IncomingCall, IncomingStream, IncomingUpgrade, LinkError,
    Target, Upgraded, relay,
};
use tarbet_telemetry::{Coded, Problem};

use crate::guarded::guard_body;
use crate::quota::Permit;
use crate::route::RouteError;

/// Where things that arrive are passed on to.
pub(crate) trait Onward: Send + Sync + 'static {
    /// Passes a request on. What comes with the answer is to be held until it has ended.
    fn call(
        &self,
        target: Target,
        request: Request<Body>,
    ) -> impl Future<Output = Result<(Response<Body>, Permit), Denial>> + Send;

    /// Opens a stream further on, with the bytes that came first.
    fn open(
        &self,
        target: Target,
        first: Bytes,
    ) -> impl Future<Output = Result<(ByteStream, Permit), Denial>> + Send;
}

/// Serves a connection by passing everything on.
pub(crate) struct Forwarder<O>(pub(crate) Arc<O>);

impl<O: Onward> Handler for Forwarder<O> {
    fn call(&self, call: IncomingCall) -> BoxFuture<'_, Result<Response<Body>, Denial>> {
        async move {
            let target = call.target.ok_or_else(no_target)?;
            let (response, permit) = self.0.call(target, call.request).await?;
            permit.follow(response.body().backlog());
            Ok(if permit.counts() { response.map(|body| guard_body(body, permit)) } else { response })
        }
        .boxed()
    }

    fn stream(&self, mut incoming: IncomingStream) -> BoxFuture<'_, ()> {
        async move {
            let first = incoming.early();
            match self.0.open(incoming.target().clone(), first).await {
                Ok((further, permit)) => {
                    permit.follow(further.backlog());
                    if let Ok(near) = incoming.accept() {
                        // Either end may break off at any time; both know why by themselves.
                        let _ = relay(near, further).await;
                    }
                }
                Err(denial) => incoming.deny(&denial),
            }
        }
        .boxed()
    }

    fn upgrade(&self, incoming: IncomingUpgrade) -> BoxFuture<'_, ()> {
        async move {
            let Some(target) = incoming.target().cloned() else { return incoming.deny(&no_target()).await };
            let (parts, ()) = clone_request(incoming.request());
            match self.0.call(target, Request::from_parts(parts, Body::empty())).await {
                Ok((mut response, _permit)) => match Upgraded::take(&mut response) {
                    Some(further) => {
                        if let Ok(near) = incoming.accept(response.map(drop)) {
                            let _ = relay(near, further).await;
                        }
                    }
                    None => incoming.reject(response).await,
                },
                Err(denial) => incoming.deny(&denial).await,
            }
        }
        .boxed()
    }
}

fn clone_request(request: &Request<()>) -> (http::request::Parts, ()) {
    let mut copy = Request::new(());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    copy.into_parts()
}

fn no_target() -> Denial {
    Denial::new(
        StatusCode::BAD_REQUEST,
        tarbet_telemetry::codes::ground::BAD_REQUEST.id,
        "The request does not say which service it is for.",
    )
    .at("gateway")
}

/// A problem in the form in which it crosses connections.
pub(crate) fn denial(problem: &Problem, untouched: bool) -> Denial {
    let denial =
        Denial::new(problem.status(), problem.code.clone(), problem.message.clone()).at(problem.hop.clone());
    if untouched { denial.untouched() } else { denial }
}

/// What a failed link says to those behind it: a refusal of the agent is passed on as it is.
pub(crate) fn link_denial(error: LinkError, hop: &str) -> Denial {
    let untouched = error.safe_to_retry();
    match error {
        LinkError::Denied(denial) => *denial,
        error => denial(&error.problem().at(format!("{hop}: {}", error.hop())), untouched),
    }
}

impl From<RouteError> for Denial {
    fn from(error: RouteError) -> Self {
        let problem = error.problem();
        match error {
            RouteError::Link { source: LinkError::Denied(denial), .. } => *denial,
            error => denial(&problem, matches!(error, RouteError::Leaving)),
        }
    }
}
