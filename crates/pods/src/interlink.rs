//! The interLink API server: between nodes and one plugin, both generations on one port.
//!
//! It holds no pods. It puts together what plugins need, remembers states for a moment, and
//! passes everything else on. A plugin that is away is said, and changes nothing.

mod ask;
mod cache;
mod form;
mod kubeconfig;
mod make;
mod retrieve;
mod upstream;

pub(crate) use kubeconfig::read_any as read_any_account;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Router, body};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use serde_json::value::RawValue;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, pods};
use tokio_util::sync::CancellationToken;

pub use form::PluginBody;
pub use retrieve::{Giving, retrieve};
pub use upstream::Upstream;

use crate::serve::{Caller, bad_request, refusal, whole};
use crate::wire::extension::{EXEC, EXEC_UPGRADE, EXTENSIONS_HEADER, LIST, UPDATE, USAGE, WATCH, is_ours};
use crate::wire::lines::SILENCE;
use crate::wire::{
    LogRequest, PingReply, PodCreate, PodRef, PodStatus, SESSION_HEADER, is_uid, read, read_items,
};
use cache::Cache;
use form::Form;
use kubeconfig::Account;

/// How long until a plugin that pushes nothing is asked again whether it does.
const NO_PUSH: Duration = Duration::from_mins(1);
/// Words of a plugin in our messages.
const MAX_WORDS: usize = 4000;

/// What the plugin has to say how it is.
const PLUGIN_PATIENCE: Duration = Duration::from_secs(30);

const NO_UID: &str = "a pod has no UID of Kubernetes' form";

/// How the API server works.
#[derive(Debug, Clone)]
pub struct InterlinkConfig {
    /// Where the account of the node is stored.
    pub root: PathBuf,
    /// Whether ConfigMaps, Secrets and the like go along to the plugin.
    pub export: bool,
    /// An account the administrator gives. Those that nodes send are then acknowledged, and not used.
    pub kubeconfig: Option<PathBuf>,
    /// The form in which pods are sent to the plugin.
    pub body: PluginBody,
}

#[derive(Clone)]
struct Server {
    upstream: Upstream,
    cache: Arc<Cache>,
    account: Account,
    export: bool,
    /// Where folders are proposed to plugins that want that.
    root: Arc<PathBuf>,
    form: Arc<Form>,
}

/// The calls of the API server. Its watch of the plugin ends with `stop`. Fails only where the account that
/// the administrator gives cannot be used.
pub async fn router(
    config: InterlinkConfig,
    upstream: Upstream,
    stop: CancellationToken,
) -> Result<Router, Problem> {
    let account = Account::open(&config.root, config.kubeconfig.as_deref()).await?;
    let (cache, form) = (Arc::<Cache>::default(), Arc::new(Form::new(config.body)));
    let (root, export) = (Arc::new(config.root), config.export);
    let server = Server { upstream, cache, account, export, root, form };
    tokio::spawn(server.clone().watch_plugin(stop));
    let router = Router::new()
        .route("/ping", any(|| async { StatusCode::OK }))
        .route("/setKubeCFG", any(set_kubeconfig))
        .route("/pinglink", any(ping))
        .route("/create", any(create))
        .route("/delete", any(delete))
        .route("/status", any(status))
        .route("/getLogs", any(logs))
        .route("/updateCache", any(update_cache))
        .route(UPDATE, any(update))
        .route(LIST, any(pass))
        .route(USAGE, any(pass))
        .route(WATCH, any(pass))
        .route(EXEC, any(exec))
        .with_state(server);
    Ok(router)
}

fn session(headers: &HeaderMap) -> String {
    let given =
        headers.get(SESSION_HEADER).and_then(|value| value.to_str().ok()).filter(|value| !value.is_empty());
    given.map_or_else(|| format!("Request-{}", uuid::Uuid::new_v4()), str::to_owned)
}

async fn set_kubeconfig(
    State(server): State<Server>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    if server.account.is_given() {
        // A node of 2023 ends itself unless this is well, and with the administrator's account it is.
        tracing::info!("The account of a node is not used: CUSTOMKUBECONF names another.");
        return "OK".into_response();
    }
    if caller != Caller::Known {
        let problem = Problem::new(&ground::TOKEN_REFUSED, "An account is taken from known callers only.")
            .because("the server has no accepted tokens")
            .advising(
                "name a file of tokens as AcceptedTokensFile, or use client certificates or a unix socket",
            );
        return refusal(&problem);
    }
    let body = match whole(request.into_body()).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    match server.account.set(&String::from_utf8_lossy(&body)).await {
        Ok(()) => {
            tracing::info!("Took over the account of a node.");
            "OK".into_response()
        }
        Err(problem) => refusal(&problem),
    }
}

async fn ping(State(server): State<Server>, request: Request) -> Response {
    let session = session(request.headers());
    match server.upstream.ping(&session).await {
        Ok(answer) => relay(answer).await,
        Err(problem) => refusal(&problem),
    }
}

/// Asks the plugin how it is; says why it cannot work.
pub(crate) async fn plugin_health(upstream: &Upstream) -> Result<(), String> {
    let session = session(&HeaderMap::new());
    let answer = tokio::time::timeout(PLUGIN_PATIENCE, upstream.ping(&session));
    let answer = answer.await.map_err(|_| "the plugin takes too long to answer".to_owned())?;
    let (head, body) =
        answer.map_err(|problem| format!("{} {}", problem.message, problem.cause))?.into_parts();
    if !head.status.is_success() {
        return Err(format!("the plugin answers {}", head.status.as_u16()));
    }
    // Plugins of others answer with nothing of this form, and are well.
    let body = Limited::new(body, MAX_WORDS).collect().await.map(http_body_util::Collected::to_bytes);
    let said = body.ok().and_then(|body| serde_json::from_slice::<PingReply>(&body).ok());
    match said {
        Some(reply) if reply.status.starts_with("away") => Err(format!("the plugin is {}", reply.status)),
        _ => Ok(()),
    }
}

async fn create(State(server): State<Server>, request: Request) -> Response {
    let session = session(request.headers());
    let body = match whole(request.into_body()).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    let list = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    let creates = if list {
        let pods = match read_items::<Pod>(&body, "a list of pods") {
            Ok(pods) if pods.items.is_empty() => return bad_request(&"it holds no pod"),
            Ok(pods) => pods.items,
            Err(error) => return bad_request(&error),
        };
        let mut creates = Vec::new();
        for pod in pods {
            // Nodes of 2023 send pods alone; what they need is read from the cluster.
            let gathered = if server.export {
                server.account.gather(pod).await
            } else {
                Ok(PodCreate { pod, ..Default::default() })
            };
            match gathered {
                Ok(create) => creates.push(create),
                Err(problem) => return refusal(&problem),
            }
        }
        creates
    } else {
        match read::<PodCreate>(&body, "a pod with its contents") {
            Ok(create) => vec![create],
            Err(error) => return bad_request(&error),
        }
    };
    let giving = match (server.export, server.upstream.origin().await.is_ours()) {
        (false, _) => Giving::Nothing,
        (true, true) => Giving::Everything,
        (true, false) => Giving::Mounted,
    };
    let mut last = None;
    for create in creates {
        if !is_uid(create.pod.metadata.uid.as_deref().unwrap_or_default()) {
            return bad_request(&NO_UID);
        }
        if !create.job_script_url.is_empty() {
            let problem = Problem::new(&pods::NOT_SUPPORTED, "Job scripts are not built here.")
                .because("the node names a place that builds them (JobScriptBuilderURL)")
                .advising("remove JobScriptBuilderURL; the plugin for Slurm writes its own scripts");
            return refusal(&problem);
        }
        match server.create_one(&session, retrieve(create, giving), list).await {
            Ok(answer) if answer.status().is_success() => last = Some(answer),
            Ok(answer) => return answer,
            Err(problem) => return refusal(&problem),
        }
    }
    last.unwrap_or_else(|| bad_request(&"it holds no pod"))
}

impl Server {
    /// Listens to a plugin that pushes states, as ours do.
    async fn watch_plugin(self, stop: CancellationToken) {
        loop {
            let pushes = tokio::select! {
                () = stop.cancelled() => return,
                pushes = self.listen() => pushes,
            };
            let pause = if pushes { Duration::from_secs(1) } else { NO_PUSH };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Listens until the stream breaks; false if the plugin pushes nothing.
    async fn listen(&self) -> bool {
        let asked = self.upstream.send(Method::GET, WATCH, "Watch", HeaderMap::new(), Bytes::new());
        let Ok(Ok(answer)) = tokio::time::timeout(SILENCE, asked).await else { return true };
        if !answer.status().is_success() {
            return false;
        }
        self.cache.follow(answer.into_body().into_data_stream()).await;
        true
    }
}

async fn delete(State(server): State<Server>, request: Request) -> Response {
    let session = session(request.headers());
    let body = match whole(request.into_body()).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    let pods = match read_items::<PodRef>(&body, "a pod, or a list of them") {
        Ok(pods) if pods.items.is_empty() => return bad_request(&"it holds no pod"),
        Ok(pods) if pods.items.iter().any(|pod| !is_uid(&pod.metadata.uid)) => return bad_request(&NO_UID),
        Ok(pods) => pods,
        Err(error) => return bad_request(&error),
    };
    let answer = match server.delete_at(&session, body, &pods).await {
        Ok(answer) => answer,
        Err(problem) => return refusal(&problem),
    };
    if !answer.status().is_success() {
        return answer;
    }
    for pod in &pods.items {
        server.cache.bury(&pod.metadata.uid);
    }
    if !pods.list {
        return answer;
    }
    // Nodes of 2023 expect the pods they named.
    let gone = pods.items.into_iter().map(|pod| {
        serde_json::json!({"name": pod.metadata.name, "namespace": pod.metadata.namespace, "containers": null})
    });
    json(&gone.collect::<Vec<_>>())
}

async fn status(State(server): State<Server>, request: Request) -> Response {
    let ours = is_ours(request.headers());
    let session = session(request.headers());
    let body = match whole(request.into_body()).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    // Kept as they came: a plugin may read more of them than we do.
    let raw = match read_items::<Box<RawValue>>(&body, "a list of pods") {
        Ok(raw) => raw.items,
        Err(error) => return bad_request(&error),
    };
    if raw.is_empty() {
        return json(&server.cache.all());
    }
    let mut asked = Vec::with_capacity(raw.len());
    for one in &raw {
        match read::<PodRef>(one.get().as_bytes(), "a pod") {
            Ok(pod) if is_uid(&pod.metadata.uid) => asked.push(pod),
            Ok(_) => return bad_request(&NO_UID),
            Err(error) => return bad_request(&error),
        }
    }
    let over = |pod: &PodRef| matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
    let known = |pod: &PodRef| {
        let uid = &pod.metadata.uid;
        server.cache.current(uid).or_else(|| server.cache.last(uid).filter(|_| over(pod)))
    };
    let mut states: Vec<Option<PodStatus>> = asked.iter().map(known).collect();
    let stale: Vec<usize> = (0..asked.len()).filter(|&at| states[at].is_none()).collect();
    if !stale.is_empty() {
        let pods: Vec<(&RawValue, &PodRef)> = stale.iter().map(|&at| (&*raw[at], &asked[at])).collect();
        let fresh = match server.ask(&session, &pods).await {
            Ok(fresh) => fresh,
            Err(refused) => return refused,
        };
        for mut state in fresh {
            // Plugins of 2023 name no UID; name and namespace have to do.
            let at = stale.iter().copied().find(|&at| {
                let meta = &asked[at].metadata;
                if state.uid.is_empty() {
                    meta.name == state.name && meta.namespace == state.namespace
                } else {
                    meta.uid == state.uid
                }
            });
            let Some(at) = at else { continue };
            state.uid.clone_from(&asked[at].metadata.uid);
            server.cache.put(state.clone());
            states[at] = Some(state);
        }
    }
    let told = |state: PodStatus| if ours { state } else { state.without_sidecars() };
    json(&states.into_iter().flatten().map(told).collect::<Vec<_>>())
}

async fn logs(State(server): State<Server>, request: Request) -> Response {
    let session = session(request.headers());
    let body = match whole(request.into_body()).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    let wanted = match read::<LogRequest>(&body, "a request for a log") {
        Ok(wanted) => wanted,
        Err(error) => return bad_request(&error),
    };
    if let Err(error) = wanted.check() {
        return bad_request(&error);
    }
    let body = Bytes::from(serde_json::to_vec(&wanted).unwrap_or_default());
    match server.upstream.send(Method::GET, "/getLogs", &session, HeaderMap::new(), body).await {
        Ok(answer) => relay(answer).await,
        Err(problem) => refusal(&problem),
    }
}

async fn update_cache(State(server): State<Server>, request: Request) -> Response {
    let body = match whole(request.into_body()).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    // A UID, or the whole pod, as the original's node sends it.
    match read::<PodRef>(&body, "a pod") {
        Ok(pod) => server.cache.forget(&pod.metadata.uid),
        Err(_) => server.cache.forget(String::from_utf8_lossy(&body).trim().trim_matches('"')),
    }
    "Updated cache".into_response()
}

async fn update(State(server): State<Server>, request: Request) -> Response {
    let session = session(request.headers());
    let body = match whole(request.into_body()).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    match server.upstream.send(Method::POST, UPDATE, &session, HeaderMap::new(), body).await {
        Ok(answer) => relay(answer).await,
        Err(problem) => refusal(&problem),
    }
}

async fn pass(State(server): State<Server>, request: Request) -> Response {
    let (session, path) = (session(request.headers()), request.uri().path().to_owned());
    match server.upstream.send(Method::GET, &path, &session, HeaderMap::new(), Bytes::new()).await {
        Ok(answer) => relay(answer).await,
        Err(problem) => refusal(&problem),
    }
}

async fn exec(State(server): State<Server>, mut request: Request) -> Response {
    let session = session(request.headers());
    let Some(upgrade) = request.extensions_mut().remove::<OnUpgrade>() else {
        return bad_request(&format!("the call needs `Upgrade: {EXEC_UPGRADE}`"));
    };
    let body = match whole(request.into_body()).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    let mut headers = HeaderMap::new();
    headers.insert(header::UPGRADE, HeaderValue::from_static(EXEC_UPGRADE));
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    let answer = match server.upstream.send(Method::POST, EXEC, &session, headers, body).await {
        Ok(answer) => answer,
        Err(problem) => return refusal(&problem),
    };
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return relay(answer).await;
    }
    tokio::spawn(async move {
        let (Ok(caller), Ok(plugin)) = tokio::join!(upgrade, hyper::upgrade::on(answer)) else { return };
        // Either side may leave; the other then sees the end.
        let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(caller), &mut TokioIo::new(plugin)).await;
    });
    let headers = [(header::UPGRADE, EXEC_UPGRADE), (header::CONNECTION, "Upgrade")];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

/// An answer of the plugin as our own: streamed if it is good, explained if it is not.
async fn relay(answer: hyper::Response<Incoming>) -> Response {
    let status = answer.status();
    if !status.is_success() {
        return explain(status, &read_words(answer).await);
    }
    let (head, stream) = answer.into_parts();
    let mut response = Response::new(Body::new(stream));
    for name in [header::CONTENT_TYPE, header::HeaderName::from_static(EXTENSIONS_HEADER)] {
        if let Some(value) = head.headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}

async fn read_words(answer: hyper::Response<Incoming>) -> String {
    let text = body::to_bytes(Body::new(answer.into_body()), MAX_WORDS * 4).await;
    clip(&text.unwrap_or_default())
}

fn clip(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().take(MAX_WORDS).collect()
}

/// A refusal of the plugin: in its own form if it has ours, else in ours with its words.
fn explain(status: StatusCode, words: &str) -> Response {
    if let Ok(problem) = serde_json::from_str::<Problem>(words) {
        let mut response = refusal(&problem);
        *response.status_mut() = status;
        return response;
    }
    let problem = Problem::new(&pods::PLUGIN_ANSWER, format!("The plugin answered {}.", status.as_u16()))
        .because(words.trim());
    let mut response = refusal(&problem);
    *response.status_mut() = status;
    response
}

fn unusable(cause: &str) -> Response {
    refusal(&Problem::new(&pods::PLUGIN_ANSWER, "The plugin's answer cannot be read.").because(cause))
}

fn json(value: &impl serde::Serialize) -> Response {
    let text = serde_json::to_vec(value).unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}
