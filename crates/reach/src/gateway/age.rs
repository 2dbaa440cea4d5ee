//! Links that have grown old are asked to move, so that agents spread over new gateways, certificates
//! are shown anew, and no stream of bytes through a middlebox lasts for ever.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::Hub;
use crate::local::LinkId;

/// How much earlier some links move than others: those of one moment must not move in one moment.
const SPREAD: f64 = 0.2;

/// How often links are looked at that may grow very old.
const RARELY: Duration = Duration::from_secs(10);

/// When a link of this name has to move; between four fifths of the age and all of it.
fn lifetime(link: LinkId, age: Duration) -> Duration {
    let share = f64::from(link.uuid().as_bytes()[15]) / 255.0;
    age.mul_f64(1.0 - SPREAD * share)
}

/// Asks links to move when they are old, until `stop`. The agent opens another link first; what runs on
/// the old one finishes there.
pub(super) async fn retire(hub: &Hub, stop: CancellationToken) {
    let mut told: HashSet<LinkId> = HashSet::new();
    loop {
        let age = hub.config().max_connection_age;
        let pause = age.map_or(RARELY, |age| (age / 20).clamp(Duration::from_millis(20), RARELY));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => return,
        }
        // It may have changed meanwhile.
        let Some(age) = hub.config().max_connection_age else { continue };
        let (links, now) = (hub.local.all(), Timestamp::now());
        told.retain(|id| hub.local.get(*id).is_some());
        for held in links {
            // By a clock that does not jump, where the link has one: else a step of the wall's would move all
            // links at once.
            let by_wall = || Duration::try_from(now.duration_since(held.since)).unwrap_or_default();
            let lived = held.way.stats().map_or_else(by_wall, |stats| stats.age);
            if lived >= lifetime(held.id, age) && told.insert(held.id) {
                tracing::info!(site = %held.site, link = %held.id, "A link is old; its agent is asked to open another one.");
                held.way.drain();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_one_moment_do_not_move_in_one_moment() {
        let age = Duration::from_secs(1000);
        let times: HashSet<Duration> = (0..200).map(|_| lifetime(LinkId::fresh(), age)).collect();
        assert!(times.len() > 50, "{} different moments", times.len());
        assert!(times.iter().all(|time| (Duration::from_secs(800)..=age).contains(time)));
    }
}
