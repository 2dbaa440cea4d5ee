//! Panels of a cluster that this process serves: its virtual nodes, its requests, its federation.

use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::delete;
use axum::{Json, Router};
use serde_json::{Value, json};
use tarbet_cluster::Client;
use tarbet_console::Panel;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::cluster;

use super::rights::Rights;

const NODES: &str = "/api/v1/nodes?labelSelector=virtual-node.interlink/type";
const REQUESTS: &str = "/apis/appstudio.redhat.com/v1alpha1/internalrequests?limit=200";
const MESH: &str = "/apis/federation.openshift-service-mesh.io/v1alpha1";

/// The three panels. A kind that the cluster does not know is shown as nothing, not as a failure.
pub(super) fn panels(client: &Client, rights: &Rights) -> [Panel; 3] {
    let jobs = listing("jobs", client, REQUESTS, request).routes(cancelling(client, rights));
    [listing("nodes", client, NODES, node), jobs, meshes(client)]
}

fn listing(name: &'static str, client: &Client, path: &'static str, view: fn(&Value) -> Value) -> Panel {
    let client = client.clone();
    Panel::live(name, move || {
        let client = client.clone();
        async move { list(&client, path).await.map(|items| items.iter().map(view).collect()) }
    })
}

/// Federations, what they export and what they import, and where those collide.
fn meshes(client: &Client) -> Panel {
    let client = client.clone();
    Panel::live("federation", move || {
        let client = client.clone();
        async move {
            let paths = ["meshfederations", "federationservicerules", "importedservices"]
                .map(|kind| format!("{MESH}/{kind}"));
            let [federations, rules, imported] = &paths;
            let (federations, rules, imported) = futures::try_join!(
                list(&client, federations),
                list(&client, rules),
                list(&client, imported)
            )?;
            Ok(json!({
                "federations": federations.iter().map(federation).collect::<Vec<_>>(),
                "rules": rules.iter().map(exported).collect::<Vec<_>>(),
                "imported": imported.iter().map(imported_service).collect::<Vec<_>>(),
            }))
        }
    })
}

/// `DELETE /api/jobs/NAMESPACE/NAME` cancels a request, as `tarbet request cancel` does.
fn cancelling(client: &Client, rights: &Rights) -> Router {
    let (client, rights) = (client.clone(), rights.clone());
    let cancel = async move |Path((namespace, name)): Path<(String, String)>,
                             headers: HeaderMap|
                -> Response {
        let wants = format!("jobs DELETE /{namespace}/{name}");
        let work = async {
            match tarbet_jobs::client::Requests::new(client.clone(), Some(&namespace)).cancel(&name).await {
                Ok(()) => StatusCode::NO_CONTENT.into_response(),
                Err(problem) => (problem.status(), Json(problem)).into_response(),
            }
        };
        rights.change(&headers, wants, work).await
    };
    Router::new().route("/{namespace}/{name}", delete(cancel))
}

async fn list(client: &Client, path: &str) -> Result<Vec<Value>, Problem> {
    let failed = |cause: String| {
        Problem::new(&cluster::CLUSTER_UNREACHABLE, "The cluster does not answer.")
            .at("console → Kubernetes API")
            .because(cause)
    };
    let request = http::Request::get(path).body(Vec::new()).map_err(|error| failed(error.to_string()))?;
    let text = client.request_text(request).await;
    match text {
        Ok(text) => {
            let value: Value = serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
            Ok(value["items"].as_array().cloned().unwrap_or_default())
        }
        Err(error) if tarbet_cluster::class(&error) == tarbet_cluster::Class::Missing => Ok(Vec::new()),
        Err(error) => Err(failed(error.to_string())),
    }
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
