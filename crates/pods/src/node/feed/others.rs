//! States from peers of other origin, where one pod can spoil the answer for all: an original's plugin
//! refuses a whole question for a container that is missing or a file that is gone.
//!
//! All pods are asked for in one call. If that is refused each is asked for alone, and whose question is
//! refused then is left out of the next ones and asked for alone now and then.

use std::collections::BTreeSet;

use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;

use crate::node::interlink::InterlinkError;
use crate::node::keeper::Node;
use crate::wire::{PodRef, PodStatus};

/// Of how many rounds one asks for those alone that spoil the answer for others.
const ALONE: usize = 4;

#[derive(Default)]
pub(super) struct Others {
    /// UIDs of pods whose questions are refused.
    spoilers: BTreeSet<String>,
    round: usize,
}

/// What came of a round.
#[derive(Default)]
pub(super) struct Heard {
    pub(super) told: Vec<PodStatus>,
    /// Those of whom nothing said means that they are not known.
    pub(super) answered: Vec<PodRef>,
}

impl Others {
    /// One round of questions.
    pub(super) async fn ask(&mut self, node: &Node, asked: &[PodRef]) -> Heard {
        self.round = self.round.wrapping_add(1);
        self.spoilers.retain(|uid| asked.iter().any(|asked| asked.metadata.uid == *uid));
        let (mut alone, together): (Vec<&PodRef>, Vec<&PodRef>) =
            asked.iter().partition(|asked| self.spoilers.contains(&asked.metadata.uid));
        if !self.round.is_multiple_of(ALONE) {
            alone.clear();
        }
        let mut heard = Heard::default();
        if !together.is_empty() {
            match node.interlink.status(&whole(node, &together)).await {
                Ok(told) => {
                    heard.told = told;
                    heard.answered = together.into_iter().cloned().collect();
                }
                Err(error) => {
                    tracing::warn!(error = %error, "The states of pods could not be read.");
                    if !is_refusal(&error) {
                        return heard;
                    }
                    // From another one each time: some give their last answer for a while to whatever is asked.
                    alone.extend(&together);
                    let first = self.round % alone.len();
                    alone.rotate_left(first);
                }
            }
        }
        for one in alone {
            if !self.ask_alone(node, one, &mut heard).await {
                break;
            }
        }
        heard
    }

    /// Asks for one pod; false if nobody is there to answer.
    async fn ask_alone(&mut self, node: &Node, asked: &PodRef, heard: &mut Heard) -> bool {
        let uid = &asked.metadata.uid;
        match node.interlink.status(&whole(node, &[asked])).await {
            Ok(told) => {
                // An old answer about others says nothing of this one.
                if told.iter().any(|told| told.uid == *uid || told.uid.is_empty()) {
                    self.spoilers.remove(uid);
                }
                heard.told.extend(told);
            }
            Err(error) if is_refusal(&error) => {
                if self.spoilers.insert(uid.clone()) {
                    let (namespace, pod) = (&asked.metadata.namespace, &asked.metadata.name);
                    tracing::warn!(%namespace, %pod, error = %error, "The state of a pod could not be read.");
                }
                if matches!(error, InterlinkError::Answer { status: StatusCode::NOT_FOUND, .. }) {
                    heard.answered.push(asked.clone());
                }
            }
            Err(error) => {
                tracing::debug!(error = %error, "The state of a pod could not be asked for.");
                return false;
            }
        }
        true
    }
}

/// Whether it was heard and refused, rather than not heard.
fn is_refusal(error: &InterlinkError) -> bool {
    matches!(error, InterlinkError::Answer { .. }) && !error.retry()
}

/// The pods as the cluster shows them: plugins of others may read any field.
fn whole(node: &Node, asked: &[&PodRef]) -> Vec<Pod> {
    asked.iter().filter_map(|asked| node.book.get(&asked.metadata.uid)).map(|entry| *entry.pod).collect()
}
