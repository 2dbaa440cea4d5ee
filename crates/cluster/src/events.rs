//! Events on objects, for `kubectl describe`. They are told, never relied on.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

/// Kubernetes refuses longer notes.
const NOTE: usize = 1000;

/// How serious an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// All is well.
    Normal,
    /// Somebody should look.
    Warning,
}

/// Tells events of one cluster; repeated ones are counted rather than added.
#[derive(Clone)]
pub struct Events {
    recorder: Option<Recorder>,
}

impl Events {
    /// Events in the name of this controller.
    pub fn new(client: Client, controller: &str) -> Self {
        Self { recorder: Some(Recorder::new(client, Reporter::from(controller))) }
    }

    /// Tells nothing, for clusters where events are not wanted.
    pub fn silent() -> Self {
        Self { recorder: None }
    }

    /// Tells that `reason` happened to an object while doing `action`. A failure is only logged.
    pub async fn tell(
        &self,
        about: &ObjectReference,
        severity: Severity,
        action: &str,
        reason: &str,
        note: &str,
    ) {
        let Some(recorder) = &self.recorder else { return };
        let event = Event {
            type_: match severity {
                Severity::Normal => EventType::Normal,
                Severity::Warning => EventType::Warning,
            },
            reason: reason.to_owned(),
            note: Some(clip(note)),
            action: action.to_owned(),
            secondary: None,
        };
        if let Err(error) = recorder.publish(&event, about).await {
            let cause = crate::describe(&error);
            tracing::debug!(object = ?about.name, reason, cause, "An event could not be told.");
        }
    }
}

fn clip(note: &str) -> String {
    if note.len() <= NOTE {
        return note.to_owned();
    }
    let end = (0..=NOTE - 3).rev().find(|&end| note.is_char_boundary(end)).unwrap_or(0);
    format!("{}…", &note[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_notes_are_clipped_between_characters() {
        for text in ["short".to_owned(), "x".repeat(5000), "é".repeat(900), "𝄞".repeat(900)] {
            let clipped = clip(&text);
            assert!(clipped.len() <= NOTE, "{}", clipped.len());
            assert!(text.starts_with(clipped.trim_end_matches('…')));
        }
    }
}
