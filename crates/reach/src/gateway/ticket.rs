//! One request on its way through this gateway: admitted, counted, and put on record when it ends.

use std::sync::Arc;

use http::StatusCode;
use jiff::Timestamp;
use tarbet_telemetry::codes::reach;
use tarbet_telemetry::{Coded, Problem, RequestId};
use tokio::time::Instant;

use super::Hub;
use crate::audit::Event;
use crate::directory::{Principal, Role};
use crate::names::SiteName;
use crate::quota::Permit;
use crate::story::{Step, Story, Subject};

/// Characters of a request's description that are kept.
const MAX_WANTS: usize = 256;

/// The right to one request, and its record. Dropped without an outcome, the caller has left.
pub(super) struct Ticket {
    hub: Arc<Hub>,
    story: Arc<Story>,
    permit: Option<Permit>,
    /// The number of its first line on record.
    begun: Option<u64>,
    open: bool,
}

impl Hub {
    /// Admits a request of a caller to a site, or says why not. Either way it is on record, and one that is
    /// admitted so surely that the end of this process does not take it away.
    pub(super) async fn admit(
        self: &Arc<Self>,
        principal: &Principal,
        site: &SiteName,
        id: RequestId,
        wants: &str,
    ) -> Result<Ticket, Problem> {
        self.audit.ready()?;
        let subject = Subject {
            id,
            principal: principal.name.clone(),
            site: site.clone(),
            wants: wants.chars().take(MAX_WANTS).collect(),
        };
        let story = self.stories.begin(subject);
        let mut ticket = Ticket { hub: Arc::clone(self), story, permit: None, begun: None, open: true };
        let judged = match self.judge(principal, site).await {
            Ok(permit) => ticket.begin().await.map(|()| permit),
            Err(problem) => Err(problem),
        };
        match judged {
            Ok(permit) => {
                ticket.permit = Some(permit);
                Ok(ticket)
            }
            Err(problem) => {
                ticket.end(
                    "refused",
                    Step::Failed(problem.code.clone(), problem.message.clone()),
                    None,
                    Some(&problem),
                );
                Err(problem.of(id))
            }
        }
    }

    async fn judge(&self, principal: &Principal, site: &SiteName) -> Result<Permit, Problem> {
        // Absent and forbidden look alike.
        let unknown = || Problem::new(&reach::SITE_UNKNOWN, format!("There is no site `{site}` for you."));
        if !principal.may(Role::User, site)
            || !self.known.has_site(site).await.map_err(|error| error.problem())?
        {
            return Err(unknown());
        }
        self.quotas.enter(site, &principal.name, Instant::now()).map_err(|exceeded| {
            self.metrics.over_quota(exceeded.setting);
            exceeded.problem()
        })
    }
}

impl Ticket {
    /// Where the request's way is noted.
    pub(super) fn story(&self) -> &Story {
        &self.story
    }

    /// There is an answer. The permit lasts as long as its body does.
    pub(super) fn answered(mut self, status: StatusCode) -> Permit {
        self.end("answered", Step::Answered(status.as_u16()), Some(status.as_u16()), None);
        self.permit.take().unwrap_or_default()
    }

    /// The stream is open. The permit lasts as long as it does.
    pub(super) fn opened(mut self) -> Permit {
        self.end("opened", Step::Opened, None, None);
        self.permit.take().unwrap_or_default()
    }

    /// There will be no answer.
    pub(super) fn failed(mut self, problem: &Problem) {
        self.end("failed", Step::Failed(problem.code.clone(), problem.message.clone()), None, Some(problem));
    }

    async fn begin(&mut self) -> Result<(), Problem> {
        self.begun = self.record("begun", None, None);
        match self.begun {
            Some(seq) => self.hub.audit.written(seq).await,
            None => Ok(()),
        }
    }

    fn record(&self, outcome: &str, status: Option<u16>, code: Option<&str>) -> Option<u64> {
        let Subject { id, principal, site, wants } = self.story.subject();
        self.hub.audit.record_made(Timestamp::now(), || Event {
            request: Some(*id),
            site: Some(site.to_string()),
            principal: Some(principal.clone()),
            wants: wants.clone(),
            outcome: outcome.to_owned(),
            begun: self.begun,
            status,
            code: code.map(str::to_owned),
        })
    }

    fn end(&mut self, outcome: &str, step: Step, status: Option<u16>, problem: Option<&Problem>) {
        self.open = false;
        self.record(outcome, status, problem.map(|problem| problem.code.as_str()));
        let Subject { id, principal, site, .. } = self.story.subject();
        self.hub.metrics.routed(problem.is_none(), self.story.age());
        if let Some(problem) = problem {
            tracing::info!(
                request = %id, %site, principal, code = %problem.code, hop = %problem.hop, cause = %problem.cause,
                "A request failed."
            );
        }
        self.story.note(step);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.open {
            self.end("abandoned", Step::Abandoned, None, None);
        }
    }
}
