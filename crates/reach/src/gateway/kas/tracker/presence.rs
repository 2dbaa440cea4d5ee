//! Processes come and go with their connections.

use tarbet_telemetry::problem::chain;

use super::{Tracker, key};
use crate::kas::locked;

impl Tracker {
    /// A process said over this connection who it is.
    pub(in crate::gateway::kas) fn registered_over(&self, agent: i64, pod: i64, connection: u64) {
        let mistaken = locked(&self.seats).registered(agent, connection, pod);
        // Its own note may just have been taken back.
        self.settle_soon(agent, mistaken.into_iter().chain([pod]));
    }

    /// The first tunnel of an agent came over this connection.
    pub(in crate::gateway::kas) fn carried_over(&self, agent: i64, connection: u64) {
        let back = locked(&self.seats).carried(agent, connection);
        if back.is_none() {
            self.look_for(agent, connection);
        }
        self.settle_soon(agent, back);
    }

    /// A connection of an agent is over.
    pub(in crate::gateway::kas) fn disconnected(&self, agent: i64, connection: u64, moves: bool) {
        let gone = locked(&self.seats).ended(agent, connection, moves);
        self.settle_soon(agent, gone);
    }

    /// An agent is no longer here, and is elsewhere: its processes whose connections broke are not.
    pub(in crate::gateway::kas) async fn broke_off(&self, agent: i64) {
        let broken = locked(&self.seats).broken(agent);
        for pod in broken {
            self.settle_one(agent, pod).await;
        }
    }

    /// A process said that it leaves.
    pub(super) fn left(&self, agent: i64, pod: i64) {
        locked(&self.seats).unregistered(agent, pod);
    }

    /// Nobody of an agent is anywhere.
    pub(super) fn forget(&self, agent: i64) {
        locked(&self.seats).forget(agent);
    }

    /// Notes or takes back what is known of processes, without delaying whoever noticed it.
    fn settle_soon(&self, agent: i64, pods: impl IntoIterator<Item = i64>) {
        for pod in pods {
            let tracker = self.clone();
            tokio::spawn(async move { tracker.settle_one(agent, pod).await });
        }
    }

    /// Makes the note of a process what it should be by now, whatever was decided before.
    pub(super) async fn settle_one(&self, agent: i64, pod: i64) {
        let _turn = self.turn.lock().await;
        if locked(&self.seats).sits(agent, pod) {
            if let Err(error) = self.bring_back(agent, pod).await {
                // It registers again in time.
                tracing::debug!(error = %chain(&error), agent, "A process that came back is not listed yet.");
            }
            return;
        }
        if locked(&self.seats).moves(agent, pod) {
            return;
        }
        let found = match self.table.get(&key(agent, pod)).await {
            Ok(found) => found,
            Err(error) => {
                return tracing::warn!(error = %chain(&error), agent, "A process stays listed until its entry ends.");
            }
        };
        // One that has registered at another gateway since is noted by that one.
        let Some(row) = found.filter(|found| found.value.by == *self.own) else { return };
        // What went wrong was said; what stays ends by itself.
        let _ = self.set_adrift(&row).await;
    }
}
