//! What is seen of the private side: mirrors kept by watches, and fresh reads where it matters.

use std::sync::Arc;

use kube::core::{ApiResource, DeserializeGuard, DynamicObject};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use tarbet_cluster::{Change, Mirror, Newer, Watch, watch};
use tokio::sync::{Mutex, watch as channel};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::crd::{InternalServicesConfig, InternalServicesConfigSpec};
use crate::error::JobError;
use crate::names::{CONFIG, LABEL_REMOTE};
use crate::run::Run;
use crate::scope::Scopes;
use crate::tekton::{Pipeline, PipelineRun};

/// The private cluster and what is seen of it.
pub(crate) struct LocalSide {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) runs: Mirror<Run>,
    pipelines: Mirror<Kept<Vec<String>>>,
    config: Mirror<Kept<Result<Scopes, String>>>,
    fresh: Mutex<Option<(Instant, Arc<InternalServicesConfigSpec>)>>,
}

/// What is kept of an object whose name alone matters.
pub(crate) struct Kept<T> {
    uid: String,
    version: u64,
    value: T,
}

impl<T> Kept<T> {
    fn new(object: &impl ResourceExt, value: T) -> Self {
        let version = object.resource_version().and_then(|text| text.parse().ok()).unwrap_or(0);
        Self { uid: object.uid().unwrap_or_default(), version, value }
    }
}

impl<T> Newer for Kept<T> {
    fn uid(&self) -> &str {
        &self.uid
    }

    fn version(&self) -> u64 {
        self.version
    }
}

impl LocalSide {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            runs: Mirror::default(),
            pipelines: Mirror::default(),
            config: Mirror::default(),
            fresh: Mutex::default(),
        }
    }

    pub(crate) fn runs_api(&self) -> Api<DeserializeGuard<PipelineRun>> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The runs as whole objects, for writing.
    pub(crate) fn runs_dynamic(&self) -> Api<DynamicObject> {
        let kind = ApiResource::erase::<PipelineRun>(&());
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind)
    }

    /// Waits until everything here was listed once.
    pub(crate) async fn listed(&self) {
        self.runs.listed().await;
        self.pipelines.listed().await;
        self.config.listed().await;
    }

    pub(crate) async fn watch_runs(
        &self,
        remotes: &[Arc<str>],
        tell: impl Fn(Change<Run>),
        stop: CancellationToken,
    ) {
        let labels = format!("{LABEL_REMOTE} in ({})", remotes.join(","));
        let config = watcher::Config::default().labels(&labels);
        let what = Watch { api: self.runs_api(), config, namespace: None };
        watch(what, self.runs.clone(), |run| Some(Run::keep(&run)), tell, stop).await;
    }

    pub(crate) async fn watch_pipelines(
        &self,
        tell: impl Fn(Change<Kept<Vec<String>>>),
        stop: CancellationToken,
    ) {
        let api: Api<DeserializeGuard<Pipeline>> = Api::namespaced(self.client.clone(), &self.namespace);
        let what = Watch { api, config: watcher::Config::default(), namespace: None };
        watch(
            what,
            self.pipelines.clone(),
            |pipeline| Some(Kept::new(&pipeline, declared(&pipeline))),
            tell,
            stop,
        )
        .await;
    }

    /// Watches the configuration; each change of it is sent to `scopes`, and told.
    pub(crate) async fn watch_config(
        &self,
        scopes: channel::Sender<Scopes>,
        changed: impl Fn(Change<()>),
        stop: CancellationToken,
    ) {
        let api: Api<DeserializeGuard<InternalServicesConfig>> =
            Api::namespaced(self.client.clone(), &self.namespace);
        let config = watcher::Config::default().fields(&format!("metadata.name={CONFIG}"));
        let keep = |object: DeserializeGuard<InternalServicesConfig>| {
            let scope =
                object.0.as_ref().map(|config| Scopes::of(&config.spec)).map_err(|error| error.error.clone());
            Some(Kept::new(&object, scope))
        };
        let tell = |change: Change<Kept<Result<Scopes, String>>>| match change {
            Change::Applied(now) => {
                match &now.value {
                    Ok(scope) => {
                        scopes.send_replace(scope.clone());
                    }
                    Err(cause) => tracing::error!(cause, "The InternalServicesConfig cannot be read."),
                }
                changed(Change::Applied(Arc::new(())));
            }
            Change::Deleted(_) => {
                scopes.send_replace(Scopes::default());
                changed(Change::Deleted(Arc::new(())));
            }
            Change::Listed => changed(Change::Listed),
            Change::Failing(cause) => changed(Change::Failing(cause)),
            Change::Back => changed(Change::Back),
        };
        watch(Watch { api, config, namespace: None }, self.config.clone(), keep, tell, stop).await;
    }

    /// The configuration as it is now: read after this was called, so that what an administrator
    /// changed before a request was made always counts for it. Callers that ask at the same time
    /// share one read. Without the object nothing is allowed.
    pub(crate) async fn config(&self) -> Result<Arc<InternalServicesConfigSpec>, JobError> {
        let asked = Instant::now();
        let mut fresh = self.fresh.lock().await;
        if let Some((_, config)) = fresh.as_ref().filter(|(begun, _)| *begun > asked) {
            return Ok(Arc::clone(config));
        }
        let begun = Instant::now();
        let api: Api<DeserializeGuard<InternalServicesConfig>> =
            Api::namespaced(self.client.clone(), &self.namespace);
        let found = api
            .get_opt(CONFIG)
            .await
            .map_err(|error| JobError::Local("give the InternalServicesConfig", error))?;
        let config = match found {
            None => InternalServicesConfigSpec::default(),
            Some(DeserializeGuard(Ok(config))) => config.spec,
            Some(DeserializeGuard(Err(invalid))) => return Err(JobError::Config(invalid.error)),
        };
        let config = Arc::new(config);
        *fresh = Some((begun, Arc::clone(&config)));
        Ok(config)
    }

    /// The workspaces that a Pipeline declares; `None` if there is no such Pipeline.
    pub(crate) async fn pipeline(&self, name: &str) -> Result<Option<Vec<String>>, JobError> {
        if let Some(known) = self.pipelines.get(&self.namespace, name) {
            return Ok(Some(known.value.clone()));
        }
        // It may be newer than what the watch has shown, and a rejection is final.
        let api: Api<DeserializeGuard<Pipeline>> = Api::namespaced(self.client.clone(), &self.namespace);
        let found = api.get_opt(name).await.map_err(|error| JobError::Local("give the Pipeline", error))?;
        Ok(found.as_ref().map(declared))
    }

    /// A run as it is now.
    pub(crate) async fn run(&self, name: &str) -> Result<Option<Run>, JobError> {
        let found = self.runs_api().get_opt(name).await;
        let found = found.map_err(|error| JobError::Local("give the PipelineRun", error))?;
        Ok(found.as_ref().map(Run::keep))
    }
}

fn declared(pipeline: &DeserializeGuard<Pipeline>) -> Vec<String> {
    let workspaces = pipeline.0.iter().flat_map(|pipeline| &pipeline.spec.workspaces);
    workspaces.map(|workspace| workspace.name.clone()).collect()
}
