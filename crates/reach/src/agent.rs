//! The agent: dials out, offers services over its links, and judges every request by the site's
//! own policy before anything at the site is touched.
//!
//! A service is anything that implements [`Service`]; the tunnel knows nothing of what it does.
//! [`Dispatcher`] is the one place where what arrives meets the policy and then its service, and a
//! [`Door`] is what serves it.

pub mod callers;
pub mod end_to_end;
pub mod kubernetes;
pub mod offered;
pub mod policy;
pub mod tcp;

mod cluster;
mod config;
mod dispatch;
mod generation;
mod grpc_module;
mod info;
mod kas;
mod parts;
mod run;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use tarbet_link::{Body, Denial, IncomingStream, IncomingUpgrade, Target};
use tarbet_telemetry::codes::reach;

pub use cluster::ClusterFlags;
pub use config::{AgentConfig, AtKas, Surroundings};
pub use dispatch::{Dispatcher, Door};
pub use info::Info;
pub use kas::Pod;
pub use run::{Reloaded, Running, start};

/// How an agent names the key under which it is reached end to end, among the services it offers.
pub const END_TO_END: &str = "tls/";

/// What an agent offers under one name.
///
/// Requests that reach it were permitted by the policy. What it does not override it refuses.
pub trait Service: Send + Sync + 'static {
    /// The name callers ask for.
    fn name(&self) -> &str;

    /// The bare names of its methods, if it is a gRPC service that goes by its full name. Agents at a kas
    /// announce them, and a kas sends nothing that was not announced; links need no such list.
    fn methods(&self) -> Vec<String> {
        Vec::new()
    }

    /// What the policy must know of a request to judge it.
    fn describe(&self, target: &Target, request: Option<&Request<()>>) -> Result<policy::Wanted, Denial>;

    /// Answers a request.
    fn call(&self, target: Target, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, Denial>> {
        let denial = not_offered(&format!("requests to `{}`", target.name()));
        drop(request);
        async move { Err(denial) }.boxed()
    }

    /// Serves a byte stream.
    fn stream(&self, incoming: IncomingStream) -> BoxFuture<'_, ()> {
        let denial = not_offered(&format!("streams to `{}`", incoming.target().name()));
        async move { incoming.deny(&denial) }.boxed()
    }

    /// Serves a request that changes its protocol.
    fn upgrade(&self, incoming: IncomingUpgrade) -> BoxFuture<'_, ()> {
        async move { incoming.deny(&not_offered("upgrades")).await }.boxed()
    }
}

fn not_offered(what: &str) -> Denial {
    Denial::new(
        StatusCode::NOT_FOUND,
        reach::SERVICE_NOT_OFFERED.id,
        format!("This agent does not offer {what}."),
    )
    .at("agent")
    .untouched()
}
