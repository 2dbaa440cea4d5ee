//! Callers with the credentials of kas: CI jobs, personal tokens and browsers' cookies.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, Request, Uri};
use jiff::Timestamp;
use tarbet_telemetry::codes::reach;
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Coded, Problem, RequestId};

use super::{Kas, gitlab_site};
use crate::directory::{DirectoryError, Principal, Role};
use crate::gateway::{Hub, kube};
use crate::kas::gitlab::{
    Access, Credential, GitlabClient, GitlabError, access_of_job, access_of_user, strip_credential_query,
};
use crate::names::SiteName;

/// For the gateway, never for a site.
const OURS: [HeaderName; 2] =
    [HeaderName::from_static("gitlab-agent-id"), HeaderName::from_static("x-csrf-token")];

/// Who calls and the site of the agent that is meant, if the credential is one of kas. The request is
/// left as it goes on: without what was meant for the gateway, and as whom GitLab says.
pub(in crate::gateway) async fn identify<B>(
    hub: &Arc<Hub>,
    id: RequestId,
    request: &mut Request<B>,
) -> Result<Option<(Arc<Principal>, SiteName)>, Problem> {
    let kas = &hub.kas;
    if let Some(cut) = without_prefix(request.uri(), &kas.url_path_prefix) {
        *request.uri_mut() = cut;
    }
    let read = Credential::read(request.headers(), request.uri());
    let credential = read.map_err(|error| missing().because(error.to_string()))?;
    let found = match (&credential, &kas.gitlab) {
        (None, _) | (Some(Credential::Cookie { .. } | Credential::Plural { .. }), None) => return Ok(None),
        (Some(credential), Some(gitlab)) => {
            let (principal, site, access) = of_gitlab(gitlab, credential).await?;
            hub.known
                .ensure_site(&site, credential.agent_id(), Timestamp::now())
                .await
                .map_err(|error| error.problem())?;
            impersonate(&access, request.headers_mut())?;
            (principal, site)
        }
        (
            Some(Credential::CiJob { agent_id, token } | Credential::PersonalToken { agent_id, token }),
            None,
        ) => {
            let principal = match hub.known.caller(token.expose(), Timestamp::now()).await {
                Ok(principal) => principal,
                Err(DirectoryError::Refused(_)) => return Err(missing()),
                Err(error) => return Err(error.problem()),
            };
            let site = hub.known.site_numbered(*agent_id).await.map_err(|error| error.problem())?;
            let site = site.ok_or_else(|| unknown(*agent_id))?;
            if !principal.may(Role::User, &site) {
                // It is on record under its name, and told as a number that is nobody's: else whoever
                // counts upwards learns the names of all sites.
                let wants = format!("{} {} {}", kube::SERVICE, request.method(), request.uri().path());
                return Err(hub.admit(&principal, &site, id, &wants).await.err().map_or_else(
                    || unknown(*agent_id),
                    |problem| {
                        if problem.code == reach::SITE_UNKNOWN.id { unknown(*agent_id) } else { problem }
                    },
                ));
            }
            (principal, site)
        }
    };
    *request.uri_mut() = strip_credential_query(request.uri());
    for name in &OURS {
        request.headers_mut().remove(name);
    }
    Ok(Some(found))
}

impl Kas {
    /// Whether GitLab judges callers here.
    pub(in crate::gateway) fn asks_gitlab(&self) -> bool {
        self.gitlab.is_some()
    }

    /// Where pages that use cookies may come from.
    pub(in crate::gateway) fn origin(&self) -> Option<&super::cors::Origin> {
        self.origin.as_ref()
    }
}

async fn of_gitlab(
    gitlab: &GitlabClient,
    credential: &Credential,
) -> Result<(Arc<Principal>, SiteName, Access), Problem> {
    let agent = credential.agent_id();
    let (name, access) = match credential {
        Credential::CiJob { token, .. } => {
            let allowed = gitlab.allowed_agents(token).await.map_err(|error| judged(&error))?;
            (format!("gitlab:ci_job:{}", allowed.job.id), access_of_job(&allowed, agent))
        }
        Credential::PersonalToken { .. } | Credential::Cookie { .. } => {
            let asked = gitlab.authorize_proxy_user(credential).await.ok_or_else(missing)?;
            let user = asked.map_err(|error| judged(&error))?;
            let kind = credential.access_type().unwrap_or_default();
            (format!("gitlab:user:{}", user.user.username), access_of_user(&user, kind))
        }
        Credential::Plural { .. } => return Err(missing()),
    };
    let refused = || {
        Problem::new(&reach::CALLER_REFUSED, format!("GitLab does not let {name} use the agent {agent}."))
            .advising("grant it in the agent's configuration: ci_access or user_access")
    };
    let access = access.ok_or_else(refused)?;
    let site = gitlab_site(agent).ok_or_else(|| unknown(agent))?;
    let roles = BTreeMap::from([(site.to_string(), Role::User)]);
    Ok((Arc::new(Principal { name, admin: false, roles }), site, access))
}

/// Lets the request go on as whom GitLab says. A caller that asks to be somebody else besides is
/// refused: the two cannot be told apart further on.
fn impersonate(access: &Access, headers: &mut HeaderMap) -> Result<(), Problem> {
    let Some(who) = access.impersonation().filter(|who| !who.is_empty()) else { return Ok(()) };
    who.apply(headers).map_err(|status| {
        Problem::new(&reach::CALLER_REFUSED, "The request cannot go on as whom GitLab says.")
            .because(status.message())
            .advising("leave out --as and --as-group: this agent is used under a name of GitLab's")
    })
}

fn judged(error: &GitlabError) -> Problem {
    match error {
        GitlabError::Refused { status: 401 | 404, .. } => missing().because("GitLab does not accept them"),
        GitlabError::Refused { status: 403, .. } => {
            Problem::new(&reach::CALLER_REFUSED, "GitLab does not let you use this agent.")
        }
        error => {
            tracing::warn!(error = %chain(error), "GitLab cannot be asked about a caller.");
            Problem::new(&reach::GITLAB_UNAVAILABLE, "GitLab cannot be asked about you.")
                .because(error.to_string())
        }
    }
}

fn missing() -> Problem {
    Problem::new(&reach::CREDENTIALS_MISSING, "The request has no credentials this listener accepts.")
}

fn unknown(agent: i64) -> Problem {
    Problem::new(&reach::SITE_UNKNOWN, format!("There is no site with the number {agent} for you."))
}

/// The path behind the prefix; `None` if it does not begin with it.
fn without_prefix(uri: &Uri, prefix: &str) -> Option<Uri> {
    let whole = uri.path_and_query()?.as_str();
    let rest = whole.strip_prefix(prefix).filter(|_| prefix != "/")?;
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("/{rest}").parse().ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_is_cut_off_once() {
        let cut =
            |path: &str, prefix| without_prefix(&path.parse().unwrap(), prefix).map(|uri| uri.to_string());
        assert_eq!(cut("/-/k8s/api/v1?x=%2F", "/-/k8s/").as_deref(), Some("/api/v1?x=%2F"));
        assert_eq!(cut("/-/k8s/", "/-/k8s/").as_deref(), Some("/"));
        assert_eq!(cut("/-/k8s/-/k8s/x", "/-/k8s/").as_deref(), Some("/-/k8s/x"));
        assert_eq!(cut("/api", "/-/k8s/"), None);
        assert_eq!(cut("/api", "/"), None);
    }
}
