//! Pages of a process on a listener.

use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tarbet_telemetry::intake::Prompt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Listener, Origin};
use crate::gateway::until_leaving;

/// How long a connection may say nothing; longer than those who ask again and again wait in between.
const SILENCE: Duration = Duration::from_mins(2);

impl Listener {
    /// Serves these pages until `stop`; answers that have begun are finished.
    pub async fn serve_pages(self, router: Router, stop: CancellationToken) {
        let mut server = auto::Builder::new(TokioExecutor::new());
        server.http1().timer(TokioTimer::new()).header_read_timeout(SILENCE);
        server.http2().timer(TokioTimer::new()).keep_alive_interval(SILENCE).keep_alive_timeout(SILENCE);
        let (connections, leaving, name) = (TaskTracker::new(), stop.clone(), self.name);
        let serve = move |stream, peer: Origin| {
            let (server, leaving) = (server.clone(), leaving.clone());
            let service = TowerToHyperService::new(router.clone());
            async move {
                let connection = server.serve_connection(TokioIo::new(Prompt::new(stream, SILENCE)), service);
                if let Err(error) = until_leaving(connection, &leaving).await {
                    tracing::debug!(listener = name, peer = %peer.address, %error, "A connection ended early.");
                }
            }
        };
        self.run(stop, connections.clone(), serve).await;
        connections.close();
        connections.wait().await;
    }
}
