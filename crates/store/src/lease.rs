//! Leases: one holder at a time, told apart by fencing tokens.
//!
//! A lease is a key that expires. Its token is the revision that put it, so tokens rise from holder to
//! holder and a write guarded by [`Lease::fence`] fails once somebody else holds it. The holder counts
//! its own time from before it asked and stops a tenth of the lease before the store would let go.

use std::future::Future;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::commit::{Commit, Condition, Expect};
use crate::entry::Revision;
use crate::error::Error;
use crate::key::Key;
use crate::store::Store;

/// Why a lease is not held any more, or cannot be had.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LeaseError {
    /// Somebody else has it, or it ran out before it could be renewed. Stop what it guarded.
    #[error("the lease {key} is lost")]
    Lost {
        /// Which lease.
        key: Key,
    },
    /// The store failed. A lease that was held is still held until its time is up.
    #[error("the lease cannot be acquired, renewed or released")]
    Store(
        #[source]
        #[from]
        Error,
    ),
}

/// A held lease. Dropping it without [`release`](Self::release) leaves it to expire.
#[derive(Debug)]
pub struct Lease {
    store: Store,
    key: Key,
    ttl: Duration,
    token: Revision,
    renewed: Instant,
}

#[derive(Deserialize)]
struct Holder {
    holder: String,
}

impl Store {
    /// Takes the lease if nobody holds it.
    pub async fn try_lease(&self, key: Key, holder: &str, ttl: Duration) -> Result<Option<Lease>, Error> {
        let record = serde_json::json!({ "holder": holder }).to_string();
        let renewed = Instant::now();
        let commit = Commit::new().absent(key.clone()).put_for(key.clone(), record, ttl);
        match self.commit(commit).await {
            Ok(token) => Ok(Some(Lease { store: self.clone(), key, ttl, token, renewed })),
            Err(Error::Conflict { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until the lease can be had. Fails only if the store does.
    pub async fn lease(&self, key: Key, holder: &str, ttl: Duration) -> Result<Lease, Error> {
        // Not a watch: one that looks only before and after somebody else's whole tenure sees no difference.
        let mut hints = self.hints(&key.table.prefix(key.bytes.clone()));
        loop {
            if let Some(lease) = self.try_lease(key.clone(), holder, ttl).await? {
                return Ok(lease);
            }
            let left = self.get(&key).await?.map_or(Some(Duration::ZERO), |entry| entry.expires_in);
            let wait = left.unwrap_or(Duration::MAX).min(self.reread());
            tokio::select! {
                () = hints.changed() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Who holds the lease, and with which token.
    pub async fn lease_holder(&self, key: &Key) -> Result<Option<(String, Revision)>, Error> {
        let Some(entry) = self.get(key).await? else { return Ok(None) };
        let record: Holder = serde_json::from_slice(&entry.value)
            .map_err(|error| Error::Record { key: key.clone(), cause: std::sync::Arc::new(error) })?;
        Ok(Some((record.holder, entry.revision)))
    }
}

impl Lease {
    /// The fencing token: greater than that of every earlier holder.
    pub fn token(&self) -> Revision {
        self.token
    }

    /// A condition that holds only while this lease does; add it to commits the lease guards.
    pub fn fence(&self) -> Condition {
        Condition { key: self.key.clone(), expect: Expect::At(self.token) }
    }

    /// When the holder must stop, renewed or not: a tenth before the store lets go.
    pub fn until(&self) -> Instant {
        self.renewed + self.ttl.mul_f64(0.9)
    }

    /// Whether the holder may still act.
    pub fn is_held(&self) -> bool {
        Instant::now() < self.until()
    }

    /// Begins the time to live anew.
    pub async fn renew(&mut self) -> Result<(), LeaseError> {
        if !self.is_held() {
            return Err(self.lost());
        }
        let renewed = Instant::now();
        let commit = Commit::new().expect(self.fence()).refresh(self.key.clone(), self.ttl);
        match self.store.commit(commit).await {
            Ok(_) => {
                self.renewed = renewed;
                Ok(())
            }
            Err(Error::Conflict { .. }) => Err(self.lost()),
            Err(error) => Err(error.into()),
        }
    }

    /// Lets go, so that the next holder need not wait. It is no error if it was lost already.
    pub async fn release(self) -> Result<(), Error> {
        match self.store.commit(Commit::new().expect(self.fence()).delete(self.key.clone())).await {
            Ok(_) | Err(Error::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Does some work while renewing the lease. The work is dropped as soon as the lease is lost.
    pub async fn guard<T>(&mut self, work: impl Future<Output = T>) -> Result<T, LeaseError> {
        tokio::select! {
            biased;
            lost = self.keep() => Err(lost),
            done = work => Ok(done),
        }
    }

    /// Renews at a third of the time to live, for as long as that works.
    async fn keep(&mut self) -> LeaseError {
        let pause = self.ttl / 10;
        let mut next = self.renewed + self.ttl / 3;
        loop {
            let until = self.until();
            sleep_until(next.min(until)).await;
            match timeout_at(until, self.renew()).await {
                Ok(Ok(())) => next = self.renewed + self.ttl / 3,
                Ok(Err(LeaseError::Store(error))) => {
                    tracing::warn!(lease = %self.key, %error, "The lease could not be renewed yet.");
                    next = Instant::now() + pause;
                }
                Ok(Err(lost)) => return lost,
                Err(_) => return self.lost(),
            }
        }
    }

    fn lost(&self) -> LeaseError {
        LeaseError::Lost { key: self.key.clone() }
    }
}
