//! The request for a container's log.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::fold::{folded, lenient};

/// Which log, and how much of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", default)]
pub struct LogRequest {
    /// The pod's namespace.
    #[serde(rename(serialize = "Namespace", deserialize = "namespace"), deserialize_with = "lenient")]
    pub namespace: String,
    /// The pod's UID.
    #[serde(rename(serialize = "PodUID", deserialize = "poduid"), deserialize_with = "lenient")]
    pub pod_uid: String,
    /// The pod's name.
    #[serde(rename(serialize = "PodName", deserialize = "podname"), deserialize_with = "lenient")]
    pub pod_name: String,
    /// The container; may be empty when the pod has one.
    #[serde(
        rename(serialize = "ContainerName", deserialize = "containername"),
        deserialize_with = "lenient"
    )]
    pub container_name: String,
    /// How much of it.
    #[serde(rename(serialize = "Opts", deserialize = "opts"), deserialize_with = "lenient")]
    pub options: LogOptions,
}

/// How much of a log; zero and false mean "not asked".
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", default)]
pub struct LogOptions {
    /// Only the last lines.
    #[serde(rename(serialize = "Tail", deserialize = "tail"), deserialize_with = "lenient")]
    pub tail: u64,
    /// Only the first bytes.
    #[serde(rename(serialize = "Bytes", deserialize = "bytes"), deserialize_with = "lenient")]
    pub bytes: u64,
    /// Each line with its time.
    #[serde(rename(serialize = "Timestamps", deserialize = "timestamps"), deserialize_with = "lenient")]
    pub timestamps: bool,
    /// Go on until the container ends.
    #[serde(rename(serialize = "Follow", deserialize = "follow"), deserialize_with = "lenient")]
    pub follow: bool,
    /// The log of the run before this one.
    #[serde(rename(serialize = "Previous", deserialize = "previous"), deserialize_with = "lenient")]
    pub previous: bool,
    /// Only what is younger than this.
    #[serde(rename(serialize = "SinceSeconds", deserialize = "sinceseconds"), deserialize_with = "lenient")]
    pub since_seconds: u64,
    /// Only what came after this.
    #[serde(
        rename(serialize = "SinceTime", deserialize = "sincetime"),
        serialize_with = "go_time",
        deserialize_with = "from_go_time"
    )]
    pub since_time: Option<Timestamp>,
}

folded!(LogRequest, LogOptions);

/// Go's zero time stands for "no time".
const ZERO: &str = "0001-01-01T00:00:00Z";

#[expect(clippy::ref_option, reason = "serde asks for a reference to the field")]
fn go_time<S: Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => serializer.collect_str(time),
        None => serializer.serialize_str(ZERO),
    }
}

fn from_go_time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    let Some(text) = text.filter(|text| !text.is_empty() && text != ZERO) else { return Ok(None) };
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

/// Why a log request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadLogRequest {
    /// Not a DNS label.
    #[error("invalid namespace: must be a valid DNS label")]
    Namespace,
    /// Not a UUID.
    #[error("invalid pod UID: must be a valid UUID")]
    Uid,
    /// Not a DNS label.
    #[error("invalid container name: must be a valid DNS label")]
    Container,
    /// Two limits that contradict each other.
    #[error("Both Tail and LimitBytes set. Set only one of them")]
    TailAndBytes,
    /// Two beginnings that contradict each other.
    #[error("Both SinceSeconds and SinceTime set. Set only one of them")]
    TwoBeginnings,
}

impl LogRequest {
    /// Refuses what no honest caller sends; names and UIDs become parts of paths later.
    pub fn check(&self) -> Result<(), BadLogRequest> {
        if !is_label(&self.namespace) {
            return Err(BadLogRequest::Namespace);
        }
        if !super::is_uid(&self.pod_uid) {
            return Err(BadLogRequest::Uid);
        }
        if !self.container_name.is_empty() && !is_label(&self.container_name) {
            return Err(BadLogRequest::Container);
        }
        let options = &self.options;
        if options.tail != 0 && options.bytes != 0 {
            return Err(BadLogRequest::TailAndBytes);
        }
        if options.since_seconds != 0 && options.since_time.is_some() {
            return Err(BadLogRequest::TwoBeginnings);
        }
        Ok(())
    }
}

/// A DNS label: lower-case letters, digits and inner hyphens, at most 63.
pub fn is_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty()
        && text.len() <= 63
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}
