//! Which protocol a peer speaks, told by the first bytes it sends.
//!
//! One port takes native links, HTTP/2 (kas over gRPC) and HTTP/1.1 (WebSocket upgrades).

use std::io;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::duplex::Prefixed;
use crate::handshake::MAGIC;

/// How an HTTP/2 client begins.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n";
/// The longest method we are ready to wait for.
const LONGEST_METHOD: usize = 20;

/// What the first bytes say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// A native link.
    Native,
    /// An HTTP/2 client.
    Http2,
    /// An HTTP/1 request, perhaps a WebSocket upgrade.
    Http1,
    /// A TLS hello, where none was expected.
    Tls,
    /// None of these.
    Unknown,
    /// More bytes are needed to tell.
    NeedMore,
}

/// Tells the protocol from the first bytes. Never more than 20 of them are needed.
pub fn sniff(first: &[u8]) -> Protocol {
    let begins = |form: &[u8]| {
        let count = first.len().min(form.len());
        (first[..count] == form[..count]).then_some(count == form.len())
    };
    match first.first() {
        None => Protocol::NeedMore,
        Some(0x16) => match first.get(1) {
            None => Protocol::NeedMore,
            Some(3) => Protocol::Tls,
            Some(_) => Protocol::Unknown,
        },
        Some(&byte) if byte == MAGIC[0] => match begins(&MAGIC) {
            Some(true) => Protocol::Native,
            Some(false) => Protocol::NeedMore,
            None => Protocol::Unknown,
        },
        Some(_) => match begins(HTTP2) {
            Some(true) => Protocol::Http2,
            Some(false) => Protocol::NeedMore,
            None => http1(first),
        },
    }
}

// A method in capitals, a space, and the beginning of a target.
fn http1(first: &[u8]) -> Protocol {
    let method = first.iter().take_while(|byte| byte.is_ascii_uppercase() || **byte == b'-').count();
    match first.get(method) {
        _ if method == 0 || method >= LONGEST_METHOD => Protocol::Unknown,
        None => Protocol::NeedMore,
        Some(b' ') => Protocol::Http1,
        Some(_) => Protocol::Unknown,
    }
}

/// Reads until the protocol is known, and gives the stream back whole.
///
/// The caller sets the time limit. A peer that ends early is [`Protocol::Unknown`].
pub async fn detect<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<(Protocol, Prefixed<S>)> {
    let mut first = BytesMut::with_capacity(64);
    loop {
        let protocol = match sniff(&first) {
            Protocol::NeedMore if stream.read_buf(&mut first).await? == 0 => Protocol::Unknown,
            Protocol::NeedMore => continue,
            known => known,
        };
        return Ok((protocol, Prefixed::new(first.freeze(), stream)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tells_the_known_beginnings() {
        for (bytes, protocol) in [
            (&MAGIC[..], Protocol::Native),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Protocol::Http2),
            (b"GET / HTTP/1.1\r\n", Protocol::Http1),
            (b"POST /x HTTP/1.1\r\n", Protocol::Http1),
            (b"PROPFIND / HTTP/1.1\r\n", Protocol::Http1),
            (b"PRI /x HTTP/1.1\r\n", Protocol::Http1),
            (b"M-SEARCH * HTTP/1.1", Protocol::Http1),
            (&[0x16, 3, 1, 0, 200], Protocol::Tls),
            (b"SSH-2.0-OpenSSH", Protocol::Unknown),
            (b"get / http", Protocol::Unknown),
            (b"", Protocol::NeedMore),
        ] {
            assert_eq!(sniff(bytes), protocol, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn a_verdict_never_changes_and_comes_soon(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut verdict = Protocol::NeedMore;
            for end in 0..=bytes.len() {
                let now = sniff(&bytes[..end]);
                if verdict != Protocol::NeedMore {
                    prop_assert_eq!(now, verdict);
                }
                verdict = now;
            }
            prop_assert!(bytes.len() < 20 || verdict != Protocol::NeedMore);
        }

        #[test]
        fn every_cut_of_a_known_beginning_waits_or_agrees(cut in 0usize..24) {
            for (whole, protocol) in
                [(&MAGIC[..], Protocol::Native), (&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], Protocol::Http2)]
            {
                let told = sniff(&whole[..cut.min(whole.len())]);
                prop_assert!(told == Protocol::NeedMore || told == protocol);
            }
        }
    }
}
