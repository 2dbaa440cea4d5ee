//! The panel of pods: what runs behind interLink's API, and the end of each log.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use tarbet_cluster::Connect;
use tarbet_console::Panel;
use tarbet_identity::tls::ClientTls;
use tarbet_pods::node::interlink::{Endpoint, Interlink};
use tarbet_pods::wire::{LogOptions, LogRequest, PodStatus};
use tarbet_telemetry::codes::{ground, pods};
use tarbet_telemetry::{Coded, Problem};

/// What is shown of a log.
const TAIL: u64 = 400;
const MAX_LOG: usize = 256 * 1024;
/// A log that is not followed ends by itself; a plugin that is stuck does not.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
struct Which {
    #[serde(default)]
    container: String,
    #[serde(default)]
    name: String,
}

/// The panel; nothing if the URL cannot be used.
pub(super) fn panel(url: &str) -> Result<Panel, Problem> {
    let wrong = |cause: String| {
        Problem::new(&ground::CONFIG_INVALID, "The interLink endpoint cannot be shown.").because(cause)
    };
    let endpoint = Endpoint::new(url, "3000").map_err(wrong)?;
    let tls = ClientTls::new().build(jiff::Timestamp::now()).map_err(|error| wrong(error.to_string()))?;
    let connect = endpoint.connect(Connect::network(), Some(tls));
    let interlink = Arc::new(Interlink::new(endpoint, connect, None));
    let read = Arc::clone(&interlink);
    let logs =
        async move |Path((namespace, uid)): Path<(String, String)>, Query(which): Query<Which>| match log(
            &interlink, namespace, uid, which,
        )
        .await
        {
            Ok(text) => text.into_response(),
            Err(problem) => (problem.status(), Json(problem)).into_response(),
        };
    let routes = Router::new().route("/logs/{namespace}/{uid}", get(logs));
    Ok(Panel::live("pods", move || {
        let interlink = Arc::clone(&read);
        async move {
            let listed = interlink.list().await.map_err(|error| error.problem())?;
            let ping = interlink.ping().await.map_err(|error| error.problem())?;
            let pods: Vec<Value> = listed.iter().map(view).collect();
            let runtime = ping.reply.map_or_else(|| "ok".to_owned(), |reply| reply.status);
            Ok(json!({ "runtime": runtime, "pods": pods }))
        }
    })
    .routes(routes))
}

async fn log(
    interlink: &Interlink,
    namespace: String,
    uid: String,
    which: Which,
) -> Result<Response, Problem> {
    let request = LogRequest {
        namespace,
        pod_uid: uid,
        pod_name: which.name,
        container_name: which.container,
        options: LogOptions { tail: TAIL, ..LogOptions::default() },
    };
    let reading = async {
        let mut pieces = interlink.logs(&request).await.map_err(|error| error.problem())?;
        let mut text = Vec::new();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| {
                Problem::new(&pods::INTERLINK_AWAY, "The log broke off.").because(error.to_string())
            })?;
            text.extend_from_slice(&piece);
            if text.len() > MAX_LOG {
                break;
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned().into_response())
    };
    tokio::time::timeout(PATIENCE, reading).await.unwrap_or_else(|_| {
        Err(Problem::new(&pods::INTERLINK_AWAY, "The log did not come in time.").at("console → interLink"))
    })
}

fn view(pod: &PodStatus) -> Value {
    let containers = pod.init_containers.iter().chain(&pod.containers).map(|container| {
        let state = container.state.clone().unwrap_or_default();
        let (word, detail) = match (state.waiting, state.running, state.terminated) {
            (Some(waiting), _, _) => ("waiting", waiting.reason.unwrap_or_default()),
            (_, Some(_), _) => ("running", String::new()),
            (_, _, Some(end)) if end.exit_code == 0 => ("ended", "code 0".to_owned()),
            (_, _, Some(end)) => ("failed", format!("code {}", end.exit_code)),
            _ => ("unknown", String::new()),
        };
        json!({ "name": container.name, "state": word, "detail": detail, "image": container.image })
    });
    json!({
        "uid": pod.uid, "namespace": pod.namespace, "name": pod.name, "job": pod.jid,
        "containers": containers.collect::<Vec<_>>(),
    })
}
