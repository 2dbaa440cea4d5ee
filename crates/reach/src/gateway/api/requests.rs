//! `GET /v1/requests`: what became of recent requests, here and at the other gateways.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use http_body_util::{BodyExt, Limited};
use tarbet_link::{Body, Caller as _, Target};
use tarbet_telemetry::codes::{ground, reach};
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Problem, RequestId};

use super::{Caller, Failure};
use crate::directory::Role;
use crate::gateway::{Hub, private};
use crate::story::StoryView;

/// How long another gateway may take to answer: a person waits for it.
const PATIENCE: Duration = Duration::from_secs(2);
/// A story has few steps, so an answer of this length is none.
const MAX_ANSWER: usize = 256 * 1024;
/// Requests in one listing.
const NEWEST: usize = 50;

/// The newest requests at this gateway, as far as the caller may see their sites.
pub(super) async fn newest(State(hub): State<Arc<Hub>>, caller: Caller) -> Json<Vec<StoryView>> {
    let stories = hub.stories.newest(NEWEST * 4).into_iter().map(|story| story.tell(&hub.name));
    Json(stories.filter(|story| may_see(&caller, story)).take(NEWEST).collect())
}

/// The story of one request, the entry gateway's part first.
pub(super) async fn story(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Vec<StoryView>>, Failure> {
    let id: RequestId = id.parse().map_err(|_| {
        Failure(Problem::new(&ground::BAD_REQUEST, "A request's id is 32 hexadecimal digits."))
    })?;
    let mut stories: Vec<StoryView> =
        hub.stories.find(id).iter().map(|story| story.tell(&hub.name)).collect();
    stories.extend(elsewhere(&hub, id).await);
    stories.retain(|story| may_see(&caller, story));
    stories.sort_by_key(|story| story.began);
    if stories.is_empty() {
        let problem =
            Problem::new(&reach::REQUEST_UNKNOWN, format!("No gateway remembers the request {id}."));
        return Err(Failure(problem));
    }
    Ok(Json(stories))
}

fn may_see(caller: &Caller, story: &StoryView) -> bool {
    caller.0.may(Role::Viewer, &story.site)
}

/// What the other gateways remember. One that does not answer is left out.
async fn elsewhere(hub: &Hub, id: RequestId) -> Vec<StoryView> {
    let Some(registry) = &hub.registry else { return Vec::new() };
    let colleagues = match registry.colleagues().await {
        Ok(colleagues) => colleagues,
        Err(error) => {
            tracing::debug!(error = %chain(&error), "The other gateways are not known at the moment.");
            return Vec::new();
        }
    };
    let asked = colleagues.iter().map(|gateway| async {
        tokio::time::timeout(PATIENCE, ask(hub, &gateway.url, id)).await.ok().flatten().unwrap_or_default()
    });
    futures::future::join_all(asked).await.concat()
}

async fn ask(hub: &Hub, url: &str, id: RequestId) -> Option<Vec<StoryView>> {
    let mut request = http::Request::get(format!("/{id}")).body(Body::empty()).ok()?;
    request.extensions_mut().insert(Target::service(private::STORIES).ok()?);
    let response = hub.peers.way(url).await.ok()?.call(request).await.ok()?;
    let bytes = Limited::new(response.into_body(), MAX_ANSWER).collect().await.ok()?.to_bytes();
    serde_json::from_slice(&bytes).ok()
}
