//! Parts of the original as the other side: stand-ins that answer with its exact words and statuses.

mod api;
mod node;

use std::net::SocketAddr;

use axum::Router;
use tokio::net::TcpListener;

/// Serves a router on a port of its own.
pub(crate) async fn stand_in(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}
