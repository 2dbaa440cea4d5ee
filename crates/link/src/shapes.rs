//! The two shapes every way to a remote place has.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};

use crate::body::Body;
use crate::duplex::ByteStream;
use crate::error::LinkError;
use crate::target::Target;

/// Opens byte streams to targets.
pub trait Dialer: Send + Sync {
    /// A stream to the target, with the first bytes sent along with the request to open it where
    /// the way there can do that: a round trip less.
    fn open_with(&self, target: Target, first: Bytes) -> BoxFuture<'_, Result<ByteStream, LinkError>>;

    /// A stream to the target.
    fn open(&self, target: Target) -> BoxFuture<'_, Result<ByteStream, LinkError>> {
        self.open_with(target, Bytes::new())
    }
}

/// Sends HTTP requests and gives their responses, with streaming bodies and trailers.
///
/// A [`Target`] among the request's extensions says which service it is for. A request with
/// `Connection: Upgrade` may be answered by 101, with the stream in [`Upgraded`](crate::Upgraded).
/// Dropping the future, or the response's body before its end, cancels the request.
pub trait Caller: Send + Sync {
    /// Sends a request.
    fn call(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, LinkError>>;
}

impl<D: Dialer + ?Sized> Dialer for Arc<D> {
    fn open_with(&self, target: Target, first: Bytes) -> BoxFuture<'_, Result<ByteStream, LinkError>> {
        (**self).open_with(target, first)
    }
}

impl<C: Caller + ?Sized> Caller for Arc<C> {
    fn call(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, LinkError>> {
        (**self).call(request)
    }
}
