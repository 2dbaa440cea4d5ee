//! Processes that no gateway holds and that may come back at any of them.
//!
//! A process says who it is every five minutes only. When its connection breaks, the gateway that held it takes its
//! note back and leaves it where all gateways look; the one to which it comes with tunnels, and without a word who
//! it is, takes it to be the one that was lost last. It may come before its loss is noticed, so that one looks more
//! than once.

use std::time::Duration;

use tarbet_store::{Commit, Error, Versioned};
use tarbet_telemetry::problem::chain;
use tonic::Status;

use super::{Connected, KEPT, Tracker, failed, key, tell};
use crate::kas::locked;

/// When it is looked for who may sit at a connection, from one look to the next. One that starts says at once who
/// it is, and a connection that broke without a word is noticed after more than a minute; after five the process
/// has said it itself.
const LOOKS: [Duration; 7] = [
    Duration::from_secs(2),
    Duration::from_secs(6),
    Duration::from_secs(12),
    Duration::from_secs(20),
    Duration::from_secs(40),
    Duration::from_mins(1),
    Duration::from_mins(1),
];

impl Tracker {
    /// Takes a note back and leaves the process to whomever it comes to; nothing if somebody noted it anew.
    pub(super) async fn set_adrift(&self, found: &Versioned<Connected>) -> Result<(), Status> {
        let row = &found.value;
        let key = key(row.agent, row.pod);
        let moved = async {
            let commit = Commit::new()
                .expect(self.table.at(&key, found.revision))
                .with(self.table.delete_op(&key))
                .with(self.adrift.put_for_op(&key, row, KEPT)?);
            self.table.store().commit(commit).await
        };
        match moved.await {
            Ok(_) => {}
            Err(Error::Conflict { .. }) => return Ok(()),
            Err(error) => return Err(failed(&error)),
        }
        match &self.shared {
            Some(shared) => {
                shared.unregistered(row.agent, row.project, row.pod).await.map_err(|error| failed(&error))
            }
            None => Ok(()),
        }
    }

    /// Looks for the process that may sit at a connection of which only tunnels are known.
    pub(super) fn look_for(&self, agent: i64, connection: u64) {
        let tracker = self.clone();
        tokio::spawn(async move {
            for pause in LOOKS {
                tokio::time::sleep(pause).await;
                if !locked(&tracker.seats).is_unknown(agent, connection) {
                    return;
                }
                if let Err(error) = tracker.take_over(agent, connection).await {
                    tracing::debug!(error = %chain(&error), agent, "It is not known who came.");
                }
            }
        });
    }

    async fn take_over(&self, agent: i64, connection: u64) -> Result<(), Error> {
        let mut rows = self.adrift.list_under(&agent.to_string()).await?.records;
        rows.sort_by_key(|(_, row)| row.revision);
        while let Some((_, row)) = rows.pop() {
            let pod = row.value.pod;
            if self.claim(row).await? {
                if !locked(&self.seats).guess(agent, connection, pod) {
                    // The connection ended meanwhile, or said who is there.
                    self.settle_one(agent, pod).await;
                }
                return Ok(());
            }
        }
        Ok(())
    }

    /// Notes a process of this gateway again if it was lost and nobody else has it.
    pub(super) async fn bring_back(&self, agent: i64, pod: i64) -> Result<(), Error> {
        if let Some(row) = self.adrift.get(&key(agent, pod)).await? {
            self.claim(row).await?;
        }
        Ok(())
    }

    /// Takes a lost process over. Tells whether nobody else did.
    async fn claim(&self, found: Versioned<Connected>) -> Result<bool, Error> {
        let row = Connected { by: self.own.to_string(), ..found.value };
        let key = key(row.agent, row.pod);
        let commit = Commit::new()
            .expect(self.adrift.at(&key, found.revision))
            .with(self.adrift.delete_op(&key))
            .with(self.table.put_for_op(&key, &row, KEPT)?);
        match self.table.store().commit(commit).await {
            Ok(_) => {}
            Err(Error::Conflict { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        locked(&self.noted).insert(row.agent);
        if let Some(shared) = &self.shared {
            shared.registered(tell(row)).await?;
        }
        Ok(true)
    }
}
