//! Asks GitLab.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Method};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::sync::Arc;
use tarbet_identity::Secret;
use tarbet_identity::jwt::kas::KasSigner;
use tarbet_telemetry::problem::chain;
use url::Url;

use super::cache::{Cache, Key};
use super::{AgentInfo, AllowedAgents, Credential, GitlabError, ProxyUser};

const AGENT_INFO: &str = "/api/v4/internal/kubernetes/agent_info";
const ALLOWED_AGENTS: &str = "/api/v4/job/allowed_agents";
const AUTHORIZE_PROXY_USER: &str = "/api/v4/internal/kubernetes/authorize_proxy_user";

/// How long GitLab may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The largest answer that is read.
const MAX_ANSWER: usize = 1 << 20;
/// A revoked token must be dead within a minute.
const LONGEST_GOOD: Duration = Duration::from_mins(1);

/// An agent that GitLab knew goes on while GitLab does not answer, as long as the original believes it.
const LAST_GOOD: Duration = Duration::from_mins(5);

/// How to ask GitLab.
#[derive(Clone, Debug)]
pub struct GitlabSettings {
    /// Its URL, with the path it lives under, if any.
    pub address: Url,
    /// Signs the token it knows us by.
    pub signer: KasSigner,
    /// Authorities to trust besides the system's, as PEM.
    pub authorities: Vec<u8>,
    /// What we call ourselves.
    pub user_agent: String,
    /// How long a good answer is good; a minute at most.
    pub good: Duration,
    /// How long a refusal is good.
    pub bad: Duration,
}

impl GitlabSettings {
    /// With the usual times.
    pub fn new(address: Url, signer: KasSigner) -> Self {
        Self {
            address,
            signer,
            authorities: Vec::new(),
            user_agent: concat!("tarbet-gateway/", env!("CARGO_PKG_VERSION")).into(),
            good: LONGEST_GOOD,
            bad: Duration::from_secs(10),
        }
    }
}

/// GitLab, asked through a cache.
pub struct GitlabClient {
    asker: Asker,
    agents: Cache<AgentInfo>,
    jobs: Cache<AllowedAgents>,
    users: Cache<ProxyUser>,
}

/// A client that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum GitlabSettingsError {
    /// The authorities are not PEM.
    #[error("the certificate of GitLab's authority cannot be read")]
    Authority(#[source] reqwest::Error),
    /// The HTTP client cannot be set up.
    #[error("the client for GitLab cannot be set up")]
    Client(#[source] reqwest::Error),
}

impl GitlabClient {
    /// A client with empty caches.
    pub fn new(settings: GitlabSettings) -> Result<Self, GitlabSettingsError> {
        let authorities = reqwest::Certificate::from_pem_bundle(&settings.authorities)
            .map_err(GitlabSettingsError::Authority)?;
        let http = Client::builder()
            .timeout(TIMEOUT)
            .user_agent(&settings.user_agent)
            // A redirect would carry the token elsewhere.
            .redirect(reqwest::redirect::Policy::none())
            .tls_certs_merge(authorities)
            .build()
            .map_err(GitlabSettingsError::Client)?;
        let good = settings.good.min(LONGEST_GOOD);
        Ok(Self {
            asker: Asker { http, address: settings.address, signer: settings.signer },
            agents: Cache::new(good, settings.bad).lasting(LAST_GOOD),
            jobs: Cache::new(good, settings.bad),
            users: Cache::new(good, settings.bad),
        })
    }

    /// Who holds an agent token.
    pub async fn agent_info(&self, token: &Secret) -> Result<Arc<AgentInfo>, GitlabError> {
        let asker = self.asker.clone();
        let token = token.clone();
        let key = key(&["agent", token.expose()]);
        let ask = || {
            async move {
                let headers =
                    asker.as_us().with(AUTHORIZATION.as_str(), &format!("Bearer {}", token.expose()));
                let info: AgentInfo = asker.ask(Method::GET, AGENT_INFO, headers, None).await?;
                info.check().map_err(|what| malformed(AGENT_INFO, what))?;
                Ok(info)
            }
            .boxed()
        };
        self.agents.get(key, ask).await
    }

    /// The agents a CI job may use.
    pub async fn allowed_agents(&self, job_token: &Secret) -> Result<Arc<AllowedAgents>, GitlabError> {
        let asker = self.asker.clone();
        let token = job_token.clone();
        let key = key(&["job", token.expose()]);
        let ask = || {
            async move {
                let headers = Headers::default().with("job-token", token.expose());
                asker.ask(Method::GET, ALLOWED_AGENTS, headers, None).await
            }
            .boxed()
        };
        self.jobs.get(key, ask).await
    }

    /// Whether a person may use an agent, and as whom. `None` for credentials that are not a person's.
    pub async fn authorize_proxy_user(
        &self,
        credential: &Credential,
    ) -> Option<Result<Arc<ProxyUser>, GitlabError>> {
        let (body, key) = match credential {
            Credential::PersonalToken { agent_id, token } => (
                serde_json::json!({
                    "agent_id": agent_id, "access_type": "personal_access_token", "access_key": token.expose(),
                }),
                key(&["pat", &agent_id.to_string(), token.expose()]),
            ),
            Credential::Cookie { agent_id, session, csrf } => (
                serde_json::json!({
                    "agent_id": agent_id, "access_type": "session_cookie",
                    "access_key": session.expose(), "csrf_token": csrf.expose(),
                }),
                key(&["cookie", &agent_id.to_string(), session.expose(), csrf.expose()]),
            ),
            Credential::CiJob { .. } | Credential::Plural { .. } => return None,
        };
        let asker = self.asker.clone();
        let agent_id = credential.agent_id();
        let ask = || -> BoxFuture<'static, _> {
            async move {
                let headers = asker.as_us();
                let user: ProxyUser =
                    asker.ask(Method::POST, AUTHORIZE_PROXY_USER, headers, Some(body)).await?;
                if user.agent.id != agent_id {
                    return Err(malformed(AUTHORIZE_PROXY_USER, "it is about another agent"));
                }
                Ok(user)
            }
            .boxed()
        };
        Some(self.users.get(key, ask).await)
    }
}

impl GitlabClient {
    /// A request for this path, in the name of the agent with this token.
    pub(super) fn ask_as(
        &self,
        method: Method,
        path: &str,
        query: Option<&str>,
        agent: &Secret,
    ) -> reqwest::RequestBuilder {
        let Asker { http, address, .. } = &self.asker;
        let headers = self.asker.as_us().with(AUTHORIZATION.as_str(), &format!("Bearer {}", agent.expose()));
        let mut url = address.clone();
        url.set_path(&format!("{}{path}", address.path().trim_end_matches('/')));
        url.set_query(query);
        http.request(method, url).headers(headers.0)
    }
}

impl std::fmt::Debug for GitlabClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GitlabClient").field("address", &self.asker.address.as_str()).finish_non_exhaustive()
    }
}

/// Parts are told apart by their lengths.
fn key(parts: &[&str]) -> Key {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

fn malformed(path: &'static str, what: impl ToString) -> GitlabError {
    GitlabError::Malformed { path, what: what.to_string() }
}

#[derive(Clone)]
struct Asker {
    http: Client,
    address: Url,
    signer: KasSigner,
}

#[derive(Default)]
struct Headers(HeaderMap);

impl Headers {
    fn with(mut self, name: &'static str, value: &str) -> Self {
        // A token that makes no header is one that GitLab cannot know; it answers 401 to its absence.
        if let Ok(mut value) = HeaderValue::from_str(value) {
            value.set_sensitive(true);
            self.0.insert(name, value);
        }
        self
    }
}

impl Asker {
    /// With the token GitLab knows us by.
    fn as_us(&self) -> Headers {
        Headers::default().with("gitlab-kas-api-request", self.signer.token(Timestamp::now()).expose())
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &'static str,
        headers: Headers,
        body: Option<serde_json::Value>,
    ) -> Result<T, GitlabError> {
        let unavailable =
            |error: reqwest::Error| GitlabError::Unavailable { path, cause: chain(&error.without_url()) };
        let mut url = self.address.clone();
        url.set_path(&format!("{}{path}", self.address.path().trim_end_matches('/')));
        let mut request =
            self.http.request(method, url).headers(headers.0).header(ACCEPT, "application/json");
        if let Some(body) = body {
            request = request.json(&body);
        }
        let mut response = request.send().await.map_err(unavailable)?;
        let status = response.status().as_u16();
        match status {
            200..=299 => {}
            500.. => return Err(GitlabError::Unavailable { path, cause: format!("HTTP {status}") }),
            _ => return Err(GitlabError::Refused { status, path }),
        }
        let kind =
            response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if kind.split(';').next().map(str::trim) != Some("application/json") {
            return Err(malformed(path, "it is not JSON"));
        }
        let mut text = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unavailable)? {
            if text.len() + chunk.len() > MAX_ANSWER {
                return Err(malformed(path, "it is too long"));
            }
            text.extend_from_slice(&chunk);
        }
        serde_json::from_slice(&text).map_err(|error| malformed(path, error))
    }
}
