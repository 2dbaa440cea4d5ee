//! The API listener: JSON over HTTP for people's commands, and connections of our own clients.

pub(super) mod doors;
mod links;
mod record;
mod requests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tarbet_identity::{Pin, TokenKind};
use tarbet_link::{ByteStream, Protocol, detect};
use tarbet_telemetry::codes::{ground, reach};
use tarbet_telemetry::{Coded, Problem};

use super::leaving::until_leaving;
use super::{Hub, callers};
use crate::directory::{DirectoryError, Principal, Role, Site, SiteKey};
use crate::listen::Origin;
use crate::names::SiteName;
use crate::registry::{LinkRecord, Listed};
use crate::vouch::{Vouched, certified};

pub use links::LinkVitals;

/// How long a peer may take to say what it is.
const FIRST_WORD: Duration = Duration::from_secs(10);

pub(super) async fn serve(hub: Arc<Hub>, stream: ByteStream, peer: Origin) {
    let Origin { address: peer, certificate } = peer;
    let vouched = certificate.and_then(|certificate| certified(&hub.config().certificates, &certificate));
    let Ok(Ok((protocol, stream))) = tokio::time::timeout(FIRST_WORD, detect(stream)).await else {
        return tracing::debug!(%peer, "A connection to the API said nothing in time.");
    };
    let stream = ByteStream::new(stream);
    if protocol == Protocol::Native {
        return callers::serve(hub, stream, peer, vouched).await;
    }
    let leaving = hub.leaving.clone();
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(FIRST_WORD);
    server.http2().timer(TokioTimer::new());
    let router = router(hub);
    let router = match vouched {
        Some(vouched) => router.layer(axum::Extension(vouched)),
        None => router,
    };
    let service = TowerToHyperService::new(router);
    let connection = server.serve_connection(TokioIo::new(stream), service);
    if let Err(error) = until_leaving(connection, &leaving).await {
        tracing::debug!(%peer, %error, "A connection to the API ended early.");
    }
}

pub(super) fn router(hub: Arc<Hub>) -> Router {
    super::kas::routes(&hub)
        .merge(super::module::routes(&hub))
        .route("/v1/sites", get(list_sites).post(add_site))
        .route("/v1/sites/{site}", delete(remove_site))
        .route("/v1/sites/{site}/tokens", get(list_tokens).post(issue_token))
        .route("/v1/sites/{site}/tokens/{token}", delete(revoke_token))
        .route("/v1/users", get(list_users).post(add_user))
        .route("/v1/users/{user}", delete(remove_user))
        .route("/v1/links", get(links::vitals))
        .route("/v1/requests", get(requests::newest))
        .route("/v1/requests/{id}", get(requests::story))
        .route("/v1/whoami", post(whoami).get(whoami))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&hub), record::changes))
        // Calls to agents are on record like all requests to sites.
        .fallback(super::kas::to_agent)
        .with_state(hub)
}

/// A site as the API tells it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SiteView {
    /// Its name.
    pub name: SiteName,
    /// Its number.
    pub id: i64,
    /// When it was added.
    pub created: Timestamp,
    /// Whether an agent is connected somewhere.
    pub connected: bool,
    /// The keys that its agents have shown, the newest last.
    #[serde(default)]
    pub keys: Vec<SiteKey>,
    /// Its links.
    pub links: Vec<LinkView>,
}

/// A link as the API tells it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkView {
    /// Its name.
    pub id: String,
    /// The gateway that holds it.
    pub gateway: String,
    /// The agent's name and version.
    pub agent: String,
    /// What it offers.
    pub services: Vec<String>,
    /// The key under which this agent is reached end to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Pin>,
    /// Since when.
    pub since: Timestamp,
}

/// A token when it is made: the only time it is shown.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewToken {
    /// Its public name.
    pub id: String,
    /// The token.
    pub token: String,
}

/// A site when it is made.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewSite {
    /// Its name.
    pub name: SiteName,
    /// Its number.
    pub id: i64,
    /// The token for its agent.
    pub token: NewToken,
    /// Where its agent reaches the gateways.
    #[serde(default)]
    pub gateways: Vec<String>,
}

/// A token as it is listed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenView {
    /// Its public name.
    pub id: String,
    /// When it was made.
    pub created: Timestamp,
    /// When it ends.
    pub expires: Option<Timestamp>,
    /// When it was taken back.
    pub revoked: Option<Timestamp>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AddSite {
    name: SiteName,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct IssueToken {
    expires_in_seconds: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AddUser {
    name: String,
    #[serde(default)]
    admin: bool,
    #[serde(default)]
    roles: BTreeMap<String, Role>,
}

/// The caller, proven by its token or by the certificate of its connection.
pub(super) struct Caller(pub(super) Arc<Principal>);

impl FromRequestParts<Arc<Hub>> for Caller {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, hub: &Arc<Hub>) -> Result<Self, Failure> {
        let missing = || {
            Failure(
                Problem::new(
                    &reach::CREDENTIALS_MISSING,
                    "The request has no credentials this listener accepts.",
                )
                .advising(
                    "check that the token is a person's and not revoked; an administrator makes one with \
                     `tarbet user add NAME`",
                ),
            )
        };
        let value = parts.headers.get(header::AUTHORIZATION);
        if let (None, Some(vouched)) = (value, parts.extensions.get::<Vouched>()) {
            return vouched.at(Timestamp::now()).map(Self).ok_or_else(missing);
        }
        let value = value.and_then(|value| value.to_str().ok());
        let token = value.and_then(|value| value.strip_prefix("Bearer ")).ok_or_else(missing)?;
        match hub.known.caller(token.trim(), Timestamp::now()).await {
            Ok(principal) => Ok(Self(principal)),
            Err(DirectoryError::Refused(_)) => Err(missing()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Caller {
    fn administrator(&self) -> Result<(), Failure> {
        if self.0.admin { Ok(()) } else { Err(forbidden("Only an administrator may do this.")) }
    }

    fn operator_of(&self, site: &SiteName) -> Result<(), Failure> {
        if self.0.may(Role::Operator, site) { Ok(()) } else { Err(Failure(unknown(site.as_str()))) }
    }
}

fn forbidden(message: &str) -> Failure {
    Failure(Problem::new(&reach::CALLER_REFUSED, message))
}

fn unknown(site: &str) -> Problem {
    Problem::new(&reach::SITE_UNKNOWN, format!("There is no site `{site}` for you."))
}

fn site_name(text: &str) -> Result<SiteName, Failure> {
    text.parse().map_err(|_| Failure(unknown(text)))
}

async fn list_sites(State(hub): State<Arc<Hub>>, caller: Caller) -> Result<Json<Vec<SiteView>>, Failure> {
    let links = links(&hub).await?;
    let visible = hub
        .known
        .directory()
        .sites()
        .await?
        .into_iter()
        .filter(|site| caller.0.may(Role::Viewer, &site.name));
    let views = visible.map(|site| {
        let links = links.get(site.name.as_str()).cloned().unwrap_or_default();
        let Site { name, id, created, keys } = site;
        SiteView { name, id, created, connected: !links.is_empty(), keys, links }
    });
    Ok(Json(views.collect()))
}

/// The links of all gateways, or of this one if it stands alone.
async fn links(hub: &Hub) -> Result<BTreeMap<String, Vec<LinkView>>, Failure> {
    let mut by_site: BTreeMap<String, Vec<LinkView>> = BTreeMap::new();
    match &hub.registry {
        Some(registry) => {
            let everywhere = registry.everywhere().await.map_err(|error| {
                Failure(
                    Problem::new(&reach::REGISTRY_UNAVAILABLE, "The registry of links does not answer.")
                        .because(tarbet_telemetry::problem::chain(&error)),
                )
            })?;
            for Listed { site, link: id, gateway, record } in everywhere {
                let LinkRecord { agent, services, key, since, .. } = record;
                let view = LinkView { id, gateway, agent, services, key, since };
                by_site.entry(site).or_default().push(view);
            }
        }
        None => {
            for held in hub.local.all() {
                let view = LinkView {
                    id: held.id.to_string(),
                    gateway: hub.name.clone(),
                    agent: held.agent.clone(),
                    services: held.services.clone(),
                    key: held.key,
                    since: held.since,
                };
                by_site.entry(held.site.to_string()).or_default().push(view);
            }
        }
    }
    Ok(by_site)
}

async fn add_site(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    asked: doors::AskedAt,
    body: Input<AddSite>,
) -> Result<Response, Failure> {
    caller.administrator()?;
    let (site, token) = hub.known.directory().add_site(&body.0.name, Timestamp::now()).await?;
    tracing::info!(site = %site.name, by = %caller.0.name, "A site was added.");
    let token = NewToken { id: token.hash().id(), token: token.text().expose().to_owned() };
    let gateways = doors::all(&hub, &asked).await;
    let site = NewSite { name: site.name, id: site.id, token, gateways };
    Ok((StatusCode::CREATED, Json(site)).into_response())
}

async fn remove_site(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(site): Path<String>,
) -> Result<StatusCode, Failure> {
    caller.administrator()?;
    let site = site_name(&site)?;
    hub.known.directory().remove_site(&site).await?;
    tracing::info!(%site, by = %caller.0.name, "A site was removed.");
    Ok(StatusCode::NO_CONTENT)
}

async fn list_tokens(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(site): Path<String>,
) -> Result<Json<Vec<TokenView>>, Failure> {
    let site = site_name(&site)?;
    caller.operator_of(&site)?;
    let records = hub.known.directory().tokens(site.as_str(), TokenKind::Agent).await?;
    let views = records.into_iter().map(|record| TokenView {
        id: record.id(),
        created: record.created,
        expires: record.expires,
        revoked: record.revoked,
    });
    Ok(Json(views.collect()))
}

async fn issue_token(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(site): Path<String>,
    body: Input<IssueToken>,
) -> Result<Response, Failure> {
    let site = site_name(&site)?;
    caller.operator_of(&site)?;
    let now = Timestamp::now();
    let expires = match body.0.expires_in_seconds {
        None => None,
        Some(seconds) => Some(
            now.checked_add(Duration::from_secs(seconds))
                .map_err(|_| Failure(Problem::new(&ground::BAD_REQUEST, "expiresInSeconds is too large.")))?,
        ),
    };
    let token = hub.known.directory().issue_agent_token(&site, now, expires).await?;
    tracing::info!(%site, token = %token.hash().id(), by = %caller.0.name, "A token was issued.");
    let token = NewToken { id: token.hash().id(), token: token.text().expose().to_owned() };
    Ok((StatusCode::CREATED, Json(token)).into_response())
}

async fn revoke_token(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path((site, token)): Path<(String, String)>,
) -> Result<StatusCode, Failure> {
    let site = site_name(&site)?;
    caller.operator_of(&site)?;
    // A token of another site is as good as none: its name must not be a way around the role.
    let own = hub.known.directory().tokens(site.as_str(), TokenKind::Agent).await?;
    if !own.iter().any(|record| record.id() == token) {
        return Err(DirectoryError::Missing(format!("the token `{token}`")).into());
    }
    hub.known.directory().revoke_token(&token, Timestamp::now()).await?;
    tracing::info!(%site, token, by = %caller.0.name, "A token was revoked.");
    Ok(StatusCode::NO_CONTENT)
}

async fn list_users(State(hub): State<Arc<Hub>>, caller: Caller) -> Result<Json<Vec<Principal>>, Failure> {
    caller.administrator()?;
    Ok(Json(hub.known.directory().principals().await?))
}

async fn add_user(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    body: Input<AddUser>,
) -> Result<Response, Failure> {
    caller.administrator()?;
    let AddUser { name, admin, roles } = body.0;
    let legal = |b: u8| b.is_ascii_alphanumeric() || b"._-@".contains(&b);
    if name.is_empty() || name.len() > 128 || !name.bytes().all(legal) {
        let text = "A user's name is 1 to 128 letters, digits, `.`, `-`, `_` or `@`.";
        return Err(Failure(Problem::new(&ground::BAD_REQUEST, text)));
    }
    for site in roles.keys().filter(|site| *site != "*") {
        site_name(site)?;
    }
    let token =
        hub.known.directory().add_principal(&Principal { name, admin, roles }, Timestamp::now()).await?;
    let token = NewToken { id: token.hash().id(), token: token.text().expose().to_owned() };
    Ok((StatusCode::CREATED, Json(token)).into_response())
}

async fn remove_user(
    State(hub): State<Arc<Hub>>,
    caller: Caller,
    Path(user): Path<String>,
) -> Result<StatusCode, Failure> {
    caller.administrator()?;
    hub.known.directory().remove_principal(&user).await?;
    tracing::info!(user, by = %caller.0.name, "A user was removed.");
    Ok(StatusCode::NO_CONTENT)
}

async fn whoami(caller: Caller) -> Json<Principal> {
    Json(Principal::clone(&caller.0))
}

/// A JSON body whose mistakes are told in our form.
struct Input<T>(T);

impl<T: serde::de::DeserializeOwned> axum::extract::FromRequest<Arc<Hub>> for Input<T> {
    type Rejection = Failure;

    async fn from_request(request: axum::extract::Request, hub: &Arc<Hub>) -> Result<Self, Failure> {
        let bytes = axum::body::Bytes::from_request(request, hub).await.map_err(|error| {
            Failure(Problem::new(&ground::BAD_REQUEST, "The body cannot be read.").because(error.to_string()))
        })?;
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        serde_json::from_slice(text).map(Self).map_err(|error| {
            Failure(
                Problem::new(&ground::BAD_REQUEST, "The body is not what this call takes.")
                    .because(error.to_string()),
            )
        })
    }
}

/// A problem as an answer.
pub(super) struct Failure(Problem);

impl From<DirectoryError> for Failure {
    fn from(error: DirectoryError) -> Self {
        Self(error.problem())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        tracing::debug!(code = %self.0.code, cause = %self.0.cause, problem = %self.0.message, "An API request failed.");
        (self.0.status(), Json(self.0)).into_response()
    }
}
