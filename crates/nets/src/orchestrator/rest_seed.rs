//! The first generation's paths. Its "current namespace" was one variable of the server; here it is
//! `default` unless the request says `?namespace=`, because a server has more than one caller.

use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;

use super::plan::{Request, Target};
use super::rest::{Answer, How, change};
use super::{Orchestrator, Outcome};
use crate::error::Error;
use crate::model::Rule;
use crate::plan::tags::Mapping;

#[derive(Deserialize)]
pub(super) struct Namespace {
    #[serde(default = "default_namespace")]
    namespace: String,
}

fn default_namespace() -> String {
    "default".into()
}

#[derive(Deserialize)]
struct PermitList {
    #[serde(default)]
    associated_resource: String,
    #[serde(default)]
    rules: Vec<Rule>,
    #[serde(default)]
    namespace: String,
}

#[derive(Deserialize)]
struct Description {
    id: String,
    #[serde(default)]
    description: String,
}

pub(super) fn router() -> Router<Orchestrator> {
    Router::new()
        .route("/cloud/{cloud}/permit-list/{*id}", get(permit_list))
        .route("/cloud/{cloud}/permit-list/rules/", post(add).delete(remove))
        .route("/cloud/{cloud}/resources/", post(create))
        .route("/tags/{tag}/members/", delete(delete_members))
        .route("/namespace/", get(namespace))
        .route("/namespace/{ns}/", post(set_namespace))
}

fn told(message: &'static str) -> impl FnOnce(Outcome) -> Response {
    move |_| Json(json!({ "response": message })).into_response()
}

fn target(cloud: String, namespace: String, uri: String) -> Target {
    Target { namespace, cloud, uri, ip: None }
}

async fn permit_list(
    State(orchestrator): State<Orchestrator>,
    Path((cloud, id)): Path<(String, String)>,
    Query(Namespace { namespace }): Query<Namespace>,
) -> Answer {
    let rules = orchestrator.0.places.cloud(&cloud)?.permit_list(&namespace, &id).await?;
    let rules: Vec<_> = rules.into_iter().map(spell).collect();
    Ok(Json(json!({ "associated_resource": id, "rules": rules, "namespace": namespace })).into_response())
}

/// This generation calls a rule's name its id.
fn spell(rule: Rule) -> serde_json::Value {
    let mut value = serde_json::to_value(rule).unwrap_or_default();
    if let Some(name) = value.as_object_mut().and_then(|map| map.remove("name")) {
        value["id"] = name;
    }
    value
}

impl PermitList {
    fn resource(&self, cloud: String) -> Target {
        let namespace = if self.namespace.is_empty() { default_namespace() } else { self.namespace.clone() };
        target(cloud, namespace, self.associated_resource.clone())
    }
}

async fn add(
    State(orchestrator): State<Orchestrator>,
    Path(cloud): Path<String>,
    Query(how): Query<How>,
    Json(list): Json<PermitList>,
) -> Answer {
    let request = Request::AddRules { resource: list.resource(cloud), rules: list.rules };
    change(&orchestrator, how, request, told("Added the rules")).await
}

async fn remove(
    State(orchestrator): State<Orchestrator>,
    Path(cloud): Path<String>,
    Query(how): Query<How>,
    Json(list): Json<PermitList>,
) -> Answer {
    let names = list.rules.iter().map(|rule| rule.name.clone()).collect();
    let request = Request::DeleteRules { resource: list.resource(cloud), names };
    change(&orchestrator, how, request, told("Deleted the rules")).await
}

async fn create(
    State(orchestrator): State<Orchestrator>,
    Path(cloud): Path<String>,
    Query(Namespace { namespace }): Query<Namespace>,
    Query(how): Query<How>,
    Json(body): Json<Description>,
) -> Answer {
    let name = body.id.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
    let request = Request::Create { namespace, cloud, name, description: body.description };
    change(&orchestrator, how, request, |outcome| {
        let made = outcome.created.map(|made| json!({ "name": made.name, "uri": made.uri, "ip": made.ip }));
        Json(made.unwrap_or_default()).into_response()
    })
    .await
}

pub(super) async fn set_tag(
    State(orchestrator): State<Orchestrator>,
    Path(name): Path<String>,
    Query(how): Query<How>,
    Json(tag): Json<Mapping>,
) -> Answer {
    let tag = if tag.name.is_empty() { Mapping { name, ..tag } } else { tag };
    change(&orchestrator, how, Request::SetTag(tag), told("Set the tag")).await
}

async fn delete_members(
    State(orchestrator): State<Orchestrator>,
    Path(name): Path<String>,
    Json(tag): Json<Mapping>,
) -> Answer {
    if tag.child_tags.is_empty() {
        return Err(Error::invalid("child_tags", "must name at least one member").into());
    }
    for member in tag.child_tags {
        let request = Request::DeleteMember(name.clone(), member);
        change(&orchestrator, How::default(), request, told("")).await?;
    }
    Ok(Json(json!({ "response": "Deleted the members" })).into_response())
}

async fn namespace() -> Json<serde_json::Value> {
    Json(json!({ "namespace": default_namespace() }))
}

async fn set_namespace(State(orchestrator): State<Orchestrator>, Path(namespace): Path<String>) -> Answer {
    if !orchestrator.namespaces().contains_key(&namespace) {
        return Err(Error::Place(format!("there is no namespace `{namespace}`")).into());
    }
    Ok(Json(json!({ "namespace": namespace })).into_response())
}
