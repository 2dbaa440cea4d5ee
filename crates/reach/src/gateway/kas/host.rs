//! Who an agent is, and what becomes of its registration.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use tarbet_identity::{Secret, hash_opaque};
use tarbet_telemetry::problem::chain;
use tonic::Status;

use super::gitlab_site;
use super::limit::{Limit, Taken};
use super::tracker::Tracker;
use crate::config::KasSection;
use crate::directory::DirectoryError;
use crate::kas::Agent;
use crate::kas::gitlab::GitlabClient;
use crate::kas::proto::{agent_configuration, agentcfg, entity};
use crate::kas::server::AgentHost;
use crate::known::Known;
use crate::local::LocalLinks;
use crate::metrics::GatewayMetrics;
use crate::quota::Quotas;

/// The one configuration there is: an agent that has it waits for another.
const COMMIT: &str = "tarbet-1";

pub(super) struct Host {
    known: Known,
    gitlab: Option<Arc<GitlabClient>>,
    external_url: Option<String>,
    tracker: Tracker,
    limit: Limit,
    counted: Counted,
}

/// Where connections of agents are counted.
pub(in crate::gateway) struct Counted {
    pub(in crate::gateway) local: LocalLinks,
    pub(in crate::gateway) quotas: Quotas,
    pub(in crate::gateway) metrics: GatewayMetrics,
}

impl Host {
    pub(super) fn new(
        section: &KasSection,
        known: Known,
        gitlab: Option<Arc<GitlabClient>>,
        tracker: Tracker,
        counted: Counted,
    ) -> Self {
        let url = section.gitlab.as_ref();
        let external_url = url.map(|gitlab| gitlab.external_url.as_ref().unwrap_or(&gitlab.address).clone());
        Self { known, gitlab, external_url, tracker, limit: Limit::new(section.calls_per_minute), counted }
    }

    async fn of_gitlab(&self, gitlab: &GitlabClient, token: &Secret) -> Result<Arc<Agent>, Status> {
        let info = gitlab.agent_info(token).await?;
        let site = gitlab_site(info.agent_id).ok_or_else(|| Status::not_found("agent not found"))?;
        self.known
            .ensure_site(&site, info.agent_id, Timestamp::now())
            .await
            .map_err(|error| unavailable(&error))?;
        Ok(Arc::new(Agent { id: info.agent_id, name: site.to_string(), project_id: info.project_id }))
    }

    async fn of_our_own(&self, token: &Secret) -> Result<Arc<Agent>, Status> {
        match self.known.agent(token.expose(), Timestamp::now()).await {
            Ok(agent) => Ok(agent),
            Err(error @ DirectoryError::Refused(_)) => {
                tracing::info!(cause = %chain(&error), "An agent's token was refused.");
                Err(Status::unauthenticated(format!("agent → gateway: {}", tarbet_identity::Refusal::PUBLIC)))
            }
            Err(error) => Err(unavailable(&error)),
        }
    }
}

fn unavailable(error: &DirectoryError) -> Status {
    tracing::warn!(error = %chain(error), "An agent's token cannot be checked.");
    Status::unavailable("agent → gateway: the gateway cannot check tokens at the moment")
}

#[async_trait]
impl AgentHost for Host {
    async fn admit(&self, token: &Secret) -> Result<Arc<Agent>, Status> {
        let agent = match &self.gitlab {
            Some(gitlab) => self.of_gitlab(gitlab, token).await?,
            None => self.of_our_own(token).await?,
        };
        let taken = self.limit.take(&hash_opaque(token.expose()).id());
        if taken == Taken::JustOver {
            // Its tunnels are refused now, so that its requests find none: without this line nobody knew why.
            tracing::warn!(
                agent = agent.id,
                site = agent.name,
                "An agent makes more calls in a minute than gateway.kas.calls_per_minute."
            );
        }
        if taken != Taken::Within {
            self.counted.metrics.rate_exceeded.inc();
            return Err(Status::resource_exhausted(
                "agent → gateway: the agent makes more calls in a minute than gateway.kas.calls_per_minute",
            ));
        }
        Ok(agent)
    }

    fn connect(&self, agent: &Agent) -> Result<Arc<dyn Send + Sync>, Status> {
        let Counted { local, quotas, metrics } = &self.counted;
        let site = agent.name.parse().map_err(|_| Status::not_found("agent not found"))?;
        let most = quotas.config().site.links;
        let place = local.reserve(&site, most).map_err(|held| {
            metrics.over_quota("site.links");
            tracing::info!(%site, held, most, "An agent has too many connections.");
            Status::resource_exhausted(format!(
                "agent → gateway: the site has {held} links at this gateway, and quotas.site.links is {most}"
            ))
        })?;
        Ok(Arc::new(place))
    }

    async fn registered(&self, agent: &Agent, pod_id: i64, meta: entity::AgentMeta) -> Result<(), Status> {
        self.tracker.register(agent, pod_id, meta, Timestamp::now()).await
    }

    fn registered_over(&self, agent: &Agent, pod_id: i64, connection: u64) {
        self.tracker.registered_over(agent.id, pod_id, connection);
    }

    fn carried_over(&self, agent: &Agent, connection: u64) {
        self.tracker.carried_over(agent.id, connection);
    }

    fn disconnected(&self, agent: &Agent, connection: u64, moves: bool) {
        self.tracker.disconnected(agent.id, connection, moves);
    }

    async fn unregistered(&self, agent: &Agent, pod_id: i64) -> Result<(), Status> {
        self.tracker.unregister(agent, pod_id).await
    }

    fn gitlab(&self) -> Option<Arc<GitlabClient>> {
        self.gitlab.clone()
    }

    async fn configuration(
        &self,
        agent: &Agent,
    ) -> Result<Option<agent_configuration::ConfigurationResponse>, Status> {
        // Without a GitLab there is nothing to tell an agent; it waits, and serves meanwhile.
        let Some(url) = &self.external_url else { return Ok(None) };
        let configuration = agentcfg::AgentConfiguration {
            agent_id: agent.id,
            project_id: agent.project_id,
            gitlab_external_url: url.clone(),
            ..agentcfg::AgentConfiguration::default()
        };
        let configuration = Some(configuration);
        Ok(Some(agent_configuration::ConfigurationResponse { configuration, commit_id: COMMIT.into() }))
    }
}
