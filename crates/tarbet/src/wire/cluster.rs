//! Panels of clusters: their virtual nodes, requests and federations.

mod listed;

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::delete;
use axum::{Json, Router};
use serde_json::{Value, json};
use tarbet_cluster::{Client, Source};
use tarbet_console::Panel;
use tarbet_telemetry::{Coded, Problem};
use tokio::sync::OnceCell;

use super::rights::Rights;
use listed::{Listed, list, newest};

const NODES: &str = "/api/v1/nodes?labelSelector=virtual-node.interlink/type";
const REQUESTS: &str = "/apis/appstudio.redhat.com/v1alpha1/internalrequests";
const MESH: &str = "/apis/federation.openshift-service-mesh.io/v1alpha1";

/// A cluster that is shown.
#[derive(Clone)]
pub struct Cluster {
    client: Arc<OnceCell<Client>>,
    /// Where the way to it will be told, if it is not known yet.
    kubeconfig: PathBuf,
}

impl Cluster {
    /// One that this process is connected to.
    pub fn served(client: Client) -> Self {
        Self { client: Arc::new(OnceCell::new_with(Some(client))), kubeconfig: PathBuf::new() }
    }

    /// The one that this file leads to, now or once it is there.
    pub fn at(kubeconfig: PathBuf) -> Self {
        Self { client: Arc::default(), kubeconfig }
    }

    /// How people call it: by the file that leads to it.
    fn called(&self) -> String {
        let file = self.kubeconfig.display().to_string();
        if file.is_empty() {
            "the cluster that is served from here".into()
        } else {
            format!("the cluster of {file}")
        }
    }

    async fn client(&self) -> Result<Option<&Client>, Problem> {
        if !self.client.initialized() && !self.kubeconfig.exists() {
            return Ok(None);
        }
        let connect = || async { tarbet_cluster::connect(&Source::file(self.kubeconfig.clone())).await };
        self.client.get_or_try_init(connect).await.map(Some).map_err(|error| error.problem())
    }
}

/// The three panels. A kind that a cluster does not know is shown as nothing, not as a failure.
pub(super) fn panels(clusters: &[Cluster], rights: &Rights) -> [Panel; 3] {
    let clusters: Arc<[Cluster]> = clusters.into();
    [nodes(&clusters), requests(&clusters).routes(cancelling(&clusters, rights)), meshes(&clusters)]
}

fn nodes(clusters: &Arc<[Cluster]>) -> Panel {
    let clusters = Arc::clone(clusters);
    Panel::live("nodes", move || {
        let clusters = Arc::clone(&clusters);
        async move {
            let Listed { items, away, .. } = list(&clusters, NODES).await?;
            Ok(json!({ "nodes": items.iter().map(node).collect::<Vec<_>>(), "away": away }))
        }
    })
}

/// The newest requests, and how many there are.
fn requests(clusters: &Arc<[Cluster]>) -> Panel {
    let clusters = Arc::clone(clusters);
    Panel::live("jobs", move || {
        let clusters = Arc::clone(&clusters);
        async move {
            let Listed { items, total, away } = list(&clusters, REQUESTS).await?;
            let newest: Vec<_> = newest(&items).into_iter().map(request).collect();
            Ok(json!({ "requests": newest, "total": total, "away": away }))
        }
    })
}

/// Federations, what they export and what they import, and where those collide.
fn meshes(clusters: &Arc<[Cluster]>) -> Panel {
    let clusters = Arc::clone(clusters);
    Panel::live("federation", move || {
        let clusters = Arc::clone(&clusters);
        async move {
            let paths = ["meshfederations", "federationservicerules", "importedservices"]
                .map(|kind| format!("{MESH}/{kind}"));
            let [federations, rules, imported] = &paths;
            let (federations, rules, imported) = futures::try_join!(
                list(&clusters, federations),
                list(&clusters, rules),
                list(&clusters, imported)
            )?;
            Ok(json!({
                "federations": federations.items.iter().map(federation).collect::<Vec<_>>(),
                "rules": rules.items.iter().map(exported).collect::<Vec<_>>(),
                "imported": imported.items.iter().map(imported_service).collect::<Vec<_>>(),
                // Who does not answer one question does not answer the others.
                "away": federations.away,
            }))
        }
    })
}

/// `DELETE /api/jobs/NAMESPACE/NAME` cancels a request, as `tarbet request cancel` does.
fn cancelling(clusters: &Arc<[Cluster]>, rights: &Rights) -> Router {
    let (clusters, rights) = (Arc::clone(clusters), rights.clone());
    let cancel =
        async move |Path((namespace, name)): Path<(String, String)>, headers: HeaderMap| -> Response {
            let wants = format!("jobs DELETE /{namespace}/{name}");
            let work = async {
                match cancel_in(&clusters, &namespace, &name).await {
                    Ok(()) => StatusCode::NO_CONTENT.into_response(),
                    Err(problem) => (problem.status(), Json(problem)).into_response(),
                }
            };
            rights.change(&headers, wants, work).await
        };
    Router::new().route("/{namespace}/{name}", delete(cancel))
}

/// Cancels it in the first cluster that has it.
async fn cancel_in(clusters: &[Cluster], namespace: &str, name: &str) -> Result<(), Problem> {
    let mut outcome = Ok(());
    for cluster in clusters {
        let Some(client) = cluster.client().await? else { continue };
        outcome = tarbet_jobs::client::Requests::new(client.clone(), Some(namespace)).cancel(name).await;
        if !outcome.as_ref().is_err_and(|problem| problem.status() == StatusCode::NOT_FOUND) {
            break;
        }
    }
    outcome
}

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == kind)
        .unwrap_or(&Value::Null)
}

fn node(node: &Value) -> Value {
    let ready = condition(node, "Ready");
    json!({
        "name": node["metadata"]["name"], "ready": ready["status"] == "True", "reason": ready["message"],
        "capacity": node["status"]["capacity"],
    })
}

fn request(request: &Value) -> Value {
    let (meta, spec) = (&request["metadata"], &request["spec"]);
    let done = condition(request, "Succeeded");
    json!({
        "name": meta["name"], "namespace": meta["namespace"], "created": meta["creationTimestamp"],
        "wants": spec["request"].as_str().or(spec["pipeline"]["pipelineRef"]["params"][0]["value"].as_str()),
        "status": done["status"], "reason": done["reason"], "message": done["message"],
        "run": request["status"]["pipelineRun"], "results": request["status"]["results"],
        "started": request["status"]["startTime"], "ended": request["status"]["completionTime"],
    })
}

fn federation(federation: &Value) -> Value {
    let status = &federation["status"];
    json!({
        "name": federation["metadata"]["name"], "namespace": federation["metadata"]["namespace"],
        "mesh": federation["spec"]["local"]["id"], "conditions": status["conditions"],
        "remotes": status["remotes"], "configured": federation["spec"]["remote"],
    })
}

fn exported(rules: &Value) -> Value {
    json!({
        "namespace": rules["metadata"]["namespace"], "export": rules["spec"]["export"],
        "exported": rules["status"]["exported"], "conditions": rules["status"]["conditions"],
    })
}

fn imported_service(service: &Value) -> Value {
    let (ready, conflicted) = (condition(service, "Ready"), condition(service, "Conflicted"));
    let conflict = (conflicted["status"] == "True").then(|| conflicted["message"].clone());
    json!({
        "name": service["metadata"]["name"], "namespace": service["metadata"]["namespace"],
        "hostname": service["spec"]["hostname"], "meshes": service["spec"]["meshes"],
        "ready": ready["status"] == "True", "why": ready["message"], "conflict": conflict,
    })
}
