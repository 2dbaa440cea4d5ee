//! Rules for several resources at once: one that fails keeps the others from nothing, and all failures are told.

use serde::{Deserialize, Serialize};
use tarbet_telemetry::{Coded, Problem};

use super::operation::Call;
use crate::error::Error;

/// A resource of several that was not given its rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Its cloud.
    pub cloud: String,
    /// Its URI.
    pub uri: String,
    /// Why.
    pub problem: Problem,
}

/// For whom a failed call of an operation was, and the last of the calls for it, which make no sense without;
/// nothing if the operation is not for several, or the failure is about all of them.
pub(super) fn failed(calls: &[Call], at: usize, error: &Error) -> Option<(Failure, usize)> {
    let about_all = matches!(error, Error::Cancelled(_) | Error::Standby { .. } | Error::Store(_));
    if about_all || resources(calls) < 2 {
        return None;
    }
    // The calls for one resource end with its rules.
    let of_it = calls.iter().enumerate().skip(at);
    let mut given = of_it.filter_map(|(last, call)| match call {
        Call::AddRules { cloud, uri, .. } => {
            let (cloud, uri) = (cloud.clone(), uri.clone());
            Some((Failure { cloud, uri, problem: error.problem() }, last))
        }
        _ => None,
    });
    given.next()
}

fn resources(calls: &[Call]) -> usize {
    calls.iter().filter(|call| matches!(call, Call::AddRules { .. })).count()
}

/// All failures as one; nothing if there is none.
pub(super) fn told(failures: &[Failure], calls: &[Call]) -> Option<Error> {
    let first = failures.first()?;
    let each = failures.iter().map(|Failure { cloud, uri, problem }| {
        format!("{uri} in {cloud} ({} {})", problem.message, problem.cause)
    });
    let each = each.collect::<Vec<_>>().join("; ");
    let message =
        format!("The rules were not added to {} of {} resources: {each}.", failures.len(), resources(calls));
    Some(Problem { message, ..first.problem.clone() }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(cloud: &str, uri: &str) -> Call {
        Call::AddRules {
            cloud: cloud.into(),
            namespace: "n".into(),
            uri: uri.into(),
            ip: None,
            rules: vec![],
        }
    }

    #[test]
    fn what_was_for_one_resource_is_left_out_and_named() {
        let subscribe = Call::Subscribe { tag: "t".into(), subscriber: "s".into() };
        let calls = [subscribe.clone(), add("east", "a"), subscribe, add("west", "b")];
        let lost = || Error::Cloud { cloud: "east".into(), what: "it".into(), said: "out of order".into() };
        let (first, last) = failed(&calls, 0, &lost()).unwrap();
        assert_eq!((first.uri.as_str(), last), ("a", 1));
        let (second, last) = failed(&calls, 3, &lost()).unwrap();
        assert_eq!((second.uri.as_str(), last), ("b", 3));
        let all = told(&[first, second], &calls).unwrap();
        assert!(all.may_pass(), "as each of them may");
        let all = all.to_string();
        assert!(
            ["2 of 2", "a in east", "b in west", "out of order"].iter().all(|part| all.contains(part)),
            "{all}"
        );
        assert!(told(&[], &calls).is_none());
        assert!(failed(&calls[..2], 1, &lost()).is_none(), "one resource fails as it always did");
        assert!(failed(&calls, 1, &Error::Cancelled("x".into())).is_none());
    }
}
