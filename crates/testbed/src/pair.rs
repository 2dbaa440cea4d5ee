//! Two control planes side by side, and the pair that a whole test binary shares.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use tokio::sync::OnceCell;

use crate::{ControlPlane, Etcd};

/// Two clusters that know nothing of each other but share one etcd, to save memory.
#[derive(Debug)]
pub struct Pair {
    /// The side that dials out.
    pub private: ControlPlane,
    /// The side that is dialled.
    pub public: ControlPlane,
}

impl Pair {
    /// Starts both at once.
    pub async fn start() -> Result<Self> {
        let etcd = Arc::new(Etcd::start().await?);
        let private = ControlPlane::start_on("private", Arc::clone(&etcd));
        let public = ControlPlane::start_on("public", etcd);
        let (private, public) = tokio::try_join!(private, public)?;
        Ok(Self { private, public })
    }

    /// Ends both in good order.
    pub async fn stop(self) -> Result<()> {
        let (private, public) = tokio::join!(self.private.stop(), self.public.stop());
        private.and(public)
    }
}

/// The pair of this process, started by the first who asks.
///
/// Nobody drops it: its programs end with the process. A test takes a namespace of its own
/// ([`ControlPlane::unique_namespace`]) and breaks nothing; one that must break a plane starts
/// its own.
pub async fn shared_pair() -> Result<&'static Pair> {
    // A failed start is kept, so that a hundred tests do not wait for it one after another.
    static SHARED: OnceCell<Result<Pair, String>> = OnceCell::const_new();
    let pair =
        SHARED.get_or_init(|| async { Pair::start().await.map_err(|error| format!("{error:#}")) }).await;
    pair.as_ref().map_err(|error| anyhow!("start the shared control planes: {error}"))
}
