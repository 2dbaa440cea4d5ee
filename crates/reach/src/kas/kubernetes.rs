//! HTTP for the Kubernetes API, carried by `KubernetesApi/MakeRequest`.
//!
//! [`make_request`] is the gateway's half: an HTTP request becomes frames of a call, and its frames a
//! response. [`KubernetesApi`] is the agent's: it hands requests to whatever reaches the API server.
//! Bodies stream both ways at once; a response that says 101 brings a byte stream with it.

mod body;
mod caller;
mod gateway;
mod headers;
mod impersonation;
mod service;
mod upgrade;
mod uri;

pub use caller::AgentCaller;
pub(crate) use caller::{denied, send_on, trace};
pub use gateway::{RequestOptions, make_request};
pub use headers::{canonical, strip_hop_by_hop};
pub use impersonation::Impersonation;
pub use service::KubernetesApi;

/// The most one frame carries.
pub const CHUNK: usize = 32 << 10;

/// Cuts what a body gave into frames.
fn pieces(mut data: bytes::Bytes) -> impl Iterator<Item = bytes::Bytes> {
    std::iter::from_fn(move || (!data.is_empty()).then(|| data.split_to(data.len().min(CHUNK))))
}
