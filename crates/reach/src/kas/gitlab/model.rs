//! What GitLab answers. Fields that have no use here are not read.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::credential::agent_id_is_valid;

/// Who holds an agent token.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct AgentInfo {
    /// The agent's number.
    pub agent_id: i64,
    /// Its name.
    pub agent_name: String,
    /// The project it is configured in.
    pub project_id: i64,
}

impl AgentInfo {
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if !agent_id_is_valid(self.agent_id) || self.project_id <= 0 || self.agent_name.is_empty() {
            return Err("an agent without a number, a name or a project");
        }
        Ok(())
    }
}

/// A thing with a number.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Id {
    /// The number.
    pub id: i64,
}

/// The agents a CI job may use.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct AllowedAgents {
    /// The agents. One whose configuration is not understood is left out, and the others stay.
    #[serde(deserialize_with = "understood")]
    pub allowed_agents: Vec<AllowedAgent>,
    /// The job.
    pub job: Id,
    /// Its pipeline.
    pub pipeline: Id,
    /// Its project.
    pub project: Project,
    /// Who started it.
    pub user: User,
    /// What it deploys to.
    pub environment: Option<Environment>,
}

/// An agent a CI job may use.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct AllowedAgent {
    /// The agent's number.
    pub id: i64,
    /// The project it is configured in.
    pub config_project: Id,
    /// How it may be used.
    #[serde(default)]
    pub configuration: Option<Configuration>,
}

/// How an agent may be used by a CI job.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Configuration {
    /// The namespace to begin in.
    pub default_namespace: Option<String>,
    /// As whom.
    #[serde(deserialize_with = "said")]
    pub access_as: Option<JobAccess>,
}

fn understood<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<AllowedAgent>, D::Error> {
    let agents = Vec::<Value>::deserialize(from)?.into_iter();
    Ok(agents
        .filter_map(|agent| {
            let id = agent.get("id").and_then(Value::as_i64);
            let read = serde_json::from_value(agent);
            read.inspect_err(|error| {
                tracing::warn!(agent = id, %error, "What GitLab says of an agent is not understood.");
            })
            .ok()
        })
        .collect())
}

/// An object that says nothing is as good as none.
fn said<'de, D: Deserializer<'de>>(from: D) -> Result<Option<JobAccess>, D::Error> {
    let value = Option::<Value>::deserialize(from)?;
    let value = value.filter(|value| value.as_object().is_none_or(|object| !object.is_empty()));
    value.map(serde_json::from_value).transpose().map_err(serde::de::Error::custom)
}

/// As whom a CI job's requests reach the site.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobAccess {
    /// As the agent.
    Agent(Empty),
    /// As somebody named in the configuration.
    Impersonate(ImpersonateAs),
    /// As the job.
    CiJob(Empty),
}

/// An object whose presence is all it says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
pub struct Empty {}

/// Somebody named in a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct ImpersonateAs {
    /// The user.
    pub username: String,
    /// The user's groups.
    pub groups: Vec<String>,
    /// The user's id.
    pub uid: String,
    /// More about the user.
    pub extra: Vec<ExtraValue>,
}

/// More about a user.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ExtraValue {
    /// Under this key.
    pub key: String,
    /// These values.
    #[serde(default)]
    pub val: Vec<String>,
}

/// The project of a job.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Project {
    /// Its number.
    pub id: i64,
    /// The groups it is in.
    #[serde(default)]
    pub groups: Vec<Id>,
}

/// A person.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct User {
    /// The number.
    pub id: i64,
    /// The name.
    pub username: String,
}

/// What a job deploys to.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Environment {
    /// Its name.
    pub slug: String,
    /// Its tier.
    pub tier: String,
}

/// A person who may use an agent.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ProxyUser {
    /// The agent.
    pub agent: AllowedAgent,
    /// The person.
    pub user: User,
    /// As whom.
    pub access_as: AccessAs,
}

/// As whom a person's requests reach the site.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct AccessAs {
    /// As the agent.
    pub agent: Option<Empty>,
    /// As the person.
    pub user: Option<UserAccess>,
}

/// What a person is, to a site.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct UserAccess {
    /// Roles in projects.
    pub projects: Vec<Roles>,
    /// Roles in groups.
    pub groups: Vec<Roles>,
}

/// Roles in one project or group.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Roles {
    /// Its number.
    pub id: i64,
    /// The roles.
    #[serde(default)]
    pub roles: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_odd_agent_leaves_the_others_usable() {
        let agent = |id: i64, access: &str| {
            format!(r#"{{"id":{id},"config_project":{{"id":70}},"configuration":{{"access_as":{access}}}}}"#)
        };
        let agents = [
            agent(1, "{}"),
            agent(2, r#"{"teleport":{}}"#),
            agent(3, r#"{"ci_job":{}}"#),
            agent(4, "null"),
            r#"{"id":"five"}"#.to_owned(),
        ];
        let text = format!(
            r#"{{"allowed_agents":[{}],"job":{{"id":1}},"pipeline":{{"id":2}},"project":{{"id":3}},"user":{{"id":6,"username":"ada"}}}}"#,
            agents.join(",")
        );
        let allowed: AllowedAgents = serde_json::from_str(&text).unwrap();
        let read = allowed.allowed_agents.into_iter().map(|agent| (agent.id, agent.configuration.unwrap()));
        let read: Vec<_> = read.map(|(id, configuration)| (id, configuration.access_as)).collect();
        assert_eq!(read, [(1, None), (3, Some(JobAccess::CiJob(Empty {}))), (4, None)]);
    }
}
