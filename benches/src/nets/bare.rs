//! A gRPC client with nothing between its caller and the connection.
//!
//! The usual channel hands each call from task to task, so that it can be shared and connect again. That takes
//! longer than a service which answers from memory, and would be most of what is measured.

use std::task::{Context, Poll};

use anyhow::Result;
use http::Uri;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tonic::body::Body;
use tower::Service;

/// One connection, and where it goes.
#[derive(Clone)]
pub(super) struct Bare(SendRequest<Body>);

impl Bare {
    /// Connects, and says under which name calls are made.
    pub(super) async fn connect(url: &str) -> Result<(Self, Uri)> {
        let origin: Uri = url.parse()?;
        let address = origin.authority().map_or("", http::uri::Authority::as_str);
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (send, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok((Self(send), origin))
    }
}

impl Service<http::Request<Body>> for Bare {
    type Response = http::Response<hyper::body::Incoming>;
    type Error = hyper::Error;
    type Future = std::pin::Pin<Box<dyn Future<Output = hyper::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
