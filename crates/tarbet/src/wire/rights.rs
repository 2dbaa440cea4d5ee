//! Changes that no site answers for: only an administrator may make them, and each leaves a record.

use axum::Json;
use axum::Router;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde_json::Value;
use tarbet_reach::audit::{AuditLog, Event};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::reach;

use super::ask;

/// Who may change something, and where that is written down.
#[derive(Clone)]
pub(super) struct Rights {
    /// Tells who the bearer of a token is.
    pub(super) api: Router,
    /// Where changes and refusals are recorded.
    pub(super) audit: AuditLog,
}

impl Rights {
    /// Does the work on behalf of the bearer of a token, if it is an administrator's.
    pub(super) async fn change(
        &self,
        headers: &HeaderMap,
        wants: String,
        work: impl Future<Output = Response>,
    ) -> Response {
        let record = |principal: Option<&str>, outcome: &str, begun, status, code| {
            self.audit.record_made(Timestamp::now(), || Event {
                principal: principal.map(str::to_owned),
                wants: wants.clone(),
                outcome: outcome.into(),
                begun,
                status,
                code,
                ..Event::default()
            })
        };
        let refuse = |problem: Problem| (problem.status(), Json(problem)).into_response();
        let who = match self.administrator(headers.get(header::AUTHORIZATION)).await {
            Ok(name) => name,
            Err(problem) => {
                record(None, "refused", None, None, Some(problem.code.clone()));
                return refuse(problem);
            }
        };
        // A change that cannot be recorded is not made.
        if let Err(problem) = self.audit.ready() {
            return refuse(problem);
        }
        let begun = record(Some(&who), "begun", None, None, None);
        if let Some(seq) = begun
            && let Err(problem) = self.audit.written(seq).await
        {
            record(Some(&who), "refused", begun, None, Some(problem.code.clone()));
            return refuse(problem);
        }
        let said = work.await;
        let outcome = if said.status().is_success() { "answered" } else { "failed" };
        record(Some(&who), outcome, begun, Some(said.status().as_u16()), None);
        said
    }

    /// The bearer's name.
    async fn administrator(&self, bearer: Option<&header::HeaderValue>) -> Result<String, Problem> {
        let bearer = bearer.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let who: Value = ask(&self.api, "whoami", bearer).await?;
        if who["admin"] != true {
            return Err(Problem::new(&reach::CALLER_REFUSED, "Only an administrator may change this."));
        }
        Ok(who["name"].as_str().unwrap_or_default().to_owned())
    }
}
