//! An agent at a kas: the same services behind the same policy, reached by the kas protocol.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Limited};
use jiff::Timestamp;
use tarbet_identity::Secret;
use tarbet_identity::tls::{CaSource, ClientTls};
use tarbet_link::{Body, Caller, Denial, Handler, IncomingCall, LinkError, ProxySettings, Target};
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::health::Part;
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Health, Problem};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::grpc_module::GrpcModule;
use super::{AgentConfig, Door};
use crate::kas::agent::{
    KasAgent, KasAgentConfig, KasAgentStatus, Services, connector, kas_address, usual_connections,
};
use crate::kas::kubernetes::KubernetesApi;
use crate::kas::proto::entity::{AgentMeta, KubernetesVersion};

const KUBERNETES: &str = "kubernetes";
/// How long the API server may take to say its version when the agent starts.
const VERSION_TIMEOUT: Duration = Duration::from_secs(3);
const MAX_VERSION: usize = 64 << 10;

/// What the agent says of itself, besides its configuration.
#[derive(Debug, Clone, Default)]
pub struct Pod {
    /// Its namespace (`POD_NAMESPACE`).
    pub namespace: String,
    /// Its name (`POD_NAME`).
    pub name: String,
}

/// What is needed to join a kas.
pub(super) struct Join {
    pub(super) address: String,
    pub(super) token: Secret,
    pub(super) pod: Pod,
    pub(super) proxies: ProxySettings,
    pub(super) headers: HeaderMap,
    pub(super) door: Door,
}

/// An agent of a kas, and whether it works.
pub(super) struct Joined {
    /// Until it runs.
    agent: Option<KasAgent>,
    status: watch::Receiver<KasAgentStatus>,
}

impl Joined {
    /// Opens tunnels until `stop`; calls that run then are finished.
    pub(super) fn run(&mut self, tasks: &TaskTracker, health: &Health, stop: &CancellationToken) {
        let Some(agent) = self.agent.take() else { return };
        tasks.spawn(agent.run(stop.clone()));
        let (part, mut status, stop) = (health.part("kas"), self.status.clone(), stop.clone());
        tasks.spawn(async move {
            loop {
                tell(&part, &status.borrow_and_update());
                tokio::select! {
                    changed = status.changed() => if changed.is_err() { return },
                    () = stop.cancelled() => return,
                }
            }
        });
    }

    /// Waits until it works; or says within `patience` why it does not.
    pub(super) async fn up(&self, patience: Duration) -> Result<(), String> {
        let mut status = self.status.clone();
        let works = |status: &KasAgentStatus| status.trouble.is_none() && status.connections > 0;
        if tokio::time::timeout(patience, status.wait_for(works)).await.is_ok() {
            return Ok(());
        }
        let trouble = self.status.borrow().trouble.clone();
        Err(trouble.unwrap_or_else(|| "no connection to the kas came up in time".into()))
    }
}

/// Checks everything and makes an agent of a kas.
pub(super) async fn join(config: &AgentConfig, join: Join) -> Result<Joined, Problem> {
    let Join { address, token, pod, proxies, headers, door } = join;
    let invalid = |message: String| Problem::new(&ground::CONFIG_INVALID, message).at("start of the agent");
    let address = kas_address(&address)
        .map_err(|error| invalid(format!("`{address}` is no address of a kas.")).because(chain(&error)))?;
    let kubernetes = door.offered().iter().any(|name| name == KUBERNETES);
    let modules = door.methods();
    if !kubernetes && modules.is_empty() {
        return Err(invalid(
            "The agent has no Kubernetes API to offer, and a kas asks for nothing else.".into(),
        )
        .advising("give it --kubeconfig FILE, run it in a cluster, or let the policy permit `kubernetes`"));
    }
    let pod_id = rand::random::<i64>() & i64::MAX;
    let mut kas = KasAgentConfig::new(address.clone(), token, pod_id.max(1));
    kas.prefix = config.kas.prefix;
    if !address.websocket() {
        // Of a WebSocket they go along with the upgrade.
        kas.metadata = headers.clone();
    }
    kas.connections = match config.kas.connections {
        Some(connections) => connections.max(1),
        None => usual_connections(&address).await,
    };
    let mut tls = ClientTls::new();
    if let Some(file) = &config.ca_file {
        tls = tls.add_ca(CaSource::File(file.clone()));
    }
    if let Some(name) = &config.kas.tls_server_name {
        tls = tls.server_name(name);
    }
    if config.kas.insecure_skip_tls_verify {
        tracing::warn!("The certificate of the kas is not checked: whoever sits between can be the kas.");
        tls = tls.dangerously_skip_verification();
    }
    let connector = connector(&address, tls, proxies, &headers, &kas.user_agent, Timestamp::now());
    let connector = connector.map_err(|error| {
        Problem::new(&ground::CERTIFICATE_UNUSABLE, "The authority's certificate cannot be used.")
            .because(chain(&error))
    })?;
    let door = Arc::new(door);
    let upstream = Arc::new(Upstream(Arc::clone(&door)));
    kas.meta = AgentMeta {
        version: env!("CARGO_PKG_VERSION").into(),
        pod_namespace: pod.namespace,
        pod_name: pod.name,
        kubernetes_version: if kubernetes { version(&upstream).await } else { None },
        ..AgentMeta::default()
    };
    let product = kas.user_agent.clone();
    let mut services = Services::default();
    if kubernetes {
        services = services.with(KubernetesApi::new(kas.prefix, product, upstream));
    }
    for (name, methods) in modules {
        services = services.with(GrpcModule::new(name, methods, Arc::clone(&door)));
    }
    tracing::info!(kas = %address, "The agent joins a kas.");
    let agent = KasAgent::new(kas, Arc::new(connector), services);
    let status = agent.status();
    Ok(Joined { agent: Some(agent), status })
}

/// A connection over which the last attempt did not fail is enough to be reached.
fn tell(part: &Part, status: &KasAgentStatus) {
    match (&status.trouble, status.connections) {
        (None, 1..) => part.ready(),
        (Some(trouble), _) => part.failing(trouble.clone()),
        (None, 0) => part.starting("dialling"),
    }
}

/// What comes through tunnels, judged by the policy like everything else.
struct Upstream(Arc<Door>);

impl Caller for Upstream {
    fn call(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, LinkError>> {
        async move {
            let denied = |denial: Denial| LinkError::Denied(Box::new(denial));
            let target =
                Target::service(KUBERNETES).map_err(|error| LinkError::Request(error.to_string().into()))?;
            self.0.call(IncomingCall { target: Some(target), request }).await.map_err(denied)
        }
        .boxed()
    }
}

/// The version of the API server, if it says it soon and the policy lets the agent ask.
async fn version(upstream: &Upstream) -> Option<KubernetesVersion> {
    let ask = async {
        let request = Request::get("/version").body(Body::empty()).ok()?;
        let response = upstream.call(request).await.ok()?;
        let body = Limited::new(response.into_body(), MAX_VERSION).collect().await.ok()?.to_bytes();
        let told: serde_json::Value = serde_json::from_slice(&body).ok()?;
        let text = |key: &str| told[key].as_str().unwrap_or_default().to_owned();
        Some(KubernetesVersion {
            major: text("major"),
            minor: text("minor"),
            git_version: text("gitVersion"),
            platform: text("platform"),
        })
    };
    tokio::time::timeout(VERSION_TIMEOUT, ask).await.ok().flatten()
}
