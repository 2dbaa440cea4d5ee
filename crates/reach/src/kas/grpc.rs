//! gRPC calls of any service, between HTTP/2 and a call through a tunnel.
//!
//! A call is an HTTP request like any other until it meets a tunnel of the kas protocol: there it is taken
//! apart into metadata, messages and a status, and its answer is put together again. Nothing here knows what
//! the messages mean.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use http_body::Frame;
use tarbet_link::Body;
use tonic::{Code, Status};

use super::call::{Call, CallRecv, CallSend, Part};
use super::frame::{Raw, put_raw};
use super::inbox::Inbox;
use super::prefix::MethodPath;
use super::status;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Whether a request or a response says that it is gRPC.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    // `application/grpc`, or with a word on the messages, such as `application/grpc+proto`.
    kind.and_then(|kind| kind.strip_prefix(b"application/grpc"))
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

/// The method that a request calls, if it is a gRPC call.
pub fn method<B>(request: &Request<B>) -> Option<MethodPath> {
    let is_call = request.method() == Method::POST && is_grpc(request.headers());
    is_call.then(|| MethodPath::parse(request.uri().path()).ok()).flatten()
}

/// How long the caller waits, if it says so.
pub fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // The protocol has eight digits at most.
    let plain = (1..=8).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    let count: u64 = plain.then(|| digits.parse().ok()).flatten()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// An answer that is nothing but an end.
pub fn only_status(trailer: HeaderMap, status: &Status) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.headers_mut() = trailer;
    response.headers_mut().extend(status::to_headers(status));
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    response
}

/// Sends a request's messages through a call and gives the answer as soon as it begins.
///
/// The request goes on being sent meanwhile. An agent that fails is an answer as well.
pub async fn carry(call: Call, requests: Inbox) -> Response<Body> {
    let Call { send, mut recv } = call;
    tokio::spawn(pass_on(requests, send));
    match recv.part().await {
        Some(Ok(Part::Header(metadata))) => {
            let mut response = Response::new(Body::new(Replies { recv: Some(recv) }));
            *response.headers_mut() = metadata;
            response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
            response
        }
        Some(Ok(Part::End { trailer, status })) => only_status(trailer, &status),
        Some(Err(status)) => only_status(HeaderMap::new(), &status),
        // The order of frames has neither.
        Some(Ok(Part::Message(_))) | None => {
            only_status(HeaderMap::new(), &Status::internal("gateway → agent: an answer without a header"))
        }
    }
}

async fn pass_on(mut requests: Inbox, mut send: CallSend) {
    loop {
        let message = tokio::select! {
            message = requests.message() => message,
            () = send.over() => return,
        };
        match message {
            None => return send.close(),
            // Dropping the sender cancels the call.
            Some(Err(_)) => return,
            Some(Ok(message)) => {
                if send.send(&Raw(message)).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// The messages of an answer, then its trailers. Dropped before its end, it cancels the call.
struct Replies {
    recv: Option<CallRecv>,
}

impl http_body::Body for Replies {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        loop {
            let Some(recv) = &mut this.recv else { return Poll::Ready(None) };
            let end = match ready!(recv.poll_part(cx)) {
                Some(Ok(Part::Message(message))) => {
                    let mut buffer = BytesMut::new();
                    put_raw(&mut buffer, &message);
                    return Poll::Ready(Some(Ok(Frame::data(buffer.freeze()))));
                }
                Some(Ok(Part::Header(_))) => continue,
                Some(Ok(Part::End { mut trailer, status })) => {
                    trailer.extend(status::to_headers(&status));
                    trailer
                }
                // The caller learns more from a status than from a stream that breaks off.
                Some(Err(status)) => status::to_headers(&status),
                None => status::to_headers(&Status::internal("gateway → agent: an answer without an end")),
            };
            this.recv = None;
            return Poll::Ready(Some(Ok(Frame::trailers(end))));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.recv.is_none()
    }
}

/// What an answer in HTTP alone means to a caller of gRPC, by the protocol's own table.
pub fn of_http(status: http::StatusCode) -> Status {
    let code = match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    Status::new(code, format!("agent → service: the answer is HTTP {status}, not gRPC"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(http::HeaderName::from_static(name), value.parse().unwrap())])
    }

    #[test]
    fn what_is_a_call() {
        for (kind, yes) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc; charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/json", false),
        ] {
            assert_eq!(is_grpc(&headers("content-type", kind)), yes, "{kind}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
        let call = |method: &str, path: &str| {
            let request =
                Request::builder().method(method).uri(path).header("content-type", "application/grpc");
            super::method(&request.body(()).unwrap()).map(|method| method.to_string())
        };
        assert_eq!(call("POST", "http://x/a.B/C").as_deref(), Some("/a.B/C"));
        assert_eq!(call("GET", "/a.B/C"), None);
        assert_eq!(call("POST", "/a.B"), None);
    }

    #[test]
    fn how_long_a_caller_waits() {
        for (text, expected) in [
            ("5S", Some(Duration::from_secs(5))),
            ("2H", Some(Duration::from_hours(2))),
            ("3M", Some(Duration::from_mins(3))),
            ("99999999m", Some(Duration::from_millis(99_999_999))),
            ("7u", Some(Duration::from_micros(7))),
            ("1n", Some(Duration::from_nanos(1))),
            ("999999999S", None),
            ("S", None),
            ("", None),
            ("5", None),
            ("5s", None),
            ("-1S", None),
        ] {
            assert_eq!(timeout(&headers("grpc-timeout", text)), expected, "{text}");
        }
        assert_eq!(timeout(&HeaderMap::new()), None);
    }
}
