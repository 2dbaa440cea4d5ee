//! Two clusters, a controller between them, and a hand that plays Tekton.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tarbet_cluster::Source;
use tarbet_jobs::crd::{InternalRequest, InternalServicesConfig};
use tarbet_jobs::machine::Phase;
use tarbet_jobs::tekton::{Pipeline, PipelineRun};
use tarbet_jobs::{Config, Controller, JobMetrics, Remote};
use tarbet_telemetry::{Health, Metrics};
use tarbet_testbed::{ControlPlane, Pair, Tekton, eventually, shared_pair};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use tarbet_testbed::effort;

/// Generous: compilers may share the cores.
pub const SOON: Duration = Duration::from_secs(90);

/// The pair of clusters of this process, with all kinds installed.
pub async fn clusters() -> &'static Pair {
    static READY: OnceCell<()> = OnceCell::const_new();
    let pair = shared_pair().await.unwrap();
    READY
        .get_or_init(|| async {
            install_kinds(&pair.public).await;
            install_kinds(&pair.private).await;
            Tekton::install_kinds(&pair.private).await.unwrap();
        })
        .await;
    pair
}

pub async fn install_kinds(plane: &ControlPlane) {
    let kubectl = plane.kubectl();
    for definition in tarbet_jobs::crd::definitions() {
        kubectl.apply(&serde_json::to_value(definition).unwrap()).await.unwrap();
    }
    for kind in ["internalrequests", "internalservicesconfigs"] {
        let list = ["get", kind, "--all-namespaces"];
        eventually(SOON, kind, || kubectl.run(&list)).await.unwrap();
    }
}

pub async fn client(plane: &ControlPlane) -> Client {
    tarbet_cluster::connect(&Source::file(plane.kubeconfig())).await.unwrap()
}

/// One test's share of both clusters.
pub struct Rig {
    pub local: Client,
    pub remote: Client,
    /// The controller's namespace on the private cluster, and the remote's name.
    pub namespace: String,
    /// A namespace of the public cluster that may ask.
    pub tenant: String,
    /// Writes the controller made on the public cluster.
    pub writes: Arc<AtomicUsize>,
    pub metrics: Metrics,
    /// Of the private and the public cluster.
    pub kubeconfigs: (PathBuf, PathBuf),
    counted: Client,
}

impl Rig {
    /// A share of the shared pair: one tenant, the Pipeline `build`, nothing running yet.
    pub async fn new(prefix: &str) -> Self {
        let pair = clusters().await;
        let rig = Self::on(prefix, &pair.private, &pair.public).await;
        // Controllers of other tests share the public cluster: each keeps to its own namespaces.
        let spec = json!({ "allowList": [rig.tenant], "watchScope": "allowed" });
        rig.configure(spec).await;
        rig.pipeline("build", &[]).await;
        rig
    }

    pub async fn on(prefix: &str, private: &ControlPlane, public: &ControlPlane) -> Self {
        let namespace = private.unique_namespace(prefix).await.unwrap();
        let tenant = public.unique_namespace(&format!("{prefix}-tenant")).await.unwrap();
        Self::at(&namespace, &tenant, private, public).await
    }

    /// The same in namespaces that are there.
    pub async fn at(namespace: &str, tenant: &str, private: &ControlPlane, public: &ControlPlane) -> Self {
        let (local, remote) = (client(private).await, client(public).await);
        let writes = Arc::new(AtomicUsize::new(0));
        let kubeconfigs = (private.kubeconfig(), public.kubeconfig());
        let counted = counting(remote.clone(), Arc::clone(&writes));
        Self {
            local,
            remote,
            namespace: namespace.to_owned(),
            tenant: tenant.to_owned(),
            writes,
            metrics: Metrics::new("jobs", "test"),
            kubeconfigs,
            counted,
        }
    }

    pub async fn configure(&self, spec: Value) {
        let api: Api<InternalServicesConfig> = Api::namespaced(self.local.clone(), &self.namespace);
        let object = json!({
            "apiVersion": "appstudio.redhat.com/v1alpha1", "kind": "InternalServicesConfig",
            "metadata": { "name": "config" }, "spec": spec,
        });
        tarbet_cluster::apply(&api, "config", "test", &object).await.unwrap();
    }

    pub async fn pipeline(&self, name: &str, workspaces: &[&str]) {
        let workspaces: Vec<Value> = workspaces.iter().map(|name| json!({ "name": name })).collect();
        let object = json!({
            "apiVersion": "tekton.dev/v1", "kind": "Pipeline", "metadata": { "name": name },
            "spec": { "workspaces": workspaces, "tasks": [{ "name": "t", "taskSpec": {
                "steps": [{ "name": "s", "image": "none", "script": "true" }],
            } }] },
        });
        let api: Api<Pipeline> = Api::namespaced(self.local.clone(), &self.namespace);
        tarbet_cluster::apply(&api, name, "test", &object).await.unwrap();
    }

    pub fn config(&self) -> Config {
        Config { namespace: self.namespace.clone(), ..Config::default() }
    }

    pub fn controller(&self, config: Config) -> Controller {
        let remotes = vec![Remote { name: self.namespace.clone(), client: self.counted.clone() }];
        let metrics = JobMetrics::register(&self.metrics);
        Controller::new(config, self.local.clone(), remotes, metrics, Health::default(), "test")
    }

    /// Starts the controller.
    pub fn start(&self) -> Running {
        Running::start(self.controller(self.config()))
    }

    pub fn requests(&self) -> Api<InternalRequest> {
        Api::namespaced(self.remote.clone(), &self.tenant)
    }

    pub fn runs(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.local.clone(), &self.namespace, &ApiResource::erase::<PipelineRun>(&()))
    }

    /// Submits a request; its spec may be anything the API server takes.
    pub async fn submit(&self, name: &str, spec: Value) -> DynamicObject {
        self.submit_in(&self.tenant, name, spec).await.unwrap()
    }

    pub async fn submit_in(&self, tenant: &str, name: &str, spec: Value) -> kube::Result<DynamicObject> {
        let kind = ApiResource::erase::<InternalRequest>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.remote.clone(), tenant, &kind);
        let object = json!({
            "apiVersion": "appstudio.redhat.com/v1alpha1", "kind": "InternalRequest",
            "metadata": { "name": name, "namespace": tenant }, "spec": spec,
        });
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await
    }

    pub async fn request(&self, name: &str) -> InternalRequest {
        self.requests().get(name).await.unwrap()
    }

    /// Waits until the request is in a phase.
    pub async fn until(&self, name: &str, phase: Phase) -> InternalRequest {
        self.until_in(&self.tenant, name, phase).await
    }

    pub async fn until_in(&self, tenant: &str, name: &str, phase: Phase) -> InternalRequest {
        let api: Api<InternalRequest> = Api::namespaced(self.remote.clone(), tenant);
        let look = || async {
            let request = api.get(name).await.map_err(|error| error.to_string())?;
            let status = request.status.clone().unwrap_or_default();
            if Phase::of(&status) == phase { Ok(request) } else { Err(format!("{status:?}")) }
        };
        eventually(SOON, &format!("{name} to be {phase:?}"), look).await.unwrap()
    }

    pub async fn ended(&self, name: &str) -> (Phase, InternalRequest) {
        let api = self.requests();
        let look = || async {
            let request = api.get(name).await.map_err(|error| error.to_string())?;
            let phase = Phase::of(&request.status.clone().unwrap_or_default());
            if phase.is_final() { Ok((phase, request)) } else { Err(format!("{phase:?}")) }
        };
        eventually(SOON, &format!("the end of {name}"), look).await.unwrap()
    }

    /// The run of a request, once it is there.
    pub async fn run_of(&self, request: &str) -> DynamicObject {
        let uid = self.requests().get(request).await.unwrap().uid().unwrap();
        let (api, name) = (self.runs(), tarbet_jobs::names::run_name(&self.namespace, &uid));
        eventually(SOON, &format!("the run of {request}"), || api.get(&name)).await.unwrap()
    }

    pub async fn run_count(&self) -> usize {
        self.runs().list(&ListParams::default()).await.unwrap().items.len()
    }

    pub async fn no_runs(&self) {
        eventually(SOON, "no runs to be left", || async { self.run_count().await == 0 }).await.unwrap();
    }

    /// Ends a run as Tekton would.
    pub async fn finish(&self, run: &str, succeeded: bool, results: &[(&str, &str)]) {
        finish(&self.runs(), run, succeeded, results).await.unwrap();
    }

    /// Plays Tekton: every run ends well soon after it appears.
    pub fn play_tekton(&self) -> Running {
        let api = self.runs();
        Running::spawn(move |stop| async move {
            let mut events = std::pin::pin!(watcher(api.clone(), watcher::Config::default()));
            loop {
                let event = tokio::select! {
                    () = stop.cancelled() => return,
                    Some(event) = events.next() => event,
                };
                if let Ok(watcher::Event::Apply(run) | watcher::Event::InitApply(run)) = event
                    && run.data.get("status").is_none()
                {
                    // It may be gone again; then it needs no end. A server that has died is asked until it is back.
                    let (api, name) = (&api, run.name_any());
                    let end = || async {
                        match finish(api, &name, true, &[("digest", "sha256:00")]).await {
                            Err(error) if !matches!(error, kube::Error::Api(_)) => Err(error),
                            _ => Ok(()),
                        }
                    };
                    let _too_late = eventually(SOON, "the end of a run", end).await;
                }
            }
        })
    }

    /// Notes every run that ever exists and every phase of every request.
    pub fn record(&self) -> Record {
        Record::start(self)
    }
}

async fn finish(
    api: &Api<DynamicObject>,
    run: &str,
    succeeded: bool,
    results: &[(&str, &str)],
) -> kube::Result<DynamicObject> {
    let results: Vec<Value> =
        results.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
    let (status, message) = if succeeded { ("True", "") } else { ("False", "step-x exited with code 3") };
    let status = json!({ "status": {
        "conditions": [{ "type": "Succeeded", "status": status, "reason": "Done", "message": message }],
        "results": results,
    } });
    api.patch_status(run, &PatchParams::default(), &Patch::Merge(&status)).await
}

/// A client that counts the writes it passes on.
fn counting(inner: Client, writes: Arc<AtomicUsize>) -> Client {
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        if request.method() != http::Method::GET {
            writes.fetch_add(1, Ordering::Relaxed);
        }
        let inner = inner.clone();
        async move { inner.send(request).await }
    });
    Client::new(service, "default")
}

/// Something that runs until stopped.
pub struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    pub fn start(controller: Controller) -> Self {
        Self::spawn(move |stop| async move { controller.run(stop).await })
    }

    fn spawn<F, T>(work: F) -> Self
    where
        F: FnOnce(CancellationToken) -> T,
        T: Future<Output = ()> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let task = tokio::spawn(work(stop.clone()));
        Self { stop, task }
    }

    /// Ends it in good order.
    pub async fn stop(mut self) {
        self.stop.cancel();
        (&mut self.task).await.unwrap();
    }

    /// Ends it as a crash would: wherever it is.
    pub async fn crash(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What was ever seen.
#[derive(Clone)]
pub struct Record {
    runs: Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>,
    phases: Arc<Mutex<BTreeMap<String, Vec<Phase>>>>,
    _tasks: Arc<[Running; 2]>,
}

impl Record {
    fn start(rig: &Rig) -> Self {
        let runs: Arc<Mutex<BTreeMap<String, BTreeSet<String>>>> = Arc::default();
        let phases: Arc<Mutex<BTreeMap<String, Vec<Phase>>>> = Arc::default();
        let (seen, api) = (Arc::clone(&runs), rig.runs());
        let watch_runs = Running::spawn(move |_| async move {
            let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
            while let Some(event) = events.next().await {
                if let Ok(
                    watcher::Event::Apply(run) | watcher::Event::InitApply(run) | watcher::Event::Delete(run),
                ) = event
                {
                    let owner =
                        run.annotations().get("operator-sdk/primary-resource").cloned().unwrap_or_default();
                    let request = owner.split_once('/').map(|(_, name)| name.to_owned()).unwrap_or_default();
                    seen.lock().unwrap().entry(request).or_default().insert(run.uid().unwrap());
                }
            }
        });
        let (seen, api) = (Arc::clone(&phases), rig.requests());
        let watch_requests = Running::spawn(move |_| async move {
            let mut events = std::pin::pin!(watcher(api, watcher::Config::default()));
            while let Some(event) = events.next().await {
                if let Ok(watcher::Event::Apply(request) | watcher::Event::InitApply(request)) = event {
                    let phase = Phase::of(&request.status.clone().unwrap_or_default());
                    let mut seen = seen.lock().unwrap();
                    let phases = seen.entry(request.name_any()).or_default();
                    if phases.last() != Some(&phase) {
                        phases.push(phase);
                    }
                }
            }
        });
        Self { runs, phases, _tasks: Arc::new([watch_runs, watch_requests]) }
    }

    pub fn runs_of(&self, request: &str) -> usize {
        self.runs.lock().unwrap().get(request).map_or(0, BTreeSet::len)
    }

    pub fn phases_of(&self, request: &str) -> Vec<Phase> {
        self.phases.lock().unwrap().get(request).cloned().unwrap_or_default()
    }

    /// Exactly one run and exactly one end.
    pub async fn assert_once(&self, request: &str) {
        // Its watches tell of a run and of an end a moment after others can read them.
        let ended = || self.phases_of(request).last().is_some_and(|phase| phase.is_final());
        let heard = || async { ended() && self.runs_of(request) > 0 };
        eventually(SOON, &format!("the run and the end of {request} to be heard"), heard).await.unwrap();
        assert_eq!(self.runs_of(request), 1, "runs of {request}");
        let phases = self.phases_of(request);
        assert_eq!(phases.iter().filter(|phase| phase.is_final()).count(), 1, "{request}: {phases:?}");
        assert!(phases.last().is_some_and(|phase| phase.is_final()), "{request}: {phases:?}");
    }
}
