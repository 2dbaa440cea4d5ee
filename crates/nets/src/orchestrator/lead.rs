//! Which of several orchestrators on one store acts: the one that holds the lease.
//!
//! Everything it writes down is guarded by the lease's fence, so one that lost the lease without noticing
//! can write nothing more. The next one goes on with what it finds written down, from the call that was
//! reached; that call may then be made twice, with the effect of once.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tarbet_store::{Commit, Condition, Lease, Store, TableName};
use tokio_util::sync::CancellationToken;

use super::Orchestrator;
use crate::error::Error;

/// A store that fails is asked again after this, and who leads is looked up as often.
const AGAIN: Duration = Duration::from_secs(1);

/// Whether this orchestrator acts. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub(super) struct Lead {
    store: Store,
    standing: Arc<RwLock<Standing>>,
}

#[derive(Clone)]
enum Standing {
    /// Nobody else uses the store.
    Alone,
    /// Holds the lease; the token ends with it.
    Leads(Condition, CancellationToken),
    /// Somebody else does; where people reach it, if that is known.
    Waits(String),
}

impl Lead {
    /// Nobody else uses the store.
    pub(super) fn alone(store: &Store) -> Self {
        Self { store: store.clone(), standing: Arc::new(RwLock::new(Standing::Alone)) }
    }

    fn standing(&self) -> Standing {
        self.standing.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, standing: Standing) {
        *self.standing.write().unwrap_or_else(PoisonError::into_inner) = standing;
    }

    /// Refuses while another one leads.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.standing() {
            Standing::Waits(leader) => Err(Error::Standby { leader }),
            _ => Ok(()),
        }
    }

    /// Where the one that leads is reached, unless it is this one.
    pub(super) fn elsewhere(&self) -> Option<String> {
        match self.standing() {
            Standing::Waits(leader) => Some(leader),
            _ => None,
        }
    }

    /// Ends when this one leads no more.
    pub(super) fn tenure(&self) -> Result<CancellationToken, Error> {
        match self.standing() {
            Standing::Alone => Ok(CancellationToken::new()),
            Standing::Leads(_, tenure) => Ok(tenure),
            Standing::Waits(leader) => Err(Error::Standby { leader }),
        }
    }

    /// Writes down what only the one that leads may.
    pub(super) async fn commit(&self, commit: Commit) -> Result<(), Error> {
        let commit = match self.standing() {
            Standing::Alone => commit,
            Standing::Leads(fence, _) => commit.expect(fence),
            Standing::Waits(leader) => return Err(Error::Standby { leader }),
        };
        match self.store.commit(commit).await {
            Err(error) if error.is_conflict() && !matches!(self.standing(), Standing::Alone) => {
                Err(Error::Standby { leader: String::new() })
            }
            outcome => outcome.map(drop).map_err(Into::into),
        }
    }
}

impl Orchestrator {
    /// From now on this one acts only while it holds the lease; others are told to go to `reached_at`.
    pub(crate) fn share(&self) {
        self.0.lead.set(Standing::Waits(String::new()));
    }

    /// Where the one that leads is reached, unless it is this one.
    pub fn leader_elsewhere(&self) -> Option<String> {
        self.0.lead.elsewhere()
    }

    /// Waits for the lease, leads while it is held, and begins again, until `stop`.
    pub(crate) async fn lead(
        &self,
        reached_at: &str,
        lease: Duration,
        stop: CancellationToken,
    ) -> Result<(), Error> {
        let key = TableName::new("nets-leader")?.key("lease");
        while !stop.is_cancelled() {
            let store = &self.0.lead.store;
            let mut lease = std::pin::pin!(store.lease(key.clone(), reached_at, lease));
            let asked = loop {
                if let Ok(Some((leader, _))) = store.lease_holder(&key).await {
                    self.0.lead.set(Standing::Waits(leader));
                }
                tokio::select! {
                    asked = &mut lease => break asked,
                    () = tokio::time::sleep(AGAIN) => {}
                    () = stop.cancelled() => return Ok(()),
                }
            };
            match asked {
                Ok(lease) => self.tenure(lease, &stop).await,
                Err(error) => {
                    tracing::warn!(%error, "The lease of the orchestrators cannot be asked for.");
                    tokio::select! {
                        () = tokio::time::sleep(AGAIN) => {}
                        () = stop.cancelled() => {}
                    }
                }
            }
        }
        Ok(())
    }

    async fn tenure(&self, mut lease: Lease, stop: &CancellationToken) {
        let tenure = CancellationToken::new();
        self.0.lead.set(Standing::Leads(lease.fence(), tenure.clone()));
        tracing::info!(token = ?lease.token(), "This orchestrator leads.");
        let work = async {
            if let Err(error) = self.take_over().await {
                tracing::warn!(%error, "What another orchestrator left could not be taken over whole.");
            }
            stop.cancelled().await;
        };
        let held = lease.guard(work).await;
        self.0.lead.set(Standing::Waits(String::new()));
        tenure.cancel();
        match held {
            // Nobody need wait for the lease of one that ended in order.
            Ok(()) => drop(lease.release().await),
            Err(error) => tracing::warn!(%error, "This orchestrator leads no more."),
        }
    }

    async fn take_over(&self) -> Result<(), Error> {
        self.0.tags.refresh().await?;
        self.0.rules.reload().await?;
        self.0.spaces.reload().await?;
        let resumed = self.resume().await?;
        tracing::info!(resumed, "Operations of another orchestrator go on here.");
        Ok(())
    }
}
