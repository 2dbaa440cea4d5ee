//! The life of a request, and what is written about each step of it.
//!
//! New → (Queued →) Running → Succeeded or Failed, or from any of the first three → Rejected. The
//! last three are final: nothing is ever written over them. Callers poll the reason of the first
//! condition and take anything but `Running` for the end, so a request that waits in line is
//! already `Running` to them. It has no start time yet: that tells the difference even where an
//! older definition of the kind drops the field `queue`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};
use tarbet_cluster::conditions;

use crate::crd::{InternalRequestStatus, StepLog};
use crate::names::SUCCEEDED;

/// Where a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Nothing was written yet.
    New,
    /// Accepted, in line.
    Queued,
    /// Its run exists.
    Running,
    /// Its run succeeded.
    Succeeded,
    /// Its run failed, was cancelled or is lost.
    Failed,
    /// It was refused; there is no run.
    Rejected,
}

impl Phase {
    /// Where a request with this status stands.
    pub fn of(status: &InternalRequestStatus) -> Self {
        let Some(condition) = conditions::find(&status.conditions, SUCCEEDED) else { return Self::New };
        match (condition.status.as_str(), condition.reason.as_str()) {
            ("True", _) => Self::Succeeded,
            (_, "Running") if status.start_time.is_none() => Self::Queued,
            (_, "Running") => Self::Running,
            ("False", "Rejected") => Self::Rejected,
            ("False", _) => Self::Failed,
            // Neither true nor false: somebody else's word, which decides nothing.
            _ => Self::New,
        }
    }

    /// Whether it is over.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Rejected)
    }

    /// Whether the next may follow this one.
    pub fn may_become(self, next: Self) -> bool {
        match next {
            Self::New => false,
            Self::Queued => self == Self::New,
            Self::Running => matches!(self, Self::New | Self::Queued),
            Self::Succeeded | Self::Failed | Self::Rejected => !self.is_final(),
        }
    }

    /// The reason callers know it by.
    pub fn reason(self) -> &'static str {
        match self {
            Self::New => "",
            Self::Queued | Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Rejected => "Rejected",
        }
    }
}

/// The end of a request, as it will be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Whether the job succeeded.
    pub succeeded: bool,
    /// What to tell, if not.
    pub message: String,
    /// The results by name.
    pub results: BTreeMap<String, String>,
    /// When the run was started, where that is known.
    pub started: Option<Timestamp>,
}

impl Ending {
    /// A failure of something that never reported an end.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { succeeded: false, message: message.into(), results: BTreeMap::new(), started: None }
    }

    /// The phase it leads to.
    pub fn phase(&self) -> Phase {
        if self.succeeded { Phase::Succeeded } else { Phase::Failed }
    }
}

/// What is known of a request's status before a write.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Before {
    /// All its conditions.
    pub conditions: Vec<Condition>,
    /// The generation of its spec.
    pub generation: Option<i64>,
    /// Its start, if written.
    pub start_time: Option<Timestamp>,
}

/// Longest message in a condition; Kubernetes allows 32768 characters.
const MESSAGE: usize = 8192;
/// Most bytes of results: with the rest of the object they must stay below 1.5 MB.
const RESULTS: usize = 512 * 1024;

/// The request is in line at `position`, and its run will be `run`.
pub fn queued(before: &Before, run: &str, position: u32, now: Timestamp) -> Value {
    // It stays while the request runs: its next write is its end.
    let message = format!("accepted at place {position} of the line; it runs when its turn comes");
    json!({
        "conditions": conditions_with(before, Phase::Queued, &message, now),
        "pipelineRun": run,
        "queue": { "position": position, "since": Time(conditions::seconds(now)) },
    })
}

/// The run of the request exists.
pub fn running(before: &Before, run: &str, now: Timestamp) -> Value {
    json!({
        "conditions": conditions_with(before, Phase::Running, "", now),
        "pipelineRun": run,
        "startTime": Time(conditions::seconds(before.start_time.unwrap_or(now))),
        "queue": null,
    })
}

/// The request is over.
pub fn ended(before: &Before, run: &str, ending: &Ending, logs: &[StepLog], now: Timestamp) -> Value {
    let size: usize = ending.results.iter().map(|(name, value)| name.len() + value.len()).sum();
    let (phase, message, results) = if size > RESULTS {
        let message =
            format!("the results are {size} bytes long, more than the {RESULTS} that can be handed over");
        (Phase::Failed, message, BTreeMap::new())
    } else {
        (ending.phase(), ending.message.clone(), ending.results.clone())
    };
    let start = before.start_time.or(ending.started).unwrap_or(now);
    let mut status = json!({
        "conditions": conditions_with(before, phase, &message, now),
        "pipelineRun": run,
        "startTime": Time(conditions::seconds(start)),
        "completionTime": Time(conditions::seconds(now)),
        "queue": null,
    });
    if !results.is_empty() {
        status["results"] = json!(results);
    }
    if !logs.is_empty() {
        status["logs"] = json!(logs);
    }
    status
}

/// The request is refused.
pub fn rejected(before: &Before, message: &str, now: Timestamp) -> Value {
    json!({
        "conditions": conditions_with(before, Phase::Rejected, message, now),
        "queue": null, "pipelineRun": null,
    })
}

/// Ours first, since callers read the first one; those of others behind it.
fn conditions_with(before: &Before, phase: Phase, message: &str, now: Timestamp) -> Vec<Condition> {
    let mut list = before.conditions.clone();
    let message = clip(message, MESSAGE);
    let wanted = conditions::condition(
        SUCCEEDED,
        phase == Phase::Succeeded,
        phase.reason(),
        message,
        before.generation,
    );
    conditions::set(&mut list, wanted, now);
    list.sort_by_key(|condition| condition.type_ != SUCCEEDED);
    list
}

/// At most so many bytes of the text.
pub(crate) fn clip(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most.saturating_sub(3)).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PHASES: [Phase; 6] =
        [Phase::New, Phase::Queued, Phase::Running, Phase::Succeeded, Phase::Failed, Phase::Rejected];

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn write(phase: Phase, before: &Before, now: Timestamp) -> Value {
        match phase {
            Phase::New => json!({}),
            Phase::Queued => queued(before, "ns/run", 3, now),
            Phase::Running => running(before, "ns/run", now),
            Phase::Succeeded => {
                let results = BTreeMap::from([("digest".to_owned(), "x".to_owned())]);
                let ending = Ending { succeeded: true, message: String::new(), results, started: None };
                ended(before, "ns/run", &ending, &[], now)
            }
            Phase::Failed => ended(before, "ns/run", &Ending::failed("boom"), &[], now),
            Phase::Rejected => rejected(before, "no", now),
        }
    }

    /// What an API server makes of a merge patch.
    fn merge(into: &mut Value, patch: &Value) {
        let (Some(into), Some(patch)) = (into.as_object_mut(), patch.as_object()) else { return };
        for (key, value) in patch {
            if value.is_null() {
                into.remove(key);
            } else {
                into.insert(key.clone(), value.clone());
            }
        }
    }

    fn before(status: &Value) -> Before {
        let status: InternalRequestStatus = serde_json::from_value(status.clone()).unwrap();
        Before {
            conditions: status.conditions,
            generation: Some(1),
            start_time: status.start_time.map(|time| time.0),
        }
    }

    #[test]
    fn what_is_written_is_what_callers_read() {
        let mut status = json!({});
        let patch = write(Phase::Running, &before(&status), at(100));
        merge(&mut status, &patch);
        let patch = write(Phase::Succeeded, &before(&status), at(160));
        merge(&mut status, &patch);
        assert_eq!(
            status,
            json!({
                "startTime": "1970-01-01T00:01:40Z", "completionTime": "1970-01-01T00:02:40Z",
                "pipelineRun": "ns/run", "results": { "digest": "x" },
                "conditions": [{
                    "type": "Succeeded", "status": "True", "reason": "Succeeded", "message": "",
                    "observedGeneration": 1, "lastTransitionTime": "1970-01-01T00:02:40Z",
                }],
            })
        );
    }

    #[test]
    fn a_rejection_carries_its_message_and_nothing_else() {
        let status = write(Phase::Rejected, &Before::default(), at(5));
        assert_eq!(status["conditions"][0]["message"], "no");
        assert!(status.get("startTime").is_none() && status.get("completionTime").is_none());
    }

    #[test]
    fn results_that_do_not_fit_fail_the_request_with_a_reason() {
        let results = BTreeMap::from([("big".to_owned(), "x".repeat(RESULTS))]);
        let ending = Ending { succeeded: true, message: String::new(), results, started: None };
        let status = ended(&Before::default(), "ns/run", &ending, &[], at(1));
        assert_eq!(status["conditions"][0]["reason"], "Failed");
        assert!(status.get("results").is_none());
    }

    proptest! {
        #[test]
        fn any_legal_life_reads_back_as_it_was_written_and_ends_once(steps in proptest::collection::vec(0usize..6, 0..12)) {
            let (mut status, mut phase) = (json!({ "conditions": [{
                "type": "Stranger", "status": "True", "reason": "X", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }] }), Phase::New);
            let mut endings = 0;
            for (second, step) in steps.into_iter().enumerate() {
                let next = PHASES[step];
                if !phase.may_become(next) {
                    continue;
                }
                let patch = write(next, &before(&status), at(i64::try_from(second).unwrap() + 1));
                merge(&mut status, &patch);
                let parsed: InternalRequestStatus = serde_json::from_value(status.clone()).unwrap();
                prop_assert_eq!(Phase::of(&parsed), next);
                prop_assert_eq!(parsed.conditions[0].type_.as_str(), SUCCEEDED);
                prop_assert_eq!(parsed.conditions.len(), 2);
                prop_assert_eq!(parsed.queue.is_some(), next == Phase::Queued);
                endings += usize::from(next.is_final());
                phase = next;
            }
            prop_assert!(endings <= 1);
        }
    }
}
