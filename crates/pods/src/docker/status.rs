//! The state of a container in Kubernetes' words.

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::machine::State;
use super::observe::Seen;
use crate::plan::Container;
use crate::runner::Turn;

/// Why a container is not there yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Everything that is known of a container.
pub(super) struct Facts<'a> {
    pub(super) container: &'a Container,
    pub(super) seen: Option<&'a Seen>,
    /// It was started once and is no more.
    pub(super) lost: bool,
    pub(super) turn: Turn,
    pub(super) waiting: Option<&'a Waiting>,
    pub(super) message: Option<String>,
    pub(super) replaced: u32,
}

pub(super) fn container_status(facts: Facts<'_>) -> ContainerStatus {
    let Facts { container, seen, lost, turn, waiting, message, replaced } = facts;
    let mut status = ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone(),
        image_id: seen.map(|seen| format!("docker://{}", seen.image)).unwrap_or_default(),
        container_id: seen.map(|seen| format!("docker://{}", seen.id)),
        restart_count: seen
            .map_or(0, |seen| seen.restarts)
            .saturating_add(i32::try_from(replaced).unwrap_or(i32::MAX)),
        last_state: Some(ContainerState::default()),
        ..Default::default()
    };
    let mut state = ContainerState::default();
    match seen {
        Some(seen) if seen.restarting => {
            let text = format!("it ended with code {} and is started again", seen.exit_code);
            state.waiting = Some(reason("CrashLoopBackOff", &text));
            let last = ContainerState { terminated: Some(terminated(seen, message)), ..Default::default() };
            status.last_state = Some(last);
        }
        Some(seen) if seen.state == State::Running => {
            state.running = Some(ContainerStateRunning { started_at: seen.started.map(Time) });
            status.ready = true;
        }
        Some(seen) if matches!(seen.state, State::Ended(_)) => {
            state.terminated = Some(terminated(seen, message));
        }
        _ if lost => {
            state.terminated = Some(ContainerStateTerminated {
                exit_code: 137,
                reason: Some("ContainerStatusUnknown".into()),
                message: Some("the container was removed from Docker by somebody else".into()),
                ..Default::default()
            });
        }
        _ if turn == Turn::Never => state.terminated = Some(Turn::never()),
        _ => {
            state.waiting = Some(match waiting {
                Some(waiting) => reason(waiting.reason, &waiting.message),
                None if turn == Turn::Later => reason("PodInitializing", ""),
                None => reason("ContainerCreating", ""),
            });
        }
    }
    status.started = Some(state.running.is_some());
    status.state = Some(state);
    status
}

fn reason(reason: &str, message: &str) -> ContainerStateWaiting {
    let message = (!message.is_empty()).then(|| message.to_owned());
    ContainerStateWaiting { reason: Some(reason.to_owned()), message }
}

fn terminated(seen: &Seen, message: Option<String>) -> ContainerStateTerminated {
    let reason = match (seen.error.is_empty(), seen.out_of_memory, seen.exit_code) {
        (false, _, _) if seen.started.is_none() => "StartError",
        (_, true, _) => "OOMKilled",
        (_, _, 0) => "Completed",
        _ => "Error",
    };
    let message = if reason == "StartError" { Some(seen.error.clone()) } else { message };
    ContainerStateTerminated {
        exit_code: i32::try_from(seen.exit_code).unwrap_or(255),
        reason: Some(reason.into()),
        message: message.filter(|text| !text.is_empty()),
        started_at: seen.started.map(Time),
        finished_at: seen.finished.map(Time),
        container_id: Some(format!("docker://{}", seen.id)),
        ..Default::default()
    }
}
