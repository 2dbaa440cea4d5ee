//! The serving half: requests out of calls, to whatever reaches the API server, or GitLab.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use tarbet_link::{Body, ByteStream, Caller, Denial, LinkError, Upgraded};
use tarbet_telemetry::problem::chain;
use tokio::io::AsyncWriteExt;
use tonic::Status;

use super::body::{RequestBody, RequestFrames};
use super::headers::{self, add_via, strip_hop_by_hop};
use super::impersonation::Impersonation;
use super::{pieces, uri};
use crate::kas::agent::{Replies, Requests, Service, ServiceCall};
use crate::kas::gitlab::Module;
use crate::kas::inbox::Inbox;
use crate::kas::outbox::Outbox;
use crate::kas::prefix::{MethodPath, Prefix, Rpc};
use crate::kas::proto::{grpctool, prototool};

/// Serves `KubernetesApi/MakeRequest`.
///
/// A request reaches the caller as it would come from a client at the site, with `Impersonate-*` headers
/// where the gateway asked for impersonation, and with the same as an [`Impersonation`] among its
/// extensions. Whether that is allowed is the caller's to decide.
pub struct KubernetesApi {
    prefix: Prefix,
    product: String,
    upstream: Arc<dyn Caller>,
    extra: Extra,
}

/// What goes with a request besides itself.
#[derive(Debug, Clone, Copy)]
enum Extra {
    /// As whom it goes to the API server.
    Impersonation,
    /// Which module of the agent asks.
    Module,
}

impl KubernetesApi {
    /// Hands requests to `upstream`. The product is named in `Via`.
    pub fn new(prefix: Prefix, product: impl Into<String>, upstream: Arc<dyn Caller>) -> Self {
        Self { prefix, product: product.into(), upstream, extra: Extra::Impersonation }
    }

    /// The same for requests of an agent's modules, which say with a [`Module`] who asks.
    pub(in crate::kas) fn of_modules(
        prefix: Prefix,
        product: impl Into<String>,
        upstream: Arc<dyn Caller>,
    ) -> Self {
        Self { extra: Extra::Module, ..Self::new(prefix, product, upstream) }
    }

    /// Answers a call that came by itself and not through a tunnel.
    pub(in crate::kas) async fn answer(&self, metadata: HeaderMap, requests: Inbox, outbox: Outbox) {
        let method = MethodPath::of(Rpc::AskGitlab, self.prefix);
        let call = ServiceCall { method, metadata, requests: Requests::plain(requests) };
        let mut replies = Replies::plain(outbox);
        let outcome = self.make_request(call, &mut replies).await;
        replies.finish(outcome);
    }

    async fn make_request(&self, call: ServiceCall, replies: &mut Replies) -> Result<(), Status> {
        let mut frames = RequestFrames::new(call.requests);
        let Some(grpctool::http_request::Message::Header(header)) = frames.frame().await? else {
            return Err(frames.malformed("it ended without a header"));
        };
        let mut request = self.request(header, &frames)?;
        let upgrade = strip_hop_by_hop(request.headers_mut()).is_some();
        for (name, value) in &call.metadata {
            if name == "traceparent" || name == "tracestate" {
                request.headers_mut().entry(name).or_insert_with(|| value.clone());
            }
        }
        let length = std::mem::take(request.extensions_mut().get_or_insert_default::<Length>()).0;
        let mut waiting = None;
        *request.body_mut() = if upgrade || length == Some(0) {
            match frames.frame().await? {
                Some(grpctool::http_request::Message::Trailer(_)) => {}
                _ => return Err(frames.malformed("a body where none was announced")),
            }
            waiting = Some(frames);
            Body::empty()
        } else {
            Body::new(RequestBody::new(frames, length))
        };
        let response = match self.upstream.call(request).await {
            Ok(response) => response,
            Err(LinkError::Denied(denial)) => refusal(&denial),
            Err(error) => return Err(Status::unavailable(format!("gRPC -> HTTP: {}", chain(&error)))),
        };
        self.respond(response, waiting.filter(|_| upgrade), replies).await
    }

    fn request(
        &self,
        header: grpctool::http_request::Header,
        frames: &RequestFrames,
    ) -> Result<Request<Body>, Status> {
        let wanted = header.request.ok_or_else(|| frames.malformed("a header without a request"))?;
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::from_bytes(wanted.method.as_bytes())
            .map_err(|_| frames.malformed("a method that is not one"))?;
        *request.uri_mut() = uri::put_together(&wanted.url_path, &wanted.query)?;
        *request.headers_mut() = headers::from_wire(wanted.header)?;
        add_via(request.headers_mut(), &format!("gRPC/1.0 {}", self.product));
        let length = match header.content_length {
            Some(length) if length < -1 => return Err(frames.malformed("a content length below -1")),
            Some(length) => u64::try_from(length).ok(),
            None => None,
        };
        request.extensions_mut().insert(Length(length));
        match (self.extra, &header.extra) {
            (Extra::Impersonation, Some(extra)) => {
                if let Some(who) = Impersonation::from_any(extra, self.prefix)? {
                    who.apply(request.headers_mut())?;
                    request.extensions_mut().insert(who);
                }
            }
            (Extra::Impersonation, None) => {}
            (Extra::Module, extra) => {
                request.extensions_mut().insert(Module::from_any(extra.as_ref(), self.prefix)?);
            }
        }
        Ok(request)
    }

    async fn respond(
        &self,
        mut response: Response<Body>,
        waiting: Option<RequestFrames>,
        replies: &mut Replies,
    ) -> Result<(), Status> {
        let stream = Upgraded::take(&mut response);
        let (mut head, mut body) = response.into_parts();
        strip_hop_by_hop(&mut head.headers);
        add_via(&mut head.headers, &format!("1.1 {}", self.product));
        let header = prototool::HttpResponse {
            status_code: i32::from(head.status.as_u16()),
            status: reason(head.status),
            header: headers::to_wire(&head.headers)?,
        };
        let header = grpctool::http_response::Header { response: Some(header) };
        replies.push(&frame(grpctool::http_response::Message::Header(header)));
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            let (Some(stream), Some(frames)) = (stream, waiting) else {
                return Err(Status::unavailable("gRPC -> HTTP: the API server changed protocols unasked"));
            };
            replies.push(&trailer());
            replies.flush();
            return relay(stream, frames, replies).await;
        }
        // What is there already leaves together with the header.
        if let Some(next) = body.frame().now_or_never() {
            if send_next(next, replies).await? {
                send_rest(body, replies).await?;
            }
        } else {
            replies.flush();
            send_rest(body, replies).await?;
        }
        replies.push(&trailer());
        Ok(())
    }
}

/// What the header said of the body's length.
#[derive(Clone, Copy, Default)]
struct Length(Option<u64>);

type Next = Option<Result<http_body::Frame<Bytes>, tarbet_link::BodyError>>;

async fn send_rest(mut body: Body, replies: &mut Replies) -> Result<(), Status> {
    while send_next(body.frame().await, replies).await? {}
    Ok(())
}

/// Whether there may be more.
async fn send_next(next: Next, replies: &mut Replies) -> Result<bool, Status> {
    match next {
        None => Ok(false),
        Some(Ok(next)) => {
            // Trailers of a response have no place in the frames.
            let Ok(data) = next.into_data() else { return Ok(true) };
            for data in pieces(data) {
                let data = grpctool::http_response::Data { data };
                let message = frame(grpctool::http_response::Message::Data(data));
                replies.message(&message).await.map_err(|gone| Status::cancelled(gone.to_string()))?;
            }
            Ok(true)
        }
        Some(Err(error)) => Err(Status::unavailable(format!("gRPC -> HTTP: {}", chain(&error)))),
    }
}

/// Carries an upgraded connection until the API server ends it.
async fn relay(stream: ByteStream, mut frames: RequestFrames, replies: &mut Replies) -> Result<(), Status> {
    use grpctool::http_request::Message as Kind;
    let (mut from, mut to) = tokio::io::split(stream);
    let inward = async {
        loop {
            match frames.frame().await? {
                Some(Kind::UpgradeData(data)) => {
                    // A server that no longer reads may still have something to say.
                    if to.write_all(&data.data).await.is_err() || to.flush().await.is_err() {
                        return Ok(());
                    }
                }
                None => {
                    let _ = to.shutdown().await;
                    return Ok(());
                }
                Some(_) => return Err(frames.malformed("a body after an upgrade")),
            }
        }
    };
    let outward = async {
        loop {
            let mut data = bytes::BytesMut::with_capacity(super::CHUNK);
            match tokio::io::AsyncReadExt::read_buf(&mut from, &mut data).await {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {
                    let data = grpctool::http_response::UpgradeData { data: data.freeze() };
                    let message = frame(grpctool::http_response::Message::UpgradeData(data));
                    replies.message(&message).await.map_err(|gone| Status::cancelled(gone.to_string()))?;
                }
            }
        }
    };
    let (mut inward, mut outward) = (std::pin::pin!(inward), std::pin::pin!(outward));
    tokio::select! {
        outcome = &mut outward => outcome,
        outcome = &mut inward => {
            outcome?;
            outward.await
        }
    }
}

/// A refusal by the site, in the form that Kubernetes clients understand.
fn refusal(denial: &Denial) -> Response<Body> {
    let text = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": denial.to_string(), "reason": reason_word(denial.status), "code": denial.status.as_u16(),
    })
    .to_string();
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = denial.status;
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    *response.headers_mut() = headers;
    response
}

fn reason_word(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "Unauthorized",
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::BAD_REQUEST => "BadRequest",
        StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
        _ => "InternalError",
    }
}

fn reason(status: StatusCode) -> String {
    format!("{} {}", status.as_u16(), status.canonical_reason().unwrap_or_default()).trim_end().to_owned()
}

fn frame(message: grpctool::http_response::Message) -> grpctool::HttpResponse {
    grpctool::HttpResponse { message: Some(message) }
}

fn trailer() -> grpctool::HttpResponse {
    frame(grpctool::http_response::Message::Trailer(grpctool::http_response::Trailer {}))
}

impl Service for KubernetesApi {
    fn name(&self) -> &str {
        Rpc::MakeRequest.service(self.prefix)
    }

    fn methods(&self) -> Vec<&str> {
        vec![Rpc::MakeRequest.method()]
    }

    fn serve<'a>(&'a self, call: ServiceCall, replies: &'a mut Replies) -> BoxFuture<'a, Result<(), Status>> {
        self.make_request(call, replies).boxed()
    }
}
