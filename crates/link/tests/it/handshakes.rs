use std::sync::Arc;
use std::time::Duration;

use tarbet_link::handshake::{MAGIC, Message, encode};
use tarbet_link::{
    AcceptError, Accepted, HandshakeError, Hello, Protocol, Refusal, RefusalCode, Settings, Versions,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::rig::*;
use super::world::World;

const LIMIT: Duration = Duration::from_secs(30);

async fn everybody(_: Hello) -> Result<Accepted, Refusal> {
    Ok(accepted(Settings::default()))
}

#[tokio::test]
async fn a_link_knows_who_is_at_the_other_end() {
    let pair = pair(Over::Tcp).await;
    let info = pair.link.info();
    assert_eq!((info.version, info.agent.name.as_str()), (1, "lab-1"));
    assert_eq!(info.agent.services, ["kubernetes", "tcp"]);
    let welcome = pair.agent.welcome();
    assert_eq!((welcome.link, welcome.gateway.as_str()), (info.id, "gw-1"));
}

#[tokio::test]
async fn a_refusal_reaches_the_agent_with_its_words() {
    let (a, b) = wires(Over::Tcp).await;
    let no = |_| async {
        let mut refusal = Refusal::new(RefusalCode::Revoked, "The token of lab was revoked.");
        refusal.retry_after = Some(Duration::from_mins(1));
        Err(refusal)
    };
    let world = Arc::new(World::default());
    let (gateway, agent) = tokio::join!(
        tarbet_link::accept(a, LIMIT, no),
        tarbet_link::serve(b, hello(), Settings::default(), world),
    );
    assert!(matches!(gateway.err(), Some(AcceptError::Refused(_))));
    let Err(HandshakeError::Refused(refusal)) = agent else { panic!("{agent:?}") };
    assert_eq!((refusal.code, refusal.retry_after), (RefusalCode::Revoked, Some(Duration::from_mins(1))));
}

#[tokio::test]
async fn versions_that_do_not_meet_are_told_apart() {
    for (lowest, highest, meets) in [(2, 9, false), (0, 0, false), (1, 9, true), (0, 1, true)] {
        let (a, b) = wires(Over::Memory).await;
        let mut hello = hello();
        hello.versions = Versions { lowest, highest };
        let world = Arc::new(World::default());
        let agent = tokio::spawn(tarbet_link::serve(b, hello, Settings::default(), world));
        let gateway = soon("accept", tarbet_link::accept(a, LIMIT, everybody)).await;
        if meets {
            assert_eq!(gateway.unwrap().0.info().version, 1);
            continue;
        }
        let Err(AcceptError::Refused(refusal)) = gateway else { panic!("versions {lowest} to {highest}") };
        assert_eq!(refusal.code, RefusalCode::Version);
        let Err(HandshakeError::Refused(heard)) = soon("agent", agent).await.unwrap() else { panic!() };
        assert_eq!(heard.versions, Some(Versions { lowest: 1, highest: 1 }));
        assert!(heard.text.contains("upgrade the older side"), "{}", heard.text);
    }
}

fn whole_hello() -> Vec<u8> {
    encode(&Message::Hello(hello())).unwrap()
}

// Beginnings that are no hello, and hellos with something wrong in them.
fn malformed() -> Vec<Vec<u8>> {
    let whole = whole_hello();
    let change = |at: usize, to: u8| {
        let mut bytes = whole.clone();
        bytes[at] = to;
        bytes
    };
    let mut corpus = vec![
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 0],
        vec![0; 64],
        vec![0xff; 64],
        change(0, 0x88),
        change(7, b'\r'),
        change(8, 0),
        change(8, 4),
        change(9, 0xff),
        change(11, whole[11].wrapping_sub(1)),
        change(12, 200),
        change(14, 3),
        encode(&Message::Refusal(Refusal::new(RefusalCode::Quota, "me?"))).unwrap(),
    ];
    let mut endless = MAGIC.to_vec();
    endless.extend([1, 0, 0x40, 0]);
    endless.extend(vec![90; 0x4000]);
    corpus.push(endless);
    corpus
}

#[tokio::test]
async fn malformed_hellos_are_refused_and_never_reach_the_authenticator() {
    let never = |_| async { panic!("a malformed hello was believed") };
    for bytes in malformed() {
        let (a, mut b) = wires(Over::Memory).await;
        b.write_all(&bytes).await.unwrap();
        let result = soon("accept", tarbet_link::accept(a, LIMIT, never)).await;
        assert!(matches!(result.err(), Some(AcceptError::Handshake(_))), "{bytes:?}");
        drop(b);
    }
    // Cut at every byte.
    let whole = whole_hello();
    for cut in 0..whole.len() {
        let (a, mut b) = wires(Over::Memory).await;
        b.write_all(&whole[..cut]).await.unwrap();
        drop(b);
        let result = soon("accept", tarbet_link::accept(a, LIMIT, never)).await;
        assert!(matches!(result.err(), Some(AcceptError::Handshake(HandshakeError::Io(_)))), "{cut}");
    }
}

#[tokio::test]
async fn a_gateway_that_is_none_is_noticed() {
    for bytes in malformed() {
        let (mut a, b) = wires(Over::Memory).await;
        a.write_all(&bytes).await.unwrap();
        let world = Arc::new(World::default());
        let result = soon("serve", tarbet_link::serve(b, hello(), Settings::default(), world)).await;
        assert!(result.is_err(), "{bytes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_says_nothing_is_given_up() {
    let (a, mut b) = tokio::io::duplex(1024);
    b.write_all(&MAGIC).await.unwrap();
    let result = tarbet_link::accept(a, LIMIT, everybody).await;
    assert!(matches!(result.err(), Some(AcceptError::Handshake(HandshakeError::TimedOut))));

    let (a, b) = tokio::io::duplex(4096);
    let world = Arc::new(World::default());
    let result = tarbet_link::serve(b, hello(), Settings::default(), world).await;
    assert!(matches!(result, Err(HandshakeError::TimedOut)), "{result:?}");
    drop(a);
}

#[tokio::test]
async fn an_agent_that_hangs_after_its_hello_is_given_up() {
    let (a, mut b) = wires(Over::Memory).await;
    b.write_all(&whole_hello()).await.unwrap();
    b.write_all(b"this is not HTTP/2 at all, and long enough to be seen as such").await.unwrap();
    let result = soon("accept", tarbet_link::accept(a, LIMIT, everybody)).await;
    assert!(matches!(result.err(), Some(AcceptError::Handshake(HandshakeError::Http2(_)))));
}

#[tokio::test]
async fn one_port_tells_the_protocols_apart_and_loses_no_byte() {
    for (bytes, expected) in [
        (whole_hello(), Protocol::Native),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), Protocol::Http2),
        (b"GET /agents HTTP/1.1\r\n\r\n".to_vec(), Protocol::Http1),
        (b"hello?".to_vec(), Protocol::Unknown),
        (b"PRI".to_vec(), Protocol::Unknown),
    ] {
        let (mut a, b) = tokio::io::duplex(2);
        let sent = bytes.clone();
        let writer = tokio::spawn(async move {
            a.write_all(&sent).await.unwrap();
        });
        let (protocol, mut stream) = soon("detect", tarbet_link::detect(b)).await.unwrap();
        assert_eq!(protocol, expected);
        let mut heard = Vec::new();
        soon("rest", stream.read_to_end(&mut heard)).await.unwrap();
        assert_eq!(heard, bytes);
        writer.await.unwrap();
    }
}

#[tokio::test]
async fn a_sniffed_connection_becomes_a_link() {
    let (a, b) = wires(Over::Tcp).await;
    let world = Arc::new(World::default());
    tokio::spawn(tarbet_link::serve(b, hello(), Settings::default(), world));
    let (protocol, stream) = soon("detect", tarbet_link::detect(a)).await.unwrap();
    assert_eq!(protocol, Protocol::Native);
    let (link, driver) = soon("accept", tarbet_link::accept(stream, LIMIT, everybody)).await.unwrap();
    tokio::spawn(driver);
    assert_eq!(text(link.call(post("/echo", "hi")).await.unwrap()).await, "hi");
}
