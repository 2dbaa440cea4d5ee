//! How pods are, as it is told.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus};

use super::pod::Pod;
use super::states::{JobView, Marks, container_state};
use super::{Batch, aside};
use crate::plan::{Container, Restart};
use crate::runner::Turn;
use crate::wire::PodStatus;

/// All last messages of a pod together, as kubelets cut them.
const MESSAGES_LIMIT: usize = 12_288;

impl Batch {
    /// How these pods are.
    pub(super) async fn statuses(&self, pods: Vec<Arc<Pod>>) -> Vec<PodStatus> {
        let stale = self.queue().failing.as_ref().map_or(0, |(since, _)| since.elapsed().as_secs().max(1));
        let seen: Vec<(Arc<Pod>, Vec<JobView>)> = pods
            .into_iter()
            .map(|pod| {
                let views = pod.shares().map(|share| self.view(&pod, share)).collect();
                (pod, views)
            })
            .collect();
        aside(move || seen.iter().map(|(pod, views)| status_of(pod, views, stale)).collect()).await
    }
}

/// Reads the files of a pod; `views` are its jobs as the queue was seen.
fn status_of(pod: &Pod, views: &[JobView], stale_seconds: u64) -> PodStatus {
    let known = pod.known();
    let plan = &known.plan;
    let mut turn = Turn::Now;
    let mut room = MESSAGES_LIMIT;
    let mut statuses = Vec::new();
    for (at, container) in plan.all().enumerate() {
        let mut marks = pod.marks(container, at < plan.init.len());
        let share = pod.share_of(container);
        let view = views.get(share.place()).unwrap_or(&JobView::Unknown);
        if marks.ended.is_none() && view.is_over() {
            marks.said = pod.last_words(share);
        }
        for text in [&mut marks.message, &mut marks.said] {
            text.truncate(text.floor_char_boundary(room));
            room -= text.len();
        }
        let state = container_state(&marks, view, turn);
        if at < plan.init.len() {
            // A status is the last word: restarts happen before it is written.
            let code = marks.ended.map(|(code, _)| i64::from(code));
            turn = turn.after_init(container, marks.started.is_some(), code, Restart::Never);
        }
        statuses.push(status_of_container(container, state, &marks, pod.job_of(share).as_deref()));
    }
    let containers = statuses.split_off(plan.init.len());
    PodStatus {
        name: pod.id.name.clone(),
        uid: pod.id.uid.clone(),
        namespace: pod.id.namespace.clone(),
        jid: pod.job_ids(),
        containers,
        init_containers: statuses,
        pod_ip: pod.address().map(|address| address.to_string()).unwrap_or_default(),
        stale_seconds,
    }
}

fn status_of_container(
    container: &Container,
    state: ContainerState,
    marks: &Marks,
    job: Option<&str>,
) -> ContainerStatus {
    let before = marks.before.map(|code| ContainerStateTerminated {
        exit_code: code,
        reason: Some(if code == 0 { "Completed" } else { "Error" }.into()),
        ..Default::default()
    });
    ContainerStatus {
        restart_count: marks.restarts,
        name: container.name.clone(),
        image: container.image.clone(),
        image_id: container.image.clone(),
        container_id: job.map(|job| format!("job://{job}/{}", container.name)),
        ready: state.running.is_some(),
        started: Some(state.running.is_some()),
        last_state: Some(ContainerState { terminated: before, ..Default::default() }),
        state: Some(state),
        ..Default::default()
    }
}
