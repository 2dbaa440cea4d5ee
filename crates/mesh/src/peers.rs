//! What is known of each peer, and for how long.
//!
//! A peer that falls silent keeps its imports for a while: a restart of its discovery must not cut
//! off callers. When the hold-down is over its services are withdrawn, and its version is forgotten
//! with them, so that a mesh restored from a backup is heard again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::fds::{Heard, Version};
use crate::model::Offer;
use crate::still::Still;

/// One peer.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    /// What it offers, as far as is known.
    pub offers: Still<Vec<Arc<Offer>>>,
    /// The version of that.
    pub version: Option<Version>,
    /// Whether it answers.
    pub connected: bool,
    /// Since when that has been so, for people.
    pub since: Option<Timestamp>,
    /// What is wrong.
    pub error: Option<String>,
    /// Whether anything at all is known: an empty offer of a silent stranger is not an empty offer.
    pub known: bool,
    /// Since when nothing was taken over from it; nothing while all is well.
    silent: Option<Instant>,
}

/// All peers.
#[derive(Debug, Default)]
pub struct Peers {
    all: BTreeMap<String, Peer>,
}

impl Peers {
    /// A peer that is subscribed from now on, with what is remembered of it.
    pub fn add(&mut self, mesh: &str, remembered: Vec<Arc<Offer>>, version: Option<Version>, now: Instant) {
        self.all.entry(mesh.to_owned()).or_insert_with(|| Peer {
            known: !remembered.is_empty() || version.is_some(),
            offers: remembered.into(),
            version,
            silent: Some(now),
            ..Peer::default()
        });
    }

    /// Keeps only the peers that are still subscribed.
    pub fn retain(&mut self, subscribed: impl Fn(&str) -> bool) -> bool {
        let before = self.all.len();
        self.all.retain(|mesh, _| subscribed(mesh));
        self.all.len() != before
    }

    /// What is known of a peer.
    pub fn get(&self, mesh: &str) -> Option<&Peer> {
        self.all.get(mesh)
    }

    /// All that are subscribed.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Peer)> {
        self.all.iter()
    }

    /// Takes note; true if anything changed that others see.
    pub fn hear(&mut self, mesh: &str, heard: Heard, now: Instant, time: Timestamp) -> bool {
        let Some(peer) = self.all.get_mut(mesh) else { return false };
        match heard {
            Heard::State(taken) => {
                let news = taken.offers.is_some()
                    || !peer.connected
                    || peer.error.is_some()
                    || peer.version != taken.version;
                if let Some(offers) = taken.offers {
                    peer.offers = offers.into();
                }
                peer.version = taken.version;
                peer.known = true;
                peer.silent = None;
                peer.error = None;
                peer.connect(true, time);
                news
            }
            Heard::Refused(refused) => {
                // It answers, but not with what it exports: that is a silence like any other, and its clock
                // runs until something is taken over.
                let error = Some(refused.to_string());
                let news = peer.error != error || peer.silent.is_none();
                peer.error = error;
                peer.silent.get_or_insert(now);
                news
            }
            Heard::Lost(cause) => {
                let news = peer.connected || peer.error.is_none();
                // The reason of a refusal says more than the end of the stream that followed it.
                if news {
                    peer.error = Some(cause);
                }
                peer.silent.get_or_insert(now);
                peer.connect(false, time);
                news
            }
        }
    }

    /// Withdraws what peers offered that have been silent for the whole hold-down, and names them.
    pub fn expire(&mut self, hold_down: Duration, now: Instant) -> Vec<String> {
        let mut gone = Vec::new();
        for (mesh, peer) in &mut self.all {
            if peer.known && peer.silent.is_some_and(|since| now.duration_since(since) >= hold_down) {
                let why = peer.error.take().unwrap_or_else(|| "it has not answered".to_owned());
                *peer = Peer {
                    since: peer.since,
                    silent: peer.silent,
                    error: Some(format!("its services are withdrawn: {why}")),
                    ..Peer::default()
                };
                gone.push(mesh.clone());
            }
        }
        gone
    }

    /// When the next hold-down is over.
    pub fn next_expiry(&self, hold_down: Duration) -> Option<Instant> {
        self.all
            .values()
            .filter(|peer| peer.known)
            .filter_map(|peer| peer.silent)
            .min()
            .map(|since| since + hold_down)
    }
}

impl Peer {
    fn connect(&mut self, connected: bool, time: Timestamp) {
        if self.connected != connected || self.since.is_none() {
            self.connected = connected;
            self.since = Some(tarbet_cluster::conditions::seconds(time));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fds::{Refused, Taken};

    const HOLD: Duration = Duration::from_mins(1);

    fn state(names: &[&str], millis: u64) -> Heard {
        let offer = |&name: &&str| Arc::new(Offer { hostname: name.to_owned(), ..Offer::default() });
        let version = Some(Version { millis, digest: String::new() });
        Heard::State(Taken { version, offers: Some(names.iter().map(offer).collect()) })
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_keeps_its_services_for_the_hold_down_and_no_longer() {
        let (start, time) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut peers = Peers::default();
        peers.add("west", Vec::new(), None, start);
        assert!(peers.expire(HOLD, at(1000)).is_empty(), "nothing is known, nothing is withdrawn");
        assert!(peers.hear("west", state(&["a.b"], 1), at(1), time));
        assert!(peers.next_expiry(HOLD).is_none());
        assert!(peers.hear("west", Heard::Lost("refused".into()), at(10), time));
        assert!(!peers.hear("west", Heard::Lost("still".into()), at(40), time), "not news");
        assert_eq!(peers.next_expiry(HOLD), Some(at(70)));
        assert!(peers.expire(HOLD, at(69)).is_empty());
        assert_eq!(peers.get("west").unwrap().offers.len(), 1);
        assert_eq!(peers.expire(HOLD, at(70)), ["west"]);
        let peer = peers.get("west").unwrap();
        assert!(peer.offers.is_empty() && peer.version.is_none(), "an older state may now come");
        assert!(peers.expire(HOLD, at(80)).is_empty(), "once");
    }

    #[tokio::test(start_paused = true)]
    async fn coming_back_in_time_changes_nothing_and_refusals_do_not_count_as_answers() {
        let (start, time) = (Instant::now(), Timestamp::UNIX_EPOCH);
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut peers = Peers::default();
        let remembered = vec![Arc::new(Offer { hostname: "a.b".into(), ..Offer::default() })];
        peers.add("west", remembered, None, start);
        let older = || Heard::Refused(Refused::Older { got: "1".into(), known: "2".into() });
        assert!(peers.hear("west", older(), at(10), time));
        assert!(!peers.hear("west", older(), at(20), time));
        assert_eq!(peers.next_expiry(HOLD), Some(at(60)), "the clock began at the restart");
        assert!(peers.hear("west", state(&["a.b"], 3), at(59), time));
        assert!(peers.expire(HOLD, at(1000)).is_empty());
        assert!(peers.get("west").unwrap().error.is_none());
        // A peer that speaks nonsense on a living stream is silent from then on, whichever it is.
        assert!(peers.hear("west", older(), at(70), time));
        assert_eq!(peers.next_expiry(HOLD), Some(at(130)));
        assert!(!peers.hear("west", older(), at(80), time), "the clock began with the first");
        assert!(peers.hear("west", state(&["a.b"], 4), at(90), time));
        assert!(peers.next_expiry(HOLD).is_none());
        assert!(peers.retain(|_| false));
        assert!(!peers.hear("west", older(), at(20), time), "an unsubscribed peer is not heard");
    }
}
