//! The first generation's paths. Its clients choose a namespace once, which the server remembers for all of
//! them; a request may say `?namespace=` instead, because a server has more than one caller.

use std::sync::PoisonError;

use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::body::{self, Body, RuleBody};
use super::request::{Request, Target};
use super::rest::{Answer, Failure, How, change};
use super::{Orchestrator, Outcome};
use crate::error::Error;
use crate::model::Rule;
use crate::plan::rule;
use crate::plan::tags::Mapping;

#[derive(Deserialize)]
pub(super) struct Namespace {
    #[serde(default)]
    namespace: String,
}

impl Orchestrator {
    /// The namespace a request of this generation is about: the one it names, else the chosen one.
    fn seed_namespace(&self, named: String) -> String {
        let chosen = || self.0.seed_namespace.read().unwrap_or_else(PoisonError::into_inner).clone();
        if named.is_empty() { chosen() } else { named }
    }
}

#[derive(Deserialize)]
pub(super) struct PermitList {
    #[serde(default)]
    associated_resource: String,
    #[serde(default)]
    pub(super) rules: Vec<RuleBody>,
    #[serde(default)]
    namespace: String,
}

#[derive(Deserialize)]
pub(super) struct Description {
    #[serde(default)]
    id: String,
    #[serde(default)]
    description: String,
}

impl Description {
    /// The last part of the id; if it names no more than the deployment, the name in the description, where
    /// the cloud has a place for it there.
    pub(super) fn name(&self, deployment: &str) -> String {
        let id = self.id.trim_end_matches('/');
        if id != deployment.trim_end_matches('/') && !id.is_empty() {
            return id.rsplit('/').next().unwrap_or_default().to_owned();
        }
        let description: Value = serde_json::from_str(&self.description).unwrap_or_default();
        let places = ["/instance_resource/name", "/InstancePrototype/name"];
        let found = places.iter().find_map(|place| description.pointer(place)?.as_str());
        found.unwrap_or_default().to_owned()
    }
}

pub(super) fn router() -> Router<Orchestrator> {
    Router::new()
        .route("/cloud/{cloud}/permit-list/{*id}", get(permit_list))
        .route("/cloud/{cloud}/permit-list/rules", post(add).delete(remove))
        .route("/cloud/{cloud}/resources", post(create))
        .route("/tags/{tag}/members", delete(delete_members))
        .route("/namespace", get(namespace))
        .route("/namespace/{ns}", post(set_namespace))
}

fn told(message: &'static str) -> impl FnOnce(Outcome) -> Response {
    move |_| Json(json!({ "response": message })).into_response()
}

async fn permit_list(
    State(orchestrator): State<Orchestrator>,
    Path((cloud, id)): Path<(String, String)>,
    Query(Namespace { namespace }): Query<Namespace>,
) -> Answer {
    let namespace = orchestrator.seed_namespace(namespace);
    let cloud = orchestrator.0.places.cloud(&cloud)?;
    let (id, rules) = match cloud.permit_list(&namespace, &id).await {
        Ok(rules) => (id, rules),
        // The slash before it may be the first character of the id.
        Err(error) => {
            let rooted = format!("/{id}");
            match cloud.permit_list(&namespace, &rooted).await {
                Ok(rules) => (rooted, rules),
                Err(_) => return Err(error.into()),
            }
        }
    };
    let rules: Vec<_> = rules.into_iter().map(spell).collect();
    let list = json!({ "associated_resource": id, "rules": rules, "namespace": namespace });
    Ok(Json(json!({ "id": id, "permitlist": list })).into_response())
}

/// A tag with its name under the word of either generation.
pub(super) fn spell_tag(tag: &Mapping) -> Value {
    let mut value = serde_json::to_value(tag).unwrap_or_default();
    if !tag.name.is_empty() {
        value["tag_name"] = tag.name.clone().into();
    }
    value
}

pub(super) async fn resolve(
    State(orchestrator): State<Orchestrator>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Failure> {
    orchestrator.tags().look(&[&name]).await?;
    let mappings: Vec<Value> = orchestrator.tags().resolve(&name).iter().map(spell_tag).collect();
    Ok(Json(json!({ "mappings": mappings })))
}

/// This generation calls a rule's name its id.
fn spell(rule: Rule) -> Value {
    let mut value = serde_json::to_value(rule).unwrap_or_default();
    if let Some(name) = value.as_object_mut().and_then(|map| map.remove("name")) {
        value["id"] = name;
    }
    value
}

impl PermitList {
    fn resource(&self, orchestrator: &Orchestrator, cloud: String) -> Target {
        let namespace = orchestrator.seed_namespace(self.namespace.clone());
        Target { namespace, cloud, uri: self.associated_resource.clone(), ip: None }
    }
}

/// A rule that came without an id is named by its contents, so that it is known again.
fn named(rules: Vec<RuleBody>) -> Vec<Rule> {
    let name = |rule: Rule| {
        if rule.name.is_empty() { Rule { name: rule::name_of_contents(&rule), ..rule } } else { rule }
    };
    body::rules(rules).into_iter().map(name).collect()
}

async fn add(
    State(orchestrator): State<Orchestrator>,
    Path(cloud): Path<String>,
    Query(how): Query<How>,
    Body(list): Body<PermitList>,
) -> Answer {
    let request =
        Request::AddRules { resource: list.resource(&orchestrator, cloud), rules: named(list.rules) };
    change(&orchestrator, how, request, told("Added the rules")).await
}

async fn remove(
    State(orchestrator): State<Orchestrator>,
    Path(cloud): Path<String>,
    Query(how): Query<How>,
    Body(list): Body<PermitList>,
) -> Answer {
    let resource = list.resource(&orchestrator, cloud);
    let names = named(list.rules).into_iter().map(|rule| rule.name).collect();
    let request = Request::DeleteRules { resource, names };
    change(&orchestrator, how, request, told("Deleted the rules")).await
}

async fn create(
    State(orchestrator): State<Orchestrator>,
    Path(cloud): Path<String>,
    Query(Namespace { namespace }): Query<Namespace>,
    Query(how): Query<How>,
    Body(body): Body<Description>,
) -> Answer {
    let namespace = orchestrator.seed_namespace(namespace);
    let name = body.name(&orchestrator.0.places.deployment(&namespace, &cloud)?.id);
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
    Body(tag): Body<Mapping>,
) -> Answer {
    let tag = if tag.name.is_empty() { Mapping { name, ..tag } } else { tag };
    change(&orchestrator, how, Request::SetTag(tag), told("Set the tag")).await
}

/// The members alone, as this generation's client sends them, or the tag with them.
#[derive(Deserialize)]
#[serde(untagged)]
enum Members {
    Alone(Vec<String>),
    Within(Mapping),
}

async fn delete_members(
    State(orchestrator): State<Orchestrator>,
    Path(name): Path<String>,
    Query(how): Query<How>,
    Body(members): Body<Members>,
) -> Answer {
    let members = match members {
        Members::Alone(members) => members,
        Members::Within(tag) => tag.child_tags,
    };
    if members.is_empty() {
        return Err(Error::invalid("child_tags", "must name at least one member").into());
    }
    let request = Request::DeleteMembers(name, members);
    change(&orchestrator, how, request, told("Deleted the members")).await
}

async fn namespace(State(orchestrator): State<Orchestrator>) -> Json<Value> {
    Json(json!({ "namespace": orchestrator.seed_namespace(String::new()) }))
}

async fn set_namespace(
    State(orchestrator): State<Orchestrator>,
    Path(namespace): Path<String>,
    Query(how): Query<How>,
) -> Answer {
    how.at_once()?;
    if !orchestrator.namespaces().contains_key(&namespace) {
        return Err(Error::Place(format!("there is no namespace `{namespace}`")).into());
    }
    *orchestrator.0.seed_namespace.write().unwrap_or_else(PoisonError::into_inner) = namespace;
    Ok(StatusCode::OK.into_response())
}
