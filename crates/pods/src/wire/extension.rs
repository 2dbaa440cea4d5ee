//! What only our own parts say to each other, beside interLink's paths.
//!
//! interLink has no call for a changed pod, for exec or for a stream of states. Ours are below
//! `/tarbet/`; a peer that does not know them answers 404, which callers turn into a coded 501.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use super::create::RetrievedPod;

/// The pod changed: new labels or annotations for downward files, new images, new contents.
/// The body is a [`PodUpdate`]; the answer is 200 once files are rewritten.
pub const UPDATE: &str = "/tarbet/update";
/// Runs a command in a container: an [`ExecRequest`] with `Upgrade: tarbet-exec`, then [`Frame`]s.
pub const EXEC: &str = "/tarbet/exec";
/// The states of all pods as lines of JSON: everything at first, then each change.
pub const WATCH: &str = "/tarbet/watch";
/// The pods a plugin has, as one list of states.
pub const LIST: &str = "/tarbet/list";
/// What pods use at the moment, as a list of [`PodUsage`].
pub const USAGE: &str = "/tarbet/usage";
/// The token of the upgrade to exec.
pub const EXEC_UPGRADE: &str = "tarbet-exec";
/// A header of every answer to a ping that names the paths above which are served. Our own callers
/// show it too, so that they are told what others could not make sense of.
pub const EXTENSIONS_HEADER: &str = "tarbet-extensions";
/// The value of [`EXTENSIONS_HEADER`] of this version.
pub const EXTENSIONS: &str = "update, exec, watch, list, usage";

/// Whether a call is one of ours.
pub fn is_ours(headers: &http::HeaderMap) -> bool {
    headers.contains_key(EXTENSIONS_HEADER)
}

/// A changed pod, with all its data again.
pub type PodUpdate = RetrievedPod;

/// What a pod uses at the moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodUsage {
    /// The pod's UID.
    pub uid: String,
    /// Its containers.
    pub containers: Vec<ContainerUsage>,
}

/// What a container uses at the moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerUsage {
    /// Its name.
    pub name: String,
    /// Processor time since it began, in nanoseconds.
    pub cpu_nanoseconds: u64,
    /// Memory that it could not do without, in bytes.
    pub memory_bytes: u64,
}

/// A command to run in a running container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ExecRequest {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's UID.
    pub pod_uid: String,
    /// The container; may be empty when the pod has one.
    pub container: String,
    /// The command and its arguments; none attaches to what runs in the container already.
    pub command: Vec<String>,
    /// Whether the caller sends input.
    pub stdin: bool,
    /// Whether it has a terminal.
    pub tty: bool,
}

/// A piece of an exec's streams. On the wire: channel, length (4 bytes, network order), content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// To the command; an empty one ends its input.
    Stdin(Bytes),
    /// From the command.
    Stdout(Bytes),
    /// From the command.
    Stderr(Bytes),
    /// The terminal has this many columns and rows.
    Resize(u16, u16),
    /// The last one: how the command ended.
    Exit(i32),
    /// The last one: why it could not run.
    Failed(String),
}

/// No frame is longer; larger content travels in several.
pub const MAX_FRAME: usize = 64 * 1024;

/// A frame that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// Longer than [`MAX_FRAME`].
    #[error("a frame of {0} bytes is longer than allowed")]
    TooLong(usize),
    /// An unknown channel or content of the wrong form.
    #[error("a frame of an unknown kind ({0})")]
    Kind(u8),
}

impl Frame {
    /// Appends the frame to `out`.
    pub fn write(&self, out: &mut BytesMut) {
        let small;
        let (channel, content): (u8, &[u8]) = match self {
            Self::Stdin(bytes) => (0, bytes),
            Self::Stdout(bytes) => (1, bytes),
            Self::Stderr(bytes) => (2, bytes),
            Self::Resize(columns, rows) => {
                let [a, b] = columns.to_be_bytes();
                let [c, d] = rows.to_be_bytes();
                small = [a, b, c, d];
                (4, &small)
            }
            Self::Exit(code) => {
                small = code.to_be_bytes();
                (5, &small)
            }
            Self::Failed(text) => (6, text.as_bytes()),
        };
        let content = &content[..content.len().min(MAX_FRAME)];
        out.reserve(5 + content.len());
        out.put_u8(channel);
        out.put_u32(content.len() as u32);
        out.put_slice(content);
    }

    /// Takes the next frame off `from`; `None` until all of it is there.
    pub fn read(from: &mut BytesMut) -> Result<Option<Self>, BadFrame> {
        if from.len() < 5 {
            return Ok(None);
        }
        let (kind, length) = (from[0], u32::from_be_bytes([from[1], from[2], from[3], from[4]]) as usize);
        if length > MAX_FRAME {
            return Err(BadFrame::TooLong(length));
        }
        if from.len() < 5 + length {
            return Ok(None);
        }
        from.advance(5);
        let mut content = from.split_to(length).freeze();
        let frame = match (kind, length) {
            (0, _) => Self::Stdin(content),
            (1, _) => Self::Stdout(content),
            (2, _) => Self::Stderr(content),
            (4, 4) => Self::Resize(content.get_u16(), content.get_u16()),
            (5, 4) => Self::Exit(content.get_i32()),
            (6, _) => Self::Failed(String::from_utf8_lossy(&content).into_owned()),
            _ => return Err(BadFrame::Kind(kind)),
        };
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame() -> impl Strategy<Value = Frame> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..200).prop_map(Bytes::from);
        prop_oneof![
            bytes().prop_map(Frame::Stdin),
            bytes().prop_map(Frame::Stdout),
            bytes().prop_map(Frame::Stderr),
            any::<(u16, u16)>().prop_map(|(c, r)| Frame::Resize(c, r)),
            any::<i32>().prop_map(Frame::Exit),
            ".{0,40}".prop_map(Frame::Failed),
        ]
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut(frames in proptest::collection::vec(frame(), 0..8), cut in 1usize..64) {
            let mut wire = BytesMut::new();
            for frame in &frames {
                frame.write(&mut wire);
            }
            let (mut arrived, mut read) = (BytesMut::new(), Vec::new());
            for piece in wire.chunks(cut) {
                arrived.extend_from_slice(piece);
                while let Some(frame) = Frame::read(&mut arrived).unwrap() {
                    read.push(frame);
                }
            }
            prop_assert_eq!(read, frames);
        }

        #[test]
        fn garbage_is_refused_and_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut wire = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = Frame::read(&mut wire) {}
        }
    }
}
