//! The requester's side: submitting requests, and following them to their end.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use tarbet_cluster::{Class, class, describe};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{cluster, jobs};
use tokio::time::Instant;

use crate::crd::{InternalRequest, InternalRequestSpec, InternalRequestStatus};
use crate::machine::Phase;
use crate::names::SUCCEEDED;

pub use crate::logs::whole_log;

/// The requests of one namespace, as somebody who may make them sees them.
#[derive(Clone)]
pub struct Requests {
    client: Client,
    namespace: String,
}

impl Requests {
    /// The requests of a namespace; of the kubeconfig's own if none is named.
    pub fn new(client: Client, namespace: Option<&str>) -> Self {
        let namespace = namespace.unwrap_or(client.default_namespace()).to_owned();
        Self { client, namespace }
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    fn api(&self) -> Api<InternalRequest> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Submits a request for a pipeline, under this name or one made from the pipeline's.
    pub async fn submit(
        &self,
        pipeline: &str,
        params: BTreeMap<String, String>,
        name: Option<&str>,
    ) -> Result<InternalRequest, Problem> {
        let params = (!params.is_empty()).then_some(params);
        let spec = InternalRequestSpec { request: Some(pipeline.to_owned()), params, ..Default::default() };
        let mut request = InternalRequest::new(name.unwrap_or_default(), spec);
        if name.is_none() {
            request.metadata.name = None;
            request.metadata.generate_name = Some(format!("{pipeline}-"));
        }
        let created = self.api().create(&PostParams::default(), &request).await;
        created.map_err(|error| self.problem(&error, "The request was not taken.", pipeline))
    }

    /// All requests of the namespace, or of all namespaces, oldest first.
    pub async fn list(&self, everywhere: bool) -> Result<Vec<InternalRequest>, Problem> {
        let api = if everywhere { Api::all(self.client.clone()) } else { self.api() };
        let listed = api.list(&ListParams::default()).await;
        let mut listed =
            listed.map_err(|error| self.problem(&error, "The requests cannot be listed.", ""))?.items;
        listed.sort_by_key(|request| (request.creation_timestamp(), request.name_any()));
        Ok(listed)
    }

    /// One request.
    pub async fn get(&self, name: &str) -> Result<InternalRequest, Problem> {
        let found = self.api().get(name).await;
        found.map_err(|error| self.problem(&error, "The request cannot be read.", name))
    }

    /// Deletes a request, which cancels its run.
    pub async fn cancel(&self, name: &str) -> Result<(), Problem> {
        let deleted = self.api().delete(name, &DeleteParams::default()).await;
        deleted.map(drop).map_err(|error| self.problem(&error, "The request cannot be cancelled.", name))
    }

    /// Follows a request to its end, telling each change, for at most this long.
    pub async fn follow(
        &self,
        name: &str,
        patience: Option<Duration>,
        mut tell: impl FnMut(&InternalRequest),
    ) -> Result<InternalRequest, Problem> {
        let end = patience.map(|patience| Instant::now() + patience);
        let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut events = std::pin::pin!(watcher(self.api(), only));
        let mut last: Option<InternalRequestStatus> = None;
        loop {
            let late = async {
                match end {
                    Some(end) => tokio::time::sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                () = late => return Err(self.unfinished(name, last.as_ref())),
                event = events.next() => event,
            };
            match event {
                Some(Ok(watcher::Event::Apply(request) | watcher::Event::InitApply(request))) => {
                    let status = request.status.clone().unwrap_or_default();
                    if last.as_ref() != Some(&status) {
                        tell(&request);
                    }
                    if Phase::of(&status).is_final() {
                        return Ok(request);
                    }
                    last = Some(status);
                }
                Some(Ok(watcher::Event::Delete(_))) => {
                    return Err(Problem::new(
                        &cluster::OBJECT_MISSING,
                        format!("The request `{name}` was deleted."),
                    )
                    .because("somebody cancelled it"));
                }
                Some(Ok(watcher::Event::Init | watcher::Event::InitDone)) => {}
                Some(Err(
                    watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error),
                )) if class(&error) == Class::Refused => {
                    return Err(self.problem(&error, "The request cannot be followed.", name));
                }
                // The cluster may come back; until then there is nothing to tell.
                Some(Err(_)) | None => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
    }

    fn unfinished(&self, name: &str, status: Option<&InternalRequestStatus>) -> Problem {
        let phase = status.map_or(Phase::New, Phase::of);
        let cause = match phase {
            Phase::New => "no controller has taken it up",
            Phase::Queued => "it waits for its turn, or its run goes on",
            _ => "its run still goes on",
        };
        Problem::new(
            &jobs::REQUEST_UNFINISHED,
            format!("The request `{}/{name}` did not finish in time.", self.namespace),
        )
        .because(cause)
    }

    fn problem(&self, error: &kube::Error, message: &str, name: &str) -> Problem {
        let code = match class(error) {
            Class::Missing => &cluster::OBJECT_MISSING,
            Class::Exists | Class::Conflict | Class::Refused => &cluster::CLUSTER_REFUSED,
            Class::Unavailable => &cluster::CLUSTER_UNREACHABLE,
        };
        let message = if name.is_empty() {
            message.to_owned()
        } else {
            format!("{message} ({}/{name})", self.namespace)
        };
        Problem::new(code, message).because(describe(error))
    }
}

/// What to tell who waited for a request, unless it succeeded.
pub fn verdict(request: &InternalRequest) -> Option<Problem> {
    let status = request.status.clone().unwrap_or_default();
    let said = tarbet_cluster::conditions::find(&status.conditions, SUCCEEDED);
    let cause = said.map(|condition| condition.message.clone()).filter(|message| !message.is_empty());
    let problem = |code, what: &str| {
        let problem = Problem::new(code, format!("The request `{}` {what}.", request.name_any()));
        match &cause {
            Some(cause) => problem.because(cause.clone()),
            None => problem,
        }
    };
    match Phase::of(&status) {
        Phase::Succeeded => None,
        Phase::Rejected => Some(problem(&jobs::REQUEST_REJECTED, "was rejected")),
        Phase::Failed => Some(problem(&jobs::REQUEST_FAILED, "failed")),
        Phase::New | Phase::Queued | Phase::Running => {
            Some(problem(&jobs::REQUEST_UNFINISHED, "is not finished"))
        }
    }
}
