//! Which agents' processes are connected: noted when they register, told on the API listener.

mod adrift;
mod presence;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tarbet_store::{Commit, Invalid, Record, Store, Table};
use tarbet_telemetry::problem::chain;
use tokio::time::Instant;
use tonic::Status;
use uuid::Uuid;

use super::attendance::{is_elsewhere, site};
use super::beside::Book;
use super::seats::Seats;
use super::services;
use crate::gateway::Hub;
use crate::kas::proto::agent_tracker::ConnectedAgentInfo;
use crate::kas::proto::agent_tracker::rpc::{
    GetConnectedAgentsRequest, GetConnectedAgentsResponse, get_connected_agents_request as wanted,
};
use crate::kas::proto::entity::{AgentMeta, KubernetesVersion};
use crate::kas::{Agent, Rpc, locked};
use crate::local::LinkId;

/// How long a process counts as connected after it last said so. It says so every five minutes: one word may
/// be lost, and the next may be late.
const KEPT: Duration = Duration::from_mins(11);
/// A process registers when it starts. One that is new this soon after its agent came back has replaced those
/// that were there before.
const SUCCESSION: Duration = Duration::from_secs(30);

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
    /// The process of ours that noted it.
    #[serde(default)]
    by: String,
}

impl Record for Connected {
    const KIND: &'static str = "kas-agent";
}

/// Processes whose agent left. A process that comes back does not say at once who it is.
struct Away {
    rows: Vec<Connected>,
    /// When it left, or came back.
    at: Instant,
    is_back: bool,
}

/// The processes that are connected to any gateway. Cheap to clone.
#[derive(Clone)]
pub(super) struct Tracker {
    table: Table<(String, String), Connected>,
    /// Those whose connections broke, for the gateway to which they come next.
    adrift: Table<(String, String), Connected>,
    /// Where replicas of the original look and write.
    shared: Option<Arc<Book>>,
    /// What this process signs with.
    own: Arc<str>,
    away: Arc<Mutex<HashMap<i64, Away>>>,
    /// Agents of which something was noted here.
    noted: Arc<Mutex<BTreeSet<i64>>>,
    /// Which of them sits at which connection.
    seats: Arc<Mutex<Seats>>,
    /// Held while a note of one of them is made or taken back.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Tracker {
    /// `process` is what this process calls itself among those that share the store.
    pub(super) fn new(
        store: &Store,
        shared: Option<Arc<Book>>,
        process: Option<String>,
    ) -> Result<Self, Invalid> {
        let own = process.unwrap_or_else(|| Uuid::new_v4().simple().to_string()).into();
        let table = Table::new(store, "kas-agents")?;
        Ok(Self {
            table,
            adrift: Table::new(store, "kas-agents-adrift")?,
            shared,
            own,
            away: Arc::default(),
            noted: Arc::default(),
            seats: Arc::default(),
            turn: Arc::default(),
        })
    }

    pub(super) async fn register(
        &self,
        agent: &Agent,
        pod: i64,
        meta: AgentMeta,
        now: Timestamp,
    ) -> Result<(), Status> {
        let Heard { known, replaced } = self.hear(agent.id, pod);
        for gone in replaced {
            self.remove(gone.agent, gone.project, gone.pod).await?;
        }
        let key = key(agent.id, pod);
        let before = match self.table.get(&key).await.map_err(|error| failed(&error))? {
            Some(before) => Some(before),
            None => self.adrift.get(&key).await.map_err(|error| failed(&error))?,
        };
        let before = before.map(|before| before.value).or(known);
        let KubernetesVersion { major, minor, git_version, platform } =
            meta.kubernetes_version.unwrap_or_default();
        let connected = Connected {
            agent: agent.id,
            project: agent.project_id,
            pod,
            since: before.map_or(now, |before| before.since),
            version: meta.version,
            commit: meta.commit_id,
            namespace: meta.pod_namespace,
            name: meta.pod_name,
            kubernetes: [major, minor, git_version, platform],
            by: self.own.to_string(),
        };
        self.write(connected).await
    }

    pub(super) async fn unregister(&self, agent: &Agent, pod: i64) -> Result<(), Status> {
        if let Some(away) = locked(&self.away).get_mut(&agent.id) {
            away.rows.retain(|row| row.pod != pod);
        }
        self.left(agent.id, pod);
        self.remove(agent.id, agent.project_id, pod).await
    }

    /// An agent is at no gateway any more: none of its processes is connected.
    pub(super) async fn went(&self, agent: i64) {
        locked(&self.noted).remove(&agent);
        self.forget(agent);
        let rows = match self.table.list_under(&agent.to_string()).await {
            Ok(listing) => listing.records.into_iter().map(|(_, found)| found).collect::<Vec<_>>(),
            Err(error) => return drop(failed(&error)),
        };
        for row in &rows {
            // What went wrong was said; what stays ends by itself.
            let _ = self.set_adrift(row).await;
        }
        let rows: Vec<_> = rows.into_iter().map(|row| row.value).collect();
        let mut away = locked(&self.away);
        away.retain(|_, away| away.at.elapsed() < KEPT);
        if !rows.is_empty() {
            away.insert(agent, Away { rows, at: Instant::now(), is_back: false });
        }
    }

    /// An agent is here. If it was before, its processes are taken to be the same until one says otherwise.
    pub(super) async fn came(&self, agent: i64) {
        let rows = match locked(&self.away).get_mut(&agent) {
            Some(away) if !away.is_back && away.at.elapsed() < KEPT => {
                (away.is_back, away.at) = (true, Instant::now());
                away.rows.clone()
            }
            _ => return,
        };
        for row in rows {
            // Those that another gateway has by now are its own.
            if let Err(error) = self.bring_back(agent, row.pod).await {
                drop(failed(&error));
            }
        }
    }

    /// Agents of which something was noted here.
    pub(super) fn noted(&self) -> BTreeSet<i64> {
        locked(&self.noted).clone()
    }

    /// What a word of a process means for those who were away.
    fn hear(&self, agent: i64, pod: i64) -> Heard {
        let mut away = locked(&self.away);
        let Some(found) = away.get_mut(&agent) else { return Heard::default() };
        if let Some(index) = found.rows.iter().position(|row| row.pod == pod) {
            let known = Some(found.rows.swap_remove(index));
            return Heard { known, replaced: Vec::new() };
        }
        let replaced = !found.is_back || found.at.elapsed() < SUCCESSION;
        let rows = away.remove(&agent).map(|away| away.rows).unwrap_or_default();
        Heard { known: None, replaced: if replaced { rows } else { Vec::new() } }
    }

    async fn write(&self, connected: Connected) -> Result<(), Status> {
        locked(&self.noted).insert(connected.agent);
        let key = key(connected.agent, connected.pod);
        let noted = async {
            let note = self.table.put_for_op(&key, &connected, KEPT)?;
            let commit = Commit::new().with(note).with(self.adrift.delete_op(&key));
            self.table.store().commit(commit).await
        };
        noted.await.map_err(|error| failed(&error))?;
        match &self.shared {
            Some(shared) => shared.registered(tell(connected)).await.map_err(|error| failed(&error)),
            None => Ok(()),
        }
    }

    async fn remove(&self, agent: i64, project: i64, pod: i64) -> Result<(), Status> {
        let key = key(agent, pod);
        let commit = Commit::new().with(self.table.delete_op(&key)).with(self.adrift.delete_op(&key));
        self.table.store().commit(commit).await.map_err(|error| failed(&error))?;
        match &self.shared {
            Some(shared) => shared.unregistered(agent, project, pod).await.map_err(|error| failed(&error)),
            None => Ok(()),
        }
    }

    async fn noted_of(&self, wanted: &wanted::Request) -> Result<Vec<Connected>, Status> {
        let listing = match wanted {
            wanted::Request::AgentId(id) => self.table.list_under(&id.to_string()).await,
            wanted::Request::ProjectId(_) => self.table.list().await,
        };
        let records = listing.map_err(|error| failed(&error))?.records.into_iter();
        let meant = records.map(|(_, found)| found.value).filter(|found| match wanted {
            wanted::Request::AgentId(_) => true,
            wanted::Request::ProjectId(id) => found.project == *id,
        });
        Ok(meant.collect())
    }
}

/// What a word of a process means for those who were away.
#[derive(Default)]
struct Heard {
    /// It was one of them.
    known: Option<Connected>,
    /// It took their place.
    replaced: Vec<Connected>,
}

async fn find(hub: &Hub, wanted: &wanted::Request) -> Result<Vec<ConnectedAgentInfo>, Status> {
    let tracker = &hub.kas.tracker;
    let mut found = Vec::new();
    for row in tracker.noted_of(wanted).await? {
        if is_believed(hub, &row).await {
            found.push(tell(row));
        }
    }
    if let Some(shared) = &tracker.shared {
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
    if let wanted::Request::AgentId(id) = wanted {
        let links = links(hub, *id).await?;
        let nobody = found.is_empty();
        // Tunnels of one that did not register yet are a sign of life as well.
        found.extend(links.into_iter().filter(|link| link.is_native || nobody).map(|link| link.info));
    }
    Ok(found)
}

/// Whether a note still counts: a gateway that died cannot take back what it noted.
async fn is_believed(hub: &Hub, row: &Connected) -> bool {
    if row.by == *hub.kas.tracker.own {
        return true;
    }
    let lives = match &hub.registry {
        Some(registry) => registry.is_alive(&row.by).await.unwrap_or(true),
        None => false,
    };
    lives || hub.kas.pool.holds(row.agent) || is_elsewhere(hub, row.agent).await
}

/// A link as one would tell GitLab of it.
struct Linked {
    info: ConnectedAgentInfo,
    is_native: bool,
}

/// The links of the site with this number, at any gateway.
async fn links(hub: &Hub, agent: i64) -> Result<Vec<Linked>, Status> {
    let Some(site) = site(hub, agent).await else { return Ok(Vec::new()) };
    let Some(registry) = &hub.registry else {
        let held = hub.local.of_site(&site);
        return Ok(held.iter().map(|held| linked(agent, held.id, &held.agent, held.since)).collect());
    };
    let listed = registry.of_site(&site).await.map_err(|error| failed(&error))?.into_iter();
    let linked = listed.filter_map(|listed| {
        let id = LinkId::parse(&listed.link)?;
        Some(linked(agent, id, &listed.record.agent, listed.record.since))
    });
    Ok(linked.collect())
}

fn linked(agent: i64, id: LinkId, described: &str, since: Timestamp) -> Linked {
    let (name, version) = described.rsplit_once(' ').unwrap_or((described, ""));
    let meta = AgentMeta { version: version.to_owned(), pod_name: name.to_owned(), ..AgentMeta::default() };
    let info = ConnectedAgentInfo {
        agent_meta: Some(meta),
        connected_at: Some(when(since)),
        // The end of a link's name is random; numbers of connections are positive.
        connection_id: i64::from_be_bytes(id.uuid().as_u64_pair().1.to_be_bytes()) & i64::MAX,
        agent_id: agent,
        project_id: 0,
    };
    Linked { info, is_native: described != super::described(agent) }
}

fn key(agent: i64, pod: i64) -> (String, String) {
    (agent.to_string(), pod.to_string())
}

fn when(at: Timestamp) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }
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
        connected_at: Some(when(found.since)),
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
        Ok(GetConnectedAgentsResponse { agents: find(&hub, &wanted).await? })
    };
    services::answer(answered.await)
}

#[cfg(test)]
mod tests;
