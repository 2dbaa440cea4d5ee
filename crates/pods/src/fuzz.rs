//! Every parser of outside bytes behind one call each, for fuzz targets: any input, no panic.

use std::time::Duration;

use bytes::BytesMut;

use crate::plan::{self, Policy};
use crate::wire::{
    self, ExecRequest, Frame, LogRequest, PingReply, PodCreate, PodRef, PodStatus, RetrievedPod,
};
use crate::{docker, interlink, node, slurm, spdy};

/// A pod as a plugin gets it, and what it means on a host that allows nothing.
pub fn pod(data: &[u8]) {
    let Ok(pods) = wire::read_items::<RetrievedPod>(data, "pods") else { return };
    for pod in &pods.items {
        drop(plan::plan(pod, &Policy::default()));
    }
}

/// The other bodies that nodes, API servers and plugins send each other.
pub fn bodies(data: &[u8]) {
    drop(wire::read_items::<PodCreate>(data, "a pod"));
    drop(wire::read_items::<PodRef>(data, "pods"));
    drop(wire::read_items::<PodStatus>(data, "statuses"));
    drop(wire::read::<ExecRequest>(data, "a command"));
    drop(wire::read::<PingReply>(data, "a ping"));
    if let Ok(request) = wire::read::<LogRequest>(data, "a request for logs") {
        let _refusal = request.check();
    }
}

/// The account that a node sends.
pub fn account(data: &[u8]) {
    interlink::read_any_account(&String::from_utf8_lossy(data));
}

/// What a Docker daemon answers; the first byte is the question.
pub fn docker(data: &[u8]) {
    soon(docker::read_any_reply(data));
}

/// A wish for the streams of a command or a port, by SPDY or WebSocket, and what comes through them.
pub fn upgrade(data: &[u8]) {
    soon(node::read_any_upgrade(data));
}

/// Runs to the end what has all that it reads: it must not wait for more.
fn soon(work: impl Future<Output = ()>) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_time().build() else { return };
    let ended = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), work).await });
    assert!(ended.is_ok(), "it waits for what does not come");
}

/// What squeue prints.
pub fn squeue(data: &[u8]) {
    drop(slurm::parse_jobs(&String::from_utf8_lossy(data)));
}

/// The streams of exec, between our own parts and as kubectl's SPDY.
pub fn streams(data: &[u8]) {
    let mut rest = BytesMut::from(data);
    while let Ok(Some(_)) = Frame::read(&mut rest) {}
    let (mut rest, mut decoder) = (BytesMut::from(data), spdy::frame::Decoder::default());
    while let Ok(Some(_)) = decoder.read(&mut rest) {}
}
