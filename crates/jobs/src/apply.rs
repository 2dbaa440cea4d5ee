//! The steps, taken: each once more does no harm.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::core::{DeserializeGuard, DynamicObject};
use serde_json::{Value, json};
use tarbet_cluster::{Class, Severity, class, describe, finalizer};

use crate::controller::Shared;
use crate::error::JobError;
use crate::machine::{self, Ending, Phase, clip};
use crate::metrics::Attempt;
use crate::names::{REQUEST_FINALIZER, RUN_FINALIZER, run_name};
use crate::policy::Order;
use crate::remote::RemoteSide;
use crate::request::{Key, Request};
use crate::run::{Run, build};
use crate::tekton::PipelineRun;

impl Shared {
    /// Puts our finalizer on the request.
    pub(crate) async fn hold(&self, remote: &RemoteSide, request: &Request) -> Result<(), JobError> {
        match finalizer::adding(&request.meta(), REQUEST_FINALIZER) {
            Some(patch) => self.write_finalizers(remote, request, &patch).await,
            None => Ok(()),
        }
    }

    /// Takes our finalizer off the request, and with it the request itself.
    pub(crate) async fn let_go(&self, remote: &RemoteSide, request: &Request) -> Result<(), JobError> {
        match finalizer::removing(&request.meta(), REQUEST_FINALIZER) {
            Some(patch) => self.write_finalizers(remote, request, &patch).await,
            None => Ok(()),
        }
    }

    async fn write_finalizers(
        &self,
        remote: &RemoteSide,
        request: &Request,
        patch: &Value,
    ) -> Result<(), JobError> {
        let Key { namespace, name, .. } = &request.key;
        let written = finalizer::write(&remote.api(Some(namespace)), name, patch).await;
        Self::take_over(remote, request, written, "take the finalizer")
    }

    /// Writes a status over the one we know, or fails with a conflict.
    async fn write_status(
        &self,
        remote: &RemoteSide,
        request: &Request,
        status: &Value,
    ) -> Result<(), JobError> {
        let Key { namespace, name, .. } = &request.key;
        let version = request.version.to_string();
        let patch =
            json!({ "metadata": { "resourceVersion": version, "uid": request.uid }, "status": status });
        let written = tarbet_cluster::merge_status(&remote.api(Some(namespace)), name, &patch).await;
        Self::take_over(remote, request, written, "take the status")
    }

    /// Remembers what a write made of the request.
    fn take_over(
        remote: &RemoteSide,
        request: &Request,
        written: kube::Result<DynamicObject>,
        what: &'static str,
    ) -> Result<(), JobError> {
        let Key { namespace, name, .. } = &request.key;
        match written {
            Ok(object) => {
                remote.wrote(namespace, name, Request::keep(&remote.name, object));
                Ok(())
            }
            Err(error) if class(&error) == Class::Missing => Err(JobError::Gone),
            Err(error) => Err(JobError::Remote(what, error)),
        }
    }

    pub(crate) async fn mark_queued(
        &self,
        remote: &RemoteSide,
        request: &Request,
        position: u32,
    ) -> Result<(), JobError> {
        let status = machine::queued(&request.before, &self.run_of(request), position, Timestamp::now());
        self.write_status(remote, request, &status).await?;
        tracing::info!(request = %request.key, position, "The request is in line.");
        Ok(())
    }

    pub(crate) async fn mark_running(&self, remote: &RemoteSide, request: &Request) -> Result<(), JobError> {
        let run = self.run_of(request);
        self.write_status(remote, request, &machine::running(&request.before, &run, Timestamp::now()))
            .await?;
        self.tell(
            remote,
            request,
            Severity::Normal,
            "Running",
            &format!("Runs as {run} on the private cluster."),
        )
        .await;
        Ok(())
    }

    /// Writes the end of a request, with what its run said.
    pub(crate) async fn end(
        &self,
        remote: &RemoteSide,
        request: &Request,
        run: Option<&Run>,
        ending: &Ending,
    ) -> Result<(), JobError> {
        let mut logs = Vec::new();
        if let Some(run) = run.filter(|run| run.children && run.is_of(request)) {
            let pieces = self.logs.read(&run.name).await;
            self.logs.keep(&run.name, &request.key, &pieces).await;
            logs = self.logs.tails(&pieces);
        }
        let (name, now) = (self.run_of(request), Timestamp::now());
        let status = machine::ended(&request.before, &name, ending, &logs, now);
        let mut phase = ending.phase();
        match self.write_status(remote, request, &status).await {
            // The remote will never take these results: say so instead of trying for ever.
            Err(JobError::Remote(_, error)) if matches!(&error, kube::Error::Api(status) if matches!(status.code, 413 | 422)) =>
            {
                let message = format!("the results could not be handed over: {}", describe(&error));
                let ending = Ending { started: ending.started, ..Ending::failed(message) };
                phase = Phase::Failed;
                let status = machine::ended(&request.before, &name, &ending, &[], now);
                self.write_status(remote, request, &status).await?;
            }
            written => written?,
        }
        tracing::info!(request = %request.key, run = %name, succeeded = phase == Phase::Succeeded, "Request execution finished.");
        let started = request.before.start_time.or(ending.started).unwrap_or(now);
        let offer = run.map(|run| run.offer.clone()).unwrap_or_default();
        self.count(request, offer, phase, Some(now.duration_since(started).as_secs_f64().max(0.0)));
        let severity = if phase == Phase::Succeeded { Severity::Normal } else { Severity::Warning };
        self.tell(remote, request, severity, phase.reason(), &ending.message).await;
        Ok(())
    }

    pub(crate) async fn reject(
        &self,
        remote: &RemoteSide,
        request: &Request,
        message: &str,
    ) -> Result<(), JobError> {
        let status = machine::rejected(&request.before, message, Timestamp::now());
        self.write_status(remote, request, &status).await?;
        tracing::info!(request = %request.key, reason = message, "The request is rejected.");
        self.count(request, String::new(), Phase::Rejected, None);
        self.tell(remote, request, Severity::Warning, "Rejected", message).await;
        Ok(())
    }

    /// Creates the run. One that is there already is taken as it is; a refusal ends the request.
    pub(crate) async fn create(
        &self,
        remote: &RemoteSide,
        request: &Request,
        order: &Order,
        declared: Option<&[String]>,
        config: &crate::crd::InternalServicesConfigSpec,
    ) -> Result<Option<Run>, JobError> {
        let object = build(request, order, declared, config, &self.local.namespace);
        let name = run_name(&request.key.remote, &request.uid);
        let object: DynamicObject = serde_json::from_value(object)
            .map_err(|error| JobError::Local("make the PipelineRun", kube::Error::SerdeError(error)))?;
        match self.local.runs_dynamic().create(&PostParams::default(), &object).await {
            Ok(created) => {
                tracing::info!(request = %request.key, run = %name, namespace = %self.local.namespace, "Created PipelineRun to handle request.");
                let run = keep(created);
                if let Some(run) = &run {
                    self.tell_run(
                        run,
                        Severity::Normal,
                        "Created",
                        &format!("Made for the request {}.", request.key),
                    );
                }
                Ok(run)
            }
            Err(error) if class(&error) == Class::Exists => self.local.run(&name).await,
            Err(error) if class(&error) == Class::Refused && !is_our_own_fault(&error) => {
                let message =
                    format!("the private cluster refused the run: {}", clip(&describe(&error), 1000));
                self.end(remote, request, None, &Ending::failed(message)).await?;
                Ok(None)
            }
            Err(error) => Err(JobError::Local("create the PipelineRun", error)),
        }
    }

    /// Deletes a run whose end is written or which nobody waits for.
    pub(crate) async fn dismiss(&self, run: &Run) -> Result<(), JobError> {
        let exactly = Preconditions { uid: Some(run.uid.clone()), resource_version: None };
        let params = DeleteParams { preconditions: Some(exactly), ..DeleteParams::background() };
        let api = self.local.runs_dynamic();
        let left = match api.delete(&run.name, &params).await {
            Ok(answer) => match answer.left() {
                Some(object) => object,
                None => return Ok(()),
            },
            Err(error) if class(&error) == Class::Missing => return Ok(()),
            // Another object of this name is not ours to delete.
            Err(error) if class(&error) == Class::Conflict => return Ok(()),
            Err(error) => return Err(JobError::Local("delete the PipelineRun", error)),
        };
        self.reached("dismiss: run deleted");
        self.free(&run.name, &left).await
    }

    /// Leaves a run to the administrators.
    pub(crate) async fn leave(&self, name: &str) -> Result<(), JobError> {
        tracing::info!(run = name, "Running in debug mode. Skipping PipelineRun deletion.");
        let object = self.local.runs_dynamic().get_opt(name).await;
        match object.map_err(|error| JobError::Local("give the PipelineRun", error))? {
            Some(object) => self.free(name, &object).await,
            None => Ok(()),
        }
    }

    /// Takes our finalizer off a run.
    async fn free(&self, name: &str, object: &DynamicObject) -> Result<(), JobError> {
        let Some(patch) = finalizer::removing(&object.metadata, RUN_FINALIZER) else { return Ok(()) };
        match finalizer::write(&self.local.runs_dynamic(), name, &patch).await {
            Err(error) if class(&error) != Class::Missing => {
                Err(JobError::Local("free the PipelineRun", error))
            }
            _ => Ok(()),
        }
    }

    /// Ends a run that nobody waits for any more, and removes what was made for it.
    pub(crate) async fn cancel(&self, run: &Run) -> Result<(), JobError> {
        if run.ending.is_none() && !run.deleting {
            tracing::info!(run = %run.name, "Cancelling PipelineRun due to InternalRequest deletion.");
            let patch = json!({ "metadata": { "uid": run.uid }, "spec": { "status": "Cancelled" } });
            match tarbet_cluster::merge(&self.local.runs_dynamic(), &run.name, &patch).await {
                Err(error) if !matches!(class(&error), Class::Missing | Class::Conflict | Class::Refused) => {
                    return Err(JobError::Local("cancel the PipelineRun", error));
                }
                _ => {}
            }
            self.reached("cancel: run cancelled");
        }
        if self.local.config().await?.debug {
            return self.leave(&run.name).await;
        }
        self.dismiss(run).await
    }

    /// Removes the kept log of a request that is gone.
    pub(crate) async fn forget_log(&self, request: &Request) -> Result<(), JobError> {
        let run = self.adopted.run_name(request);
        self.logs.forget(&run).await.map_err(|error| JobError::Local("remove the kept log", error))
    }

    pub(crate) fn run_of(&self, request: &Request) -> String {
        format!("{}/{}", self.local.namespace, self.adopted.run_name(request))
    }

    fn count(&self, request: &Request, offer: String, phase: Phase, seconds: Option<f64>) {
        // Names in a rejected request are a stranger's: as labels they could grow without end.
        let namespace = if phase == Phase::Rejected { String::new() } else { request.key.namespace.clone() };
        let attempt = Attempt {
            request: offer,
            namespace,
            reason: phase.reason().to_owned(),
            succeeded: (phase == Phase::Succeeded).to_string(),
        };
        self.metrics.over(&attempt, seconds);
    }

    async fn tell(
        &self,
        remote: &RemoteSide,
        request: &Request,
        severity: Severity,
        reason: &str,
        note: &str,
    ) {
        if let Some(events) = self.remote_events.get(&remote.name) {
            events.tell(&request.reference(), severity, "Reconcile", reason, note).await;
        }
    }

    fn tell_run(&self, run: &Run, severity: Severity, reason: &str, note: &str) {
        let about = ObjectReference {
            api_version: Some("tekton.dev/v1".to_owned()),
            kind: Some("PipelineRun".to_owned()),
            name: Some(run.name.clone()),
            namespace: Some(self.local.namespace.clone()),
            uid: Some(run.uid.clone()),
            ..ObjectReference::default()
        };
        let events = self.events.clone();
        let (reason, note) = (reason.to_owned(), note.to_owned());
        // Nobody waits for an event, so it does not delay the request either.
        self.aside.spawn(async move { events.tell(&about, severity, "Reconcile", &reason, &note).await });
    }
}

pub(crate) fn keep(object: DynamicObject) -> Option<Run> {
    let value = serde_json::to_value(object).ok()?;
    let guard: DeserializeGuard<PipelineRun> = serde_json::from_value(value).ok()?;
    Some(Run::keep(&guard))
}

/// Whether the controller itself lacks the right, which is no fault of the request.
fn is_our_own_fault(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403 && status.message.contains("cannot create resource"))
        || matches!(error, kube::Error::Api(status) if status.code == 404)
}
