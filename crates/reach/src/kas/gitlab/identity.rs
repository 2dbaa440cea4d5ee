//! As whom a caller's requests reach a site, by the names GitLab gives them. Pure.

use super::model::{AllowedAgents, Environment, ExtraValue, JobAccess, ProxyUser, Roles};
use crate::kas::kubernetes::Impersonation;

/// As whom a request reaches the site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// As the agent itself.
    AsAgent,
    /// As somebody else.
    As(Box<Impersonation>),
}

impl Access {
    /// The impersonation, if there is one.
    pub fn impersonation(&self) -> Option<&Impersonation> {
        match self {
            Self::AsAgent => None,
            Self::As(who) => Some(who),
        }
    }

    fn of(who: Impersonation) -> Self {
        Self::As(Box::new(who))
    }
}

/// As whom a CI job reaches an agent; `None` if it may not use it.
pub fn access_of_job(allowed: &AllowedAgents, agent_id: i64) -> Option<Access> {
    let agent = allowed.allowed_agents.iter().find(|agent| agent.id == agent_id)?;
    let access = agent.configuration.as_ref().and_then(|configuration| configuration.access_as.as_ref());
    Some(match access {
        None | Some(JobAccess::Agent(_)) => Access::AsAgent,
        Some(JobAccess::Impersonate(who)) => Access::of(Impersonation {
            username: who.username.clone(),
            groups: who.groups.clone(),
            uid: who.uid.clone(),
            extra: who.extra.iter().map(|ExtraValue { key, val }| (key.clone(), val.clone())).collect(),
            roles: Vec::new(),
        }),
        Some(JobAccess::CiJob(_)) => Access::of(Impersonation {
            username: format!("gitlab:ci_job:{}", allowed.job.id),
            groups: job_groups(allowed),
            extra: job_extra(allowed, agent_id, agent.config_project.id),
            ..Impersonation::default()
        }),
    })
}

fn job_groups(allowed: &AllowedAgents) -> Vec<String> {
    let mut groups = vec!["gitlab:ci_job".to_owned()];
    let environment = allowed.environment.as_ref();
    for group in &allowed.project.groups {
        groups.push(format!("gitlab:group:{}", group.id));
        if let Some(Environment { tier, .. }) = environment {
            groups.push(format!("gitlab:group_env_tier:{}:{tier}", group.id));
        }
    }
    let project = allowed.project.id;
    groups.push(format!("gitlab:project:{project}"));
    if let Some(Environment { slug, tier }) = environment {
        groups.push(format!("gitlab:project_env:{project}:{slug}"));
        groups.push(format!("gitlab:project_env_tier:{project}:{tier}"));
    }
    groups
}

fn job_extra(allowed: &AllowedAgents, agent_id: i64, config_project: i64) -> Vec<(String, Vec<String>)> {
    let mut extra = vec![
        entry("id", agent_id),
        entry("config_project_id", config_project),
        entry("project_id", allowed.project.id),
        entry("ci_pipeline_id", allowed.pipeline.id),
        entry("ci_job_id", allowed.job.id),
        entry("username", &allowed.user.username),
    ];
    if let Some(Environment { slug, tier }) = &allowed.environment {
        extra.push(entry("environment_slug", slug));
        extra.push(entry("environment_tier", tier));
    }
    extra
}

/// As whom a person reaches an agent; `None` if GitLab names no way. The access type is the one the
/// person was asked about with.
pub fn access_of_user(user: &ProxyUser, access_type: &str) -> Option<Access> {
    let access = match (&user.access_as.agent, &user.access_as.user) {
        (Some(_), None) => return Some(Access::AsAgent),
        (None, Some(access)) => access,
        _ => return None,
    };
    let mut groups = vec!["gitlab:user".to_owned()];
    let mut add = |kind: &str, all: &[Roles]| {
        for Roles { id, roles } in all {
            groups.extend(roles.iter().map(|role| format!("gitlab:{kind}_role:{id}:{role}")));
        }
    };
    add("project", &access.projects);
    add("group", &access.groups);
    Some(Access::of(Impersonation {
        username: format!("gitlab:user:{}", user.user.username),
        groups,
        extra: vec![
            entry("id", user.agent.id),
            entry("username", &user.user.username),
            entry("access_type", access_type),
            entry("config_project_id", user.agent.config_project.id),
        ],
        ..Impersonation::default()
    }))
}

fn entry(key: &str, value: impl ToString) -> (String, Vec<String>) {
    (format!("agent.gitlab.com/{key}"), vec![value.to_string()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(access: &str, environment: &str) -> AllowedAgents {
        serde_json::from_str(&format!(
            r#"{{"allowed_agents": [{{"id": 7, "config_project": {{"id": 70}}, "configuration": {{{access}}}}}],
                "job": {{"id": 1}}, "pipeline": {{"id": 2}}, "project": {{"id": 3, "groups": [{{"id": 4}}, {{"id": 5}}]}},
                "user": {{"id": 6, "username": "ada", "roles_in_project": ["x"]}}, "environment": {environment}}}"#
        ))
        .unwrap()
    }

    #[test]
    fn a_job_is_itself_with_all_its_groups() {
        let allowed = job(r#""access_as": {"ci_job": {}}"#, r#"{"slug": "prod", "tier": "production"}"#);
        let access = access_of_job(&allowed, 7).unwrap();
        let who = access.impersonation().unwrap();
        assert_eq!(who.username, "gitlab:ci_job:1");
        assert_eq!(
            who.groups,
            [
                "gitlab:ci_job",
                "gitlab:group:4",
                "gitlab:group_env_tier:4:production",
                "gitlab:group:5",
                "gitlab:group_env_tier:5:production",
                "gitlab:project:3",
                "gitlab:project_env:3:prod",
                "gitlab:project_env_tier:3:production",
            ]
        );
        let keys: Vec<_> =
            who.extra.iter().map(|(key, _)| key.strip_prefix("agent.gitlab.com/").unwrap()).collect();
        assert_eq!(
            keys,
            [
                "id",
                "config_project_id",
                "project_id",
                "ci_pipeline_id",
                "ci_job_id",
                "username",
                "environment_slug",
                "environment_tier"
            ]
        );
        let plain = access_of_job(&job(r#""access_as": {"ci_job": {}}"#, "null"), 7).unwrap();
        assert_eq!(plain.impersonation().unwrap().groups.len(), 4);
    }

    #[test]
    fn a_job_may_be_the_agent_or_somebody_named_or_nobody() {
        for access in ["", r#""default_namespace": "x""#, r#""access_as": {"agent": {}}"#] {
            assert_eq!(access_of_job(&job(access, "null"), 7), Some(Access::AsAgent), "{access}");
        }
        let named = r#""access_as": {"impersonate": {"username": "bob", "groups": ["g"], "extra": [{"key": "k", "val": ["v"]}]}}"#;
        let access = access_of_job(&job(named, "null"), 7).unwrap();
        let who = access.impersonation().unwrap();
        assert_eq!((&who.username[..], &who.extra[0].0[..]), ("bob", "k"));
        assert_eq!(access_of_job(&job("", "null"), 8), None);
    }

    #[test]
    fn a_person_has_roles() {
        let user: ProxyUser = serde_json::from_str(
            r#"{"agent": {"id": 7, "config_project": {"id": 70}}, "user": {"id": 6, "username": "ada"},
                "access_as": {"user": {"projects": [{"id": 1, "roles": ["reporter", "developer"]}],
                                       "groups": [{"id": 2, "roles": ["owner"]}]}}}"#,
        )
        .unwrap();
        let access = access_of_user(&user, "session_cookie").unwrap();
        let who = access.impersonation().unwrap();
        assert_eq!(who.username, "gitlab:user:ada");
        assert_eq!(
            who.groups,
            [
                "gitlab:user",
                "gitlab:project_role:1:reporter",
                "gitlab:project_role:1:developer",
                "gitlab:group_role:2:owner"
            ]
        );
        assert_eq!(
            who.extra[2],
            ("agent.gitlab.com/access_type".to_owned(), vec!["session_cookie".to_owned()])
        );
        let mut as_agent = user.clone();
        as_agent.access_as = serde_json::from_str(r#"{"agent": {}}"#).unwrap();
        assert_eq!(access_of_user(&as_agent, "x"), Some(Access::AsAgent));
        as_agent.access_as = serde_json::from_str("{}").unwrap();
        assert_eq!(access_of_user(&as_agent, "x"), None);
    }
}
