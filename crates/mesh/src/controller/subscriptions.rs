//! One task for each peer that is imported from, started and ended as the rules change.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use tarbet_link::Target;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::Shared;
use super::keep::Remembered;
use crate::crd::Remote;
use crate::fds::{Heard, Limits, Subscription, Way, subscribe};
use crate::metrics::Mesh;
use crate::plan::DISCOVERY_PORT;
use crate::ways;

#[derive(Default)]
pub(super) struct Subscriptions {
    running: BTreeMap<String, Running>,
}

struct Running {
    /// What it was started with; another needs another task.
    terms: String,
    restart: Arc<Notify>,
    task: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Subscriptions {
    /// Hears exactly these remotes.
    pub(super) fn set(
        &mut self,
        shared: &Arc<Shared>,
        local: &str,
        remotes: &[&Remote],
        remembered: &mut Remembered,
    ) {
        let listed = |mesh: &str| remotes.iter().any(|remote| remote.id == mesh);
        self.running.retain(|mesh, _| listed(mesh));
        if shared.peers().retain(listed) {
            shared.silences.notify_one();
        }
        for remote in remotes {
            let (offers, version) = remembered.remove(&remote.id).unwrap_or_default();
            shared.peers().add(&remote.id, offers, version, Instant::now());
            let way = way(shared, remote);
            let terms = match &way {
                Ok(way) => {
                    let by = if shared.site(remote).is_some() { "site" } else { "network" };
                    format!("{local} {by} {} {}", way.target, way.authority)
                }
                Err(why) => why.clone(),
            };
            if self.running.get(&remote.id).is_some_and(|running| running.terms == terms) {
                continue;
            }
            match way {
                Ok(way) => {
                    self.running.insert(remote.id.clone(), start(shared, local, remote, way, terms));
                }
                Err(why) => {
                    self.running.remove(&remote.id);
                    hear(shared, &remote.id, Heard::Lost(why));
                }
            }
        }
        shared.silences.notify_one();
    }

    /// Begins anew with a peer whose services were withdrawn: any state of it is welcome now.
    pub(super) fn restart(&self, mesh: &str) {
        if let Some(running) = self.running.get(mesh) {
            running.restart.notify_one();
        }
    }
}

fn start(shared: &Arc<Shared>, local: &str, remote: &Remote, way: Way, terms: String) -> Running {
    let restart = Arc::new(Notify::new());
    let subscription = Subscription {
        local: local.to_owned(),
        mesh: remote.id.clone(),
        way,
        limits: Limits { services: shared.config.max_services, ..Limits::default() },
        known: shared.peers().get(&remote.id).and_then(|peer| peer.version.clone()),
        restart: Arc::clone(&restart),
    };
    let (shared, mesh) = (Arc::clone(shared), remote.id.clone());
    let hearing = subscribe(subscription, move |heard| hear(&shared, &mesh, heard));
    Running { terms, restart, task: tokio::spawn(hearing).abort_handle() }
}

fn hear(shared: &Shared, mesh: &str, heard: Heard) {
    match &heard {
        Heard::State(taken) => {
            let (services, version) = (taken.offers.as_ref().map(Vec::len), taken.version.as_ref());
            tracing::debug!(mesh, services, version = ?version, "A peer told what it exports.");
        }
        Heard::Refused(refused) => {
            tracing::warn!(mesh, cause = %refused, "A peer told something that is not taken over.");
        }
        Heard::Lost(cause) => tracing::warn!(mesh, cause, "A peer does not answer; trying again."),
    }
    let connected = matches!(heard, Heard::State(_));
    if !matches!(heard, Heard::Refused(_)) {
        let label = Mesh { mesh: mesh.to_owned() };
        shared.metrics.connected.get_or_create(&label).set(i64::from(connected));
    }
    if shared.peers().hear(mesh, heard, Instant::now(), Timestamp::now()) {
        shared.silences.notify_one();
        shared.reconcile.add(());
    }
}

/// How a remote's discovery is reached.
fn way(shared: &Shared, remote: &Remote) -> Result<Way, String> {
    let site = shared.site(remote);
    let told = ways::told(remote, &shared.config.discovery);
    let target = Target::tcp(ways::target(remote, told, site.is_some())?);
    let authority = format!("{}:{DISCOVERY_PORT}", remote.discovery_host());
    Ok(Way { dialer: site.map_or_else(super::network, Arc::clone), target, authority })
}
