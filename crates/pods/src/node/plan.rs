//! What is done next about a pod.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::interlink::InterlinkError;
use super::machine::{is_final, phase_of};

/// Written on a pod before it is sent, so that a crash in between is known afterwards.
pub const SUBMITTED: &str = "tarbet.dev/submitted";
/// interLink's annotation for the other side's own id.
pub const JOB_ID: &str = "JobID";

/// Where a pod is on the other side, as far as this process knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Remote {
    /// Nothing is known yet, or not any more.
    #[default]
    Unknown,
    /// It was asked: the pod is not there.
    Absent,
    /// It has the pod.
    Present,
    /// It had the pod and has removed it.
    Gone,
}

impl Remote {
    /// Where a pod is that was sent with this answer. Only a clear refusal says that it is not there: whatever
    /// else went wrong, it is asked for before it is sent again, and removed before it is forgotten.
    pub fn after_create(answer: Result<(), &InterlinkError>) -> Self {
        match answer {
            Ok(()) => Self::Present,
            Err(error) if error.is_refusal() => Self::Absent,
            Err(_) => Self::Unknown,
        }
    }
}

/// What this process remembers of a pod, as far as decisions need it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// Where it is.
    pub remote: Remote,
    /// Whether it was ended here, such as refused or too late.
    pub ended: bool,
    /// What the other side was last told of the pod's own fields.
    pub told: Option<u64>,
    /// When its contents are to be read again.
    pub refresh: Option<Timestamp>,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing, until this long from now at the latest.
    Rest(Option<Duration>),
    /// Ask whether the other side has it already.
    Ask,
    /// Send it.
    Submit,
    /// Tell that it changed.
    Update,
    /// Read its contents again, and tell if they changed.
    Refresh,
    /// Its time is over: remove it there and end it here.
    Expire,
    /// Remove it there.
    Remove,
    /// Write its end and let the cluster forget it.
    Forget,
    /// It has finished and is not to stay.
    Discard,
}

/// What is true of the whole node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Circumstances {
    /// interLink answers.
    pub up: bool,
    /// The other side takes changed pods.
    pub updates: bool,
    /// Finished pods are removed from the cluster.
    pub discard: bool,
    /// The time.
    pub now: Timestamp,
}

/// Decides. A pod is sent only when it is known that the other side does not have it, and removed
/// from the cluster only when the other side has removed it.
pub fn next(pod: &Pod, memory: &Memory, around: Circumstances) -> Step {
    let deleted = pod.metadata.deletion_timestamp.is_some();
    let phase = phase_of(pod);
    let sent = sent(pod);
    if deleted {
        return match memory.remote {
            Remote::Gone | Remote::Absent => Step::Forget,
            Remote::Unknown if !sent => Step::Forget,
            _ if !around.up => Step::Rest(None),
            Remote::Unknown | Remote::Present => Step::Remove,
        };
    }
    if is_final(phase) {
        if !around.discard {
            return Step::Rest(None);
        }
        // There first: the cluster forgets a finished pod at once, and nobody would know what is left of it after a
        // crash in between.
        return match memory.remote {
            Remote::Gone | Remote::Absent => Step::Discard,
            Remote::Unknown if !sent => Step::Discard,
            _ if !around.up => Step::Rest(None),
            Remote::Unknown | Remote::Present => Step::Remove,
        };
    }
    if memory.ended {
        return Step::Rest(None);
    }
    let left = deadline(pod).map(|deadline| left(deadline, around.now));
    if left.is_some_and(|left| left.is_zero()) {
        return match memory.remote {
            Remote::Present | Remote::Unknown if sent && !around.up => Step::Rest(None),
            _ => Step::Expire,
        };
    }
    if !around.up {
        return Step::Rest(left);
    }
    match memory.remote {
        Remote::Unknown if sent => Step::Ask,
        Remote::Unknown | Remote::Absent => Step::Submit,
        Remote::Gone => Step::Rest(left),
        Remote::Present if around.updates && memory.told != Some(fingerprint(pod)) => Step::Update,
        Remote::Present => {
            let refresh = memory.refresh.filter(|_| around.updates).map(|time| self::left(time, around.now));
            match refresh {
                Some(wait) if wait.is_zero() => Step::Refresh,
                Some(wait) => Step::Rest(Some(left.map_or(wait, |left| left.min(wait)))),
                None => Step::Rest(left),
            }
        }
    }
}

fn left(until: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(until.duration_since(now)).unwrap_or_default()
}

/// Whether the pod may have been sent before.
pub fn sent(pod: &Pod) -> bool {
    let notes = pod.metadata.annotations.as_ref();
    notes.is_some_and(|notes| notes.contains_key(SUBMITTED) || notes.contains_key(JOB_ID))
}

/// Whether the other side has confirmed the pod.
pub fn confirmed(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|notes| notes.contains_key(JOB_ID))
}

/// When the pod must have ended.
fn deadline(pod: &Pod) -> Option<Timestamp> {
    let seconds = pod.spec.as_ref()?.active_deadline_seconds?;
    let began = pod.status.as_ref()?.start_time.as_ref()?.0;
    Timestamp::from_second(began.as_second().saturating_add(seconds)).ok()
}

/// The fields that matter to a running pod: what downward files show, and images.
pub fn fingerprint(pod: &Pod) -> u64 {
    let mut hasher = DefaultHasher::new();
    let meta = &pod.metadata;
    let none = BTreeMap::new();
    meta.labels.as_ref().unwrap_or(&none).hash(&mut hasher);
    for (key, value) in meta.annotations.as_ref().unwrap_or(&none) {
        if key != SUBMITTED && key != JOB_ID {
            (key, value).hash(&mut hasher);
        }
    }
    for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
        (&container.name, &container.image).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{PodSpec, PodStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod(phase: &str, noted: &[&str], deleted: bool, deadline: Option<i64>) -> Pod {
        let mut pod = Pod {
            spec: Some(PodSpec { active_deadline_seconds: deadline, ..Default::default() }),
            status: Some(PodStatus {
                phase: Some(phase.to_owned()),
                start_time: Some(Time(at(100))),
                ..Default::default()
            }),
            ..Default::default()
        };
        let notes = noted.iter().map(|key| ((*key).to_owned(), "x".to_owned())).collect();
        pod.metadata.annotations = Some(notes);
        pod.metadata.deletion_timestamp = deleted.then(|| Time(at(1)));
        pod
    }

    fn any_remote() -> impl Strategy<Value = Remote> {
        prop_oneof![Just(Remote::Unknown), Just(Remote::Absent), Just(Remote::Present), Just(Remote::Gone)]
    }

    proptest! {
        #[test]
        fn nothing_is_sent_twice_and_nothing_forgotten_that_may_run(
            phase in prop_oneof![Just("Pending"), Just("Running"), Just("Succeeded"), Just("Failed"), Just("")],
            submitted in any::<bool>(), confirmed in any::<bool>(), deleted in any::<bool>(),
            deadline in proptest::option::of(0i64..200), remote in any_remote(), ended in any::<bool>(),
            up in any::<bool>(), updates in any::<bool>(), discard in any::<bool>(), now in 0i64..400,
            told in proptest::option::of(any::<u64>()), refresh in proptest::option::of(0i64..400),
        ) {
            let noted: Vec<&str> = [(submitted, SUBMITTED), (confirmed, JOB_ID)].iter().filter(|(on, _)| *on).map(|(_, key)| *key).collect();
            let pod = pod(phase, &noted, deleted, deadline);
            let memory = Memory { remote, ended, told, refresh: refresh.map(at) };
            let step = next(&pod, &memory, Circumstances { up, updates, discard, now: at(now) });
            if step == Step::Submit {
                prop_assert!(up && !deleted && !is_final(phase) && !ended);
                prop_assert!(remote == Remote::Absent || (remote == Remote::Unknown && !submitted && !confirmed));
            }
            if step == Step::Forget {
                prop_assert!(deleted);
                prop_assert!(remote != Remote::Present);
                prop_assert!(remote != Remote::Unknown || (!submitted && !confirmed));
            }
            if matches!(step, Step::Remove | Step::Ask | Step::Update | Step::Refresh) {
                prop_assert!(up, "nothing is tried while nobody answers");
            }
            if step == Step::Remove {
                prop_assert!(deleted || (discard && is_final(phase)), "only what the cluster is to lose is removed");
            }
            if step == Step::Discard {
                prop_assert!(discard && is_final(phase) && !deleted);
                prop_assert!(remote != Remote::Present, "it is removed there first");
                prop_assert!(remote != Remote::Unknown || (!submitted && !confirmed));
            }
        }
    }

    /// What becomes of a pod on its way.
    #[derive(Debug, Clone, Copy)]
    enum Way {
        Good,
        LostBefore,
        AnswerLost,
        AnswerGarbled,
        Refused,
        /// A proxy in between says so, of a pod that has arrived or has not.
        Proxy {
            status: u16,
            arrived: bool,
        },
    }

    impl Way {
        fn arrives(self) -> bool {
            matches!(
                self,
                Self::Good | Self::AnswerLost | Self::AnswerGarbled | Self::Proxy { arrived: true, .. }
            )
        }

        fn answer(self) -> Result<(), InterlinkError> {
            let (path, reason) = ("/create", String::new());
            match self {
                Self::Good => Ok(()),
                Self::LostBefore | Self::AnswerLost => Err(InterlinkError::Away { path, reason }),
                Self::AnswerGarbled => Err(InterlinkError::Unreadable { path, reason }),
                Self::Refused => {
                    let status = http::StatusCode::BAD_REQUEST;
                    Err(InterlinkError::Answer { path, status, words: "no".into() })
                }
                Self::Proxy { status, .. } => {
                    let status = http::StatusCode::from_u16(status).unwrap();
                    Err(InterlinkError::Answer { path, status, words: "<html>".into() })
                }
            }
        }
    }

    fn any_way() -> impl Strategy<Value = Way> {
        use Way::{AnswerGarbled, AnswerLost, Good, LostBefore, Refused};
        let status = proptest::sample::select(vec![408, 500, 502, 503, 504]);
        let proxy = (status, any::<bool>()).prop_map(|(status, arrived)| Way::Proxy { status, arrived });
        let clear =
            prop_oneof![Just(Good), Just(LostBefore), Just(AnswerLost), Just(AnswerGarbled), Just(Refused)];
        prop_oneof![clear, proxy]
    }

    proptest! {
        /// Against a peer to whom each create is a new pod.
        #[test]
        fn whatever_is_lost_a_pod_is_made_once_and_not_forgotten(
            ways in proptest::collection::vec(any_way(), 1..8), deleted_after in 0usize..20,
        ) {
            let around = Circumstances { up: true, updates: false, discard: false, now: at(0) };
            let (mut pod, mut memory) = (pod("Pending", &[], false, None), Memory::default());
            let (mut ways, mut there) = (ways.into_iter(), 0);
            for step in 0..40 {
                if step == deleted_after {
                    pod.metadata.deletion_timestamp = Some(Time(at(1)));
                }
                match next(&pod, &memory, around) {
                    Step::Submit => {
                        let way = ways.next().unwrap_or(Way::Good);
                        pod.metadata.annotations.get_or_insert_default().insert(SUBMITTED.into(), "x".into());
                        there += usize::from(way.arrives());
                        let answer = way.answer();
                        memory.remote = Remote::after_create(answer.as_ref().map(drop));
                        memory.ended = answer.is_err_and(|error| !error.retry());
                    }
                    Step::Ask => memory.remote = if there > 0 { Remote::Present } else { Remote::Absent },
                    Step::Remove => (there, memory.remote) = (0, Remote::Gone),
                    Step::Forget => {
                        prop_assert_eq!(there, 0, "it runs and nobody knows it");
                        break;
                    }
                    _ => {}
                }
                prop_assert!(there <= 1, "it was made twice");
            }
        }
    }

    #[test]
    fn a_pod_that_may_have_been_sent_is_asked_for_first() {
        let around = Circumstances { up: true, updates: true, discard: false, now: at(0) };
        let memory = Memory::default();
        assert_eq!(next(&pod("Pending", &[], false, None), &memory, around), Step::Submit);
        assert_eq!(next(&pod("Pending", &[SUBMITTED], false, None), &memory, around), Step::Ask);
        assert_eq!(next(&pod("Running", &[JOB_ID], false, None), &memory, around), Step::Ask);
    }

    #[test]
    fn a_finished_pod_that_is_not_to_stay_is_removed_there_before_the_cluster_forgets_it() {
        let around = Circumstances { up: true, updates: true, discard: true, now: at(0) };
        let pod = pod("Succeeded", &[SUBMITTED, JOB_ID], false, None);
        let memory = |remote| Memory { remote, ..Default::default() };
        for remote in [Remote::Unknown, Remote::Present] {
            assert_eq!(next(&pod, &memory(remote), around), Step::Remove);
            assert_eq!(next(&pod, &memory(remote), Circumstances { up: false, ..around }), Step::Rest(None));
        }
        assert_eq!(next(&pod, &memory(Remote::Gone), around), Step::Discard);
        assert_eq!(
            next(&pod, &memory(Remote::Present), Circumstances { discard: false, ..around }),
            Step::Rest(None)
        );
    }

    #[test]
    fn a_changed_annotation_is_told_and_our_own_are_not() {
        let around = Circumstances { up: true, updates: true, discard: false, now: at(0) };
        let mut pod = pod("Running", &[JOB_ID], false, None);
        let memory = Memory { remote: Remote::Present, told: Some(fingerprint(&pod)), ..Default::default() };
        pod.metadata.annotations.as_mut().unwrap().insert(SUBMITTED.into(), "y".into());
        assert_eq!(next(&pod, &memory, around), Step::Rest(None));
        pod.metadata.annotations.as_mut().unwrap().insert("tekton.dev/ready".into(), "READY".into());
        assert_eq!(next(&pod, &memory, around), Step::Update);
        assert_eq!(next(&pod, &memory, Circumstances { updates: false, ..around }), Step::Rest(None));
    }

    #[test]
    fn the_deadline_ends_a_pod_and_wakes_in_time() {
        let memory = Memory { remote: Remote::Present, ..Default::default() };
        let around = |now| Circumstances { up: true, updates: false, discard: false, now: at(now) };
        let pod = pod("Running", &[JOB_ID], false, Some(50));
        assert_eq!(next(&pod, &memory, around(120)), Step::Rest(Some(Duration::from_secs(30))));
        assert_eq!(next(&pod, &memory, around(150)), Step::Expire);
    }
}
