//! What is taken over from a peer, decided message by message and without I/O.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::proto::discovery::{DeltaDiscoveryResponse, DiscoveryResponse};
use super::proto::node::ControlPlane;
use super::snapshot::{Version, digest, digest_of};
use super::{TYPE_URL, decode};
use crate::model::Offer;

/// How much of a peer is borne.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Services of one mesh.
    pub services: usize,
    /// Bytes of one message.
    pub message: usize,
}

impl Default for Limits {
    fn default() -> Self {
        // Twice the largest mesh we know of, and what that needs in one message.
        Self { services: 20_000, message: 8 << 20 }
    }
}

/// Why an answer is not taken over. What was known before stays.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Something else was asked for.
    #[error("the answer is about `{0}`, which was not asked for")]
    Type(String),
    /// Another mesh answers than the one that was called.
    #[error("the peer calls itself `{0}`; is the address that of another mesh?")]
    Stranger(String),
    /// The peer went back in time: one of its replicas has not caught up.
    #[error("the peer's state {got} is older than {known}, which is known already")]
    Older {
        /// What it told.
        got: String,
        /// What is known.
        known: String,
    },
    /// There are more services than are borne.
    #[error("the peer tells more than {0} services")]
    TooMany(usize),
    /// A message cannot be read.
    #[error("service number {0} of the answer cannot be read")]
    Unreadable(usize),
    /// A service is told under another name than its own.
    #[error("a service is told under another name than its own")]
    Misnamed,
    /// Changes do not add up to the state the peer says it has.
    #[error("the changes do not add up to the peer's state; it is asked for all of it")]
    Mismatch,
}

/// A state that is taken over.
#[derive(Debug, Clone)]
pub struct Taken {
    /// Its version, if the peer's can be read.
    pub version: Option<Version>,
    /// All services of the peer; nothing if they are what was known.
    pub offers: Option<Vec<Arc<Offer>>>,
}

/// Hears one peer.
#[derive(Debug)]
pub struct Inbox {
    mesh: String,
    limits: Limits,
    known: Option<Version>,
    held: BTreeMap<String, (String, Arc<Offer>)>,
    // Whether `held` is what the peer said, rather than nothing yet.
    heard: bool,
    // Changes of an answer that comes in several messages.
    staged: BTreeMap<String, Option<(String, Arc<Offer>)>>,
}

impl Inbox {
    /// Hears `mesh`, of which this version is known from before.
    pub fn new(mesh: &str, limits: Limits, known: Option<Version>) -> Self {
        Self {
            mesh: mesh.to_owned(),
            limits,
            known,
            held: BTreeMap::new(),
            heard: false,
            staged: BTreeMap::new(),
        }
    }

    /// The versions of the services it holds, for a peer that then tells only what differs.
    pub fn versions(&self) -> BTreeMap<String, String> {
        self.held.iter().map(|(name, (version, _))| (name.clone(), version.clone())).collect()
    }

    /// Begins anew on another stream: what was half told is forgotten.
    pub fn reconnect(&mut self) {
        self.staged.clear();
    }

    /// Forgets what it holds, so that the peer is asked for all of it.
    pub fn forget(&mut self) {
        self.staged.clear();
        self.held.clear();
        self.heard = false;
    }

    /// A whole state.
    pub fn whole(&mut self, answer: &DiscoveryResponse) -> Result<Taken, Refused> {
        self.meant_for_us(&answer.type_url, answer.control_plane.as_ref())?;
        if answer.resources.len() > self.limits.services {
            return Err(Refused::TooMany(self.limits.services));
        }
        let version = answer.version_info.parse().ok();
        self.not_older(version.as_ref())?;
        let mut offers = Vec::with_capacity(answer.resources.len());
        let mut held = BTreeMap::new();
        for (index, resource) in answer.resources.iter().enumerate() {
            let offer = Arc::new(decode(&resource.value).map_err(|_| Refused::Unreadable(index))?);
            held.insert(offer.hostname.clone(), (digest_of(&resource.value), Arc::clone(&offer)));
            offers.push(offer);
        }
        // Duplicates make the lists differ in length; they are told on, so that they can be refused.
        let same = self.heard && held.len() == offers.len() && versions(&held).eq(versions(&self.held));
        self.held = held;
        self.heard = true;
        self.known.clone_from(&version);
        Ok(Taken { version, offers: (!same).then_some(offers) })
    }

    /// Changes; nothing yet if more messages of the same answer follow.
    pub fn changes(&mut self, answer: &DeltaDiscoveryResponse) -> Result<Option<Taken>, Refused> {
        self.meant_for_us(&answer.type_url, answer.control_plane.as_ref())?;
        for (index, resource) in answer.resources.iter().enumerate() {
            let value = resource.resource.as_ref().map_or(&[][..], |any| &any.value);
            let offer = Arc::new(decode(value).map_err(|_| Refused::Unreadable(index))?);
            if offer.hostname != resource.name {
                return Err(Refused::Misnamed);
            }
            self.staged.insert(resource.name.clone(), Some((digest_of(value), offer)));
        }
        for name in &answer.removed_resources {
            self.staged.insert(name.clone(), None);
        }
        if self.held.len() + self.staged.len() > self.limits.services.saturating_mul(2) {
            self.staged.clear();
            return Err(Refused::TooMany(self.limits.services));
        }
        if answer.system_version_info.is_empty() {
            return Ok(None);
        }
        self.commit(&answer.system_version_info).map(Some)
    }

    fn commit(&mut self, told: &str) -> Result<Taken, Refused> {
        let staged = std::mem::take(&mut self.staged);
        let version: Option<Version> = told.parse().ok();
        self.not_older(version.as_ref())?;
        let changed = !staged.is_empty();
        let mut held = self.held.clone();
        for (name, entry) in staged {
            match entry {
                Some(entry) => held.insert(name, entry),
                None => held.remove(&name),
            };
        }
        if held.len() > self.limits.services {
            return Err(Refused::TooMany(self.limits.services));
        }
        if version.as_ref().is_some_and(|version| version.digest != digest(versions(&held))) {
            return Err(Refused::Mismatch);
        }
        // After a restart the version may be known and the services are not.
        let first = !std::mem::replace(&mut self.heard, true);
        self.held = held;
        self.known.clone_from(&version);
        let offers = || self.held.values().map(|(_, offer)| Arc::clone(offer)).collect();
        Ok(Taken { version, offers: (changed || first).then(offers) })
    }

    fn meant_for_us(&self, type_url: &str, speaker: Option<&ControlPlane>) -> Result<(), Refused> {
        if type_url != TYPE_URL {
            return Err(Refused::Type(type_url.chars().take(100).collect()));
        }
        // The original tells the name of its pod here; ours the id of the mesh.
        let name = speaker.and_then(|speaker| speaker.identifier.strip_prefix("mesh/"));
        match name {
            Some(name) if name != self.mesh => Err(Refused::Stranger(name.chars().take(63).collect())),
            _ => Ok(()),
        }
    }

    fn not_older(&self, got: Option<&Version>) -> Result<(), Refused> {
        match (got, &self.known) {
            (Some(got), Some(known))
                if got.millis < known.millis && (got.digest.is_empty() || got.digest != known.digest) =>
            {
                Err(Refused::Older { got: got.to_string(), known: known.to_string() })
            }
            _ => Ok(()),
        }
    }
}

fn versions(held: &BTreeMap<String, (String, Arc<Offer>)>) -> impl Iterator<Item = (&str, &str)> {
    held.iter().map(|(name, (version, _))| (name.as_str(), version.as_str()))
}

#[cfg(test)]
mod tests {
    use super::super::proto::discovery::Resource;
    use super::super::{Snapshot, encode};
    use super::*;
    use proptest::prelude::*;

    fn offer(name: &str) -> Offer {
        Offer { hostname: name.to_owned(), ..Offer::default() }
    }

    fn whole(names: &[&str], version: &str) -> DiscoveryResponse {
        DiscoveryResponse {
            version_info: version.to_owned(),
            resources: names.iter().map(|name| encode(&offer(name))).collect(),
            type_url: TYPE_URL.to_owned(),
            ..DiscoveryResponse::default()
        }
    }

    fn delta(before: Option<&Snapshot>, after: &Snapshot) -> DeltaDiscoveryResponse {
        let known = |name: &String| before.and_then(|before| before.entries.get(name));
        DeltaDiscoveryResponse {
            system_version_info: after.version().to_string(),
            resources: after
                .entries
                .iter()
                .filter(|(name, entry)| known(name) != Some(entry))
                .map(|(name, entry)| Resource {
                    version: entry.version.clone(),
                    resource: Some(entry.resource.clone()),
                    name: name.clone(),
                })
                .collect(),
            removed_resources: before
                .into_iter()
                .flat_map(|before| before.entries.keys())
                .filter(|name| !after.entries.contains_key(*name))
                .cloned()
                .collect(),
            type_url: TYPE_URL.to_owned(),
            ..DeltaDiscoveryResponse::default()
        }
    }

    fn inbox() -> Inbox {
        Inbox::new("west", Limits { services: 3, message: 1 << 20 }, None)
    }

    #[test]
    fn the_original_is_heard_and_an_older_state_is_not() {
        let mut inbox = inbox();
        let taken = inbox.whole(&whole(&["a.b", "c.d"], "1700000100")).unwrap();
        assert_eq!(taken.offers.unwrap().len(), 2);
        let older = inbox.whole(&whole(&[], "1700000099")).unwrap_err();
        assert!(matches!(older, Refused::Older { .. }));
        assert!(
            inbox.whole(&whole(&["a.b", "c.d"], "1700000101")).unwrap().offers.is_none(),
            "nothing changed"
        );
        assert_eq!(
            inbox.whole(&whole(&["a.b"], "")).unwrap().offers.unwrap().len(),
            1,
            "no version, no order"
        );
        assert_eq!(inbox.whole(&whole(&["a.b", "a.b"], "1700000200")).unwrap().offers.unwrap().len(), 2);
    }

    #[test]
    fn what_is_too_much_or_not_ours_changes_nothing() {
        let mut inbox = inbox();
        inbox.whole(&whole(&["a.b"], "5")).unwrap();
        assert_eq!(inbox.whole(&whole(&["a", "b", "c", "d"], "6")).unwrap_err(), Refused::TooMany(3));
        let mut other = whole(&["a.b"], "7");
        other.type_url = "type.googleapis.com/envoy.config.cluster.v3.Cluster".into();
        assert!(matches!(inbox.whole(&other), Err(Refused::Type(_))));
        let mut stranger = whole(&["a.b"], "7");
        stranger.control_plane = Some(ControlPlane { identifier: "mesh/central".into() });
        assert_eq!(inbox.whole(&stranger).unwrap_err(), Refused::Stranger("central".into()));
        stranger.control_plane = Some(ControlPlane { identifier: "federation-controller-5d9".into() });
        inbox.whole(&stranger).unwrap();
        let mut broken = whole(&["a.b", "c.d"], "8");
        broken.resources[1].value = vec![0x0a, 0xff];
        assert_eq!(inbox.whole(&broken).unwrap_err(), Refused::Unreadable(1));
        assert_eq!(inbox.versions().len(), 1);
    }

    #[test]
    fn changes_must_add_up() {
        let mut inbox = inbox();
        let one = Snapshot::after(None, "west", &[offer("a.b").into()], 10).unwrap();
        let two = Snapshot::after(Some(&one), "west", &[offer("c.d").into()], 20).unwrap();
        assert_eq!(inbox.changes(&delta(None, &one)).unwrap().unwrap().offers.unwrap().len(), 1);
        let mut lost = delta(Some(&one), &two);
        lost.removed_resources.clear();
        assert_eq!(inbox.changes(&lost).unwrap_err(), Refused::Mismatch);
        let mut misnamed = delta(Some(&one), &two);
        misnamed.resources[0].name = "kubernetes.default".into();
        assert_eq!(inbox.changes(&misnamed).unwrap_err(), Refused::Misnamed);
        inbox.reconnect();
        let taken = inbox.changes(&delta(Some(&one), &two)).unwrap().unwrap();
        assert_eq!(taken.offers.unwrap()[0].hostname, "c.d");
        assert!(matches!(inbox.changes(&delta(Some(&two), &one)), Err(Refused::Older { .. })));
        let mut replica = delta(Some(&two), &two);
        replica.system_version_info = format!("15-{}", two.version().digest);
        assert!(
            inbox.changes(&replica).unwrap().unwrap().offers.is_none(),
            "an older replica with the same state"
        );
    }

    #[test]
    fn a_known_version_from_before_a_restart_still_counts() {
        let one = Snapshot::after(None, "west", &[offer("a.b").into()], 10).unwrap();
        let two = Snapshot::after(Some(&one), "west", &[offer("c.d").into()], 20).unwrap();
        let mut inbox = Inbox::new("west", Limits::default(), Some(two.version().clone()));
        assert!(matches!(inbox.changes(&delta(None, &one)), Err(Refused::Older { .. })));
        assert!(inbox.changes(&delta(None, &two)).unwrap().unwrap().offers.is_some());
    }

    proptest! {
        #[test]
        fn any_way_of_telling_leads_to_the_same_state(
            steps in proptest::collection::vec(proptest::collection::btree_set("[a-e]", 0..5), 1..8), cut in 1usize..3
        ) {
            let mut inbox = Inbox::new("west", Limits::default(), None);
            let mut before: Option<Snapshot> = None;
            for (time, names) in steps.iter().enumerate() {
                let offers: Vec<Arc<Offer>> = names.iter().map(|name| offer(&format!("{name}.x")).into()).collect();
                let Some(after) = Snapshot::after(before.as_ref(), "west", &offers, time as u64) else { continue };
                let mut rest = delta(before.as_ref(), &after);
                // In several messages: only the last carries the version.
                while rest.resources.len() > cut {
                    let tail = rest.resources.split_off(cut);
                    let mut part = rest.clone();
                    part.system_version_info.clear();
                    part.removed_resources.clear();
                    prop_assert!(inbox.changes(&part).unwrap().is_none());
                    rest.resources = tail;
                }
                let taken = inbox.changes(&rest).unwrap().unwrap();
                let told: Vec<String> = taken.offers.unwrap().iter().map(|offer| offer.hostname.clone()).collect();
                let meant: Vec<String> = names.iter().map(|name| format!("{name}.x")).collect();
                prop_assert_eq!(told, meant);
                before = Some(after);
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), version in ".{0,20}") {
            let mut answer = whole(&["a.b"], &version);
            answer.resources[0].value = bytes;
            let _ = inbox().whole(&answer);
        }
    }
}
