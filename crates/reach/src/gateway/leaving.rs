//! A connection and the end of its gateway.

use std::pin::pin;

use hyper_util::server::graceful::GracefulConnection;
use tokio_util::sync::CancellationToken;

/// Serves a connection until it ends; when the gateway leaves, what runs finishes and nothing new begins.
pub(crate) async fn until_leaving<C: GracefulConnection>(
    connection: C,
    leaving: &CancellationToken,
) -> Result<(), C::Error> {
    let mut connection = pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => ended,
        () = leaving.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}
