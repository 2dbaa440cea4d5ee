//! Which address spaces are used, and giving out new ones.
//!
//! The clouds are asked again when their reports are old; between that, everything given out is set
//! aside in the store, so that two plugins that ask at once never get the same space.

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
use crate::model::Mapping;
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
    /// Set aside until then.
    reserved: HashMap<IpNet, Instant>,
}

impl Spaces {
    pub(super) async fn open(config: &NetsConfig, store: &Store, lead: Lead) -> Result<Self, Error> {
        let state = State {
            book: AddressBook::new(&config.address_space)?,
            reports: BTreeMap::new(),
            map: Arc::default(),
            asked: None,
            reserved: HashMap::new(),
        };
        let spaces = Self {
            state: Mutex::new(state),
            asking: tokio::sync::Mutex::default(),
            kept: Table::new(store, "nets-spaces")?,
            asns: Table::new(store, "nets-asns")?,
            lead,
            refresh: config.space_refresh,
            reserve: config.space_reserve,
        };
        spaces.reload().await?;
        Ok(spaces)
    }

    /// Reads what was set aside, by this process before it was started again or by another that led.
    pub(super) async fn reload(&self) -> Result<(), Error> {
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
        let begun = Instant::now();
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
                        complete(places, mapping);
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
        let all: Vec<Mapping> = state.reports.values().flatten().cloned().collect();
        state.map = Arc::new(Map::new(&all));
        state.asked = Some(begun);
        Ok(())
    }

    /// The next question asks the clouds anew, because something was just made or removed.
    pub(super) fn outdated(&self) {
        self.lock().asked = None;
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

/// Names the deployment where the cloud did not: the original's plugins read it unasked.
fn complete(places: &Places, mapping: &mut Mapping) {
    let known = || places.deployment(&mapping.namespace, &mapping.cloud).map(|deployment| deployment.id);
    let named = mapping.deployment.take().unwrap_or_else(|| known().unwrap_or_default());
    mapping.deployment = Some(named);
}

impl State {
    /// Replaces the report of a cloud, touching only what differs.
    fn report(&mut self, cloud: &str, report: Vec<Mapping>) {
        let before = self.reports.get(cloud).map(Vec::as_slice).unwrap_or_default();
        if before == report {
            return;
        }
        let old: Vec<IpNet> = before.iter().flat_map(|mapping| mapping.spaces.clone()).collect();
        for net in report.iter().flat_map(|mapping| &mapping.spaces) {
            self.book.mark(*net);
        }
        for net in old {
            self.book.unmark(net);
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
