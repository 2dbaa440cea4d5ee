//! Agents of the kas protocol that come and go: their processes are listed as connected while the agent is at
//! some gateway, and no longer.
//!
//! One task follows what happens, in its order, so that a store that is slow delays nobody's tunnels.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::super::Hub;
use crate::kas::Agent;
use crate::names::SiteName;

/// How long the last words may take when the gateway leaves.
const LAST_WORDS: Duration = Duration::from_secs(5);

enum Word {
    Came(i64),
    Went { agent: Arc<Agent>, withdrawn: Option<JoinHandle<()>>, told: Option<oneshot::Receiver<()>> },
}

/// Where it is told who comes and goes.
pub(super) struct Attendance(mpsc::UnboundedSender<Word>);

impl Attendance {
    /// The first tunnel of an agent is here.
    pub(super) fn came(&self, agent: i64) {
        // Nobody listens any more once the gateway is gone.
        let _ = self.0.send(Word::Came(agent));
    }

    /// The last one left; the others know it when both of these are done.
    pub(super) fn went(
        &self,
        agent: Arc<Agent>,
        withdrawn: Option<JoinHandle<()>>,
        told: Option<oneshot::Receiver<()>>,
    ) {
        let _ = self.0.send(Word::Went { agent, withdrawn, told });
    }
}

/// Follows agents while the gateway lives.
pub(super) fn keep(hub: &Arc<Hub>) -> Attendance {
    let (words, mut said) = mpsc::unbounded_channel();
    let hub = Arc::downgrade(hub);
    tokio::spawn(async move {
        while let Some(word) = said.recv().await {
            let Some(hub) = Weak::upgrade(&hub) else { return };
            match word {
                Word::Came(agent) => hub.kas.tracker.came(agent).await,
                Word::Went { agent, withdrawn, told } => {
                    // Of several gateways that an agent leaves at once, the last to say so finds no other.
                    if let Some(withdrawn) = withdrawn {
                        let _ = withdrawn.await;
                    }
                    if let Some(told) = told {
                        let _ = told.await;
                    }
                    if hub.kas.pool.holds(agent.id) {
                        continue;
                    }
                    if is_elsewhere(&hub, agent.id).await {
                        hub.kas.tracker.broke_off(agent.id).await;
                    } else {
                        hub.kas.tracker.went(agent.id).await;
                    }
                }
            }
        }
    });
    Attendance(words)
}

/// Whether another gateway, or a replica of the original, has tunnels of this agent. If nobody can say, it may.
pub(super) async fn is_elsewhere(hub: &Hub, agent: i64) -> bool {
    if let (Some(registry), Some(site)) = (&hub.registry, site(hub, agent).await) {
        registry.distrust(&site);
        if registry.elsewhere(&site).await.map_or(true, |links| !links.is_empty()) {
            return true;
        }
    }
    match &hub.kas.beside {
        Some(beside) => !beside.book().holders(agent).await.is_empty(),
        None => false,
    }
}

/// The site of an agent.
pub(super) async fn site(hub: &Hub, agent: i64) -> Option<SiteName> {
    match hub.known.site_numbered(agent).await {
        Ok(Some(site)) => Some(site),
        _ => super::gitlab_site(agent),
    }
}

/// The gateway has left: what it noted of agents that are nowhere else goes, too.
pub(in crate::gateway) async fn settle(hub: &Hub) {
    let settled = async {
        for agent in hub.kas.tracker.noted() {
            if !is_elsewhere(hub, agent).await {
                hub.kas.tracker.went(agent).await;
            }
        }
        // Streams of agents that went elsewhere may have ended just now.
        hub.kas.server.settled().await;
    };
    if tokio::time::timeout(LAST_WORDS, settled).await.is_err() {
        tracing::warn!("Agents stay listed as connected until their entries end.");
    }
}
