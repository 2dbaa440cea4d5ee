//! What is known of peers over time: remembered at the start of a term, withdrawn after silence.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::Api;
use kube::api::ListParams;
use kube::core::DynamicObject;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Shared;
use super::reconcile::State;
use crate::crd::SaidBy;
use crate::fds::Version;
use crate::model::Offer;
use crate::observe::said;
use crate::plan::{Kind, MANAGED_BY};

/// What is remembered of a peer.
pub(super) type Remembered = BTreeMap<String, (Vec<Arc<Offer>>, Option<Version>)>;

/// What peers said before this term: their offers from the ImportedServices, their versions from the
/// federation. Nothing if the term ends first.
pub(super) async fn remember(shared: &Shared, ended: &CancellationToken) -> Option<Remembered> {
    let all = match shared.mirrors.recalled() {
        Some(recalled) => recalled,
        // Not the first term of this process: what it kept then is gone.
        None => listed(shared, ended).await?,
    };
    let mut remembered = Remembered::new();
    for said in all {
        remembered.entry(said.mesh).or_default().0.push(Arc::new(said.offer));
    }
    if let Some((_, federation)) = shared.mirrors.federation() {
        for remote in &federation.value.status.remotes {
            let version = remote.version.as_ref().and_then(|version| version.parse().ok());
            remembered.entry(remote.id.clone()).or_default().1 = version;
        }
    }
    Some(remembered)
}

async fn listed(shared: &Shared, ended: &CancellationToken) -> Option<Vec<SaidBy>> {
    let api: Api<DynamicObject> = Api::all_with(shared.client.clone(), &Kind::ImportedService.resource());
    let ours = ListParams::default().labels(&format!("{}={}", MANAGED_BY.0, MANAGED_BY.1));
    loop {
        let listed = tokio::select! {
            listed = api.list(&ours) => listed,
            () = ended.cancelled() => return None,
        };
        match listed {
            Ok(list) => {
                return Some(list.items.into_iter().flat_map(|mut object| said(&mut object)).collect());
            }
            Err(error) => {
                let cause = tarbet_cluster::describe(&error);
                tracing::warn!(cause, "What was imported before cannot be read; trying again.");
            }
        }
        tokio::select! {
            () = sleep(Duration::from_secs(1)) => {}
            () = ended.cancelled() => return None,
        }
    }
}

/// Withdraws the services of peers whose hold-down is over.
pub(super) async fn hold_downs(shared: &Shared, state: &State) {
    let hold_down = shared.config.hold_down;
    loop {
        let changed = shared.silences.notified();
        let next = shared.peers().next_expiry(hold_down);
        let due = async {
            match next {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed => continue,
            () = due => {}
        }
        let gone = shared.peers().expire(hold_down, Instant::now());
        for mesh in gone {
            tracing::warn!(
                mesh,
                "A peer has been silent for the whole hold-down; its services are withdrawn."
            );
            state.restart(&mesh);
            shared.reconcile.add(());
        }
    }
}
