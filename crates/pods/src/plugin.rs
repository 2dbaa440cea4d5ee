//! A plugin's server: interLink's calls of both generations, and ours, on any [`Runner`].

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream};
use http::{HeaderValue, StatusCode, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::broadcast::error::RecvError;

use crate::error::RunError;
use crate::runner::{Runner, Session};
use crate::serve::{bad_request, failure, whole};
use crate::wire::extension::{
    EXEC, EXEC_UPGRADE, EXTENSIONS, EXTENSIONS_HEADER, LIST, UPDATE, USAGE, WATCH, is_ours,
};
use crate::wire::{
    ExecRequest, Frame, LogRequest, PodRef, PodStatus, PodUpdate, RetrievedPod, Taint, is_uid, read,
    read_items,
};

/// A watcher hears at least this often that the stream is alive.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// What a plugin's server is told beside what runs its pods.
#[derive(Debug, Clone)]
pub struct PluginConfig {
    /// Whether contents of ConfigMaps, Secrets and the like are mounted.
    pub export: bool,
    /// Taints for the node, told with each ping.
    pub taints: Option<Vec<Taint>>,
}

#[derive(Clone)]
struct Plugin {
    runner: Arc<dyn Runner>,
    export: bool,
    taints: Option<Vec<Taint>>,
}

/// The calls of a plugin that tells no taints.
pub fn router(runner: Arc<dyn Runner>, export: bool) -> Router {
    router_with(runner, PluginConfig { export, taints: None })
}

/// The calls of a plugin.
pub fn router_with(runner: Arc<dyn Runner>, config: PluginConfig) -> Router {
    Router::new()
        .route("/create", any(create))
        .route("/delete", any(delete))
        .route("/status", any(status))
        .route("/getLogs", any(logs))
        .route("/ping", any(ping))
        .route("/pinglink", any(ping))
        .route("/updateCache", any(|| async { "Updated cache" }))
        .route(UPDATE, any(update))
        .route(EXEC, any(exec))
        .route(WATCH, any(watch))
        .route(LIST, any(list))
        .route(USAGE, any(usage))
        .route("/system-info", any(system_info))
        .with_state(Plugin { runner, export: config.export, taints: config.taints })
}

async fn create(State(plugin): State<Plugin>, request: Request) -> Response {
    let body = match whole(request.into_body()).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    let pods = match read_items::<RetrievedPod>(&body, "a pod with its data, or a list of them") {
        Ok(items) if items.items.is_empty() => return bad_request(&"it holds no pod"),
        Ok(items) => items.items,
        Err(error) => return bad_request(&error),
    };
    let mut first = None;
    for mut pod in pods {
        if !pod.job_script.is_empty() {
            // Another script than ours would leave no states behind, and nobody here allowed it.
            let what = "a job script that was made elsewhere (JobScriptTemplate, JobScriptBuilderURL) is not run here";
            return failure(&RunError::Unsupported(what.into()));
        }
        if !plugin.export {
            without_contents(&mut pod);
        }
        match plugin.runner.start(pod).await {
            Ok(reply) => {
                tell_left_out(&*plugin.runner, &reply.pod_uid);
                first = first.or(Some(reply));
            }
            Err(error) => {
                tracing::warn!(error = %error, "A pod was not made.");
                return failure(&error);
            }
        }
    }
    json(&first.unwrap_or_default())
}

/// Tells what a pod goes without.
fn tell_left_out(runner: &dyn Runner, uid: &str) {
    let Some(known) = runner.known(uid) else { return };
    for what in &known.plan.left_out {
        tracing::warn!(pod = %known.id(), %what, "A pod asks for something that has no effect here.");
    }
}

/// Takes away what is only mounted when the plugin exports pods' data.
fn without_contents(pod: &mut RetrievedPod) {
    let Some(spec) = &mut pod.pod.spec else { return };
    let carried = |volume: &k8s_openapi::api::core::v1::Volume| {
        volume.config_map.is_some()
            || volume.secret.is_some()
            || volume.projected.is_some()
            || volume.downward_api.is_some()
    };
    let gone: Vec<String> = spec
        .volumes
        .iter()
        .flatten()
        .filter(|volume| carried(volume))
        .map(|volume| volume.name.clone())
        .collect();
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        if let Some(mounts) = &mut container.volume_mounts {
            mounts.retain(|mount| !gone.contains(&mount.name));
        }
    }
}

async fn delete(State(plugin): State<Plugin>, request: Request) -> Response {
    let pods = match pods(request).await {
        Ok(pods) => pods,
        Err(refused) => return refused,
    };
    for pod in pods {
        let grace = pod.grace_seconds().map(Duration::from_secs);
        if let Err(error) = plugin.runner.delete(&pod.metadata.uid, grace).await {
            tracing::warn!(uid = %pod.metadata.uid, error = %error, "A pod was not deleted.");
            return failure(&error);
        }
    }
    "All containers for submitted Pods have been deleted".into_response()
}

async fn status(State(plugin): State<Plugin>, request: Request) -> Response {
    let ours = is_ours(request.headers());
    let pods = match pods(request).await {
        Ok(pods) => pods,
        Err(refused) => return refused,
    };
    // Asking for nothing is how an API server asks whether we are there.
    if pods.is_empty() {
        return pong(&plugin).await;
    }
    let uids: Vec<String> = pods.into_iter().map(|pod| pod.metadata.uid).collect();
    match plugin.runner.status(&uids).await {
        Ok(states) if ours => json(&states),
        Ok(states) => json(&states.into_iter().map(PodStatus::without_sidecars).collect::<Vec<_>>()),
        Err(error) => failure(&error),
    }
}

async fn pods(request: Request) -> Result<Vec<PodRef>, Response> {
    let body = whole(request.into_body()).await?;
    let pods =
        read_items::<PodRef>(&body, "a pod, or a list of them").map_err(|error| bad_request(&error))?;
    if pods.items.iter().any(|pod| !is_uid(&pod.metadata.uid)) {
        return Err(bad_request(&"a pod has no UID of Kubernetes' form"));
    }
    Ok(pods.items)
}

async fn ping(State(plugin): State<Plugin>) -> Response {
    pong(&plugin).await
}

async fn pong(plugin: &Plugin) -> Response {
    let mut reply = plugin.runner.ping().await;
    reply.taints = reply.taints.or_else(|| plugin.taints.clone());
    let mut response = json(&reply);
    response.headers_mut().insert(EXTENSIONS_HEADER, HeaderValue::from_static(EXTENSIONS));
    response
}

async fn list(State(plugin): State<Plugin>) -> Response {
    match plugin.runner.list().await {
        Ok(states) => json(&states),
        Err(error) => failure(&error),
    }
}

async fn usage(State(plugin): State<Plugin>) -> Response {
    match plugin.runner.usage().await {
        Ok(usage) => json(&usage),
        Err(error) => failure(&error),
    }
}

/// How the scheduler is, in the words of interLink's own plugin for Slurm.
async fn system_info(State(plugin): State<Plugin>) -> Response {
    match plugin.runner.system_info().await {
        Some(info) => json(&info),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn logs(State(plugin): State<Plugin>, request: Request) -> Response {
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
    match plugin.runner.logs(wanted).await {
        Ok(log) => ([(header::CONTENT_TYPE, "text/plain")], Body::from_stream(log)).into_response(),
        Err(error) => failure(&error),
    }
}

async fn update(State(plugin): State<Plugin>, request: Request) -> Response {
    let body = match whole(request.into_body()).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    let mut pod = match read::<PodUpdate>(&body, "a changed pod") {
        Ok(pod) => pod,
        Err(error) => return bad_request(&error),
    };
    if !plugin.export {
        without_contents(&mut pod);
    }
    match plugin.runner.update(pod).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(error) => failure(&error),
    }
}

/// Everything first, then each pod that changes, one line each.
async fn watch(State(plugin): State<Plugin>) -> Response {
    let changes = plugin.runner.changes();
    let first = match plugin.runner.list().await {
        Ok(states) => states,
        Err(error) => return failure(&error),
    };
    let lines = stream::iter(first).map(|state| line(&state));
    let more = stream::unfold((plugin, changes), |(plugin, mut changes)| async move {
        let states = match tokio::time::timeout(HEARTBEAT, changes.recv()).await {
            Err(_) => Ok(Vec::new()),
            Ok(Ok(uid)) if !uid.is_empty() => plugin.runner.status(&[uid]).await,
            // Some were missed: everything again.
            Ok(Ok(_) | Err(RecvError::Lagged(_))) => plugin.runner.list().await,
            Ok(Err(RecvError::Closed)) => return None,
        };
        let text = states.unwrap_or_default().iter().map(line).collect::<Vec<_>>().concat();
        // An empty line says that somebody is there, also while nothing but removed pods changes.
        let text = if text.is_empty() { Bytes::from_static(b"\n") } else { text.into() };
        Some((text, (plugin, changes)))
    });
    let body = Body::from_stream(lines.chain(more).map(Ok::<_, std::convert::Infallible>));
    ([(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response()
}

fn line(state: &PodStatus) -> Bytes {
    let mut text = serde_json::to_vec(state).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

async fn exec(State(plugin): State<Plugin>, mut request: Request) -> Response {
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let asked = request.headers().get(header::UPGRADE).is_some_and(|value| value == EXEC_UPGRADE);
    let body = match whole(request.into_body()).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    let wanted = match read::<ExecRequest>(&body, "a command") {
        Ok(wanted) => wanted,
        Err(error) => return bad_request(&error),
    };
    let Some(upgrade) = upgrade.filter(|_| asked) else {
        return bad_request(&format!("the call needs `Upgrade: {EXEC_UPGRADE}`"));
    };
    let session = match plugin.runner.exec(wanted).await {
        Ok(session) => session,
        Err(error) => return failure(&error),
    };
    tokio::spawn(async move {
        match upgrade.await {
            Ok(stream) => carry(stream, session).await,
            Err(error) => tracing::debug!(error = %error, "A caller left before its command ran."),
        }
    });
    let headers = [(header::UPGRADE, EXEC_UPGRADE), (header::CONNECTION, "Upgrade")];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

/// Frames between a caller and a command, until the command ends or the caller leaves.
async fn carry(stream: Upgraded, session: Session) {
    let (mut reader, mut writer) = tokio::io::split(TokioIo::new(stream));
    let Session { input, mut output } = session;
    let hear = async move {
        let mut held = BytesMut::new();
        loop {
            match Frame::read(&mut held) {
                Ok(Some(frame)) => {
                    if input.send(frame).await.is_err() {
                        // The command takes no more; its end comes by the other way.
                        std::future::pending::<()>().await;
                    }
                }
                Ok(None) => match reader.read_buf(&mut held).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                },
                Err(_) => return,
            }
        }
    };
    let tell = async move {
        let mut out = BytesMut::new();
        while let Some(frame) = output.recv().await {
            out.clear();
            frame.write(&mut out);
            if writer.write_all(&out).await.is_err() || writer.flush().await.is_err() {
                return;
            }
        }
        let _ = writer.shutdown().await;
    };
    tokio::select! {
        () = hear => {}
        () = tell => {}
    }
}

fn json(value: &impl serde::Serialize) -> Response {
    let text = serde_json::to_vec(value).unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}
