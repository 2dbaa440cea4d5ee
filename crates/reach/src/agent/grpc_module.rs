//! A gRPC service of the agent as a kas reaches it: each call becomes a request to the service, judged by
//! the policy like everything else.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, header};
use http_body::Frame;
use tarbet_link::{Body, Denial, Handler, IncomingCall, Target};
use tonic::{Code, Status};

use super::Door;
use crate::kas::agent::{Replies, Requests, Service, ServiceCall};
use crate::kas::frame::{Raw, put_raw};
use crate::kas::grpc;
use crate::kas::inbox::Inbox;
use crate::kas::status;

/// A service behind the door.
pub(super) struct GrpcModule {
    name: String,
    methods: Vec<String>,
    door: Arc<Door>,
}

impl GrpcModule {
    pub(super) fn new(name: String, methods: Vec<String>, door: Arc<Door>) -> Self {
        Self { name, methods, door }
    }
}

impl Service for GrpcModule {
    fn name(&self) -> &str {
        &self.name
    }

    fn methods(&self) -> Vec<&str> {
        self.methods.iter().map(String::as_str).collect()
    }

    fn serve<'a>(&'a self, call: ServiceCall, replies: &'a mut Replies) -> BoxFuture<'a, Result<(), Status>> {
        async move {
            let ServiceCall { method, metadata, requests } = call;
            let target = Target::service(self.name.as_str())
                .map_err(|_| Status::unimplemented(format!("agent: it does not offer {method}")))?;
            let mut request = Request::post(method.as_str())
                .body(Body::new(Messages(Some(requests))))
                .map_err(|_| Status::invalid_argument("kas → agent: the method makes no path"))?;
            *request.headers_mut() = metadata;
            let headers = request.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert(header::TE, HeaderValue::from_static("trailers"));
            let answered = self.door.call(IncomingCall { target: Some(target), request }).await;
            let (head, body) = answered.map_err(|denial| refused(&denial))?.into_parts();
            if !grpc::is_grpc(&head.headers) {
                return Err(grpc::of_http(head.status));
            }
            if let Some(end) = Status::from_header_map(&head.headers) {
                // An answer without a body. What it says besides belongs behind it.
                replies.header(&HeaderMap::new())?;
                replies.trailer(head.headers);
                return ended(end);
            }
            let mut inbox = Inbox::new(&head.headers, body)?;
            replies.header(&head.headers)?;
            replies.flush();
            while let Some(message) = inbox.message().await {
                let gone = |_| Status::cancelled("kas → agent: the caller went away");
                replies.message(&Raw(message?)).await.map_err(gone)?;
            }
            let end = status::of_response(inbox.trailers());
            replies.trailer(inbox.trailers().cloned().unwrap_or_default());
            ended(end)
        }
        .boxed()
    }
}

fn ended(status: Status) -> Result<(), Status> {
    if status.code() == Code::Ok { Ok(()) } else { Err(status) }
}

fn refused(denial: &Denial) -> Status {
    let code = match denial.status.as_u16() {
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        400 => Code::InvalidArgument,
        _ => Code::Unavailable,
    };
    Status::new(code, format!("{} [{}; {}]", denial.message, denial.code, denial.hop))
}

/// The caller's messages as the body of a request.
struct Messages(Option<Requests>);

impl http_body::Body for Messages {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let Some(requests) = &mut this.0 else { return Poll::Ready(None) };
        match ready!(requests.poll_message(cx)) {
            Ok(Some(message)) => {
                let mut buffer = BytesMut::new();
                put_raw(&mut buffer, &message);
                Poll::Ready(Some(Ok(Frame::data(buffer.freeze()))))
            }
            Ok(None) => {
                this.0 = None;
                Poll::Ready(None)
            }
            Err(status) => {
                this.0 = None;
                Poll::Ready(Some(Err(status)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}
