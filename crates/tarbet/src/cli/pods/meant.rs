//! Which pod somebody means.

use tarbet_pods::wire::PodStatus;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, pods};

use super::Again;

/// Fewer digits of a UID mean a pod by accident: a variable that is not set, a slip of the hand.
const FEWEST: usize = 4;

/// The one pod that is meant: by its UID, by its name, else by the beginning of its UID.
pub(super) fn one(there: Vec<PodStatus>, wanted: &str) -> Result<PodStatus, Problem> {
    if wanted.is_empty() {
        return Err(Problem::new(&ground::BAD_REQUEST, "No pod is named: the argument is empty.")
            .at("tarbet command line")
            .because("an empty word means no pod; perhaps a variable is not set")
            .advising("give a name or a UID; `tarbet pods list` shows them"));
    }
    let ways: [fn(&PodStatus, &str) -> bool; 3] = [
        |pod, wanted| pod.uid == wanted,
        |pod, wanted| pod.name == wanted,
        |pod, wanted| wanted.len() >= FEWEST && pod.uid.starts_with(wanted),
    ];
    let meant = |way: &fn(&PodStatus, &str) -> bool| there.iter().any(|pod| way(pod, wanted));
    let Some(way) = ways.iter().find(|way| meant(way)) else {
        return Err(Problem::new(&pods::POD_UNKNOWN, format!("There is no pod `{wanted}`."))
            .because(format!("none has this name, or a UID that begins so ({FEWEST} digits or more)")));
    };
    let mut found: Vec<PodStatus> = there.into_iter().filter(|pod| way(pod, wanted)).collect();
    match (found.pop(), found.is_empty()) {
        (Some(pod), true) => Ok(pod),
        (last, _) => Err(several_meant(found.iter().chain(&last), wanted)),
    }
}

fn several_meant<'a>(found: impl Iterator<Item = &'a PodStatus>, wanted: &str) -> Problem {
    let uids: Vec<&str> = found.map(|pod| pod.uid.as_str()).collect();
    Problem::new(&ground::BAD_REQUEST, format!("`{wanted}` means {} pods.", uids.len()))
        .at("tarbet command line")
        .because(format!("they have the UIDs {}", uids.join(", ")))
        .advising("name one by its UID")
}

/// Refuses a container that has ended: nothing can be run in it any more. The first if none is named.
pub(super) fn must_run(pod: &PodStatus, container: &str, again: &Again) -> Result<(), Problem> {
    let named = |name: &str| container.is_empty() || name == container;
    let Some(found) = pod.containers.iter().find(|found| named(&found.name)) else { return Ok(()) };
    let Some(end) = found.state.as_ref().and_then(|state| state.terminated.as_ref()) else { return Ok(()) };
    let ended = format!("`{}` of {} has ended with code {}.", found.name, pod.name, end.exit_code);
    Err(Problem::new(&pods::CONTAINER_UNKNOWN, ended)
        .because("a command runs only beside one that still runs")
        .advising(again.command(&format!("logs {}", pod.name))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, uid: &str) -> PodStatus {
        PodStatus { name: name.into(), uid: uid.into(), ..Default::default() }
    }

    #[test]
    fn nothing_and_nearly_nothing_mean_no_pod() {
        let alone = || vec![pod("precious", "654f8638-0000")];
        assert_eq!(one(alone(), "").unwrap_err().code, ground::BAD_REQUEST.id);
        for short in ["6", "65", "654"] {
            assert_eq!(one(alone(), short).unwrap_err().code, pods::POD_UNKNOWN.id, "{short}");
        }
        for enough in ["654f", "654f8638-0000", "precious"] {
            assert_eq!(one(alone(), enough).unwrap().name, "precious");
        }
    }

    #[test]
    fn a_name_wins_over_the_beginning_of_a_uid_and_a_whole_uid_over_both() {
        let pods = || vec![pod("first", "beef0001"), pod("beef", "cafe0001"), pod("beef0001", "f00d0001")];
        assert_eq!(one(pods(), "beef").unwrap().uid, "cafe0001");
        assert_eq!(one(pods(), "beef0001").unwrap().uid, "beef0001");
        assert_eq!(one(pods(), "beef00").unwrap().uid, "beef0001");
        let twice = vec![pod("ticker", "aaaa0001"), pod("ticker", "bbbb0001")];
        let refused = one(twice, "ticker").unwrap_err();
        assert!(refused.cause.contains("aaaa0001") && refused.cause.contains("bbbb0001"), "{refused:?}");
    }

    #[test]
    fn a_command_is_refused_in_what_has_ended() {
        let with = |state: serde_json::Value| {
            let container = json!({"name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state});
            PodStatus { containers: vec![serde_json::from_value(container).unwrap()], ..pod("p", "u") }
        };
        let run = |state, container: &str| must_run(&with(state), container, &Again::default());
        let refused = run(json!({"terminated": {"exitCode": 3}}), "").unwrap_err();
        assert!(refused.message.contains("ended with code 3"), "{refused:?}");
        run(json!({"running": {}}), "main").unwrap();
        run(json!({"terminated": {"exitCode": 3}}), "other").unwrap();
    }
}
