//! The controller: watches the cluster and peers, decides, and makes the cluster so.
//!
//! Every replica watches and answers peers. The one that leads also subscribes to peers and
//! writes. Who starts whom: [`Controller::run`] starts the watches, the publisher and the listener;
//! a term of leadership starts the reconciler, one subscription for each remote, the keeper of
//! hold-downs and the resolver, and ends all of them with itself. Nothing is kept over a term: the
//! next one remembers peers by the ImportedServices that are there.

mod clusterset;
mod keep;
mod reconcile;
mod resolve;
mod subscriptions;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use tarbet_cluster::{Election, Events, Outcome, Queue, Reached, Term, Timings};
use tarbet_link::{Address, Dialer, NetDialer};
use tarbet_telemetry::Health;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::carry::{Carrier, stands_for};
use crate::config::MeshConfig;
use crate::crd::Remote;
use crate::error::MeshError;
use crate::fds::{Discovery, Snapshot, Told, serve};
use crate::metrics::MeshMetrics;
use crate::model::Offer;
use crate::observe::{Mirrors, Side};
use crate::peers::Peers;
use crate::plan::{self, Memo};
use crate::ways;

/// Between two looks at everything, however long they take.
const LONGEST_REST: Duration = Duration::from_millis(500);

/// The lease of whoever writes.
pub(crate) const LEASE: &str = "tarbet-mesh";

/// A federation controller, ready to run.
pub struct Controller {
    config: MeshConfig,
    namespace: String,
    client: Client,
    /// Ways to peers that are reached through a site, by the id of the mesh.
    ways: BTreeMap<String, Arc<dyn Dialer>>,
    carriers: Vec<Carrier>,
    metrics: MeshMetrics,
    health: Health,
    identity: String,
    account: Option<String>,
    timings: Timings,
    reached: Reached,
}

/// What all tasks of one process share.
struct Shared {
    config: MeshConfig,
    namespace: String,
    /// The service account that the controller runs under.
    account: Option<String>,
    client: Client,
    ways: BTreeMap<String, Arc<dyn Dialer>>,
    /// Meshes for whose gateway a listener of ours stands, and its address.
    carried: Vec<(String, Address)>,
    /// The ports of those listeners.
    carrying: BTreeSet<u16>,
    events: Events,
    mirrors: Mirrors,
    metrics: MeshMetrics,
    reached: Reached,
    publish: Queue<()>,
    reconcile: Queue<()>,
    /// What was found of each service when peers were told last.
    exported: Mutex<Memo>,
    told: watch::Sender<Option<Arc<Told>>>,
    peers: Mutex<Peers>,
    /// Told when a peer fell silent or came back: the next end of a hold-down may have moved.
    silences: Notify,
    resolved: Mutex<BTreeMap<String, Vec<IpAddr>>>,
    /// The host names to resolve.
    hostnames: watch::Sender<Vec<String>>,
}

impl Shared {
    /// The site through whose agent the discovery of a remote is reached. Where a listener of ours stands
    /// for the remote's gateway, discovery goes through it as calls do, unless a place is told: then the
    /// remote sees the identity that its policy asks for.
    fn site(&self, remote: &Remote) -> Option<&Arc<dyn Dialer>> {
        let direct = ways::told(remote, &self.config.discovery).is_some();
        self.ways.get(&remote.id).filter(|_| direct || !stands_for(remote, &self.carried))
    }

    fn exported(&self) -> MutexGuard<'_, Memo> {
        self.exported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn resolved(&self) -> MutexGuard<'_, BTreeMap<String, Vec<IpAddr>>> {
        self.resolved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Controller {
    /// A controller of the cluster behind `client`, in its own `namespace`. `identity` tells this
    /// replica from others.
    pub fn new(
        config: MeshConfig,
        namespace: &str,
        client: Client,
        metrics: MeshMetrics,
        health: Health,
        identity: impl Into<String>,
    ) -> Self {
        Self {
            config,
            namespace: namespace.to_owned(),
            client,
            ways: BTreeMap::new(),
            carriers: Vec::new(),
            metrics,
            health,
            identity: identity.into(),
            account: None,
            timings: Timings::default(),
            reached: Reached::default(),
        }
    }

    /// Reaches the discovery of `mesh` through this dialer, such as one to a site.
    #[must_use]
    pub fn through(mut self, mesh: &str, dialer: Arc<dyn Dialer>) -> Self {
        self.ways.insert(mesh.to_owned(), dialer);
        self
    }

    /// Lets calls to a mesh come in at a listener here that stands for its gateway.
    #[must_use]
    pub fn carrying(mut self, carrier: Carrier) -> Self {
        self.carriers.push(carrier);
        self
    }

    /// Tells under which service account it runs: peers know it by that name, which ends with the id of
    /// the mesh.
    #[must_use]
    pub fn account(mut self, account: Option<String>) -> Self {
        self.account = account;
        self
    }

    /// With other times of leadership.
    #[must_use]
    pub fn timings(mut self, timings: Timings) -> Self {
        self.timings = timings;
        self
    }

    /// Tells which points it passes.
    #[must_use]
    pub fn telling(mut self, reached: Reached) -> Self {
        self.reached = reached;
        self
    }

    /// Runs on this listener until `stop`.
    pub async fn run(self, listener: TcpListener, stop: CancellationToken) -> Result<(), MeshError> {
        let Self { config, namespace, client, ways, carriers, metrics, health, .. } = self;
        let Self { identity, account, timings, reached, .. } = self;
        let part = health.part("mesh");
        let tasks = TaskTracker::new();
        // Watches end last, so that what is being written still sees its own effect.
        let watching = CancellationToken::new();
        let (publish, reconcile) = (Queue::default(), Queue::default());
        let wake = {
            let (publish, reconcile): (Queue<()>, Queue<()>) = (publish.clone(), reconcile.clone());
            move |of: Side| {
                // What we made ourselves changes nothing of what peers are told.
                if of == Side::Given {
                    publish.add(());
                }
                reconcile.add(());
            }
        };
        let mirrors = Mirrors::start(&client, &watching, &tasks, wake);
        let shared = Arc::new(Shared {
            config: config.clone(),
            namespace: namespace.clone(),
            account,
            client: client.clone(),
            ways,
            carried: carriers
                .iter()
                .map(|carrier| (carrier.mesh.clone(), carrier.advertise.clone()))
                .collect(),
            carrying: carriers
                .iter()
                .filter_map(|carrier| carrier.listener.local_addr().ok())
                .map(|address| address.port())
                .collect(),
            events: Events::new(client.clone(), "tarbet-mesh"),
            mirrors: mirrors.clone(),
            metrics,
            reached,
            publish,
            reconcile,
            exported: Mutex::default(),
            told: watch::Sender::new(None),
            peers: Mutex::default(),
            silences: Notify::new(),
            resolved: Mutex::default(),
            hostnames: watch::Sender::new(Vec::new()),
        });
        let discovery = Discovery::new(shared.told.subscribe(), stop.clone());
        let serving = serve(listener, discovery, stop.clone());
        let working = async {
            tokio::select! {
                () = mirrors.listed() => {}
                () = stop.cancelled() => return,
            }
            part.ready();
            shared.publish.add(());
            // A task of its own: peers hear of a change while the rest of it is still being decided. It
            // ends with us, however we end.
            let (publisher, until) = (Arc::clone(&shared), stop.clone());
            let publishing = AbortOnDropHandle::new(tokio::spawn(async move {
                let publish = |()| {
                    let (publisher, until) = (Arc::clone(&publisher), until.clone());
                    async move {
                        let begun = Instant::now();
                        let outcome = publish_once(&publisher);
                        rest(begun.elapsed(), &until).await;
                        outcome
                    }
                };
                publisher.publish.run(1, until.clone(), publish).await;
            }));
            let leading = async {
                let lead = |term: Term| lead(Arc::clone(&shared), term);
                if config.leader_election {
                    let election = Election::new(client.clone(), &namespace, LEASE, &identity, timings);
                    election.lead(stop.clone(), lead).await;
                } else {
                    lead(Term::alone(stop.clone())).await;
                }
            };
            leading.await;
            // It ended with the same word.
            drop(publishing.await);
        };
        let carrying =
            futures::future::join_all(carriers.into_iter().map(|carrier| carrier.run(stop.clone())));
        let (served, (), _) = tokio::join!(serving, working, carrying);
        watching.cancel();
        tasks.close();
        tasks.wait().await;
        served.map_err(MeshError::Serve)
    }
}

/// Rests as long as was worked, so that changes without end take half of a core and never all of it. A
/// change that comes alone is looked at at once.
async fn rest(worked: Duration, until: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(worked.min(LONGEST_REST)) => {}
        () = until.cancelled() => {}
    }
}

/// Tells peers what is exported now.
fn publish_once(shared: &Shared) -> Outcome {
    let world = shared.mirrors.world(&shared.namespace);
    let offers = plan::exports_again(&world, &mut shared.exported());
    let before = shared.told.borrow().clone();
    let mesh = match (&world.federation, &before) {
        (Some(federation), _) => federation.local.id.clone(),
        (None, Some(before)) => before.everybody.mesh().to_owned(),
        // Nobody was told anything, and there is nothing to tell.
        (None, None) => return Outcome::Done,
    };
    let millis = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0);
    let after = told(before.as_deref(), &mesh, &world, &offers, millis);
    if before.as_deref() != Some(&after) {
        let (services, version) = (offers.len(), after.everybody.version());
        shared.metrics.exported.set(i64::try_from(services).unwrap_or(i64::MAX));
        tracing::info!(services, version = %version, "The exported services changed.");
        shared.told.send_replace(Some(Arc::new(after)));
    }
    Outcome::Done
}

/// What each peer is told. Snapshots that did not change are the same as before.
fn told(before: Option<&Told>, mesh: &str, world: &plan::World, offers: &[Arc<Offer>], millis: u64) -> Told {
    let snapshot = |before: Option<&Arc<Snapshot>>, offers: &[Arc<Offer>]| match before {
        None => Arc::new(Snapshot::first(mesh, offers, millis)),
        Some(before) => {
            Snapshot::after(Some(before), mesh, offers, millis).map_or_else(|| Arc::clone(before), Arc::new)
        }
    };
    let export = world.rules.as_ref().and_then(|rules| rules.export.as_ref());
    let remotes = world.federation.as_ref().map_or(&[][..], |federation| &federation.remote);
    let Some(export) = export.filter(|export| !export.only_to.is_empty()) else {
        let everybody = match before {
            // What some meshes were told may be newer than what everybody was: none may go back in time.
            Some(before) if !before.chosen.is_empty() => {
                let newest = before.chosen.values().map(|chosen| chosen.version().millis).max();
                let millis = millis.max(newest.unwrap_or(0) + 1);
                Arc::new(Snapshot::first(mesh, offers, millis.max(before.everybody.version().millis + 1)))
            }
            _ => snapshot(before.map(|before| &before.everybody), offers),
        };
        return Told { everybody, chosen: BTreeMap::new(), principals: BTreeMap::new() };
    };
    let to = |mesh: &str| -> Vec<Arc<Offer>> {
        offers.iter().filter(|offer| export.tells(mesh, &offer.labels)).cloned().collect()
    };
    // A mesh that was told everything before goes on from there.
    let last = |mesh: &str| before.map(|before| before.chosen.get(mesh).unwrap_or(&before.everybody));
    Told {
        everybody: snapshot(before.map(|before| &before.everybody), &to("")),
        chosen: remotes.iter().map(|it| (it.id.clone(), snapshot(last(&it.id), &to(&it.id)))).collect(),
        principals: identities(remotes),
    }
}

/// Which mesh an identity of discovery is of, where it can be of one only.
fn identities(remotes: &[Remote]) -> BTreeMap<String, String> {
    let mut known: BTreeMap<String, Option<&str>> = BTreeMap::new();
    for remote in remotes {
        for principal in remote.principals() {
            known.entry(principal).and_modify(|mesh| *mesh = None).or_insert(Some(&remote.id));
        }
    }
    known.into_iter().filter_map(|(principal, mesh)| Some((principal, mesh?.to_owned()))).collect()
}

/// One term of leadership.
async fn lead(shared: Arc<Shared>, term: Term) {
    let ended = term.ended().clone();
    // A term before may have been cut off in the middle.
    *shared.peers() = Peers::default();
    let Some(remembered) = keep::remember(&shared, &ended).await else { return };
    let state = Arc::new(reconcile::State::new(Arc::clone(&shared), remembered, ended.clone()));
    shared.reconcile.add(());
    let reconciling = shared.reconcile.run(1, ended.clone(), |()| {
        let state = Arc::clone(&state);
        async move { state.once().await }
    });
    tokio::select! {
        () = reconciling => {}
        () = keep::hold_downs(&shared, &state) => {}
        () = resolve::keep(&shared) => {}
    }
    state.end();
}

/// The plain network, for peers that are reached directly.
fn network() -> Arc<dyn Dialer> {
    Arc::new(NetDialer { timeout: Duration::from_secs(10) })
}
