//! Commands in containers: exec, attach and their streams.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tarbet_telemetry::Coded;
use tokio::sync::mpsc;

use super::logs::has_container;
use super::upgrade::{Messages, Protocols, upgrade};
use super::{Kubelet, Refusal};
use crate::node::interlink::InterlinkError;
use crate::streams::{Driver, Session, Stream, StreamReader};
use crate::websocket::Channel;
use crate::wire::extension::MAX_FRAME;
use crate::wire::{ExecRequest, Frame, LogOptions, LogRequest};

/// The protocols of the streams. Before the fourth an end is told as mere text; by SPDY, terminals
/// could not be resized before the third.
pub(super) const PROTOCOLS: Protocols = Protocols {
    spdy: &["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"],
    websocket: &[
        ("v5.channel.k8s.io", Messages::ENDING),
        ("v4.channel.k8s.io", Messages::PLAIN),
        ("v4.base64.channel.k8s.io", Messages::TEXT),
        ("base64.channel.k8s.io", Messages::TEXT),
        ("channel.k8s.io", Messages::PLAIN),
    ],
};
/// The caller opens its streams at once.
const STREAMS: Duration = Duration::from_secs(30);
/// Frames to a command that wait for it to read.
const QUEUE: usize = 16;

type Pairs = Query<Vec<(String, String)>>;
type Names = Path<(String, String, String)>;
type NamesUid = Path<(String, String, String, String)>;

pub(super) async fn exec(
    kubelet: State<Arc<Kubelet>>,
    names: Names,
    query: Pairs,
    request: Request,
) -> Response {
    let State(kubelet) = kubelet;
    let Path((namespace, pod, container)) = names;
    begin(&kubelet, Target { namespace, pod, container }, query.0, Kind::Exec, request)
        .unwrap_or_else(|answer| *answer)
}

pub(super) async fn exec_uid(
    kubelet: State<Arc<Kubelet>>,
    Path((namespace, pod, uid, container)): NamesUid,
    query: Pairs,
    request: Request,
) -> Response {
    if let Err(refusal) = kubelet.has(&namespace, &pod, &uid) {
        return refusal.into_response();
    }
    exec(kubelet, Path((namespace, pod, container)), query, request).await
}

pub(super) async fn attach(
    kubelet: State<Arc<Kubelet>>,
    names: Names,
    query: Pairs,
    request: Request,
) -> Response {
    let State(kubelet) = kubelet;
    let Path((namespace, pod, container)) = names;
    begin(&kubelet, Target { namespace, pod, container }, query.0, Kind::Attach, request)
        .unwrap_or_else(|answer| *answer)
}

pub(super) async fn attach_uid(
    kubelet: State<Arc<Kubelet>>,
    Path((namespace, pod, uid, container)): NamesUid,
    query: Pairs,
    request: Request,
) -> Response {
    if let Err(refusal) = kubelet.has(&namespace, &pod, &uid) {
        return refusal.into_response();
    }
    attach(kubelet, Path((namespace, pod, container)), query, request).await
}

/// Runs a command and answers with all it wrote.
pub(super) async fn run(
    State(kubelet): State<Arc<Kubelet>>,
    Path((namespace, pod, container)): Names,
    Query(query): Pairs,
) -> Result<Response, Refusal> {
    let entry = kubelet.pod(&namespace, &pod)?;
    has_container(&entry.pod, &container)?;
    let text =
        query.iter().find(|(key, _)| key == "cmd").map(|(_, value)| value.as_str()).unwrap_or_default();
    let command: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    let pod_uid = entry.uid().to_owned();
    let request = ExecRequest { namespace, pod_uid, container, command, stdin: false, tty: false };
    let mut frames = kubelet.node.interlink.exec(&request).await?;
    let mut output = BytesMut::new();
    loop {
        match frames.output.next().await {
            Frame::Stdout(bytes) | Frame::Stderr(bytes) => output.extend_from_slice(&bytes),
            Frame::Exit(0) => return Ok(output.freeze().into_response()),
            Frame::Exit(code) => {
                let said = String::from_utf8_lossy(&output).into_owned();
                return Err(Refusal::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    format!("{said}command ended with {code}"),
                ));
            }
            Frame::Failed(reason) => return Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, reason)),
            Frame::Stdin(_) | Frame::Resize(..) => {}
        }
    }
}

struct Target {
    namespace: String,
    pod: String,
    container: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Exec,
    Attach,
}

/// What the caller opens streams for.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl Wanted {
    fn of(query: &[(String, String)]) -> Self {
        let on = |name: &str| {
            query.iter().any(|(key, value)| key == name && matches!(value.as_str(), "1" | "true"))
        };
        let tty = on("tty");
        Self { stdin: on("input"), stdout: on("output"), stderr: on("error") && !tty, tty }
    }

    fn streams(self, resizing: bool) -> usize {
        1 + [self.stdin, self.stdout, self.stderr, self.tty && resizing].iter().filter(|on| **on).count()
    }

    /// The same as channels of a WebSocket, by their usual numbers.
    fn channels(self) -> Vec<Channel> {
        let kinds = [
            (0, "stdin", self.stdin),
            (1, "stdout", self.stdout),
            (2, "stderr", self.stderr),
            (3, "error", true),
            (4, "resize", self.tty),
        ];
        let wanted = kinds.into_iter().filter(|(.., on)| *on);
        let mut channels: Vec<_> = wanted.map(|(number, kind, _)| Channel::new(number, kind)).collect();
        // An empty message on the first that is written tells callers that all is set up.
        if let Some(first) = channels.iter_mut().find(|channel| !channel.heard) {
            first.greeting = Some(Bytes::new());
        }
        channels
    }
}

fn begin(
    kubelet: &Arc<Kubelet>,
    target: Target,
    query: Vec<(String, String)>,
    kind: Kind,
    mut request: Request,
) -> Result<Response, Box<Response>> {
    let refuse = |refusal: Refusal| Box::new(refusal.into_response());
    let entry = kubelet.pod(&target.namespace, &target.pod).map_err(refuse)?;
    has_container(&entry.pod, &target.container).map_err(refuse)?;
    let wanted = Wanted::of(&query);
    if !wanted.stdin && !wanted.stdout && !wanted.stderr {
        let text = "you must specify at least 1 of stdin, stdout, stderr";
        return Err(refuse(Refusal::new(StatusCode::BAD_REQUEST, text)));
    }
    let peer = kubelet.node.peer();
    let missing = match kind {
        _ if !peer.up => {
            Some(InterlinkError::Away { path: "/tarbet/exec", reason: "the last pings failed".into() })
        }
        Kind::Exec if !peer.ping.extensions.exec => {
            Some(InterlinkError::Unsupported("commands in containers"))
        }
        Kind::Attach if wanted.stdin && !peer.ping.extensions.exec => {
            Some(InterlinkError::Unsupported("attaching to a container's input"))
        }
        _ => None,
    };
    if let Some(error) = missing {
        return Err(refuse(error.problem().into()));
    }
    let words = query.into_iter().filter(|(key, _)| kind == Kind::Exec && key == "command");
    let command: Vec<String> = words.map(|(_, word)| word).collect();
    if kind == Kind::Exec && command.is_empty() {
        return Err(refuse(Refusal::new(StatusCode::BAD_REQUEST, "you must specify at least 1 command")));
    }
    let upgrade = upgrade(&mut request, &PROTOCOLS)?;
    let terms = Terms {
        resizing: !upgrade.opens_streams()
            || matches!(upgrade.protocol, "v4.channel.k8s.io" | "v3.channel.k8s.io"),
        structured: upgrade.protocol.starts_with("v4") || upgrade.protocol.starts_with("v5"),
    };
    let request = ExecRequest {
        namespace: target.namespace,
        pod_uid: entry.uid().to_owned(),
        container: target.container,
        command,
        stdin: wanted.stdin,
        tty: wanted.tty,
    };
    let name = target.pod;
    let handler = Arc::clone(kubelet);
    Ok(upgrade.accept(kubelet, wanted.channels(), move |session, driver| async move {
        serve((session, driver), &handler, request, name, (wanted, kind), terms).await;
    }))
}

/// What the protocol both ends agreed on can do.
#[derive(Debug, Clone, Copy)]
struct Terms {
    /// Terminals can be resized.
    resizing: bool,
    /// An end is told as a status, not as mere text.
    structured: bool,
}

/// The streams of one command, by what they are for.
#[derive(Default)]
struct Streams {
    error: Option<Stream>,
    stdin: Option<Stream>,
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    resize: Option<Stream>,
}

impl Streams {
    async fn collect(session: &mut Session, expected: usize) -> Option<Self> {
        let mut streams = Self::default();
        for _ in 0..expected {
            let stream = session.next().await?;
            let place = match stream.header("streamtype") {
                Some("error") => &mut streams.error,
                Some("stdin") => &mut streams.stdin,
                Some("stdout") => &mut streams.stdout,
                Some("stderr") => &mut streams.stderr,
                Some("resize") => &mut streams.resize,
                _ => {
                    stream.writer.reset().await;
                    continue;
                }
            };
            *place = Some(stream);
        }
        streams.error.is_some().then_some(streams)
    }

    async fn out(&self, frame: Frame) -> bool {
        let (stream, bytes) = match frame {
            Frame::Stdout(bytes) => (&self.stdout, bytes),
            Frame::Stderr(bytes) => (&self.stderr, bytes),
            _ => return true,
        };
        match stream {
            Some(stream) => stream.writer.send(bytes).await,
            // Not asked for.
            None => true,
        }
    }
}

async fn serve(
    (mut session, mut driver): (Session, Driver),
    kubelet: &Kubelet,
    request: ExecRequest,
    name: String,
    (wanted, kind): (Wanted, Kind),
    terms: Terms,
) {
    let talk = async {
        let collect = Streams::collect(&mut session, wanted.streams(terms.resizing));
        let Ok(Some(mut streams)) = tokio::time::timeout(STREAMS, collect).await else {
            session.close().await;
            return;
        };
        let end = match kind {
            Kind::Exec => command(kubelet, &request, &mut streams).await,
            // Without a command it is the container's own process.
            Kind::Attach if wanted.stdin => command(kubelet, &request, &mut streams).await,
            Kind::Attach => output_from_now(kubelet, &request, &name, &streams).await,
        };
        for stream in [&streams.stdout, &streams.stderr].into_iter().flatten() {
            stream.writer.finish().await;
        }
        if let Some(error) = &streams.error {
            if let Some(text) = told(&end, terms.structured) {
                error.writer.send(text).await;
            }
            error.writer.finish().await;
        }
        session.close().await;
    };
    tokio::select! {
        // The caller is gone, and the command with it.
        ended = &mut driver => if let Err(error) = ended {
            tracing::debug!(error = %error, "A caller's connection ended.");
        },
        () = talk => {
            let _ = driver.await;
        }
    }
}

/// How a command ended.
enum End {
    Code(i32),
    Failed(String),
}

async fn command(kubelet: &Kubelet, request: &ExecRequest, streams: &mut Streams) -> End {
    let frames = match kubelet.node.interlink.exec(request).await {
        Ok(frames) => frames,
        Err(error) => return End::Failed(error.problem().to_string()),
    };
    let (mut input, mut output) = (frames.input, frames.output);
    let (to_command, mut queue) = mpsc::channel::<Frame>(QUEUE);
    // The readers are taken out: they are fed on while output is written.
    let stdin =
        streams.stdin.as_mut().map(|stream| std::mem::replace(&mut stream.reader, StreamReader::ended()));
    let resize =
        streams.resize.as_mut().map(|stream| std::mem::replace(&mut stream.reader, StreamReader::ended()));
    let feed = async {
        let typing = type_in(stdin, to_command.clone());
        let sizing = size(resize, to_command.clone());
        drop(to_command);
        let sending = async {
            while let Some(frame) = queue.recv().await {
                if !input.send(&frame).await {
                    break;
                }
            }
        };
        tokio::join!(typing, sizing, sending);
        // Input may be over long before the command is.
        std::future::pending::<()>().await;
    };
    let hear = async {
        loop {
            match output.next().await {
                Frame::Exit(code) => return End::Code(code),
                Frame::Failed(reason) => return End::Failed(reason),
                frame => {
                    if !streams.out(frame).await {
                        return End::Failed("the caller is gone".into());
                    }
                }
            }
        }
    };
    tokio::select! {
        end = hear => end,
        () = feed => End::Failed("input ended oddly".into()),
    }
}

async fn type_in(stdin: Option<StreamReader>, to: mpsc::Sender<Frame>) {
    let Some(mut stdin) = stdin else { return };
    while let Some(mut piece) = stdin.next().await {
        while !piece.is_empty() {
            let part = piece.split_to(piece.len().min(MAX_FRAME));
            if to.send(Frame::Stdin(part)).await.is_err() {
                return;
            }
        }
    }
    let _ = to.send(Frame::Stdin(Bytes::new())).await;
}

/// The size of a terminal as kubectl sends it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Size {
    width: u16,
    height: u16,
}

async fn size(resize: Option<StreamReader>, to: mpsc::Sender<Frame>) {
    let Some(mut resize) = resize else { return };
    let mut held = BytesMut::new();
    while let Some(piece) = resize.next().await {
        held.extend_from_slice(&piece);
        let mut sizes = serde_json::Deserializer::from_slice(&held).into_iter::<Size>();
        let mut last = None;
        let mut used = 0;
        while let Some(Ok(size)) = sizes.next() {
            used = sizes.byte_offset();
            last = Some(size);
        }
        let _ = held.split_to(used);
        // What stays unreadable is not a size.
        if held.len() > 1024 {
            held.clear();
        }
        if let Some(Size { width, height }) = last
            && to.send(Frame::Resize(width, height)).await.is_err()
        {
            return;
        }
    }
}

/// What a container writes from now on: attach without input.
async fn output_from_now(kubelet: &Kubelet, request: &ExecRequest, name: &str, streams: &Streams) -> End {
    let wanted = LogRequest {
        namespace: request.namespace.clone(),
        pod_uid: request.pod_uid.clone(),
        pod_name: name.to_owned(),
        container_name: request.container.clone(),
        options: LogOptions { follow: true, since_time: Some(jiff::Timestamp::now()), ..Default::default() },
    };
    let mut log = match kubelet.node.interlink.logs(&wanted).await {
        Ok(log) => log,
        Err(error) => return End::Failed(error.problem().to_string()),
    };
    while let Some(piece) = log.next().await {
        match piece {
            Ok(piece) => {
                if !streams.out(Frame::Stdout(piece)).await {
                    break;
                }
            }
            Err(error) => return End::Failed(error.to_string()),
        }
    }
    End::Code(0)
}

/// What is written on the error stream; older protocols say nothing when all is well.
fn told(end: &End, structured: bool) -> Option<Bytes> {
    if !structured {
        return match end {
            End::Code(0) => None,
            End::Code(code) => Some(format!("command terminated with non-zero exit code: {code}").into()),
            End::Failed(reason) => Some(reason.clone().into()),
        };
    }
    let status: Value = match end {
        End::Code(0) => json!({"metadata": {}, "status": "Success"}),
        End::Code(code) => json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("command terminated with non-zero exit code: exit status {code}"),
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
        End::Failed(reason) => json!({
            "metadata": {},
            "status": "Failure",
            "message": format!("Internal error occurred: {reason}"),
            "reason": "InternalError",
            "details": {"causes": [{"message": reason}]},
            "code": 500,
        }),
    };
    Some(status.to_string().into())
}
