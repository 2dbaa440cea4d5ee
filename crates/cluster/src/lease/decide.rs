//! Whose a lease is, from what is seen of it.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::LeaseSpec;
use tokio::time::Instant;

/// What a candidate may do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// It is ours: say so again.
    Renew,
    /// It is free: take it as this term.
    Take {
        /// The number of the new term.
        number: i32,
    },
    /// It belongs to somebody who may be alive.
    Wait,
}

/// A record of the lease and since when we have seen it unchanged.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    record: LeaseSpec,
    since: Instant,
}

impl Seen {
    /// Remembers the record; the clock starts anew whenever it changed.
    pub(super) fn note(seen: &mut Option<Seen>, spec: &LeaseSpec, now: Instant) {
        if seen.as_ref().is_none_or(|seen| seen.record != *spec) {
            *seen = Some(Seen { record: spec.clone(), since: now });
        }
    }
}

pub(super) fn decide(spec: Option<&LeaseSpec>, me: &str, seen: Option<&Seen>, now: Instant) -> Decision {
    let Some(spec) = spec else { return Decision::Take { number: 1 } };
    let take = Decision::Take { number: spec.lease_transitions.unwrap_or(0).saturating_add(1) };
    match spec.holder_identity.as_deref() {
        None | Some("") => take,
        Some(holder) if holder == me => Decision::Renew,
        Some(_) => {
            let seconds = u64::try_from(spec.lease_duration_seconds.unwrap_or(0)).unwrap_or(0);
            let quiet = seen.map_or(Duration::ZERO, |seen| now.saturating_duration_since(seen.since));
            if quiet > Duration::from_secs(seconds) { take } else { Decision::Wait }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
    use proptest::prelude::*;

    fn held_by(holder: &str, renewed: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            lease_transitions: Some(3),
            renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
            ..LeaseSpec::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_holder_is_followed_only_after_its_whole_time() {
        let start = Instant::now();
        let lease = held_by("other", 0);
        let mut seen = None;
        Seen::note(&mut seen, &lease, start);
        let at = |seconds| decide(Some(&lease), "me", seen.as_ref(), start + Duration::from_secs(seconds));
        assert_eq!(at(15), Decision::Wait);
        assert_eq!(at(16), Decision::Take { number: 4 });
        // Its clock may be hours off: only the change counts.
        let mut seen = seen.clone();
        Seen::note(&mut seen, &held_by("other", -7200), start + Duration::from_secs(14));
        let renewed = held_by("other", -7200);
        assert_eq!(
            decide(Some(&renewed), "me", seen.as_ref(), start + Duration::from_secs(20)),
            Decision::Wait
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_or_released_lease_is_free_and_our_own_is_renewed() {
        let now = Instant::now();
        assert_eq!(decide(None, "me", None, now), Decision::Take { number: 1 });
        let mut released = held_by("other", 0);
        released.holder_identity = None;
        assert_eq!(decide(Some(&released), "me", None, now), Decision::Take { number: 4 });
        assert_eq!(decide(Some(&held_by("me", 0)), "me", None, now), Decision::Renew);
    }

    proptest! {
        #[test]
        fn a_lease_just_seen_is_never_taken(duration in 0i32..1000, holder in "[a-z]{1,5}") {
            let mut lease = held_by(&holder, 0);
            lease.lease_duration_seconds = Some(duration);
            let now = Instant::now();
            let mut seen = None;
            Seen::note(&mut seen, &lease, now);
            prop_assert_eq!(decide(Some(&lease), "ME", seen.as_ref(), now), Decision::Wait);
        }
    }
}
