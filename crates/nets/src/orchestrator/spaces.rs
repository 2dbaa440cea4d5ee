//! Which address spaces are used, and giving out new ones.
//!
//! The clouds are asked again when their reports are old; between that, everything given out is set
//! aside in the store, so that two plugins that ask at once never get the same space. What others have, as it was
//! imported, is given to nobody.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tarbet_store::{Commit, Record, Store, Table};
use tokio::time::Instant;

use super::lead::Lead;
use super::places::Places;
use crate::config::NetsConfig;
use crate::error::Error;
use crate::model::{ForeignNetwork, Mapping};
use crate::plan::asn;
use crate::plan::space::AddressBook;
use crate::plan::target::Map;

/// How long a cloud may take to say what it uses: the requests of all others wait meanwhile.
const ANSWER: Duration = Duration::from_mins(1);

#[derive(Debug, Serialize, Deserialize)]
struct Reserved {}

impl Record for Reserved {
    const KIND: &'static str = "reserved";
}

pub(super) struct Spaces {
    state: Mutex<State>,
    /// One round of questions at a time; who comes meanwhile uses its answers.
    asking: tokio::sync::Mutex<()>,
    kept: Table<String, Reserved>,
    asns: Table<u64, Reserved>,
    /// One at a time reads what was imported.
    reading: tokio::sync::Mutex<()>,
    /// Networks of others, by cloud and id.
    pub(super) imported: Table<(String, String), ForeignNetwork>,
    lead: Lead,
    refresh: Duration,
    reserve: Duration,
}

struct State {
    book: AddressBook,
    /// The last report of each cloud.
    reports: BTreeMap<String, Vec<Mapping>>,
    map: Arc<Map>,
    asked: Option<Instant>,
    /// How often something was made or removed: what a cloud said before that is old.
    changes: u64,
    /// Set aside until then.
    reserved: HashMap<IpNet, Instant>,
    /// Spaces of others, and what their networks are called.
    foreign: Vec<(IpNet, String)>,
}

impl Record for ForeignNetwork {
    const KIND: &'static str = "imported-network";
}

impl Spaces {
    pub(super) async fn open(config: &NetsConfig, store: &Store, lead: Lead) -> Result<Self, Error> {
        let state = State {
            book: AddressBook::new(&config.address_space)?,
            reports: BTreeMap::new(),
            map: Arc::default(),
            asked: None,
            changes: 0,
            reserved: HashMap::new(),
            foreign: Vec::new(),
        };
        let spaces = Self {
            state: Mutex::new(state),
            asking: tokio::sync::Mutex::default(),
            kept: Table::new(store, "nets-spaces")?,
            asns: Table::new(store, "nets-asns")?,
            reading: tokio::sync::Mutex::default(),
            imported: Table::new(store, "nets-imported")?,
            lead,
            refresh: config.space_refresh,
            reserve: config.space_reserve,
        };
        spaces.reload().await?;
        Ok(spaces)
    }

    /// Reads what was set aside, by this process before it was started again or by another that led.
    pub(super) async fn reload(&self) -> Result<(), Error> {
        self.reload_imported().await?;
        let kept = self.kept.list().await?.records;
        let mut state = self.lock();
        for (space, record) in kept {
            let Ok(net) = space.parse::<IpNet>() else { continue };
            let until = Instant::now() + record.expires_in.unwrap_or(self.reserve);
            if state.reserved.insert(net, until).is_none() {
                state.book.mark(net);
            }
        }
        state.asked = None;
        state.changes += 1;
        Ok(())
    }

    /// Reads what was imported.
    pub(super) async fn reload_imported(&self) -> Result<(), Error> {
        // Of two who read, the one who read later has the last word.
        let _turn = self.reading.lock().await;
        let imported = self.imported.list().await?.records;
        let foreign = imported.into_iter().flat_map(|((cloud, _), record)| {
            let ForeignNetwork { name, spaces, .. } = record.value;
            let called = format!("{name} of {cloud}");
            spaces.into_iter().map(move |space| (space, called.clone()))
        });
        self.lock().set_foreign(foreign.collect());
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_fresh(&self) -> bool {
        self.lock().asked.is_some_and(|asked| asked.elapsed() < self.refresh)
    }

    /// Asks all clouds if their reports are old. A cloud that does not answer keeps its last report; one
    /// that never answered makes this fail, because its spaces could be given out twice.
    pub(super) async fn update(&self, places: &Places) -> Result<(), Error> {
        if self.is_fresh() {
            return Ok(());
        }
        let _turn = self.asking.lock().await;
        if self.is_fresh() {
            return Ok(());
        }
        let (begun, changes) = (Instant::now(), self.lock().changes);
        let answers = join_all(places.clouds().iter().map(|(name, cloud)| async move {
            let deployments = places.deployments(name);
            (name, in_time(name, "which spaces are used", cloud.used_spaces(&deployments)).await)
        }))
        .await;
        let mut state = self.lock();
        for (name, answer) in answers {
            match answer {
                Ok(mut report) => {
                    for mapping in &mut report {
                        complete(places, name, mapping)?;
                    }
                    state.report(name, report);
                }
                Err(error) if state.reports.contains_key(name) => {
                    tracing::warn!(cloud = %name, %error, "A cloud does not tell its address spaces; its last report is used.");
                }
                Err(error) => return Err(error),
            }
        }
        state.forget(begun);
        // A network that came meanwhile may be missing from what was told before.
        state.asked = (state.changes == changes).then_some(begun);
        Ok(())
    }

    /// The next question asks the clouds anew, because something was just made or removed.
    pub(super) fn outdated(&self) {
        let mut state = self.lock();
        state.asked = None;
        state.changes += 1;
    }

    /// Whose each address is.
    pub(super) async fn map(&self, places: &Places) -> Result<Arc<Map>, Error> {
        self.update(places).await?;
        Ok(Arc::clone(&self.lock().map))
    }

    /// All reports.
    pub(super) async fn used(&self, places: &Places) -> Result<Vec<Mapping>, Error> {
        self.update(places).await?;
        Ok(self.lock().reports.values().flatten().cloned().collect())
    }

    /// Free spaces, set aside.
    pub(super) async fn find(&self, places: &Places, sizes: &[i32]) -> Result<Vec<IpNet>, Error> {
        self.lead.check()?;
        let sizes = if sizes.is_empty() { &[0] } else { sizes };
        self.update(places).await?;
        let until = Instant::now() + self.reserve;
        let found = {
            let mut state = self.lock();
            let found = state.book.find(sizes)?;
            for &net in &found {
                state.book.mark(net);
                state.reserved.insert(net, until);
            }
            found
        };
        let mut commit = Commit::new();
        for net in &found {
            commit = commit.with(self.kept.put_for_op(&net.to_string(), &Reserved {}, self.reserve)?);
        }
        self.lead.commit(commit).await?;
        Ok(found)
    }

    /// A free autonomous system number, set aside.
    pub(super) async fn find_asn(&self, places: &Places) -> Result<u32, Error> {
        let _turn = self.asking.lock().await;
        let answers = join_all(places.clouds().iter().map(|(name, cloud)| async move {
            let deployments = places.deployments(name);
            in_time(name, "which numbers are used", cloud.used_asns(&deployments)).await
        }))
        .await;
        let mut used = BTreeSet::new();
        for answer in answers {
            match answer {
                Ok(asns) => used.extend(asns),
                // A cloud without BGP has none to tell.
                Err(error) if error.is_unsupported() => {}
                Err(error) => return Err(error),
            }
        }
        used.extend(self.asns.list().await?.records.into_iter().map(|(asn, _)| asn as u32));
        let free = asn::lowest_unused(&used)
            .ok_or_else(|| Error::Internal("every private autonomous system number is used".into()))?;
        let write = self.asns.put_for_op(&u64::from(free), &Reserved {}, self.reserve)?;
        self.lead.commit(Commit::new().with(write)).await?;
        Ok(free)
    }

    /// Addresses used inside tunnels by any cloud.
    pub(super) async fn used_bgp(&self, places: &Places) -> Result<BTreeSet<Ipv4Addr>, Error> {
        let answers = join_all(places.clouds().iter().map(|(name, cloud)| async move {
            let deployments = places.deployments(name);
            in_time(name, "which addresses are used", cloud.used_bgp_addresses(&deployments)).await
        }))
        .await;
        let mut used = BTreeSet::new();
        for answer in answers {
            match answer {
                Ok(addresses) => used.extend(addresses),
                Err(error) if error.is_unsupported() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(used)
    }
}

/// Names the deployment where the cloud did not: the original's plugins read it unasked. A plugin that goes by
/// another name than here would take its own networks for those of another cloud.
fn complete(places: &Places, name: &str, mapping: &mut Mapping) -> Result<(), Error> {
    if mapping.cloud.is_empty() {
        name.clone_into(&mut mapping.cloud);
    }
    if mapping.cloud != name {
        let message =
            format!("the plugin called `{name}` is one of `{}`: it must be called that", mapping.cloud);
        return Err(Error::setting("cloudPlugins.name", message));
    }
    let known = || places.deployment(&mapping.namespace, &mapping.cloud).map(|deployment| deployment.id);
    let named = mapping.deployment.take().unwrap_or_else(|| known().unwrap_or_default());
    mapping.deployment = Some(named);
    Ok(())
}

/// A space of a report, and its mapping.
type Told<'a> = (&'a Mapping, IpNet);

/// The spaces of a report, one by one.
fn spaces(report: &[Mapping]) -> Vec<Told<'_>> {
    report.iter().flat_map(|mapping| mapping.spaces.iter().map(move |space| (mapping, *space))).collect()
}

/// Where two reports differ: what went and what came. Clouds keep their order, so that is a short piece.
fn difference<'a>(before: &'a [Told<'a>], after: &'a [Told<'a>]) -> (&'a [Told<'a>], &'a [Told<'a>]) {
    let same = |((a, x), (b, y)): &(&Told<'_>, &Told<'_>)| {
        x == y && (&a.cloud, &a.namespace, &a.deployment) == (&b.cloud, &b.namespace, &b.deployment)
    };
    let first = before.iter().zip(after).take_while(same).count();
    let (before, after) = (&before[first..], &after[first..]);
    let last = before.iter().rev().zip(after.iter().rev()).take_while(same).count();
    (&before[..before.len() - last], &after[..after.len() - last])
}

impl State {
    /// Replaces what others have.
    fn set_foreign(&mut self, foreign: Vec<(IpNet, String)>) {
        if self.foreign == foreign {
            return;
        }
        for (net, _) in &foreign {
            self.book.mark(*net);
        }
        Arc::make_mut(&mut self.map).set_foreign(foreign.clone());
        for (net, _) in std::mem::replace(&mut self.foreign, foreign) {
            self.book.unmark(net);
        }
    }

    /// Replaces the report of a cloud, touching only what differs.
    fn report(&mut self, cloud: &str, report: Vec<Mapping>) {
        let known = self.reports.get(cloud).map(Vec::as_slice).unwrap_or_default();
        if known == report {
            return;
        }
        let (before, after) = (spaces(known), spaces(&report));
        let (gone, come) = difference(&before, &after);
        let map = Arc::make_mut(&mut self.map);
        // What is told by both reports must not seem free in between.
        for (mapping, space) in come {
            self.book.mark(*space);
            map.insert(mapping, *space);
            // Its network is there: once that goes, the space is free.
            if self.reserved.remove(space).is_some() {
                self.book.unmark(*space);
            }
        }
        for (mapping, space) in gone {
            self.book.unmark(*space);
            map.remove(mapping, *space);
        }
        self.reports.insert(cloud.into(), report);
    }

    /// Lets go of what was set aside long enough: by now it is reported or was never used.
    fn forget(&mut self, now: Instant) {
        let over: Vec<IpNet> =
            self.reserved.iter().filter(|(_, until)| **until <= now).map(|(net, _)| *net).collect();
        for net in over {
            self.reserved.remove(&net);
            self.book.unmark(net);
        }
    }
}

/// What a cloud answers, unless it takes so long that all the others' requests would wait behind it.
async fn in_time<T>(
    cloud: &str,
    what: &str,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(ANSWER, answer).await.unwrap_or_else(|_| {
        let said = format!("no answer within {} s", ANSWER.as_secs());
        Err(Error::Cloud { cloud: cloud.to_owned(), what: what.to_owned(), said })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;
    use tokio::sync::Notify;

    use super::*;
    use crate::cloud::{Calls, MemoryCloud};
    use crate::controller::LateController;
    use crate::orchestrator::Clouds;

    async fn world(east: MemoryCloud) -> (Spaces, Places) {
        let config = serde_json::json!({
            "cloudPlugins": [{ "name": "east", "host": "127.0.0.1", "port": 1 }],
            "namespaces": { "default": [{ "name": "east", "deployment": "e1" }] },
        });
        let config: NetsConfig = serde_json::from_value(config).unwrap();
        let store = tarbet_store::StoreConfig::Memory {};
        let store = tarbet_store::open(&store, tarbet_store::Clock::system()).await.unwrap();
        let spaces = Spaces::open(&config, &store, Lead::alone(&store)).await.unwrap();
        let clouds = Clouds::from([("east".to_owned(), Arc::new(east) as Arc<dyn crate::cloud::Cloud>)]);
        (spaces, Places::new(&config, clouds))
    }

    fn memory(name: &str) -> MemoryCloud {
        MemoryCloud::new(name, Arc::new(LateController::default()))
    }

    #[tokio::test]
    async fn what_was_asked_before_a_network_came_is_asked_again() {
        let (asked, told, go_on) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()), Arc::new(Notify::new()));
        let looks: Calls = {
            let (asked, told, go_on) = (asked.clone(), told.clone(), go_on.clone());
            Arc::new(move |_, _| {
                let first = asked.fetch_add(1, Ordering::SeqCst) == 0;
                let (told, go_on) = (told.clone(), go_on.clone());
                Box::pin(async move {
                    if first {
                        told.notify_one();
                        go_on.notified().await;
                    }
                    Ok(())
                })
            })
        };
        let (spaces, places) = world(memory("east").looked_at(looks)).await;
        // The cloud has answered, the answer is on its way, and meanwhile a network is made.
        let (first, ()) = tokio::join!(spaces.update(&places), async {
            told.notified().await;
            spaces.outdated();
            go_on.notify_one();
        });
        first.unwrap();
        spaces.update(&places).await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 2, "the answer was old when it came");
        spaces.update(&places).await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 2, "this one is not");
    }

    #[tokio::test]
    async fn a_plugin_that_goes_by_another_name_is_refused() {
        let (spaces, places) = world(memory("west").beside(vec!["10.0.0.0/16".parse().unwrap()])).await;
        let refused = spaces.update(&places).await.unwrap_err();
        assert!(refused.to_string().contains("the plugin called `east` is one of `west`"), "{refused}");
    }

    fn report() -> impl Strategy<Value = Vec<Mapping>> {
        let spaces = prop::collection::vec(0_u8..12, 0..6);
        prop::collection::vec((0_usize..2, spaces), 0..3).prop_map(|mappings| {
            let mapping = |(namespace, spaces): (usize, Vec<u8>)| Mapping {
                spaces: spaces.iter().map(|n| format!("10.{n}.0.0/16").parse().unwrap()).collect(),
                cloud: "east".into(),
                namespace: ["default", "other"][namespace].into(),
                deployment: Some("d".into()),
            };
            mappings.into_iter().map(mapping).collect()
        })
    }

    #[tokio::test]
    async fn the_space_of_a_network_that_was_made_and_removed_is_free_at_once() {
        let (spaces, places) = world(memory("east")).await;
        let first = spaces.find(&places, &[]).await.unwrap();
        assert_ne!(spaces.find(&places, &[]).await.unwrap(), first, "it is set aside");
        let network = Mapping {
            cloud: "east".into(),
            namespace: "default".into(),
            deployment: Some("e1".into()),
            spaces: first.clone(),
        };
        spaces.lock().report("east", vec![network]);
        assert_ne!(spaces.find(&places, &[]).await.unwrap(), first, "it is used");
        spaces.lock().report("east", Vec::new());
        assert_eq!(spaces.find(&places, &[]).await.unwrap(), first);
    }

    proptest! {
        #[test]
        fn only_what_differs_is_touched_and_all_is_as_if_it_were_new(
            reports in prop::collection::vec((any::<bool>(), report()), 1..8),
        ) {
            let pool = ["10.0.0.0/8".parse().unwrap()];
            let empty = || State {
                book: AddressBook::new(&pool).unwrap(),
                reports: BTreeMap::new(),
                map: Arc::default(),
                asked: None,
                changes: 0,
                reserved: HashMap::new(),
                foreign: Vec::new(),
            };
            let mut state = empty();
            for (east, report) in reports {
                state.report(if east { "east" } else { "west" }, report);
                let mut anew = empty();
                for (cloud, report) in state.reports.clone() {
                    anew.report(&cloud, report);
                }
                let owners = |state: &State| state.map.owners().cloned().collect::<BTreeSet<_>>();
                let all: Vec<Mapping> = state.reports.values().flatten().cloned().collect();
                prop_assert_eq!(owners(&state), Map::new(&all).owners().cloned().collect::<BTreeSet<_>>());
                prop_assert_eq!(state.book.find(&[0, 0, 0]), anew.book.find(&[0, 0, 0]));
            }
        }
    }
}
