//! A service at an agent and an API at a gateway, which the tunnel between them does not know.
//!
//! `GET /v1/modules/greeter/lab?name=Ann` at the gateway's API listener asks the service `greeter` of the
//! agent at the site `lab`, with the rights of whoever asks.

use axum::extract::{Extension, Path, RawQuery};
use axum::{Router, routing::get};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use tarbet_link::{Body, Denial, Target};
use tarbet_reach::agent::Service;
use tarbet_reach::agent::policy::Wanted;
use tarbet_reach::gateway::{Asker, Module};
use tarbet_reach::names::SiteName;

/// The agent's side: greets whom the query names.
pub struct Greeter;

impl Service for Greeter {
    fn name(&self) -> &'static str {
        "greeter"
    }

    // The site's policy permits it with `services: [greeter]`.
    fn describe(&self, target: &Target, _: Option<&Request<()>>) -> Result<Wanted, Denial> {
        Ok(Wanted::Service(target.name().to_owned()))
    }

    fn call(&self, _: Target, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, Denial>> {
        let name = request.uri().query().and_then(|query| query.strip_prefix("name=")).unwrap_or("stranger");
        let greeting = format!("Hello, {name}!");
        async move { Ok(Response::new(Body::from(greeting))) }.boxed()
    }
}

/// The gateway's side: passes the question on to a site.
pub struct Greetings;

impl Module for Greetings {
    fn name(&self) -> &'static str {
        "greeter"
    }

    fn routes(&self) -> Router {
        Router::new().route("/{site}", get(greet))
    }
}

async fn greet(
    Extension(asker): Extension<Asker>,
    Path(site): Path<SiteName>,
    RawQuery(query): RawQuery,
) -> axum::response::Result<axum::response::Response> {
    let question = Request::get(format!("/?{}", query.unwrap_or_default())).body(Body::empty());
    let question = question.map_err(|error| (http::StatusCode::BAD_REQUEST, error.to_string()))?;
    let service = Target::service("greeter").map_err(|error| error.to_string())?;
    let answer = asker.call(&site, service, question).await;
    Ok(answer.map_err(|problem| (problem.status(), axum::Json(problem)))?.map(axum::body::Body::new))
}
