//! What is shown: a named reading, taken again and again or fixed, with routes beside it.

use std::future::Future;
use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;
use tarbet_telemetry::Problem;

pub(crate) type Reading = Arc<dyn Fn() -> BoxFuture<'static, Result<Value, Problem>> + Send + Sync>;

#[derive(Clone)]
pub(crate) enum Content {
    Live(Reading),
    Fixed(Arc<Value>),
}

/// One part of the console: `GET /api/NAME` gives its reading, `/api/NAME/…` are its own routes.
pub struct Panel {
    pub(crate) name: &'static str,
    pub(crate) content: Content,
    pub(crate) routes: Router,
}

impl Panel {
    /// A panel whose reading changes. It is taken several times a second while somebody watches,
    /// and each change is sent to every open page.
    pub fn live<R, F>(name: &'static str, read: R) -> Self
    where
        R: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<Value, Problem>> + Send + 'static,
    {
        let read: Reading = Arc::new(move || read().boxed());
        Self { name, content: Content::Live(read), routes: Router::new() }
    }

    /// A panel that stays as it is.
    pub fn fixed(name: &'static str, value: Value) -> Self {
        Self { name, content: Content::Fixed(Arc::new(value)), routes: Router::new() }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Adds routes below `/api/NAME`. Whoever they belong to judges the caller's token.
    #[must_use]
    pub fn routes(mut self, routes: Router) -> Self {
        self.routes = routes;
        self
    }
}

/// A reading as the answer to a request.
pub(crate) async fn answer(reading: BoxFuture<'static, Result<Value, Problem>>) -> Response {
    match reading.await {
        Ok(value) => Json(value).into_response(),
        Err(problem) => (problem.status(), Json(problem)).into_response(),
    }
}
