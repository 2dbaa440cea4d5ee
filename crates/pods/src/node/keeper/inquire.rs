//! Asks for one pod, and knows what silence means.

use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use super::Node;
use crate::node::book::Entry;
use crate::node::interlink::InterlinkError;
use crate::wire::{Origin, PodRef, PodStatus};

/// The original's plugin for Slurm gives its last answer for ten seconds to whatever it is asked, so that a
/// pod it has seems not to be there. Asked after that time it has to look.
const REMEMBERS: Duration = Duration::from_secs(11);

/// What the other side says of a pod.
pub(super) enum Inquiry {
    /// It has it.
    Known(PodStatus),
    /// It does not have it.
    Absent,
    /// It says nothing, and must be asked again after this time for that to count.
    Unsure(Duration),
}

impl Node {
    pub(super) async fn inquire(&self, entry: &Entry, origin: Origin) -> Result<Inquiry, InterlinkError> {
        let answer = if origin.is_ours() {
            self.interlink.status(&[PodRef::from(&*entry.pod)]).await
        } else {
            self.interlink.status(&[&*entry.pod]).await
        };
        let inquiry = match answer {
            Ok(told) => match told.into_iter().find(|told| is_of(told, entry) && says_something(told)) {
                Some(told) => Inquiry::Known(told),
                None if origin.is_ours() => Inquiry::Absent,
                None => {
                    let now = Instant::now();
                    let since = self.book.change(entry.uid(), |record| *record.missed.get_or_insert(now));
                    silence(since.map_or(Duration::ZERO, |since| now.duration_since(since)))
                }
            },
            // It looked, and said so.
            Err(InterlinkError::Answer { status: StatusCode::NOT_FOUND, .. }) => Inquiry::Absent,
            Err(error) => return Err(error),
        };
        if !matches!(inquiry, Inquiry::Unsure(_)) {
            // Whatever becomes of the pod now, its silence is counted anew.
            self.book.change(entry.uid(), |record| record.missed = None);
        }
        Ok(inquiry)
    }
}

/// What nothing said for this long means.
fn silence(lasts: Duration) -> Inquiry {
    if lasts >= REMEMBERS { Inquiry::Absent } else { Inquiry::Unsure(REMEMBERS.saturating_sub(lasts)) }
}

/// Whether a state is of this pod; peers of 2023 tell names only.
fn is_of(told: &PodStatus, entry: &Entry) -> bool {
    if told.uid.is_empty() {
        entry.key() == (told.namespace.clone(), told.name.clone())
    } else {
        told.uid == entry.uid()
    }
}

/// Whether a state says anything about any container.
fn says_something(told: &PodStatus) -> bool {
    told.containers.iter().chain(&told.init_containers).any(|container| {
        container.state.as_ref().is_some_and(|state| {
            state.running.is_some() || state.terminated.is_some() || state.waiting.is_some()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_once_it_is_longer_than_an_old_answer_is_given() {
        let Inquiry::Unsure(wait) = silence(Duration::from_secs(2)) else { panic!("believed too soon") };
        assert!(matches!(silence(Duration::from_secs(2) + wait), Inquiry::Absent));
        assert!(matches!(silence(Duration::from_secs(10)), Inquiry::Unsure(_)));
    }
}
