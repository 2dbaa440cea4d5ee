//! Runs that the original controller made, taken over with the requests they serve.
//!
//! The original gives its runs names of the API server's making and finds them by the labels of
//! the request's name. Where one is still going when this controller takes its place, it is marked
//! as ours instead of being made anew: remote, UID of the request, and our finalizer. From then on
//! only those marks on the private cluster decide; nothing that a requester can write does.
//!
//! A remote may also have had another name, as one that is named after its URL has when that changes.
//! Its runs carry our finalizer and the UID of a request that is there, and get the name it has now.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::ResourceExt;
use kube::api::ListParams;
use kube::core::{DynamicObject, ObjectMeta};
use serde_json::{Value, json};
use tarbet_cluster::{Class, class, finalizer};
use tokio_util::sync::CancellationToken;

use crate::controller::Shared;
use crate::error::JobError;
use crate::names::{
    ANNOTATION_OWNER, ANNOTATION_OWNER_TYPE, LABEL_REMOTE, LABEL_TYPE, LABEL_UID, OWNER_TYPE, RUN_FINALIZER,
    label_value, run_name,
};
use crate::remote::RemoteSide;
use crate::request::{Key, Request};
use crate::run::Run;

const PATIENCE: Duration = Duration::from_secs(30);

/// Which requests are served by a run of another name than ours would have.
#[derive(Default)]
pub(crate) struct Adopted(Mutex<HashMap<String, (Key, String)>>);

impl Adopted {
    /// The name of the request's run.
    pub(crate) fn run_name(&self, request: &Request) -> String {
        self.of(request).unwrap_or_else(|| run_name(&request.key.remote, &request.uid))
    }

    /// The adopted run of the request, if it has one.
    pub(crate) fn of(&self, request: &Request) -> Option<String> {
        self.map().get(&request.uid).filter(|(key, _)| *key == request.key).map(|(_, run)| run.clone())
    }

    /// The requests that have one.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.map().values().map(|(key, _)| key.clone()).collect()
    }

    /// Notes a run that was seen, or is gone. One without our finalizer was not adopted by us: its
    /// labels may be copies of what a requester wrote.
    pub(crate) fn note(&self, run: &Run, gone: bool) {
        let Some(key) = &run.serves else { return };
        if run.name == run_name(&key.remote, &run.request_uid) {
            return;
        }
        let mut map = self.map();
        if !gone && run.kept {
            map.insert(run.request_uid.clone(), (key.clone(), run.name.clone()));
        } else if map.get(&run.request_uid).is_some_and(|(_, name)| *name == run.name) {
            map.remove(&run.request_uid);
        }
    }

    fn map(&self) -> MutexGuard<'_, HashMap<String, (Key, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Takes over what the original left for this remote; tries until it is certain that all is.
    pub(crate) async fn adopt_all(&self, remote: &RemoteSide, stop: &CancellationToken) {
        let mut pause = Duration::from_millis(500);
        while let Err(error) = self.adopt(remote).await {
            tracing::warn!(remote = %remote.name, cause = %error.cause(), error = %error, "Runs of another controller could not be taken over and are tried again.");
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(PATIENCE),
            }
        }
    }

    async fn adopt(&self, remote: &RemoteSide) -> Result<(), JobError> {
        let theirs = ListParams::default().labels(&format!("{LABEL_TYPE}=release"));
        let runs = self.local.runs_dynamic().list(&theirs).await;
        let mut runs = runs.map_err(|error| JobError::Local("list the PipelineRuns", error))?.items;
        runs.sort_by_key(|run| (run.creation_timestamp(), run.name_any()));
        let mut unknown = 0;
        for run in runs.iter().filter(|run| is_of_another(run) || self.is_of_no_remote(run)) {
            let owner = run.annotations().get(ANNOTATION_OWNER).and_then(|owner| owner.split_once('/'));
            let Some((namespace, name)) = owner else { continue };
            let only = ListParams::default().fields(&format!("metadata.name={name}"));
            let found = match remote.api(Some(namespace)).list(&only).await {
                Ok(found) => found.items,
                // A namespace of another remote, perhaps: not one that we may read.
                Err(error) if class(&error) == Class::Refused => continue,
                Err(error) => return Err(JobError::Remote("list the request", error)),
            };
            let Some(object) = found.into_iter().next() else {
                unknown += usize::from(self.is_of_no_remote(run));
                continue;
            };
            let place = format!("{}/{}", self.local.namespace, run.name_any());
            let said = object.data["status"]["pipelineRun"].as_str().map(str::to_owned);
            let request = Request::keep(&remote.name, object);
            let ours = if self.is_of_no_remote(run) {
                let same = run.labels().get(LABEL_UID).is_some_and(|uid| *uid == label_value(&request.uid));
                unknown += usize::from(!same);
                same
            } else {
                serves(run, &request, said.as_deref(), &place, self.remote_count())
            };
            if ours && self.adopted.of(&request).is_none() {
                self.take_in(run, &request).await?;
            }
        }
        if unknown > 0 {
            tracing::info!(remote = %remote.name, runs = unknown, "Runs of remotes that are not configured here are left alone.");
        }
        Ok(())
    }

    /// Whether a run is one of ours for a remote that has no such name now.
    fn is_of_no_remote(&self, run: &DynamicObject) -> bool {
        let named = run.labels().get(LABEL_REMOTE);
        finalizer::present(&run.metadata, RUN_FINALIZER)
            && named.is_some_and(|named| !self.remote_names().any(|known| known == named))
    }

    async fn take_in(&self, run: &DynamicObject, request: &Request) -> Result<(), JobError> {
        self.reached("before adopt");
        let written = tarbet_cluster::merge(
            &self.local.runs_dynamic(),
            &run.name_any(),
            &marks(&run.metadata, request),
        )
        .await;
        self.reached("after adopt");
        match written {
            Ok(object) => {
                if let Some(run) = crate::apply::keep(object) {
                    self.adopted.note(&run, false);
                    tracing::info!(request = %request.key, run = %run.name, "Took over a run that was made under another name.");
                }
                Ok(())
            }
            Err(error) if class(&error) == Class::Missing => Ok(()),
            Err(error) => Err(JobError::Local("mark the PipelineRun", error)),
        }
    }
}

/// Whether a run was made for a request by another controller than this one.
fn is_of_another(run: &DynamicObject) -> bool {
    let label = |key: &str| run.labels().get(key).map(String::as_str).unwrap_or_default();
    let ours = run.name_any() == run_name(label(LABEL_REMOTE), label(LABEL_UID));
    let typed = run.annotations().get(ANNOTATION_OWNER_TYPE).is_some_and(|kind| kind == OWNER_TYPE);
    typed
        && !ours
        && run.metadata.deletion_timestamp.is_none()
        && !finalizer::present(&run.metadata, RUN_FINALIZER)
}

/// Whether a run that names this request as its owner is the one that serves it. The original puts
/// its finalizer on a request before it makes the run, and the run into the status after it.
fn serves(run: &DynamicObject, request: &Request, said: Option<&str>, place: &str, remotes: usize) -> bool {
    let made = run.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let later = request.created <= made;
    let named = match said.filter(|said| !said.is_empty()) {
        Some(said) => said == place,
        // With several remotes a name alone does not say whose request it is.
        None => remotes == 1,
    };
    later && named && request.held && !request.phase.is_final()
}

/// The patch that marks a run as ours.
fn marks(meta: &ObjectMeta, request: &Request) -> Value {
    let mut patch = finalizer::adding(meta, RUN_FINALIZER).unwrap_or_else(|| json!({ "metadata": {} }));
    patch["metadata"]["labels"] = json!({
        LABEL_REMOTE: label_value(&request.key.remote), LABEL_UID: label_value(&request.uid),
    });
    patch
}
