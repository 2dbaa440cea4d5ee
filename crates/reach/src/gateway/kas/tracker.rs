//! Which agents' processes are connected: noted when they register, told on the API listener.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tarbet_store::{Invalid, Record, Store, Table};
use tarbet_telemetry::problem::chain;
use tonic::Status;

use super::beside::Book;
use super::services;
use crate::gateway::Hub;
use crate::kas::proto::agent_tracker::ConnectedAgentInfo;
use crate::kas::proto::agent_tracker::rpc::{
    GetConnectedAgentsRequest, GetConnectedAgentsResponse, get_connected_agents_request as wanted,
};
use crate::kas::proto::entity::{AgentMeta, KubernetesVersion};
use crate::kas::{Agent, Rpc};

/// How long a process counts as connected after it last said so; it says so every five minutes, and
/// the original keeps it as long.
const KEPT: Duration = Duration::from_mins(5);

/// One process of an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Connected {
    agent: i64,
    project: i64,
    pod: i64,
    since: Timestamp,
    version: String,
    commit: String,
    namespace: String,
    name: String,
    kubernetes: [String; 4],
}

impl Record for Connected {
    const KIND: &'static str = "kas-agent";
}

/// The processes that are connected to any gateway. Cheap to clone.
#[derive(Clone)]
pub(super) struct Tracker {
    table: Table<(String, String), Connected>,
    /// Where replicas of the original look and write.
    shared: Option<Arc<Book>>,
}

impl Tracker {
    pub(super) fn new(store: &Store, shared: Option<Arc<Book>>) -> Result<Self, Invalid> {
        Ok(Self { table: Table::new(store, "kas-agents")?, shared })
    }

    pub(super) async fn register(
        &self,
        agent: &Agent,
        pod: i64,
        meta: AgentMeta,
        now: Timestamp,
    ) -> Result<(), Status> {
        let key = (agent.id.to_string(), pod.to_string());
        let before = self.table.get(&key).await.map_err(|error| failed(&error))?;
        let KubernetesVersion { major, minor, git_version, platform } =
            meta.kubernetes_version.unwrap_or_default();
        let connected = Connected {
            agent: agent.id,
            project: agent.project_id,
            pod,
            since: before.map_or(now, |before| before.value.since),
            version: meta.version,
            commit: meta.commit_id,
            namespace: meta.pod_namespace,
            name: meta.pod_name,
            kubernetes: [major, minor, git_version, platform],
        };
        self.table.put_for(&key, &connected, KEPT).await.map_err(|error| failed(&error))?;
        match &self.shared {
            Some(shared) => shared.registered(tell(connected)).await.map_err(|error| failed(&error)),
            None => Ok(()),
        }
    }

    pub(super) async fn unregister(&self, agent: &Agent, pod: i64) -> Result<(), Status> {
        let key = (agent.id.to_string(), pod.to_string());
        self.table.delete(&key).await.map_err(|error| failed(&error))?;
        match &self.shared {
            Some(shared) => {
                let forgotten = shared.unregistered(agent.id, agent.project_id, pod).await;
                forgotten.map_err(|error| failed(&error))
            }
            None => Ok(()),
        }
    }

    async fn find(&self, wanted: &wanted::Request) -> Result<Vec<ConnectedAgentInfo>, Status> {
        let listing = match wanted {
            wanted::Request::AgentId(id) => self.table.list_under(&id.to_string()).await,
            wanted::Request::ProjectId(_) => self.table.list().await,
        };
        let records = listing.map_err(|error| failed(&error))?.records.into_iter();
        let meant = records.map(|(_, found)| found.value).filter(|found| match wanted {
            wanted::Request::AgentId(_) => true,
            wanted::Request::ProjectId(id) => found.project == *id,
        });
        let mut found: Vec<ConnectedAgentInfo> = meant.map(tell).collect();
        if let Some(shared) = &self.shared {
            let (agent, project) = match wanted {
                wanted::Request::AgentId(id) => (Some(*id), 0),
                wanted::Request::ProjectId(id) => (None, *id),
            };
            let others = shared.connections(agent, project).await.map_err(|error| failed(&error))?;
            let is_new = |other: &ConnectedAgentInfo, known: &[ConnectedAgentInfo]| {
                !known
                    .iter()
                    .any(|one| (one.agent_id, one.connection_id) == (other.agent_id, other.connection_id))
            };
            for other in others {
                if is_new(&other, &found) {
                    found.push(other);
                }
            }
        }
        Ok(found)
    }
}

fn tell(found: Connected) -> ConnectedAgentInfo {
    let [major, minor, git_version, platform] = found.kubernetes;
    ConnectedAgentInfo {
        agent_meta: Some(AgentMeta {
            version: found.version,
            commit_id: found.commit,
            pod_namespace: found.namespace,
            pod_name: found.name,
            kubernetes_version: Some(KubernetesVersion { major, minor, git_version, platform }),
        }),
        connected_at: Some(prost_types::Timestamp {
            seconds: found.since.as_second(),
            nanos: found.since.subsec_nanosecond(),
        }),
        connection_id: found.pod,
        agent_id: found.agent,
        project_id: found.project,
    }
}

fn failed(error: &tarbet_store::Error) -> Status {
    tracing::warn!(error = %chain(error), "The list of connected agents cannot be kept.");
    Status::unavailable("gateway → store: the list of connected agents cannot be reached")
}

pub(super) async fn connected_agents(State(hub): State<Arc<Hub>>, request: Request) -> Response {
    let answered = async {
        let asked: GetConnectedAgentsRequest =
            services::asked(&hub, request, Rpc::GetConnectedAgents).await?;
        let nobody =
            || Status::invalid_argument("GetConnectedAgents: neither an agent nor a project is named");
        let wanted = asked.request.ok_or_else(nobody)?;
        Ok(GetConnectedAgentsResponse { agents: hub.kas.tracker.find(&wanted).await? })
    };
    services::answer(answered.await)
}
