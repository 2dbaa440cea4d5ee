//! A call's outcome between its three forms: ours, the frames', and HTTP/2 trailers.

use bytes::Bytes;
use http::HeaderMap;
use prost::Message;
use tonic::{Code, Status};

use super::proto::rpc;

/// For an `error` frame.
pub fn to_wire(status: &Status) -> rpc::Status {
    let details = rpc::Status::decode(status.details()).map(|inside| inside.details).unwrap_or_default();
    rpc::Status { code: status.code() as i32, message: status.message().to_owned(), details }
}

/// From an `error` frame.
pub fn from_wire(status: rpc::Status) -> Status {
    let code = match Code::from_i32(status.code) {
        // A frame of this kind exists only for failures.
        Code::Ok => Code::Unknown,
        code => code,
    };
    let details = if status.details.is_empty() { Bytes::new() } else { Bytes::from(status.encode_to_vec()) };
    Status::with_details(code, status.message, details)
}

/// As trailers, or as the headers of a response that has no body.
pub fn to_headers(status: &Status) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(2);
    if status.add_header(&mut headers).is_err() {
        // Only a text that no header can carry gets here; the code alone always can.
        headers.clear();
        headers.insert("grpc-status", http::HeaderValue::from(status.code() as i32));
    }
    headers
}

/// What a finished gRPC response said, from its trailers, or its headers if it had no body.
pub fn of_response(headers: Option<&HeaderMap>) -> Status {
    headers.and_then(Status::from_header_map).unwrap_or_else(|| {
        Status::unavailable(
            "the stream ended without a status: the connection or a proxy on the way broke it",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_survive_both_ways() {
        let any = prost_types::Any { type_url: "type.googleapis.com/x".into(), value: vec![1, 2] };
        let wire = rpc::Status { code: 5, message: "no such é".into(), details: vec![any] };
        let status = from_wire(wire.clone());
        assert_eq!((status.code(), status.message()), (Code::NotFound, "no such é"));
        assert_eq!(to_wire(&status), wire);
        let back = of_response(Some(&to_headers(&status)));
        assert_eq!((back.code(), back.message()), (Code::NotFound, "no such é"));
        assert_eq!(to_wire(&back), wire);
    }

    #[test]
    fn an_error_frame_is_never_a_success() {
        assert_eq!(from_wire(rpc::Status::default()).code(), Code::Unknown);
        assert_eq!(of_response(None).code(), Code::Unavailable);
    }
}
