//! Gateways among themselves, in the frames of kas: a call enters at one and leaves by another.
//!
//! The side where the request entered *routes*: it [`knock`]s at the gateways that may hold the agent,
//! and starts the call at the first that has a tunnel free. The other side ([`serve`]) only does as it
//! is asked: it looks for a tunnel here and nowhere else, so there are no cycles. A tunnel that was
//! offered and not taken goes back unharmed.
//!
//! Both are functions over raw gRPC streams. Connections, and who may use them, are not theirs to know.

mod answer;
mod knock;

pub use answer::serve;
pub use knock::{Knock, Offer, knock};

use http::HeaderName;

/// Names the agent a call is for.
pub const AGENT_ID: HeaderName = HeaderName::from_static("kas-hop-routing-agent-id");
