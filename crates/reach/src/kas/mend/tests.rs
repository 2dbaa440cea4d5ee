use proptest::prelude::*;

use super::*;

const REAL: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

fn mended(input: &[u8], cut: usize) -> Result<Vec<u8>, MendError> {
    let (mut mender, mut out) = (Mender::default(), BytesMut::new());
    for chunk in input.chunks(cut) {
        mender.push(chunk, &mut out)?;
    }
    Ok(out.to_vec())
}

/// The frames behind the preface: kind, flags, stream, payload.
fn frames(bytes: &[u8]) -> Vec<(u8, u8, u32, Vec<u8>)> {
    assert_eq!(&bytes[..PREFACE], REAL);
    let (mut rest, mut out) = (&bytes[PREFACE..], Vec::new());
    while !rest.is_empty() {
        let length = usize::from(rest[0]) << 16 | usize::from(rest[1]) << 8 | usize::from(rest[2]);
        let stream = u32::from_be_bytes(rest[5..9].try_into().unwrap());
        out.push((rest[3], rest[4], stream, rest[9..9 + length].to_vec()));
        rest = &rest[9 + length..];
    }
    out
}

/// What an agent sends first over a WebSocket: preface, settings, one call with its first message.
fn recorded(authority: &str) -> Vec<u8> {
    let mut encoder = loona_hpack::Encoder::new();
    let headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/gitlab.agent.reverse_tunnel.rpc.ReverseTunnel/Connect"),
        (":authority", authority),
        ("content-type", "application/grpc"),
        ("user-agent", "gitlab-agent/v16.5.0/8daa08cc grpc-go/1.58.2"),
        ("te", "trailers"),
        ("grpc-encoding", "gzip"),
        ("authorization", "Bearer glagent-abc"),
    ];
    let mut block = || encoder.encode(headers.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())));
    let (first, second) = (block(), block());
    [
        REAL.to_vec(),
        frame(4, 0, 0, &[]),
        frame(HEADERS, END_HEADERS, 1, &first),
        frame(0, 0, 1, &[0, 0, 0, 0, 0]),
        // The second call is almost nothing but references into the table.
        frame(HEADERS, END_HEADERS | END_STREAM, 3, &second),
    ]
    .concat()
}

fn lists(frames: &[(u8, u8, u32, Vec<u8>)]) -> Vec<Vec<(String, String)>> {
    let mut decoder = loona_hpack::Decoder::new();
    let mut text = |block: &[u8]| {
        let list = decoder.decode(block).unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        list.into_iter().map(|(n, v)| (text(n), text(v))).collect()
    };
    let blocks = frames.iter().filter(|(kind, ..)| *kind == HEADERS);
    blocks.map(|(.., payload)| text(payload)).collect()
}

#[test]
fn an_authority_that_is_a_url_is_replaced_and_nothing_else() {
    let out = frames(&mended(&recorded("wss:%2F%2Fhost%2Fpath%2F"), 7).unwrap());
    let kinds: Vec<_> = out.iter().map(|(kind, flags, stream, _)| (*kind, *flags, *stream)).collect();
    assert_eq!(kinds, [(4, 0, 0), (1, 4, 1), (0, 0, 1), (1, 5, 3)]);
    for list in lists(&out) {
        assert_eq!(list[3], (":authority".into(), AUTHORITY.into()));
        assert_eq!(list[8], ("authorization".into(), "Bearer glagent-abc".into()));
        assert_eq!(list.len(), 9);
    }
}

#[test]
fn an_authority_that_is_one_stays() {
    for authority in ["127.0.0.1:8150", "kas.example.org", "[::1]:80"] {
        let out = frames(&mended(&recorded(authority), usize::MAX).unwrap());
        for list in lists(&out) {
            assert_eq!(list[3].1, authority);
        }
    }
}

#[test]
fn padding_priority_and_continuation_are_understood() {
    let block: Vec<u8> = [0x82, 0x84, 0x86].into_iter().chain([0x01, 2, b':', b':']).collect();
    let mut payload = vec![3, 0, 0, 0, 9, 200];
    payload.extend(&block[..2]);
    payload.extend([0; 3]);
    let input = [
        REAL.to_vec(),
        frame(HEADERS, PADDED | PRIORITY | END_STREAM, 5, &payload),
        frame(CONTINUATION, 0, 5, &block[2..4]),
        frame(CONTINUATION, END_HEADERS, 5, &block[4..]),
    ]
    .concat();
    for cut in [1, 3, 1000] {
        let out = frames(&mended(&input, cut).unwrap());
        let [(kind, flags, stream, payload)] = &out[..] else { panic!("{out:?}") };
        assert_eq!((*kind, *flags, *stream), (HEADERS, END_HEADERS | END_STREAM | PRIORITY, 5));
        assert_eq!(payload[..5], [0, 0, 0, 9, 200]);
        let list = loona_hpack::Decoder::new().decode(&payload[5..]).unwrap();
        assert_eq!(list[3], (b":authority".to_vec(), AUTHORITY.as_bytes().to_vec()));
    }
}

#[test]
fn a_list_that_grows_beyond_a_frame_is_split() {
    // One long value in the table, then ten references to it.
    let mut block = vec![0x40, 1, b'x', 0x7f, 0xa1, 0x1e];
    block.extend([b'y'; 4000]);
    block.extend([0xbe; 10]);
    let out =
        frames(&mended(&[REAL.to_vec(), frame(HEADERS, END_HEADERS, 1, &block)].concat(), 999).unwrap());
    assert!(out.len() > 1 && out.iter().all(|(.., payload)| payload.len() <= FRAME));
    assert_eq!(out.iter().map(|frame| frame.0).collect::<Vec<_>>(), [HEADERS, CONTINUATION, CONTINUATION]);
    assert_eq!(out.iter().map(|frame| frame.1).collect::<Vec<_>>(), [0, 0, END_HEADERS]);
    let whole: Vec<u8> = out.into_iter().flat_map(|(.., payload)| payload).collect();
    assert_eq!(loona_hpack::Decoder::new().decode(&whole).unwrap().len(), 11);
}

#[test]
fn refusals() {
    let mut bomb = vec![0x40, 1, b'x', 0x7f, 0xa1, 0x1e];
    bomb.extend([b'y'; 4000]);
    bomb.extend([0xbe; 100]);
    let endless: Vec<u8> = std::iter::once(frame(HEADERS, 0, 1, &[0x82]))
        .chain(std::iter::repeat_n(frame(CONTINUATION, 0, 1, &[]), 100))
        .flatten()
        .collect();
    let cases = [
        (frame(HEADERS, END_HEADERS, 1, &bomb), MendError::Headers(HpackError::List)),
        (frame(HEADERS, END_HEADERS, 1, &[0xbe]), MendError::Headers(HpackError::Index)),
        (frame(HEADERS, END_HEADERS, 1, &vec![0; 17_000]), MendError::TooLarge),
        (frame(HEADERS, END_HEADERS | PADDED, 1, &[5, 1]), MendError::Short),
        (frame(HEADERS, END_HEADERS | PADDED, 1, &[]), MendError::Short),
        (frame(HEADERS, END_HEADERS | PRIORITY, 1, &[1, 2, 3]), MendError::Short),
        (frame(CONTINUATION, END_HEADERS, 1, &[0x82]), MendError::Order),
        (frame(PUSH_PROMISE, END_HEADERS, 1, &[0x82]), MendError::Order),
        ([frame(HEADERS, 0, 1, &[0x82]), frame(0, 0, 1, &[])].concat(), MendError::Order),
        ([frame(HEADERS, 0, 1, &[0x82]), frame(CONTINUATION, 4, 3, &[])].concat(), MendError::Order),
        (endless, MendError::TooLarge),
    ];
    for (bytes, error) in cases {
        assert_eq!(mended(&[REAL, &bytes[..]].concat(), 100), Err(error));
    }
}

proptest! {
    /// However the stream is cut, the same bytes come out; frames that are no headers come out as they were.
    #[test]
    fn cuts_do_not_matter(
        bodies in proptest::collection::vec((0u8..20, any::<u8>(), proptest::collection::vec(any::<u8>(), 0..50)), 0..6),
        cut in 1usize..40,
    ) {
        let mut input = recorded("ws:%2F%2F127.0.0.1:8250%2F");
        for (kind, flags, payload) in &bodies {
            if ![HEADERS, PUSH_PROMISE, CONTINUATION].contains(kind) {
                input.extend(frame(*kind, *flags, 1, payload));
            }
        }
        let whole = mended(&input, usize::MAX).unwrap();
        prop_assert_eq!(&mended(&input, cut).unwrap(), &whole);
        let passed: Vec<_> = frames(&whole).into_iter().skip(4).collect();
        let sent: Vec<_> = bodies.into_iter().filter(|(kind, ..)| ![HEADERS, PUSH_PROMISE, CONTINUATION].contains(kind)).map(|(k, f, p)| (k, f, 1, p)).collect();
        prop_assert_eq!(passed, sent);
    }

    /// What comes out is mended for good: a second pass changes nothing.
    #[test]
    fn once_is_enough(authority in "[ -~]{0,30}") {
        let once = mended(&recorded(&authority), 64).unwrap();
        prop_assert_eq!(&mended(&once, 64).unwrap(), &once);
    }

    #[test]
    fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..300), cut in 1usize..50) {
        let _ = mended(&noise, cut);
        let _ = mended(&[REAL, &noise[..]].concat(), cut);
        let headers = frame(HEADERS, noise.first().copied().unwrap_or(0) | END_HEADERS, 1, &noise);
        let _ = mended(&[REAL, &headers[..]].concat(), cut);
    }
}
