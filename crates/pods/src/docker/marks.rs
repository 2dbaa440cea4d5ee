//! What is noted of containers in the pod's own folder: that one was started, and how it ended. Docker knows
//! neither any more once the host's owner has pruned what has ended.

use super::Docker;
use super::machine::{Slot, State};
use super::observe::Seen;
use super::pod::Pod;
use crate::error::RunError;
use crate::folder::part;
use crate::plan::Plan;

/// Where it is noted that a container is about to be started for the first time.
const STARTED: &str = "started";
/// Where it is noted how a container ended.
const ENDED: &str = "ended";
/// More than any note of an end has.
const NOTE_LIMIT: u64 = 64 * 1024;

impl Docker {
    /// The container in a slot as Docker has it, or as it ended before somebody removed it.
    pub(super) fn seen(&self, pod: &Pod, slot: &Slot) -> Option<Seen> {
        self.observed.get(&pod.name_of(slot)).or_else(|| pod.noted_end(slot))
    }

    /// What there is in a slot of a pod.
    pub(super) fn state(&self, pod: &Pod, slot: &Slot) -> State {
        match (self.seen(pod, slot), slot) {
            (Some(seen), _) => seen.state,
            (None, Slot::Container(_)) if pod.was_started(slot) => State::Lost,
            (None, _) => State::Absent,
        }
    }

    /// Notes the ends that were seen. A note that cannot be written costs nothing until somebody prunes.
    pub(super) fn note_ends(&self, pod: &Pod, plan: &Plan) {
        for container in plan.all() {
            let slot = Slot::Container(container.name.clone());
            if let Some(seen) = self.observed.get(&pod.name_of(&slot))
                && matches!(seen.state, State::Ended(_))
                && let Err(error) = pod.note_end(&slot, &seen)
            {
                tracing::warn!(pod = %pod.id, error = %error, "The end of a container could not be noted.");
            }
        }
    }
}

impl Pod {
    fn mark(&self, slot: &Slot) -> Option<String> {
        match slot {
            Slot::Pause => None,
            Slot::Container(name) => Some(format!("{name}-{}", self.generation(name))),
        }
    }

    pub(super) fn note_started(&self, slot: &Slot) -> Result<(), RunError> {
        let Some(mark) = self.mark(slot) else { return Ok(()) };
        let noted = self.folder.child(&part(STARTED), 0o700).and_then(|folder| folder.touch(&mark, 0o600));
        noted.map_err(RunError::folder("note the start of a container"))
    }

    fn was_started(&self, slot: &Slot) -> bool {
        let mark = self.mark(slot);
        mark.is_some_and(|mark| self.folder.enter(STARTED).is_ok_and(|folder| folder.has(&mark)))
    }

    fn note_end(&self, slot: &Slot, seen: &Seen) -> Result<(), RunError> {
        let Some(mark) = self.mark(slot) else { return Ok(()) };
        let noted = self.folder.child(&part(ENDED), 0o700).and_then(|folder| {
            let note = serde_json::to_vec(seen)?;
            // A container that Docker ran again ends anew.
            match folder.read(&mark, NOTE_LIMIT) {
                Ok(before) if before == note => Ok(()),
                _ => folder.write(&mark, &note, 0o600),
            }
        });
        noted.map_err(RunError::folder("note the end of a container"))
    }

    fn noted_end(&self, slot: &Slot) -> Option<Seen> {
        let mark = self.mark(slot)?;
        let note = self.folder.enter(ENDED).and_then(|folder| folder.read(&mark, NOTE_LIMIT)).ok()?;
        serde_json::from_slice(&note).ok()
    }
}
