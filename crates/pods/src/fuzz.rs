//! Every parser of outside bytes behind one call each, for fuzz targets: any input, no panic.

use bytes::BytesMut;

use crate::plan::{self, Policy};
use crate::wire::{
    self, ExecRequest, Frame, LogRequest, PingReply, PodCreate, PodRef, PodStatus, RetrievedPod,
};
use crate::{slurm, spdy};

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
