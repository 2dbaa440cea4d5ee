//! The body of a request.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::rest::{Failure, NewBody};
use super::rest_seed::{Description, PermitList};
use crate::error::Error;
use crate::model::{Direction, Rule};
use crate::plan::rule;
use crate::plan::tags::Mapping;

/// A body in JSON, whatever its media type: the original's client names none.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let unreadable = |cause: String| Failure::from(Error::invalid("body", cause));
        let bytes = Bytes::from_request(request, state).await;
        let bytes = bytes.map_err(|rejection| unreadable(rejection.body_text()))?;
        let parsed = serde_json::from_slice(&bytes);
        parsed.map(Self).map_err(|error| unreadable(format!("is not what this path takes: {error}")))
    }
}

/// A rule in a body. Files that people write are read more strictly; here keys that are not known are left to
/// whoever sent them, and a list may be null, as the original's encoder writes an empty one.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct RuleBody {
    name: String,
    /// The first generation's word for the name.
    id: String,
    direction: Direction,
    src_port: i32,
    dst_port: i32,
    protocol: i32,
    tags: Option<Vec<String>>,
}

impl RuleBody {
    /// The same under the name that the path says.
    pub(super) fn named(self, name: String) -> Self {
        Self { name, ..self }
    }
}

impl From<RuleBody> for Rule {
    fn from(body: RuleBody) -> Self {
        let RuleBody { name, id, direction, src_port, dst_port, protocol, tags } = body;
        let name = if name.is_empty() { id } else { name };
        // Targets are filled in here, whatever the body says.
        let targets = Vec::new();
        Self { name, targets, direction, src_port, dst_port, protocol, tags: tags.unwrap_or_default() }
    }
}

/// Reads bytes as every body that a path takes, as fuzzing does.
pub(crate) fn read_any(bytes: &[u8]) {
    if let Ok(bodies) = serde_json::from_slice::<Vec<RuleBody>>(bytes) {
        drop(rule::check_request(&rules(bodies)));
    }
    if let Ok(body) = serde_json::from_slice::<RuleBody>(bytes) {
        drop(rule::check_request(&[body.named("named".into()).into()]));
    }
    if let Ok(body) = serde_json::from_slice::<NewBody>(bytes) {
        drop(body.described());
    }
    if let Ok(list) = serde_json::from_slice::<PermitList>(bytes) {
        drop(rule::check_request(&rules(list.rules)));
    }
    if let Ok(body) = serde_json::from_slice::<Description>(bytes) {
        drop(body.name("projects/p"));
    }
    drop(serde_json::from_slice::<Vec<String>>(bytes));
    drop(serde_json::from_slice::<Mapping>(bytes));
}

/// The rules of a body.
pub(super) fn rules(bodies: Vec<RuleBody>) -> Vec<Rule> {
    bodies.into_iter().map(Into::into).collect()
}
