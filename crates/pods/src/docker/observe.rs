//! What Docker has of our pods, kept up to date by its own events.
//!
//! One task listens to events and looks at each container that is named in one, once however many
//! events name it meanwhile. It looks at everything when it connects, and lists everything from time
//! to time: an event that is missed costs time only. Whoever asks for a state is answered from what
//! was seen, so that questions cost the daemon nothing.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bollard::Docker as Api;
use bollard::models::{ContainerInspectResponse, ContainerStateStatusEnum as Phase, ContainerSummary};
use bollard::query_parameters::{EventsOptions, InspectContainerOptions, ListContainersOptions};
use futures::stream::FuturesUnordered;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::create::{CONTAINER, INSTANCE, UID};
use super::engine::{Engine, failed, status};
use super::machine::State;
use crate::error::RunError;

/// Everything is listed again after this time, in case an event was lost.
const RELIST: Duration = Duration::from_secs(30);
/// How long to wait before connecting again.
const RETRY: Duration = Duration::from_millis(500);
/// How many containers are looked at side by side.
const LOOKS: usize = 8;
/// What happens to a container without us, or tells more than the answer to our own request. Probes alone
/// make three events each that are none of these, and a container that is being made is looked at anyway.
const EVENTS: [&str; 8] = ["start", "die", "oom", "stop", "restart", "pause", "unpause", "destroy"];

/// One container as Docker has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) id: String,
    pub(super) uid: String,
    /// Empty for the pause container.
    pub(super) container: String,
    pub(super) state: State,
    /// Docker's own word for the state, which lists have too.
    pub(super) phase: String,
    /// Docker is about to run it again.
    pub(super) restarting: bool,
    pub(super) exit_code: i64,
    pub(super) out_of_memory: bool,
    /// Why it could not be started.
    pub(super) error: String,
    pub(super) started: Option<Timestamp>,
    pub(super) finished: Option<Timestamp>,
    pub(super) restarts: i32,
    pub(super) image: String,
    /// On the network that it has for itself, while it runs.
    #[serde(default)]
    pub(super) address: Option<IpAddr>,
}

#[derive(Debug, Default)]
struct World {
    containers: HashMap<String, Seen>,
    /// Since when Docker is away and why; `None` while it answers.
    away: Option<(Instant, String)>,
    complete: bool,
}

/// The containers by name. Cheap to clone.
#[derive(Clone)]
pub(super) struct Observed {
    world: Arc<Mutex<World>>,
    changes: broadcast::Sender<String>,
    instance: String,
}

impl Observed {
    pub(super) fn new(instance: String, changes: broadcast::Sender<String>) -> Self {
        Self { world: Arc::default(), changes, instance }
    }

    pub(super) fn get(&self, name: &str) -> Option<Seen> {
        self.lock().containers.get(name).cloned()
    }

    /// Whether all containers were seen since the daemon answered last.
    pub(super) fn complete(&self) -> bool {
        self.lock().complete
    }

    /// Since when and why Docker is away.
    pub(super) fn away(&self) -> Option<(Duration, String)> {
        self.lock().away.as_ref().map(|(since, reason)| (since.elapsed(), reason.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        // Entries are replaced one by one; a panicking holder leaves none half changed.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at one container now; our own actions do not wait for their events.
    pub(super) async fn look(&self, api: &Api, name: &str) -> Result<Option<Seen>, RunError> {
        match api.inspect_container(name, None::<InspectContainerOptions>).await {
            Ok(found) => {
                let seen = read(&found);
                if let Some((name, seen)) = &seen {
                    self.put(name, seen.clone());
                }
                Ok(seen.map(|(_, seen)| seen))
            }
            Err(error) if status(&error) == Some(404) => {
                self.gone(name);
                Ok(None)
            }
            Err(error) => Err(failed("look at a container")(error)),
        }
    }

    fn put(&self, name: &str, seen: Seen) {
        let uid = seen.uid.clone();
        let before = self.lock().containers.insert(name.to_owned(), seen.clone());
        if before.as_ref() != Some(&seen) {
            let _ = self.changes.send(uid);
        }
    }

    fn gone(&self, name: &str) {
        // By name or by the id that events carry.
        let mut world = self.lock();
        let key = world.containers.iter().find(|(key, seen)| *key == name || seen.id == name);
        if let Some(key) = key.map(|(key, _)| key.clone())
            && let Some(seen) = world.containers.remove(&key)
        {
            drop(world);
            let _ = self.changes.send(seen.uid);
        }
    }

    /// Observes until `stop`.
    pub(super) async fn run(self, engine: Arc<Engine>, stop: CancellationToken) {
        loop {
            let ended = tokio::select! {
                () = stop.cancelled() => return,
                ended = self.connected(&engine) => ended,
            };
            if let Err(error) = ended {
                let mut world = self.lock();
                if world.away.is_none() {
                    tracing::warn!(error = %error, "Docker does not answer.");
                }
                let since = world.away.take().map_or_else(Instant::now, |(since, _)| since);
                world.away = Some((since, error.to_string()));
                world.complete = false;
            }
            engine.forget().await;
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    /// From one connection to its end.
    async fn connected(&self, engine: &Engine) -> Result<(), RunError> {
        let api = &engine.api().await?;
        let filters = HashMap::from([
            ("type".into(), vec!["container".into()]),
            ("event".into(), EVENTS.map(str::to_owned).into()),
            ("label".into(), vec![self.label()]),
        ]);
        // Listening begins before looking, so that nothing falls between the two.
        let mut events = api.events(Some(EventsOptions { filters: Some(filters), ..Default::default() }));
        self.look_at_all(api).await?;
        let mut relist = tokio::time::interval(RELIST);
        relist.reset();
        // A look may wait as long as its container takes to start, and the daemon drops events that nobody
        // reads in time: reading goes on meanwhile.
        let (mut due, mut active) = (BTreeSet::<String>::new(), BTreeSet::new());
        let mut looks = FuturesUnordered::new();
        loop {
            while looks.len() < LOOKS
                && let Some(id) = due.difference(&active).next().cloned()
            {
                due.remove(&id);
                active.insert(id.clone());
                looks.push(async move { (self.look(api, &id).await, id) });
            }
            tokio::select! {
                event = events.next() => match event {
                    None => return Err(RunError::Away { runtime: "Docker", reason: "it closed the stream of events".into() }),
                    Some(Err(error)) => return Err(failed("send events")(error)),
                    Some(Ok(event)) => due.extend(event.actor.and_then(|actor| actor.id)),
                },
                Some((look, id)) = looks.next(), if !looks.is_empty() => {
                    active.remove(&id);
                    look?;
                }
                _ = relist.tick() => due.extend(self.differing(api).await?),
            }
        }
    }

    fn label(&self) -> String {
        format!("{INSTANCE}={}", self.instance)
    }

    /// Our containers: ids, and Docker's words for their states.
    pub(super) async fn list(&self, api: &Api) -> Result<HashMap<String, String>, RunError> {
        let filters = Some(HashMap::from([("label".into(), vec![self.label()])]));
        let listed =
            api.list_containers(Some(ListContainersOptions { all: true, filters, ..Default::default() }));
        let listed = listed.await.map_err(failed("list containers"))?;
        let one = |found: ContainerSummary| {
            Some((found.id?, found.state.map(|state| state.to_string()).unwrap_or_default()))
        };
        Ok(listed.into_iter().filter_map(one).collect())
    }

    /// The containers that a list shows otherwise than they were seen: one call, however many there are.
    async fn differing(&self, api: &Api) -> Result<BTreeSet<String>, RunError> {
        // What is made while the daemon writes the list is not in it and not gone.
        let before: HashMap<String, String> =
            self.lock().containers.values().map(|seen| (seen.id.clone(), seen.phase.clone())).collect();
        Ok(differing(&before, &self.list(api).await?))
    }

    async fn look_at_all(&self, api: &Api) -> Result<(), RunError> {
        let mut ids: BTreeSet<String> = self.lock().containers.values().map(|seen| seen.id.clone()).collect();
        ids.extend(self.list(api).await?.into_keys());
        let mut looks =
            stream::iter(ids).map(|id| async move { self.look(api, &id).await }).buffer_unordered(LOOKS);
        while let Some(look) = looks.next().await {
            look?;
        }
        let mut world = self.lock();
        if world.away.take().is_some() {
            tracing::info!("Docker answers again.");
        }
        let first = !std::mem::replace(&mut world.complete, true);
        drop(world);
        if first {
            // Wakes all drivers: now they know what is there.
            let _ = self.changes.send(String::new());
        }
        Ok(())
    }
}

/// Those of either side that the other does not have, or has in another state.
fn differing(before: &HashMap<String, String>, now: &HashMap<String, String>) -> BTreeSet<String> {
    let gone = before.keys().filter(|id| !now.contains_key(*id));
    let changed = now.iter().filter(|(id, phase)| before.get(*id) != Some(*phase)).map(|(id, _)| id);
    gone.chain(changed).cloned().collect()
}

/// The address of a container on a network of its own; an empty text is none.
pub(super) fn address(found: &ContainerInspectResponse) -> Option<IpAddr> {
    let networks = found.network_settings.as_ref()?.networks.as_ref()?;
    networks.values().find_map(|network| network.ip_address.as_ref()?.parse().ok())
}

fn read(found: &ContainerInspectResponse) -> Option<(String, Seen)> {
    let labels = found.config.as_ref()?.labels.as_ref()?;
    let name = found.name.as_deref()?.trim_start_matches('/').to_owned();
    let state = found.state.clone().unwrap_or_default();
    // Docker's "never" is the year 1.
    let time = |text: &Option<String>| {
        text.as_deref().and_then(|text| text.parse::<Timestamp>().ok()).filter(|time| time.as_second() > 0)
    };
    let (exit_code, error) = (state.exit_code.unwrap_or_default(), state.error.unwrap_or_default());
    let phase = state.status.map(|phase| phase.to_string()).unwrap_or_default();
    let state_now = match state.status {
        // A container that could not be started stays "created", with the reason.
        Some(Phase::CREATED) if exit_code != 0 && !error.is_empty() => State::Ended(exit_code),
        None | Some(Phase::CREATED | Phase::EMPTY) => State::Created,
        Some(Phase::RUNNING | Phase::PAUSED | Phase::RESTARTING | Phase::STOPPING) => State::Running,
        Some(Phase::EXITED | Phase::DEAD | Phase::REMOVING) => State::Ended(exit_code),
    };
    let seen = Seen {
        id: found.id.clone().unwrap_or_default(),
        uid: labels.get(UID)?.clone(),
        container: labels.get(CONTAINER).cloned().unwrap_or_default(),
        state: state_now,
        phase,
        restarting: state.restarting.unwrap_or_default(),
        exit_code,
        out_of_memory: state.oom_killed.unwrap_or_default(),
        error,
        started: time(&state.started_at),
        finished: time(&state.finished_at),
        restarts: found.restart_count.and_then(|count| i32::try_from(count).ok()).unwrap_or_default(),
        image: found.image.clone().unwrap_or_default(),
        address: address(found),
    };
    Some((name, seen))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_container_is_seen_while_it_has_one() {
        let found = |address: &str| {
            let found = serde_json::json!({
                "Id": "c", "Name": "/pod-main", "Config": {"Labels": {UID: "u", CONTAINER: "main"}},
                "State": {"Status": "running"},
                "NetworkSettings": {"Networks": {"bridge": {"IPAddress": address}}},
            });
            read(&serde_json::from_value(found).unwrap()).unwrap().1.address
        };
        assert_eq!(found("172.17.0.2"), Some([172, 17, 0, 2].into()));
        assert_eq!(found(""), None, "one that has ended");
    }

    #[test]
    fn only_what_a_list_shows_otherwise_is_looked_at() {
        let list = |pairs: &[(&str, &str)]| -> HashMap<String, String> {
            pairs.iter().map(|(id, phase)| ((*id).to_owned(), (*phase).to_owned())).collect()
        };
        let before = list(&[("a", "running"), ("b", "running"), ("c", "exited")]);
        assert!(differing(&before, &before).is_empty());
        let now = list(&[("a", "running"), ("b", "exited"), ("d", "created")]);
        assert_eq!(differing(&before, &now), ["b", "c", "d"].map(str::to_owned).into());
    }
}
