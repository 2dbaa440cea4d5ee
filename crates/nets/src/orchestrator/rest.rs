//! The REST API: the original's paths and bodies, with plans, operations and answers beside them.
//!
//! Every request that changes something takes `?plan=true` (only tell the calls), `?expect=DIGEST` (make
//! exactly those), `?async=true` (answer with the operation at once) and `?wait=1s` (answer with the operation
//! if it is not over by then). To stop an operation and to choose a namespace are no operations themselves: there
//! the first three are refused. Nor is recording networks of others, which takes the first two and refuses the third.

use std::time::Duration;

use axum::extract::{Path, Query, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use http::uri::PathAndQuery;
use http::{Method, StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tarbet_telemetry::{Coded, Problem};

use super::body::{self, Body, RuleBody};
use super::operation::{Call, Operation, State as OperationState};
use super::request::Request;
use super::{Asked, Options, Orchestrator, Outcome, rest_import, rest_seed};
use crate::error::Error;
use crate::plan::tags::Mapping;
use crate::refusal;

/// Carries the id of the operation a request became.
const OPERATION: &str = "tarbet-operation-id";

/// A failure, as people and the original's programs read it.
pub(super) struct Failure(Problem);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let problem = error.problem();
        if problem.status().is_server_error() {
            tracing::warn!(code = %problem.code, error = %tarbet_telemetry::problem::chain(&error), cause = %problem.cause, "A request failed.");
        }
        Self(problem)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        refusal::answer(&self.0)
    }
}

pub(super) type Answer = Result<Response, Failure>;

/// How a change is to be made.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct How {
    plan: bool,
    expect: Option<String>,
    #[serde(rename = "async")]
    later: bool,
    #[serde(with = "humantime_serde")]
    wait: Option<Duration>,
}

impl How {
    /// For a change that is no operation: who wants it only planned must not have it made.
    pub(super) fn at_once(&self) -> Result<(), Error> {
        let asked = [("plan", self.plan), ("expect", self.expect.is_some()), ("async", self.later)];
        match asked.into_iter().find(|(_, asked)| *asked) {
            Some((word, _)) => Err(Error::invalid(word, "is not offered here: the change is made at once")),
            None => Ok(()),
        }
    }
}

/// An operation as it is shown: calls as sentences, keys never.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    id: String,
    title: String,
    state: &'static str,
    done: usize,
    calls: Vec<String>,
    begun: String,
    moved: String,
    /// What is left of the call it is at, where that has steps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    steps: Vec<String>,
    /// The resource it made.
    #[serde(skip_serializing_if = "Option::is_none")]
    made: Option<Value>,
    /// Connections that no rule needs any more after it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unneeded: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

impl Shown {
    async fn new(orchestrator: &Orchestrator, operation: Operation) -> Result<Self, Error> {
        let steps = orchestrator.steps_left(&operation).await?;
        let place = operation.calls.iter().find_map(|call| match call {
            Call::Register { cloud, namespace, .. } => Some(format!("{namespace}.{cloud}")),
            _ => None,
        });
        let made = operation.created.as_ref().zip(place).map(|(made, place)| {
            json!({ "name": format!("{place}.{}", made.name), "uri": made.uri, "ip": made.ip })
        });
        let (state, problem) = match operation.state {
            OperationState::Running => ("running", None),
            OperationState::Done => ("done", None),
            OperationState::Cancelled => ("cancelled", None),
            OperationState::Failed(problem) => ("failed", Some(problem)),
        };
        Ok(Self {
            id: operation.id.to_string(),
            title: operation.title,
            state,
            done: operation.done,
            calls: operation.calls.iter().map(ToString::to_string).collect(),
            begun: operation.begun.to_string(),
            moved: operation.moved.to_string(),
            steps,
            made,
            unneeded: operation.unneeded,
            problem,
        })
    }
}

pub(super) fn router(orchestrator: Orchestrator) -> Router {
    let resource = "/namespaces/{ns}/clouds/{cloud}/resources/{resource}";
    Router::new()
        .route("/ping", get(|| async { Json(json!({ "message": "pong" })) }))
        .route("/namespaces", get(namespaces))
        .route("/namespaces/{ns}/resources", get(resources))
        .route("/namespaces/{ns}/clouds/{cloud}/resources", post(create_or_attach))
        .route(resource, put(create).delete(delete_resource))
        .route(&format!("{resource}/rules"), get(rules).post(add_rule))
        .route(&format!("{resource}/applyRules"), post(add_rules))
        .route(&format!("{resource}/deleteRules"), post(delete_rules))
        .route(&format!("{resource}/rules/{{rule}}"), put(put_rule).delete(delete_rule))
        .route("/tags", get(tags))
        .route("/tags/{tag}", get(tag).delete(delete_tag).post(rest_seed::set_tag))
        .route("/tags/{tag}/rules", post(add_tag_rules).delete(delete_tag_rules))
        .route("/tags/{tag}/resolveMembers", post(resolve))
        .route("/tags/{tag}/resolve", get(rest_seed::resolve))
        .route("/tags/{tag}/applyMembers", post(apply_members))
        .route("/tags/{tag}/members/{member}", delete(delete_member))
        .route("/operations", get(operations))
        .route("/operations/{id}", get(operation).delete(cancel))
        .route("/drift", get(drift).post(repair))
        .route("/can", get(can))
        .route("/topology", get(topology))
        .route("/links/prune", post(prune))
        .route("/links/rekey", post(rekey_all))
        .route("/links/{link}/rekey", post(rekey))
        .merge(rest_import::router())
        .merge(rest_seed::router())
        .layer(from_fn_with_state(orchestrator.clone(), to_the_leader))
        .layer(from_fn(refusal::in_json))
        .with_state(orchestrator)
}

/// Changes go to the orchestrator that leads; everybody answers who only looks.
async fn to_the_leader(
    State(orchestrator): State<Orchestrator>,
    request: axum::extract::Request,
    next: Next,
) -> Response {
    let looks = [Method::GET, Method::HEAD].contains(request.method());
    let leader = orchestrator.leader_elsewhere().filter(|leader| !looks && !leader.is_empty());
    let Some(leader) = leader else { return next.run(request).await };
    let path = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    let problem = Error::Standby { leader: leader.clone() }.problem();
    let there = [(header::LOCATION, format!("{leader}{path}"))];
    (StatusCode::TEMPORARY_REDIRECT, there, Json(refusal::body(&problem))).into_response()
}

/// Plans, begins or makes a change, and answers as asked.
pub(super) async fn change(
    orchestrator: &Orchestrator,
    how: How,
    request: Request,
    answer: impl FnOnce(Outcome) -> Response,
) -> Answer {
    let options = Options { expect: how.expect };
    if how.plan {
        return Ok(Json(orchestrator.plan(&request).await?).into_response());
    }
    if how.later {
        let shown = match orchestrator.start(request, options).await? {
            Some(operation) => Some(Shown::new(orchestrator, operation).await?),
            None => None,
        };
        return Ok((StatusCode::ACCEPTED, Json(json!({ "operation": shown }))).into_response());
    }
    let asked = match how.wait {
        Some(wait) => orchestrator.execute_within(request, options, wait).await?,
        None => Asked::Over(orchestrator.execute(request, options).await?),
    };
    let outcome = match asked {
        Asked::Over(outcome) => outcome,
        Asked::Running(operation) => {
            let shown = Shown::new(orchestrator, operation).await?;
            return Ok((StatusCode::ACCEPTED, Json(json!({ "operation": shown }))).into_response());
        }
    };
    let id = outcome.operation.as_ref().map(|operation| operation.id.to_string());
    let mut response = answer(outcome);
    if let Some(value) = id.and_then(|id| id.parse().ok()) {
        response.headers_mut().insert(OPERATION, value);
    }
    Ok(response)
}

fn empty(outcome: Outcome) -> Response {
    freed(outcome).unwrap_or_else(|| StatusCode::OK.into_response())
}

fn braces(outcome: Outcome) -> Response {
    freed(outcome).unwrap_or_else(|| Json(json!({})).into_response())
}

/// Whoever took the last need for a connection away is told; there is no body otherwise, as in the original.
fn freed(outcome: Outcome) -> Option<Response> {
    let unneeded = outcome.operation?.unneeded;
    (!unneeded.is_empty()).then(|| Json(json!({ "unneeded": unneeded })).into_response())
}

type Place = Path<(String, String, String)>;

async fn namespaces(State(orchestrator): State<Orchestrator>) -> Json<Value> {
    let map = orchestrator.namespaces().iter().map(|(namespace, deployments)| {
        // With capitals, as the original's own structure is spelt.
        let list: Vec<Value> = deployments
            .iter()
            .map(|deployment| json!({ "Name": deployment.name, "Deployment": deployment.deployment }))
            .collect();
        (namespace.clone(), Value::from(list))
    });
    Json(Value::Object(map.collect()))
}

async fn resources(State(orchestrator): State<Orchestrator>, Path(namespace): Path<String>) -> Answer {
    Ok(Json(orchestrator.resources(Some(&namespace)).await?).into_response())
}

#[derive(Deserialize)]
pub(super) struct NewBody {
    #[serde(default)]
    name: String,
    description: Option<String>,
    #[serde(default)]
    id: String,
    /// Whatever else it says.
    #[serde(flatten)]
    more: serde_json::Map<String, Value>,
}

impl NewBody {
    /// The original's client leaves out what is empty. With something else instead of a description, such as an id or
    /// the fields of a rule, the body was meant for another path, and nothing is made of it.
    pub(super) fn described(self) -> Result<(String, String), Error> {
        match self.description {
            None if !self.id.is_empty() || !self.more.is_empty() => {
                Err(Error::invalid("description", "is missing"))
            }
            description => Ok((self.name, description.unwrap_or_default())),
        }
    }
}

fn created(namespace: String, cloud: String) -> impl FnOnce(Outcome) -> Response {
    move |outcome| {
        let made = outcome.created.unwrap_or(crate::model::Created {
            name: String::new(),
            uri: String::new(),
            ip: String::new(),
        });
        let name = format!("{namespace}.{cloud}.{}", made.name);
        Json(json!({ "name": name, "uri": made.uri, "ip": made.ip })).into_response()
    }
}

async fn create_or_attach(
    State(orchestrator): State<Orchestrator>,
    Path((namespace, cloud)): Path<(String, String)>,
    Query(how): Query<How>,
    Body(body): Body<NewBody>,
) -> Answer {
    let answer = created(namespace.clone(), cloud.clone());
    let request = if body.name.is_empty() && !body.id.is_empty() {
        Request::Attach { namespace, cloud, uri: body.id }
    } else {
        let (name, description) = body.described()?;
        Request::Create { namespace, cloud, name, description }
    };
    change(&orchestrator, how, request, answer).await
}

async fn create(
    State(orchestrator): State<Orchestrator>,
    Path((namespace, cloud, name)): Place,
    Query(how): Query<How>,
    Body(body): Body<NewBody>,
) -> Answer {
    let answer = created(namespace.clone(), cloud.clone());
    let (_, description) = body.described()?;
    let request = Request::Create { namespace, cloud, name, description };
    change(&orchestrator, how, request, answer).await
}

async fn delete_resource(
    State(orchestrator): State<Orchestrator>,
    Path((namespace, cloud, name)): Place,
    Query(how): Query<How>,
) -> Answer {
    change(&orchestrator, how, Request::DeleteResource { namespace, cloud, name }, empty).await
}

async fn rules(State(orchestrator): State<Orchestrator>, Path((namespace, cloud, name)): Place) -> Answer {
    let rules = orchestrator.rules(&namespace, &cloud, &name).await?;
    // The original's encoder writes an empty list as null.
    Ok(Json(if rules.is_empty() { Value::Null } else { json!(rules) }).into_response())
}

async fn add_rules(
    State(orchestrator): State<Orchestrator>,
    Path((namespace, cloud, name)): Place,
    Query(how): Query<How>,
    Body(given): Body<Vec<RuleBody>>,
) -> Answer {
    let resource = orchestrator.target(&namespace, &cloud, &name).await?;
    change(&orchestrator, how, Request::AddRules { resource, rules: body::rules(given) }, empty).await
}

async fn add_rule(
    state: State<Orchestrator>,
    place: Place,
    how: Query<How>,
    Body(rule): Body<RuleBody>,
) -> Answer {
    add_rules(state, place, how, Body(vec![rule])).await
}

async fn put_rule(
    state: State<Orchestrator>,
    Path((namespace, cloud, resource, name)): Path<(String, String, String, String)>,
    how: Query<How>,
    Body(rule): Body<RuleBody>,
) -> Answer {
    add_rules(state, Path((namespace, cloud, resource)), how, Body(vec![rule.named(name)])).await
}

async fn delete_rules(
    State(orchestrator): State<Orchestrator>,
    Path((namespace, cloud, name)): Place,
    Query(how): Query<How>,
    Body(names): Body<Vec<String>>,
) -> Answer {
    let resource = orchestrator.target(&namespace, &cloud, &name).await?;
    change(&orchestrator, how, Request::DeleteRules { resource, names }, empty).await
}

async fn delete_rule(
    state: State<Orchestrator>,
    Path((namespace, cloud, resource, rule)): Path<(String, String, String, String)>,
    how: Query<How>,
) -> Answer {
    delete_rules(state, Path((namespace, cloud, resource)), how, Body(vec![rule])).await
}

async fn add_tag_rules(
    State(orchestrator): State<Orchestrator>,
    Path(tag): Path<String>,
    Query(how): Query<How>,
    Body(given): Body<Vec<RuleBody>>,
) -> Answer {
    change(&orchestrator, how, Request::AddTagRules { tag, rules: body::rules(given) }, empty).await
}

async fn delete_tag_rules(
    State(orchestrator): State<Orchestrator>,
    Path(tag): Path<String>,
    Query(how): Query<How>,
    Body(names): Body<Vec<String>>,
) -> Answer {
    change(&orchestrator, how, Request::DeleteTagRules { tag, names }, empty).await
}

async fn tags(State(orchestrator): State<Orchestrator>) -> Result<Json<Vec<Mapping>>, Failure> {
    orchestrator.0.look_all().await?;
    Ok(Json(orchestrator.tags().list()))
}

async fn tag(
    State(orchestrator): State<Orchestrator>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Failure> {
    orchestrator.tags().look(&[&name]).await?;
    let tag = orchestrator.tags().get(&name);
    Ok(Json(rest_seed::spell_tag(&tag.unwrap_or_else(|| Mapping { name, ..Mapping::default() }))))
}

async fn resolve(
    State(orchestrator): State<Orchestrator>,
    Path(name): Path<String>,
) -> Result<Json<Vec<Mapping>>, Failure> {
    orchestrator.tags().look(&[&name]).await?;
    Ok(Json(orchestrator.tags().resolve(&name)))
}

/// The body's name decides, as in the original; the path's is used where the body has none.
async fn apply_members(
    State(orchestrator): State<Orchestrator>,
    Path(name): Path<String>,
    Query(how): Query<How>,
    Body(tag): Body<Mapping>,
) -> Answer {
    let tag = if tag.name.is_empty() { Mapping { name, ..tag } } else { tag };
    change(&orchestrator, how, Request::SetTag(tag), braces).await
}

async fn delete_tag(
    State(orchestrator): State<Orchestrator>,
    Path(name): Path<String>,
    Query(how): Query<How>,
) -> Answer {
    change(&orchestrator, how, Request::DeleteTag(name), braces).await
}

async fn delete_member(
    State(orchestrator): State<Orchestrator>,
    Path((tag, member)): Path<(String, String)>,
    Query(how): Query<How>,
) -> Answer {
    change(&orchestrator, how, Request::DeleteMembers(tag, vec![member]), braces).await
}

async fn prune(State(orchestrator): State<Orchestrator>, Query(how): Query<How>) -> Answer {
    change(&orchestrator, how, Request::Prune, braces).await
}

async fn rekey_all(State(orchestrator): State<Orchestrator>, Query(how): Query<How>) -> Answer {
    change(&orchestrator, how, Request::Rekey(None), braces).await
}

async fn rekey(
    State(orchestrator): State<Orchestrator>,
    Path(link): Path<String>,
    Query(how): Query<How>,
) -> Answer {
    change(&orchestrator, how, Request::Rekey(Some(link)), braces).await
}

async fn operations(State(orchestrator): State<Orchestrator>) -> Answer {
    let mut shown = Vec::new();
    for operation in orchestrator.operations().await? {
        shown.push(Shown::new(&orchestrator, operation).await?);
    }
    Ok(Json(shown).into_response())
}

async fn operation(State(orchestrator): State<Orchestrator>, Path(id): Path<String>) -> Answer {
    let operation = orchestrator.operation(&id).await?;
    Ok(Json(Shown::new(&orchestrator, operation).await?).into_response())
}

async fn cancel(
    State(orchestrator): State<Orchestrator>,
    Path(id): Path<String>,
    Query(how): Query<How>,
) -> Answer {
    how.at_once()?;
    let operation = orchestrator.cancel(&id).await?;
    Ok(Json(Shown::new(&orchestrator, operation).await?).into_response())
}

async fn drift(State(orchestrator): State<Orchestrator>) -> Answer {
    Ok(Json(orchestrator.compare().await?.told()).into_response())
}

/// Answers with what differed, and which of it is mended now.
async fn repair(State(orchestrator): State<Orchestrator>, Query(how): Query<How>) -> Answer {
    let found = orchestrator.compare().await?;
    let mut is_over = false;
    let over = |_| {
        is_over = true;
        StatusCode::OK.into_response()
    };
    let response = change(&orchestrator, how, Request::Repair(found.clone()), over).await?;
    if !is_over {
        return Ok(response);
    }
    let left = orchestrator.left_of(&found).await;
    let mut told = Json(found.told_after(&left)).into_response();
    if let Some(id) = response.headers().get(OPERATION) {
        told.headers_mut().insert(OPERATION, id.clone());
    }
    Ok(told)
}

#[derive(Deserialize)]
struct Question {
    from: String,
    to: String,
    #[serde(default)]
    port: u16,
    #[serde(default = "tcp")]
    protocol: u8,
}

fn tcp() -> u8 {
    6
}

async fn can(State(orchestrator): State<Orchestrator>, Query(question): Query<Question>) -> Answer {
    let Question { from, to, port, protocol } = question;
    Ok(Json(orchestrator.can(&from, &to, protocol, port).await?).into_response())
}

async fn topology(State(orchestrator): State<Orchestrator>) -> Answer {
    Ok(Json(orchestrator.topology().await?).into_response())
}
