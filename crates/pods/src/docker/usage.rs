//! What containers use, and the end of one that has to begin again.

use std::net::IpAddr;
use std::time::Duration;

use bollard::Docker as Api;
use bollard::query_parameters::{
    InspectContainerOptions, KillContainerOptions, RestartContainerOptions, StatsOptions,
    StopContainerOptions,
};
use futures::{StreamExt, TryStreamExt, stream};

use super::engine::{failed, status};
use super::observe;
use crate::error::RunError;
use crate::plan::Restart;
use crate::wire::{ContainerUsage, PodUsage};

/// Questions to the daemon at once.
const AT_ONCE: usize = 16;

/// What the running containers of pods use: UIDs with their containers' names, in the pod and in Docker.
pub(super) async fn read(
    api: &Api,
    pods: Vec<(String, Vec<(String, String)>)>,
) -> Result<Vec<PodUsage>, RunError> {
    let asked = pods.into_iter().map(|(uid, containers)| async move {
        let mut found = PodUsage { uid, containers: Vec::new() };
        for (name, docker) in containers {
            let options = StatsOptions { stream: false, one_shot: true };
            // One that ended meanwhile uses nothing.
            let Ok(Some(stats)) = api.stats(&docker, Some(options)).try_next().await else { continue };
            let cpu = stats.cpu_stats.and_then(|cpu| cpu.cpu_usage).and_then(|usage| usage.total_usage);
            let memory = stats.memory_stats.unwrap_or_default();
            let cached = memory.stats.as_ref().and_then(|parts| {
                ["inactive_file", "total_inactive_file"].iter().find_map(|key| parts.get(*key).copied())
            });
            let used = memory.usage.unwrap_or_default();
            found.containers.push(ContainerUsage {
                name,
                cpu_nanoseconds: cpu.unwrap_or_default(),
                memory_bytes: used.saturating_sub(cached.unwrap_or_default()),
            });
        }
        found
    });
    let found: Vec<PodUsage> = stream::iter(asked).buffer_unordered(AT_ONCE).collect().await;
    Ok(found.into_iter().filter(|pod| !pod.containers.is_empty()).collect())
}

/// The address of a pod's network holder.
pub(super) async fn address(api: &Api, name: &str) -> Option<IpAddr> {
    let seen = api.inspect_container(name, None::<InspectContainerOptions>).await.ok()?;
    observe::address(&seen)
}

/// Ends a container; one whose pod restarts it begins again.
pub(super) async fn end(api: &Api, name: &str, grace: Duration, restart: Restart) -> Result<(), RunError> {
    let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
    let done = match restart {
        // Docker takes a stop as a wish that it stays stopped.
        Restart::Always | Restart::OnFailure => {
            let options = RestartContainerOptions { t: Some(seconds), ..Default::default() };
            api.restart_container(name, Some(options)).await
        }
        Restart::Never if grace.is_zero() => {
            api.kill_container(name, Some(KillContainerOptions { signal: "SIGKILL".into() })).await
        }
        Restart::Never => {
            let options = StopContainerOptions { t: Some(seconds), ..Default::default() };
            api.stop_container(name, Some(options)).await
        }
    };
    match done {
        Err(error) if !matches!(status(&error), Some(304 | 404 | 409)) => {
            Err(failed(format!("end the container `{name}`"))(error))
        }
        _ => Ok(()),
    }
}
