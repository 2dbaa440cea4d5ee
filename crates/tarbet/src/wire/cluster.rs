//! Panels of a cluster that this process serves: its virtual nodes, its requests, its federation.

use serde_json::{Value, json};
use tarbet_cluster::Client;
use tarbet_console::Panel;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::cluster;

/// The three panels. A kind that the cluster does not know is shown as nothing, not as a failure.
pub(super) fn panels(client: &Client) -> [Panel; 3] {
    [
        listing("nodes", client, "/api/v1/nodes?labelSelector=virtual-node.interlink/type", node),
        listing("jobs", client, "/apis/appstudio.redhat.com/v1alpha1/internalrequests?limit=200", request),
        listing(
            "federation",
            client,
            "/apis/federation.openshift-service-mesh.io/v1alpha1/meshfederations",
            federation,
        ),
    ]
}

fn listing(name: &'static str, client: &Client, path: &'static str, view: fn(&Value) -> Value) -> Panel {
    let client = client.clone();
    Panel::live(name, move || {
        let client = client.clone();
        async move { list(&client, path).await.map(|items| items.iter().map(view).collect()) }
    })
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
    })
}

fn federation(federation: &Value) -> Value {
    let conditions = &federation["status"]["conditions"];
    json!({
        "name": federation["metadata"]["name"], "namespace": federation["metadata"]["namespace"],
        "spec": federation["spec"], "status": federation["status"], "conditions": conditions,
    })
}
