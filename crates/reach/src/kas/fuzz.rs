//! Every reader of bytes from strangers, as plain functions for a fuzzer. None may panic.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Uri, header};

use super::config::KasConfig;
use super::descriptor::Descriptor;
use super::frame::Decoder;
use super::gitlab::{Credential, strip_credential_query};
use super::mend::Mender;
use super::order::{CONNECT_REQUEST, Track};
use super::{gzip, hpack, meta, redis};

/// HTTP/2 from an agent, as it arrives over a WebSocket, in two pieces.
pub fn http2_stream(data: &[u8]) {
    let (mut mender, mut out) = (Mender::default(), BytesMut::new());
    let (first, second) = data.split_at(data.len() / 2);
    let _ = mender.push(first, &mut out).and_then(|()| mender.push(second, &mut out));
}

/// One header block.
pub fn header_block(data: &[u8]) {
    let mut fields = 0;
    let _ = hpack::Decoder::default().decode(data, |_| {
        fields += 1;
        fields < 1000
    });
}

/// The body of a gRPC call, packed or not.
pub fn grpc_frames(data: &[u8]) {
    for packed in [false, true] {
        let mut decoder = Decoder::with(packed, 1 << 16);
        let (first, second) = data.split_at(data.len() / 2);
        for chunk in [first, second] {
            decoder.push(Bytes::copy_from_slice(chunk));
            while let Ok(Some(_)) = decoder.next_message() {}
        }
        let _ = decoder.end();
    }
}

/// One packed message.
pub fn gzip_message(data: &[u8]) {
    let _ = gzip::gunzip(data, 1 << 16);
}

/// The first frame of a tunnel.
pub fn descriptor(data: &[u8]) {
    let _ = Descriptor::read(&mut Track::new(&CONNECT_REQUEST), Bytes::copy_from_slice(data));
}

/// The `authorization` and `cookie` headers and the query of a caller.
pub fn credential(data: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(data) else { return };
    let uri = Uri::try_from(data).unwrap_or_default();
    let _ = strip_credential_query(&uri);
    for name in [header::AUTHORIZATION, header::COOKIE] {
        let headers = HeaderMap::from_iter([(name, value.clone())]);
        let _ = (meta::bearer(&headers), meta::to_wire(&headers));
        let _ = Credential::read(&headers, &uri);
    }
}

/// A configuration file.
pub fn config(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(config) = KasConfig::parse(text)
    {
        let _ = config.warnings();
    }
}

/// A hash as another replica left it in Redis.
pub fn redis_hash(data: &[u8]) {
    let _ = redis::sort([(Vec::new(), data.to_vec())], 0);
    for prefix in [super::Prefix::Gitlab, super::Prefix::Plural] {
        let _ = redis::Connection::decode(prefix, data);
        let _ = redis::read_client_error(prefix, data);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn noise(data in proptest::collection::vec(any::<u8>(), 0..400)) {
            super::http2_stream(&data);
            super::header_block(&data);
            super::grpc_frames(&data);
            super::gzip_message(&data);
            super::descriptor(&data);
            super::credential(&data);
            super::config(&data);
            super::redis_hash(&data);
        }
    }
}
