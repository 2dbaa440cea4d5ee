//! What an agent tells its kas of itself, and what it is told.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::Core;
use crate::kas::frame::put;
use crate::kas::outbox::{End, OutboxBody, outbox};
use crate::kas::prefix::Rpc;
use crate::kas::proto::{agent_configuration, agent_registrar};

/// How long a kas may take to answer.
const ANSWER: Duration = Duration::from_secs(20);
/// How long it may take when the agent leaves.
const GOODBYE: Duration = Duration::from_secs(2);

/// Registers again and again, and takes it back at the end.
pub(super) async fn stay_registered(core: Arc<Core>, stop: CancellationToken) {
    let mut failures = 0;
    let mut registered = false;
    loop {
        let outcome = tokio::select! {
            () = stop.cancelled() => break,
            outcome = register(&core) => outcome,
        };
        let pause = match outcome {
            Ok(()) => {
                (failures, registered) = (0, true);
                core.no_trouble();
                core.config.register_every
            }
            Err(status) => {
                tracing::debug!(code = ?status.code(), cause = status.message(), "The agent could not register.");
                failures += 1;
                core.config.retry.delay(failures - 1, rand::random())
            }
        };
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(pause) => {}
        }
    }
    if registered {
        let request = agent_registrar::UnregisterRequest {
            agent_meta: Some(core.config.meta.clone()),
            pod_id: core.config.pod_id,
        };
        // Older ones do not know it, and forget the agent by themselves.
        let _ = tokio::time::timeout(GOODBYE, unary(&core, Rpc::Unregister, &request)).await;
    }
}

async fn register(core: &Core) -> Result<(), Status> {
    let request = agent_registrar::RegisterRequest {
        agent_meta: Some(core.config.meta.clone()),
        pod_id: core.config.pod_id,
    };
    unary(core, Rpc::Register, &request).await
}

/// Follows the configuration.
pub(super) async fn follow_configuration(core: Arc<Core>, stop: CancellationToken) {
    let (mut failures, mut commit) = (0u32, String::new());
    loop {
        let outcome = tokio::select! {
            () = stop.cancelled() => return,
            outcome = configuration(&core, &mut commit) => outcome,
        };
        let pause = match outcome {
            Ok(()) => {
                failures = 0;
                core.config.reconnect.delay(0, rand::random())
            }
            Err(status) => {
                tracing::debug!(code = ?status.code(), cause = status.message(), "The agent is not being configured.");
                failures = failures.saturating_add(1);
                core.config.retry.delay(failures - 1, rand::random())
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

/// Until the kas ends the stream.
async fn configuration(core: &Core, commit: &mut String) -> Result<(), Status> {
    let request = agent_configuration::ConfigurationRequest {
        commit_id: commit.clone(),
        agent_meta: Some(core.config.meta.clone()),
        skip_register: true,
    };
    let mut answer =
        core.channel.call(Rpc::GetConfiguration.path(core.config.prefix), whole(&request)).await?;
    while let Some(message) = answer.message().await? {
        let response = agent_configuration::ConfigurationResponse::decode(message)
            .map_err(|_| Status::invalid_argument("kas → agent: the configuration cannot be read"))?;
        if response.commit_id.is_empty() {
            return Err(Status::invalid_argument("kas → agent: the configuration names no commit"));
        }
        *commit = response.commit_id;
        core.configuration.send_replace(response.configuration);
    }
    Ok(())
}

async fn unary(core: &Core, rpc: Rpc, request: &impl Message) -> Result<(), Status> {
    let exchange = async {
        let mut answer = core.channel.call(rpc.path(core.config.prefix), whole(request)).await?;
        while answer.message().await?.is_some() {}
        Ok(())
    };
    tokio::time::timeout(ANSWER, exchange)
        .await
        .unwrap_or_else(|_| Err(Status::deadline_exceeded("agent → kas: it did not answer in time")))
}

/// A request of one message.
fn whole(message: &impl Message) -> OutboxBody {
    let (outbox, body) = outbox();
    outbox.push(|buffer| put(buffer, message));
    outbox.finish(End::Eof);
    body
}
