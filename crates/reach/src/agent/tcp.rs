//! The `tcp` service: hosts that the agent can reach and the policy names.

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, StatusCode};
use tarbet_link::{Denial, Dialer, IncomingStream, NetDialer, Target, relay};
use tarbet_telemetry::codes::{ground, reach};
use tarbet_telemetry::problem::chain;

use super::Service;
use super::policy::Wanted;

/// TCP connections from the agent's machine.
#[derive(Debug)]
pub struct Tcp {
    dialer: NetDialer,
}

impl Tcp {
    /// Connections that are given up after `timeout`.
    pub fn new(timeout: Duration) -> Self {
        Self { dialer: NetDialer { timeout } }
    }
}

impl Service for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn describe(&self, target: &Target, request: Option<&Request<()>>) -> Result<Wanted, Denial> {
        if let (Some(address), None) = (target.address(), request) {
            return Ok(Wanted::Tcp(address.host().to_owned(), address.port()));
        }
        let text = "The tcp service takes streams to a host and port.";
        Err(Denial::new(StatusCode::BAD_REQUEST, ground::BAD_REQUEST.id, text).at("agent"))
    }

    fn stream(&self, mut incoming: IncomingStream) -> BoxFuture<'_, ()> {
        async move {
            let (target, first) = (incoming.target().clone(), incoming.early());
            match self.dialer.open_with(target.clone(), first).await {
                Ok(far) => {
                    if let Ok(near) = incoming.accept() {
                        // Either end may break off at any time; both know why by themselves.
                        let _ = relay(near, far).await;
                    }
                }
                Err(error) => {
                    tracing::info!(%target, cause = %chain(&error), "A host cannot be reached.");
                    let text = format!("The agent cannot reach {target}.");
                    let denial = Denial::new(StatusCode::BAD_GATEWAY, reach::TARGET_UNREACHABLE.id, text);
                    incoming.deny(&denial.at("agent → target"));
                }
            }
        }
        .boxed()
    }
}
