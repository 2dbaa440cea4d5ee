//! The gateway's half: an HTTP request into a call, and its answer back.

use std::future::poll_fn;

use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body::Body as _;
use http_body_util::BodyExt;
use tarbet_link::{Body, ByteStream, Upgraded};
use tonic::Status;

use super::body::{ReplyBody, Responses};
use super::headers::{self, add_via, strip_cors, strip_credentials, strip_hop_by_hop};
use super::impersonation::Impersonation;
use super::upgrade::UpgradedCall;
use super::{pieces, uri};
use crate::kas::call::{Call, CallSend};
use crate::kas::prefix::Prefix;
use crate::kas::proto::{grpctool, prototool};

/// What a gateway adds to a request.
#[derive(Debug, Clone, Default)]
pub struct RequestOptions {
    /// The package names the agent uses.
    pub prefix: Prefix,
    /// As whom the request goes to the API server; `None`: as the agent.
    pub impersonation: Option<Impersonation>,
    /// What the gateway calls itself in `Via`, such as `gitlab-kas/v16.5.0/8daa08cc`.
    pub product: String,
}

/// Sends a request through a call of `MakeRequest` and gives the response as soon as its head is there.
///
/// The body of the request goes on being sent meanwhile. Headers of the connection, and credentials that
/// were meant for the gateway, are left out. A response of 101 brings its stream, see [`Upgraded`]. An
/// agent's failure before the response is the error; later ones are errors of the body.
pub async fn make_request(
    call: Call,
    request: Request<Body>,
    options: &RequestOptions,
) -> Result<Response<Body>, Status> {
    let (mut head, body) = request.into_parts();
    strip_credentials(&mut head.headers);
    let upgrade = strip_hop_by_hop(&mut head.headers).is_some();
    add_via(&mut head.headers, &format!("gRPC/1.0 {}", options.product));
    let length = if upgrade { 0 } else { content_length(&head.headers, &body) };
    let (url_path, query) = uri::take_apart(&head.uri)?;
    let message = grpctool::http_request::Header {
        request: Some(prototool::HttpRequest {
            method: head.method.as_str().to_owned(),
            header: headers::to_wire(&head.headers)?,
            url_path,
            query,
        }),
        extra: options
            .impersonation
            .as_ref()
            .filter(|who| !who.is_empty())
            .map(|who| who.to_any(options.prefix)),
        content_length: Some(length),
    };
    let Call { mut send, recv } = call;
    send.push(&frame(grpctool::http_request::Message::Header(message)));
    let mut open = None;
    if upgrade {
        send.push(&trailer());
        send.flush();
        open = Some(send);
    } else if length == 0 || body.is_end_stream() {
        // All of it leaves in one piece.
        send.push(&trailer());
        send.close();
    } else {
        send.flush();
        tokio::spawn(send_body(send, body));
    }
    let mut responses = Responses::new(recv);
    let (status, headers) = response_head(&mut responses).await?;
    respond(status, headers, responses, open, head.method == Method::HEAD, options).await
}

fn content_length(headers: &HeaderMap, body: &Body) -> i64 {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let announced = announced.and_then(|text| text.parse().ok());
    let exact = || body.size_hint().exact().and_then(|size| i64::try_from(size).ok());
    announced.or_else(exact).unwrap_or(-1)
}

async fn send_body(mut send: CallSend, mut body: Body) {
    loop {
        let next = tokio::select! {
            next = body.frame() => next,
            // Nobody waits for the rest any more.
            () = send.over() => return,
        };
        match next {
            None => break,
            Some(Ok(next)) => {
                // Trailers of a request have no place in the frames.
                let Ok(data) = next.into_data() else { continue };
                for data in pieces(data) {
                    let data = grpctool::http_request::Data { data };
                    if send.send(&frame(grpctool::http_request::Message::Data(data))).await.is_err() {
                        return;
                    }
                }
            }
            // Dropping the sender cancels the call: half a request must not look like a whole one.
            Some(Err(error)) => {
                tracing::debug!(%error, "The body of a request broke off.");
                return;
            }
        }
    }
    send.push(&trailer());
    send.close();
}

fn frame(message: grpctool::http_request::Message) -> grpctool::HttpRequest {
    grpctool::HttpRequest { message: Some(message) }
}

fn trailer() -> grpctool::HttpRequest {
    frame(grpctool::http_request::Message::Trailer(grpctool::http_request::Trailer {}))
}

async fn response_head(responses: &mut Responses) -> Result<(StatusCode, HeaderMap), Status> {
    use grpctool::http_response::Message as Kind;
    let Some(Kind::Header(header)) = poll_fn(|cx| responses.poll_frame(cx)).await? else {
        return Err(responses.refuse("it ended without a header"));
    };
    let Some(response) = header.response else {
        return Err(responses.refuse("a header without a response"));
    };
    let status = u16::try_from(response.status_code).ok().and_then(|code| StatusCode::from_u16(code).ok());
    let Some(status) = status else { return Err(responses.refuse("a status code out of range")) };
    match headers::from_wire(response.header) {
        Ok(headers) => Ok((status, headers)),
        Err(_) => Err(responses.refuse("a header that is not a legal one")),
    }
}

async fn respond(
    status: StatusCode,
    mut headers: HeaderMap,
    mut responses: Responses,
    open: Option<CallSend>,
    head: bool,
    options: &RequestOptions,
) -> Result<Response<Body>, Status> {
    let switches = strip_hop_by_hop(&mut headers).is_some() && status == StatusCode::SWITCHING_PROTOCOLS;
    if !switches {
        headers.remove(header::CONNECTION);
        headers.remove(header::UPGRADE);
    }
    strip_cors(&mut headers);
    add_via(&mut headers, &format!("gRPC/1.0 {}", options.product));
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    match (status == StatusCode::SWITCHING_PROTOCOLS, open) {
        (true, Some(send)) if switches => {
            use grpctool::http_response::Message as Kind;
            match poll_fn(|cx| responses.poll_frame(cx)).await? {
                Some(Kind::Trailer(_)) => {}
                _ => return Err(responses.refuse("an upgrade with a body")),
            }
            Upgraded::put(&mut response, ByteStream::from_duplex(UpgradedCall::new(send, responses)));
        }
        (true, _) => return Err(responses.refuse("an upgrade that nobody asked for")),
        (false, open) => {
            if let Some(send) = open {
                send.close();
            }
            let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
            let length = length.and_then(|text| text.parse().ok());
            // The length of a response to HEAD, or of 304, is that of a body that does not come.
            let length = length.filter(|_| !head && status != StatusCode::NOT_MODIFIED);
            *response.body_mut() = Body::new(ReplyBody::new(responses, length));
        }
    }
    *response.headers_mut() = headers;
    Ok(response)
}
