//! Processes come and go with their connections.

use tarbet_telemetry::problem::chain;
use tokio::time::Instant;

use super::{Connected, KEPT, Lost, Tracker, key};
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
        locked(&self.lost).remove(&(agent, pod));
    }

    /// Nobody of an agent is anywhere.
    pub(super) fn forget(&self, agent: i64) {
        locked(&self.seats).forget(agent);
        locked(&self.lost).retain(|(of, _), _| *of != agent);
    }

    /// Notes or takes back what is known of processes, without delaying whoever noticed it.
    fn settle_soon(&self, agent: i64, pods: impl IntoIterator<Item = i64>) {
        for pod in pods {
            let tracker = self.clone();
            tokio::spawn(async move { tracker.settle_one(agent, pod).await });
        }
    }

    /// Makes the note of a process what it should be by now, whatever was decided before.
    async fn settle_one(&self, agent: i64, pod: i64) {
        let _turn = self.turn.lock().await;
        if locked(&self.seats).sits(agent, pod) {
            let back = locked(&self.lost).remove(&(agent, pod));
            if let Some(Lost { row, .. }) = back {
                // What went wrong was said; it registers again in time.
                let _ = self.write(Connected { by: self.own.to_string(), ..row }).await;
            }
            return;
        }
        let found = match self.table.get(&key(agent, pod)).await {
            Ok(found) => found.map(|found| found.value),
            Err(error) => {
                return tracing::warn!(error = %chain(&error), agent, "A process stays listed until its entry ends.");
            }
        };
        // One that has registered at another gateway since is noted by that one.
        let Some(row) = found.filter(|row| row.by == *self.own) else { return };
        if self.remove(agent, row.project, pod).await.is_ok() {
            let mut lost = locked(&self.lost);
            // Who did not come back in this time is another process now.
            lost.retain(|_, lost| lost.at.elapsed() < KEPT);
            lost.insert((agent, pod), Lost { row, at: Instant::now() });
        }
    }
}
