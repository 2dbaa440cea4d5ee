//! Each call of interLink, and ours.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use http::{Method, StatusCode, header};
use http_body_util::BodyExt;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};

use super::{Extensions, Interlink, InterlinkError, refusal};
use crate::wire::extension::{EXEC, EXEC_UPGRADE, LIST, UPDATE, USAGE, WATCH};
use crate::wire::lines::lines;
use crate::wire::{
    CreateReply, ExecRequest, Frame, LogRequest, Origin, PingReply, PodCreate, PodStatus, PodUpdate,
    PodUsage, RetrievedContainer,
};

/// A ping that takes longer is as good as none.
const PING: Duration = Duration::from_secs(8);
/// Asking for very many states may take its time.
const STATUS: Duration = Duration::from_secs(30);
/// Schedulers may take a while to accept a job.
const CREATE: Duration = Duration::from_mins(2);
/// What removal may take beyond the pod's own grace.
const DELETE_MARGIN: Duration = Duration::from_secs(45);
const UPDATE_PATIENCE: Duration = Duration::from_mins(1);
const STREAM_HEAD: Duration = Duration::from_mins(1);

/// The answer to a ping.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ping {
    /// Its text.
    pub body: String,
    /// What it says, where it is structured.
    pub reply: Option<PingReply>,
    /// What the other side offers beyond interLink.
    pub extensions: Extensions,
    /// Whose it is.
    pub origin: Origin,
}

/// A pod with its contents in the words of both an API server and a plugin.
#[derive(Serialize)]
struct Both<'a> {
    #[serde(flatten)]
    create: &'a PodCreate,
    container: &'a [RetrievedContainer],
}

impl Interlink {
    /// Asks whether it is there.
    pub async fn ping(&self) -> Result<Ping, InterlinkError> {
        let mut known = None;
        let mut answer = self.call(Method::POST, "/pinglink", "PingInterLink", None, PING).await;
        if let Err(InterlinkError::Answer { status: StatusCode::NOT_FOUND, .. }) = answer {
            answer = self.call(Method::POST, "/ping", "PingInterLink", None, PING).await;
            known = Some(Origin::Seed);
        }
        let (headers, body) = answer?;
        let reply = crate::wire::read(&body, "an answer to a ping").ok();
        let body = String::from_utf8_lossy(&body).trim().to_owned();
        let origin = known.unwrap_or_else(|| Origin::of(&headers));
        Ok(Ping { body, reply, extensions: Extensions::of(&headers), origin })
    }

    /// Gives endpoints of 2023 the kubeconfig they read the cluster with. False: it knows no such
    /// call, because it is newer and needs none.
    pub async fn set_kubeconfig(&self, kubeconfig: Bytes) -> Result<bool, InterlinkError> {
        match self.call(Method::POST, "/setKubeCFG", "SetKubeCFG", Some(kubeconfig), STATUS).await {
            Ok(_) => Ok(true),
            Err(InterlinkError::Answer { status: StatusCode::NOT_FOUND, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a pod. `containers` is for an endpoint that is a plugin itself.
    pub async fn create(
        &self,
        create: &PodCreate,
        containers: &[RetrievedContainer],
        peer: &Ping,
    ) -> Result<CreateReply, InterlinkError> {
        let path = "/create";
        let body = match peer.origin {
            Origin::Seed => json(path, &[&create.pod])?,
            Origin::Ours => json(path, &Both { create, container: containers })?,
            Origin::Other => json(path, create)?,
        };
        let (_, answer) = self.call(Method::POST, path, "CreatePod", Some(body), CREATE).await?;
        // Endpoints before 0.3 answer with a sentence. No word at all is how the original fails to make one.
        let sentence = match peer.origin {
            Origin::Seed => true,
            Origin::Other => !answer.trim_ascii().is_empty(),
            Origin::Ours => false,
        };
        let reply = crate::wire::read::<CreateReply>(&answer, "an answer to a create");
        match reply {
            Ok(reply) => Ok(reply),
            Err(_) if sentence => Ok(CreateReply::default()),
            Err(error) => Err(InterlinkError::Unreadable { path, reason: error.to_string() }),
        }
    }

    /// Ends a pod and removes it; returns when it is gone.
    pub async fn delete(&self, pod: &Pod, grace: Duration, peer: &Ping) -> Result<(), InterlinkError> {
        let path = "/delete";
        let body = if peer.origin == Origin::Seed { json(path, &[pod])? } else { json(path, pod)? };
        self.call(Method::DELETE, path, "DeletePod", Some(body), grace + DELETE_MARGIN).await.map(drop)
    }

    /// How these pods are; those the other side does not know are missing in the answer. Ours need a
    /// [`PodRef`](crate::wire::PodRef) of each, others may read any field of the whole pod.
    pub async fn status<P: Serialize>(&self, pods: &[P]) -> Result<Vec<PodStatus>, InterlinkError> {
        let path = "/status";
        let (_, answer) = self.call(Method::GET, path, "GetStatus", Some(json(path, pods)?), STATUS).await?;
        match crate::wire::read_items(&answer, "a list of states") {
            Ok(items) => Ok(items.items),
            Err(error) => Err(InterlinkError::Unreadable { path, reason: error.to_string() }),
        }
    }

    /// All pods that the other side has. Endpoints that are not ours give what they remember.
    pub async fn list(&self) -> Result<Vec<PodStatus>, InterlinkError> {
        let answer = match self.call(Method::GET, LIST, "List", None, STATUS).await {
            Err(InterlinkError::Answer { status: StatusCode::NOT_FOUND, .. }) => {
                return self.status::<Pod>(&[]).await;
            }
            answer => answer?.1,
        };
        match crate::wire::read_items(&answer, "a list of states") {
            Ok(items) => Ok(items.items),
            Err(error) => Err(InterlinkError::Unreadable { path: LIST, reason: error.to_string() }),
        }
    }

    /// What pods use at the moment.
    pub async fn usage(&self) -> Result<Vec<PodUsage>, InterlinkError> {
        let (_, answer) = self.call(Method::GET, USAGE, "GetUsage", None, PING).await?;
        match crate::wire::read_items(&answer, "what pods use") {
            Ok(items) => Ok(items.items),
            Err(error) => Err(InterlinkError::Unreadable { path: USAGE, reason: error.to_string() }),
        }
    }

    /// A container's log as it comes.
    pub async fn logs(
        &self,
        wanted: &LogRequest,
    ) -> Result<BoxStream<'static, Result<Bytes, hyper::Error>>, InterlinkError> {
        let path = "/getLogs";
        let request = self.request(Method::GET, path, "GetLogs", Some(json(path, wanted)?))?;
        let response = self.send(path, request, STREAM_HEAD).await?;
        let (head, body) = response.into_parts();
        if !head.status.is_success() {
            let words = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            return Err(refusal(path, head.status, &words));
        }
        Ok(body.into_data_stream().boxed())
    }

    /// Takes over a changed pod.
    pub async fn update(&self, update: &PodUpdate) -> Result<(), InterlinkError> {
        let body = Some(json(UPDATE, update)?);
        match self.call(Method::POST, UPDATE, "UpdatePod", body, UPDATE_PATIENCE).await {
            Err(InterlinkError::Answer { status: StatusCode::NOT_FOUND, words, .. })
                if !words.contains("TB-") =>
            {
                Err(InterlinkError::Unsupported("changes of pods"))
            }
            other => other.map(drop),
        }
    }

    /// The states of all pods, then each change, until the connection breaks.
    pub async fn watch(
        &self,
    ) -> Result<BoxStream<'static, Result<PodStatus, InterlinkError>>, InterlinkError> {
        let request = self.request(Method::GET, WATCH, "Watch", None)?;
        let response = self.send(WATCH, request, STREAM_HEAD).await?;
        if !response.status().is_success() {
            return Err(InterlinkError::Unsupported("pushed states"));
        }
        let pieces = response.into_body().into_data_stream();
        let states = lines(pieces).map(|line| match line {
            Ok(line) => crate::wire::read::<PodStatus>(&line, "a state")
                .map_err(|error| InterlinkError::Unreadable { path: WATCH, reason: error.to_string() }),
            Err(cut) => Err(InterlinkError::Away { path: WATCH, reason: cut.to_string() }),
        });
        Ok(states.boxed())
    }

    /// Runs a command in a container.
    pub async fn exec(&self, wanted: &ExecRequest) -> Result<Frames, InterlinkError> {
        let mut request = self.request(Method::POST, EXEC, "Exec", Some(json(EXEC, wanted)?))?;
        let headers = request.headers_mut();
        headers.insert(header::UPGRADE, header::HeaderValue::from_static(EXEC_UPGRADE));
        headers.insert(header::CONNECTION, header::HeaderValue::from_static("Upgrade"));
        let response = self.send(EXEC, request, STREAM_HEAD).await?;
        let status = response.status();
        if status == StatusCode::SWITCHING_PROTOCOLS {
            let stream = hyper::upgrade::on(response).await;
            let stream =
                stream.map_err(|error| InterlinkError::Away { path: EXEC, reason: error.to_string() })?;
            return Ok(Frames::new(stream));
        }
        let words =
            response.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let refused = refusal(EXEC, status, &words);
        match &refused {
            InterlinkError::Answer { words, .. }
                if status == StatusCode::NOT_FOUND && !words.contains("TB-") =>
            {
                Err(InterlinkError::Unsupported("commands in containers"))
            }
            _ => Err(refused),
        }
    }
}

fn json(path: &'static str, value: &(impl Serialize + ?Sized)) -> Result<Bytes, InterlinkError> {
    let text = serde_json::to_vec(value);
    text.map(Bytes::from).map_err(|error| InterlinkError::Unreadable { path, reason: error.to_string() })
}

/// The streams of a command.
pub struct Frames {
    /// To the command.
    pub input: FrameSink,
    /// From the command.
    pub output: FrameSource,
}

/// The half that speaks to a command.
pub struct FrameSink(WriteHalf<TokioIo<Upgraded>>);

/// The half that hears a command.
pub struct FrameSource {
    io: ReadHalf<TokioIo<Upgraded>>,
    held: BytesMut,
}

impl Frames {
    fn new(stream: Upgraded) -> Self {
        let (io, sink) = tokio::io::split(TokioIo::new(stream));
        Self { input: FrameSink(sink), output: FrameSource { io, held: BytesMut::new() } }
    }
}

impl FrameSink {
    /// Sends a frame; false once the connection is gone.
    pub async fn send(&mut self, frame: &Frame) -> bool {
        let mut out = BytesMut::new();
        frame.write(&mut out);
        self.0.write_all(&out).await.is_ok() && self.0.flush().await.is_ok()
    }
}

impl FrameSource {
    /// The next frame; the last is always how it ended.
    pub async fn next(&mut self) -> Frame {
        loop {
            match Frame::read(&mut self.held) {
                Ok(Some(frame)) => return frame,
                Ok(None) => {}
                Err(error) => return Frame::Failed(error.to_string()),
            }
            match self.io.read_buf(&mut self.held).await {
                Ok(0) => return Frame::Failed("the connection to the container ended".into()),
                Ok(_) => {}
                Err(error) => {
                    return Frame::Failed(format!("the connection to the container broke: {error}"));
                }
            }
        }
    }
}
