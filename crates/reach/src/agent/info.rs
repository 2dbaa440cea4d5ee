//! The `info` service: what the agent is, for `tarbet site list` and the console.

use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use tarbet_link::{Body, Denial, Target};

use super::Service;
use super::policy::Wanted;

/// Tells name, version and services of the agent.
#[derive(Debug)]
pub struct Info {
    page: String,
}

impl Info {
    /// The facts, fixed for the life of the process.
    pub fn new(name: &str, version: &str, services: &[String]) -> Self {
        Self { page: serde_json::json!({"name": name, "version": version, "services": services}).to_string() }
    }
}

impl Service for Info {
    fn name(&self) -> &'static str {
        "info"
    }

    fn describe(&self, target: &Target, _request: Option<&Request<()>>) -> Result<Wanted, Denial> {
        Ok(Wanted::Service(target.name().to_owned()))
    }

    fn call(
        &self,
        _target: Target,
        _request: Request<Body>,
    ) -> BoxFuture<'_, Result<Response<Body>, Denial>> {
        async move {
            let mut response = Response::new(Body::from(self.page.clone()));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            Ok(response)
        }
        .boxed()
    }
}
