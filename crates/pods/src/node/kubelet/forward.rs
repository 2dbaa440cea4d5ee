//! Port-forward: connections of the caller to a port in the pod.
//!
//! interLink has no call for it, so the connection is made where the pod is, by a small program in
//! one of its containers (`socat`, `nc`, busybox or bash), over the streams of a command.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use tarbet_telemetry::Coded;

use super::upgrade::{Messages, Protocols, upgrade};
use super::{Kubelet, Refusal};
use crate::connect;
use crate::node::interlink::InterlinkError;
use crate::streams::{Driver, Session, Stream};
use crate::websocket::Channel;
use crate::wire::extension::MAX_FRAME;
use crate::wire::{ExecRequest, Frame};

pub(super) const PROTOCOLS: Protocols = Protocols {
    spdy: &["portforward.k8s.io"],
    websocket: &[
        ("SPDY/3.1+portforward.k8s.io", Messages::Spdy),
        ("v4.base64.channel.k8s.io", Messages::TEXT),
        ("v4.channel.k8s.io", Messages::PLAIN),
    ],
};
/// Ports of one WebSocket of channels: as text each has two of ten digits.
const PORTS: usize = 5;
/// Streams that wait for their other half.
const HALVES: usize = 256;
/// What is kept of a failing program's words.
const WORDS: usize = 1000;

type Pairs = Query<Vec<(String, String)>>;

pub(super) async fn forward_uid(
    kubelet: State<Arc<Kubelet>>,
    Path((namespace, pod, uid)): Path<(String, String, String)>,
    query: Pairs,
    request: Request,
) -> Response {
    if let Err(refusal) = kubelet.has(&namespace, &pod, &uid) {
        return refusal.into_response();
    }
    forward(kubelet, Path((namespace, pod)), query, request).await
}

pub(super) async fn forward(
    State(kubelet): State<Arc<Kubelet>>,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Pairs,
    mut request: Request,
) -> Response {
    let entry = match kubelet.pod(&namespace, &name) {
        Ok(entry) => entry,
        Err(refusal) => return refusal.into_response(),
    };
    if !kubelet.node.peer().ping.extensions.exec {
        return Refusal::from(InterlinkError::Unsupported("connections to pods").problem()).into_response();
    }
    let Some(container) = running(&entry.pod) else {
        let text = format!("pod \"{name}\" has no running container to forward to");
        return Refusal::new(StatusCode::BAD_REQUEST, text).into_response();
    };
    let upgrade = match upgrade(&mut request, &PROTOCOLS) {
        Ok(upgrade) => upgrade,
        Err(answer) => return *answer,
    };
    let channels = if upgrade.opens_streams() { Ok(Vec::new()) } else { channels(&query) };
    let channels = match channels {
        Ok(channels) => channels,
        Err(text) => return Refusal::new(StatusCode::BAD_REQUEST, text).into_response(),
    };
    let target = ExecRequest {
        namespace,
        pod_uid: entry.uid().to_owned(),
        container,
        command: Vec::new(),
        stdin: true,
        tty: false,
    };
    let handler = Arc::clone(&kubelet);
    upgrade.accept(&kubelet, channels, move |session, driver| async move {
        serve(session, driver, &handler, &target).await;
    })
}

/// Two channels for each port that the request names; each begins with the port in two bytes.
fn channels(query: &[(String, String)]) -> Result<Vec<Channel>, String> {
    let named = query.iter().filter(|(key, _)| key == "port").flat_map(|(_, ports)| ports.split(','));
    let mut channels = Vec::new();
    for (text, number) in named.zip((0..).step_by(2)) {
        let port: u16 = text
            .trim()
            .parse()
            .ok()
            .filter(|&port| port > 0)
            .ok_or_else(|| format!("`{text}` is no port"))?;
        if channels.len() == 2 * PORTS {
            return Err(format!("one connection carries at most {PORTS} ports"));
        }
        for (number, kind) in [(number, "data"), (number + 1, "error")] {
            let mut channel = Channel::new(number, kind);
            channel.headers.push(("port".into(), port.to_string()));
            channel.headers.push(("requestid".into(), format!("channels-{text}-{}", number / 2)));
            channel.greeting = Some(Bytes::copy_from_slice(&port.to_le_bytes()));
            channels.push(channel);
        }
    }
    if channels.is_empty() { Err("you must name at least one port".into()) } else { Ok(channels) }
}

/// The first container that runs; all share the pod's network.
fn running(pod: &Pod) -> Option<String> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let runs =
        statuses.iter().find(|status| status.state.as_ref().is_some_and(|state| state.running.is_some()));
    runs.map(|status| status.name.clone())
}

#[derive(Default)]
struct Pair {
    data: Option<Stream>,
    error: Option<Stream>,
}

async fn serve(mut session: Session, mut driver: Driver, kubelet: &Kubelet, target: &ExecRequest) {
    let mut halves: HashMap<String, Pair> = HashMap::new();
    let mut connections = FuturesUnordered::new();
    let mut more = true;
    loop {
        tokio::select! {
            ended = &mut driver => {
                if let Err(error) = ended {
                    tracing::debug!(error = %error, "A forward's connection ended.");
                }
                return;
            }
            stream = session.next(), if more => {
                let Some(stream) = stream else {
                    more = false;
                    continue;
                };
                let Some((request, port)) = label(&stream) else {
                    stream.writer.reset().await;
                    continue;
                };
                if halves.len() >= HALVES && !halves.contains_key(&request) {
                    stream.writer.reset().await;
                    continue;
                }
                let pair = halves.entry(request.clone()).or_default();
                if stream.header("streamtype") == Some("data") {
                    pair.data = Some(stream);
                } else {
                    pair.error = Some(stream);
                }
                if let Some(Pair { data: Some(data), error: Some(error) }) =
                    halves.get(&request).is_some_and(|pair| pair.data.is_some() && pair.error.is_some())
                        .then(|| halves.remove(&request)).flatten()
                {
                    connections.push(carry(kubelet, target, port, data, error));
                }
            }
            Some(()) = connections.next(), if !connections.is_empty() => {
                // No other can begin: channels cannot be opened.
                if !more && connections.is_empty() {
                    session.close().await;
                }
            }
        }
    }
}

/// The request a stream belongs to and the port it is for.
fn label(stream: &Stream) -> Option<(String, u16)> {
    let port = stream.header("port")?.parse::<u16>().ok().filter(|&port| port > 0)?;
    let kind = stream.header("streamtype").filter(|kind| matches!(*kind, "data" | "error"))?;
    let request = match stream.header("requestid") {
        Some(id) if !id.is_empty() => id.to_owned(),
        // Old callers name none, but open the two in a row.
        _ if kind == "error" => stream.id.to_string(),
        _ => stream.id.saturating_sub(2).to_string(),
    };
    Some((request, port))
}

async fn carry(kubelet: &Kubelet, target: &ExecRequest, port: u16, mut data: Stream, error: Stream) {
    if let Err(reason) = relay(kubelet, target, port, &mut data).await {
        let text = format!("error forwarding port {port} to pod, uid {}: {reason}", target.pod_uid);
        error.writer.send(text.into()).await;
    }
    data.writer.finish().await;
    error.writer.finish().await;
}

async fn relay(kubelet: &Kubelet, target: &ExecRequest, port: u16, data: &mut Stream) -> Result<(), String> {
    let request = ExecRequest { command: connect::command(port), ..target.clone() };
    let frames = kubelet.node.interlink.exec(&request).await.map_err(|error| error.problem().to_string())?;
    let (mut input, mut output) = (frames.input, frames.output);
    let (reader, writer) = (&mut data.reader, &data.writer);
    let send = async {
        while let Some(mut piece) = reader.next().await {
            while !piece.is_empty() {
                let part = piece.split_to(piece.len().min(MAX_FRAME));
                if !input.send(&Frame::Stdin(part)).await {
                    return;
                }
            }
        }
        input.send(&Frame::Stdin(Bytes::new())).await;
        std::future::pending::<()>().await;
    };
    let hear = async {
        let mut words = Vec::new();
        loop {
            match output.next().await {
                Frame::Stdout(bytes) => {
                    if !writer.send(bytes).await {
                        return Ok(());
                    }
                }
                Frame::Stderr(bytes) => {
                    words.extend_from_slice(&bytes);
                    words.truncate(WORDS);
                }
                Frame::Exit(0) => return Ok(()),
                Frame::Exit(code) => {
                    let words = String::from_utf8_lossy(&words).trim().to_owned();
                    return Err(format!(
                        "the connection could not be made in the pod (code {code}): {words}"
                    ));
                }
                Frame::Failed(reason) => return Err(reason),
                Frame::Stdin(_) | Frame::Resize(..) => {}
            }
        }
    };
    tokio::select! {
        end = hear => end,
        () = send => Ok(()),
    }
}
