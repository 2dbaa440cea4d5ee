//! `GET /v1/links`: how the links of this gateway are, at this moment.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use jiff::{Timestamp, Unit};
use serde::{Deserialize, Serialize};
use tarbet_link::LinkStats;

use super::Caller;
use crate::directory::Role;
use crate::gateway::Hub;
use crate::names::SiteName;

/// How a link is, as the gateway that holds it knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkVitals {
    /// The link's name.
    pub id: String,
    /// The site at its other end.
    pub site: SiteName,
    /// The round trip of its last PING, in microseconds.
    pub round_trip_us: Option<u64>,
    /// When bytes last came in, to the second.
    pub heard: Timestamp,
    /// Requests and byte streams that are open on it.
    pub streams_open: usize,
    /// Bytes that came in, framing included.
    pub bytes_in: u64,
    /// Bytes that went out, framing included.
    pub bytes_out: u64,
}

/// The links of this gateway, as far as the caller may see their sites.
pub(super) async fn vitals(State(hub): State<Arc<Hub>>, caller: Caller) -> Json<Vec<LinkVitals>> {
    let now = Timestamp::now();
    let visible = hub.local.all().into_iter().filter(|held| caller.0.may(Role::Viewer, &held.site));
    let told =
        visible.filter_map(|held| Some(tell(held.id.to_string(), &held.site, &held.way.stats()?, now)));
    let mut told: Vec<_> = told.collect();
    // In one order, so that nothing seems to change when nothing did.
    told.sort_by(|a, b| a.id.cmp(&b.id));
    Json(told)
}

fn tell(id: String, site: &SiteName, stats: &LinkStats, now: Timestamp) -> LinkVitals {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let heard = now.checked_sub(stats.silent_for).unwrap_or(now);
    LinkVitals {
        id,
        site: site.clone(),
        round_trip_us: stats.round_trip.map(micros),
        heard: heard.round(Unit::Second).unwrap_or(heard),
        streams_open: stats.streams_open,
        bytes_in: stats.bytes_in,
        bytes_out: stats.bytes_out,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_packet_is_told_as_a_time_that_stays_while_nothing_comes() {
        let stats = |silent| LinkStats {
            streams_open: 2,
            streams: 9,
            bytes_in: 10,
            bytes_out: 20,
            stalled: 0,
            round_trip: Some(Duration::from_micros(1500)),
            silent_for: Duration::from_millis(silent),
            age: Duration::from_mins(1),
        };
        let (site, at): (SiteName, Timestamp) =
            ("lab".parse().unwrap(), "2026-01-01T00:01:00.1Z".parse().unwrap());
        let first = tell("a".into(), &site, &stats(5000), at);
        assert_eq!((first.round_trip_us, first.heard), (Some(1500), "2026-01-01T00:00:55Z".parse().unwrap()));
        let later = tell("a".into(), &site, &stats(7000), at + Duration::from_secs(2));
        assert_eq!(first, later);
    }
}
