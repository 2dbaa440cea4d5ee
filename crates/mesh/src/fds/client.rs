//! The asking side: one task hears one peer, for as long as it is subscribed.

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tarbet_link::{Dialer, LinkError, Target};
use tokio::sync::{Notify, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::inbox::{Inbox, Limits, Refused, Taken};
use super::proto::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use super::proto::discovery::{DeltaDiscoveryRequest, DiscoveryRequest};
use super::proto::node::Node;
use super::proto::rpc;
use super::{TYPE_URL, Version};

/// The first pause after a failure, and the longest; the original always waits for the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// A connection that is not up by then will not be.
const DIAL: Duration = Duration::from_secs(10);
/// A peer that vanished without a word is noticed within this and the time it has to answer.
const PING: Duration = Duration::from_secs(10);
/// The same for peers of other origin: gRPC servers in Go end connections that are asked more often than every five
/// minutes.
const RARE_PING: Duration = Duration::from_secs(330);
const PONG: Duration = Duration::from_secs(5);
/// Between two states of one peer: a peer that changes faster is heard at this pace.
const PACE: Duration = Duration::from_millis(20);

/// The way to a peer's discovery.
#[derive(Clone)]
pub struct Way {
    /// Opens the connection.
    pub dialer: Arc<dyn Dialer>,
    /// What it opens.
    pub target: Target,
    /// The name by which the peer's proxy knows its discovery.
    pub authority: String,
}

/// One subscription.
#[derive(Clone)]
pub struct Subscription {
    /// This mesh.
    pub local: String,
    /// The peer.
    pub mesh: String,
    /// How it is reached.
    pub way: Way,
    /// How much of it is borne.
    pub limits: Limits,
    /// The version known from before.
    pub known: Option<Version>,
    /// Asks for a fresh start: all that is known of the peer was given up.
    pub restart: Arc<Notify>,
}

/// What is heard of a peer.
#[derive(Debug)]
pub enum Heard {
    /// A state.
    State(Taken),
    /// Something that was not taken over.
    Refused(Refused),
    /// It does not answer, for this reason; it is tried again.
    Lost(String),
}

/// Why a stream ended.
enum End {
    Failed(String),
    /// The peer knows no changes: ask for whole states.
    NoChanges,
    Restart,
}

/// Hears a peer until the future is dropped.
pub async fn subscribe(subscription: Subscription, mut tell: impl FnMut(Heard)) {
    let Subscription { mesh, limits, known, restart, .. } = &subscription;
    let mut inbox = Inbox::new(mesh, *limits, known.clone());
    let (mut changes, mut pause) = (true, PAUSES.0);
    loop {
        let mut answered = false;
        let mut told = |heard: Heard| {
            answered |= matches!(heard, Heard::State(_));
            tell(heard);
        };
        let end = tokio::select! {
            end = one_stream(&subscription, &mut inbox, changes, &mut told) => end,
            () = restart.notified() => End::Restart,
        };
        if answered {
            pause = PAUSES.0;
        }
        match end {
            End::NoChanges => {
                changes = false;
                continue;
            }
            End::Restart => {
                inbox = Inbox::new(mesh, *limits, None);
                continue;
            }
            End::Failed(cause) => {
                // A peer that was replaced by another version may know changes now.
                changes = true;
                tell(Heard::Lost(cause));
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause.mul_f64(rand::random_range(0.7..1.0))) => {}
            () = restart.notified() => inbox = Inbox::new(mesh, *limits, None),
        }
        pause = (pause * 2).min(PAUSES.1);
    }
}

async fn one_stream(
    subscription: &Subscription,
    inbox: &mut Inbox,
    changes: bool,
    tell: &mut impl FnMut(Heard),
) -> End {
    inbox.reconnect();
    let ping = if changes { PING } else { RARE_PING };
    let channel = match connect(&subscription.way, ping).await {
        Ok(channel) => channel,
        Err(error) => return End::Failed(tarbet_telemetry::problem::chain(&error)),
    };
    let client =
        AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(subscription.limits.message);
    let ended = if changes {
        hear_changes(client, subscription, inbox, tell).await
    } else {
        hear_whole(client, subscription, inbox, tell).await
    };
    match ended {
        Err(status) if changes && status.code() == Code::Unimplemented => End::NoChanges,
        Err(status) => End::Failed(words(&status)),
        Ok(()) => End::Failed("the peer ended the stream".to_owned()),
    }
}

async fn connect(way: &Way, ping: Duration) -> Result<Channel, tonic::transport::Error> {
    let Way { dialer, target, authority } = way.clone();
    let endpoint = Endpoint::from_shared(format!("http://{authority}"))?
        .connect_timeout(DIAL)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .http2_keep_alive_interval(ping)
        .keep_alive_timeout(PONG)
        .keep_alive_while_idle(true);
    let connector = tower::service_fn(move |_: Uri| {
        let (dialer, target) = (Arc::clone(&dialer), target.clone());
        async move { Ok::<_, LinkError>(TokioIo::new(dialer.open(target).await?)) }
    });
    endpoint.connect_with_connector(connector).await
}

type Client = AggregatedDiscoveryServiceClient<Channel>;

async fn hear_changes(
    mut client: Client,
    subscription: &Subscription,
    inbox: &mut Inbox,
    tell: &mut impl FnMut(Heard),
) -> Result<(), Status> {
    let (sender, requests) = mpsc::channel(4);
    let first = DeltaDiscoveryRequest {
        node: Some(node(subscription)),
        type_url: TYPE_URL.to_owned(),
        initial_resource_versions: inbox.versions(),
        ..DeltaDiscoveryRequest::default()
    };
    let _ = sender.send(first).await;
    let mut answers = client.delta_aggregated_resources(ReceiverStream::new(requests)).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        let taken = inbox.changes(&answer);
        let refused = taken.as_ref().err().cloned();
        let reply = DeltaDiscoveryRequest {
            type_url: TYPE_URL.to_owned(),
            response_nonce: answer.nonce,
            error_detail: refused.as_ref().map(detail),
            ..DeltaDiscoveryRequest::default()
        };
        // A peer that is just leaving does not need to know.
        let _ = sender.send(reply).await;
        match (taken, refused) {
            (Ok(Some(taken)), _) => {
                tell(Heard::State(taken));
                tokio::time::sleep(PACE).await;
            }
            (Ok(None), _) | (Err(_), None) => {}
            (Err(refused), _) => {
                // What follows would build on what was refused: hear all of it again.
                inbox.forget();
                let cause = refused.to_string();
                tell(Heard::Refused(refused));
                return Err(Status::failed_precondition(cause));
            }
        }
    }
    Ok(())
}

async fn hear_whole(
    mut client: Client,
    subscription: &Subscription,
    inbox: &mut Inbox,
    tell: &mut impl FnMut(Heard),
) -> Result<(), Status> {
    let (sender, requests) = mpsc::channel(4);
    // The original answers only requests without a version.
    let first = DiscoveryRequest {
        node: Some(node(subscription)),
        type_url: TYPE_URL.to_owned(),
        ..DiscoveryRequest::default()
    };
    let _ = sender.send(first).await;
    let mut answers = client.stream_aggregated_resources(ReceiverStream::new(requests)).await?.into_inner();
    let mut accepted = String::new();
    while let Some(answer) = answers.message().await? {
        let taken = inbox.whole(&answer);
        if taken.is_ok() {
            accepted.clone_from(&answer.version_info);
        }
        // The last accepted version with an error is a refusal. Without any version the original
        // would take it for a new question.
        if !accepted.is_empty() {
            let reply = DiscoveryRequest {
                version_info: accepted.clone(),
                type_url: TYPE_URL.to_owned(),
                response_nonce: answer.nonce,
                error_detail: taken.as_ref().err().map(detail),
                ..DiscoveryRequest::default()
            };
            let _ = sender.send(reply).await;
        }
        tell(taken.map_or_else(Heard::Refused, Heard::State));
        tokio::time::sleep(PACE).await;
    }
    Ok(())
}

fn node(subscription: &Subscription) -> Node {
    Node { id: subscription.local.clone(), metadata: None }
}

fn detail(refused: &Refused) -> rpc::Status {
    rpc::Status { code: Code::InvalidArgument as i32, message: refused.to_string(), details: Vec::new() }
}

/// What a status says, without the peer's own words beyond a line.
fn words(status: &Status) -> String {
    let said: String = status.message().chars().take(200).collect();
    format!("{}: {said}", status.code())
}
