//! Conditions as Kubernetes defines them.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Sets the condition of `wanted.type_`, keeping its place in the list.
///
/// `lastTransitionTime` changes only when the status does; any time in `wanted` is ignored. The
/// answer tells whether anything changed at all.
pub fn set(conditions: &mut Vec<Condition>, mut wanted: Condition, now: Timestamp) -> bool {
    let known = conditions.iter_mut().find(|condition| condition.type_ == wanted.type_);
    let Some(known) = known else {
        wanted.last_transition_time = Time(seconds(now));
        conditions.push(wanted);
        return true;
    };
    let moved = known.status != wanted.status;
    wanted.last_transition_time = if moved { Time(seconds(now)) } else { known.last_transition_time.clone() };
    let changed = *known != wanted;
    *known = wanted;
    changed
}

/// The condition of this type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// A condition without a time; [`set`] gives it one.
pub fn condition(
    type_: &str,
    status: bool,
    reason: &str,
    message: impl Into<String>,
    generation: Option<i64>,
) -> Condition {
    Condition {
        type_: type_.to_owned(),
        status: if status { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: message.into(),
        observed_generation: generation,
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
    }
}

/// Kubernetes writes times in whole seconds; anything finer would not survive a round trip.
pub fn seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_time_moves_only_with_the_status() {
        let mut list = Vec::new();
        assert!(set(&mut list, condition("Ready", false, "Starting", "", Some(1)), at(10)));
        assert!(set(&mut list, condition("Ready", false, "Waiting", "for x", Some(2)), at(20)));
        assert_eq!((list[0].last_transition_time.0, list[0].observed_generation), (at(10), Some(2)));
        assert!(set(&mut list, condition("Ready", true, "Done", "", Some(2)), at(30)));
        assert_eq!(list[0].last_transition_time.0, at(30));
        assert!(!set(&mut list, condition("Ready", true, "Done", "", Some(2)), at(40)), "nothing changed");
        assert_eq!(find(&list, "Ready").unwrap().reason, "Done");
        assert!(find(&list, "Other").is_none());
    }

    proptest! {
        #[test]
        fn a_type_is_listed_once_and_keeps_its_place(
            steps in proptest::collection::vec((0usize..4, any::<bool>(), 0i64..1000), 1..40)
        ) {
            let types = ["A", "B", "C", "D"];
            let mut list: Vec<Condition> = Vec::new();
            for (type_, status, time) in steps {
                let before: Vec<String> = list.iter().map(|c| c.type_.clone()).collect();
                set(&mut list, condition(types[type_], status, "R", "", None), at(time));
                let after: Vec<String> = list.iter().map(|c| c.type_.clone()).collect();
                prop_assert!(after.starts_with(&before));
                let mut unique = after.clone();
                unique.sort();
                unique.dedup();
                prop_assert_eq!(unique.len(), after.len());
            }
        }
    }
}
