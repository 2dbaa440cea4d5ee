//! Peers that break the rules, and peers that are merely unusual.

use bytes::Bytes;
use prost::Message;
use tarbet_link::{Caller, LinkError};
use tarbet_reach::kas::descriptor::Descriptor;
use tarbet_reach::kas::frame::Raw;
use tarbet_reach::kas::proto::prototool::Values;
use tarbet_reach::kas::proto::{agent_registrar, grpctool, prototool, reverse_tunnel as tunnel, rpc};
use tarbet_reach::kas::{Call, MethodPath, Part, Prefix, Rpc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;
use tonic::Code;
use tunnel::connect_request::Msg;
use tunnel::connect_response::Msg as Told;

use super::raw::Peer;
use super::*;

fn method() -> MethodPath {
    MethodPath::parse("/test.Echo/Say").unwrap()
}

fn descriptor() -> Option<Msg> {
    Descriptor::new([("test.Echo", vec!["Say"])]).to_frame().msg
}

fn message(data: &'static str) -> Msg {
    Msg::Message(tunnel::Message { data: Bytes::from(data) })
}

fn header() -> Msg {
    Msg::Header(tunnel::Header {
        meta: [("x-h".to_owned(), Values { value: vec!["1".into(), "2".into()] })].into(),
    })
}

fn trailer() -> Msg {
    Msg::Trailer(tunnel::Trailer { meta: [("x-t".to_owned(), Values { value: vec!["3".into()] })].into() })
}

fn error(code: Code, text: &str) -> Msg {
    let status = rpc::Status { code: code as i32, message: text.into(), details: Vec::new() };
    Msg::Error(tunnel::Error { status: Some(status) })
}

async fn gateway() -> Gateway {
    Gateway::start(Over::Tcp, Prefix::Gitlab, Desk::with(&[("t", 7)])).await
}

/// A peer whose tunnel is parked.
async fn parked(gateway: &Gateway, gzip: bool) -> Peer {
    let before = gateway.tunnels(7).0;
    let peer = Peer::connect(gateway, "t", gzip).await;
    peer.say(descriptor());
    until("the tunnel to be parked", || gateway.tunnels(7).0 == before + 1).await;
    peer
}

async fn open(gateway: &Gateway) -> Call {
    let metadata =
        headers(&[("authorization", "Bearer kas-to-kas"), ("kas-hop-routing-agent-id", "7"), ("x-m", "v")]);
    let call = gateway.pool.open(7, &method(), &metadata, Instant::now() + PATIENCE).await.unwrap();
    call.send.flush();
    call
}

#[tokio::test]
async fn a_whole_call_frame_by_frame_packed_and_plain() {
    for gzip in [false, true] {
        let gateway = gateway().await;
        let mut peer = parked(&gateway, gzip).await;
        let Call { mut send, mut recv } = open(&gateway).await;
        let Told::RequestInfo(info) = peer.hear().await.unwrap() else { panic!("not a request") };
        assert_eq!(info.method_name, "/test.Echo/Say");
        // What belongs to gateways stays with them.
        assert_eq!(info.meta.keys().collect::<Vec<_>>(), ["x-m"]);
        send.send(&Raw(Bytes::from("ping"))).await.unwrap();
        assert_eq!(peer.hear().await.unwrap(), Told::Message(tunnel::Message { data: "ping".into() }));
        // The answer may begin while the caller still sends.
        peer.say(header());
        peer.say(message("pong"));
        let Part::Header(metadata) = recv.part().await.unwrap().unwrap() else { panic!("no header") };
        assert_eq!(metadata.get_all("x-h").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert!(matches!(recv.part().await.unwrap().unwrap(), Part::Message(data) if data == "pong"));
        send.close();
        assert!(matches!(peer.hear().await.unwrap(), Told::CloseSend(_)));
        peer.say(trailer());
        peer.hang_up();
        let Part::End { trailer, status } = recv.part().await.unwrap().unwrap() else { panic!("no end") };
        assert_eq!((&trailer["x-t"], status.code()), (&"3".parse().unwrap(), Code::Ok));
        assert!(recv.part().await.is_none());
        assert_eq!(peer.end().await.code(), Code::Ok);
        until("the tunnel to be gone", || gateway.tunnels(7) == (0, 0, 0)).await;
    }
}

#[tokio::test]
async fn a_stream_of_messages_is_sent_and_closed() {
    let gateway = gateway().await;
    let mut peer = parked(&gateway, false).await;
    let messages = futures::stream::iter(["one", "two", "three"].map(Bytes::from));
    let until = Instant::now() + PATIENCE;
    let mut recv = gateway.pool.call(7, &method(), &HeaderMap::new(), messages, until).await.unwrap();
    assert!(matches!(peer.hear().await.unwrap(), Told::RequestInfo(_)));
    for word in ["one", "two", "three"] {
        assert_eq!(peer.hear().await.unwrap(), Told::Message(tunnel::Message { data: word.into() }));
    }
    assert!(matches!(peer.hear().await.unwrap(), Told::CloseSend(_)));
    peer.say(header());
    peer.say(trailer());
    peer.hang_up();
    assert!(matches!(recv.part().await, Some(Ok(Part::Header(_)))));
    assert!(matches!(recv.part().await, Some(Ok(Part::End { .. }))));
    assert_eq!(peer.end().await.code(), Code::Ok);
}

#[tokio::test]
async fn errors_keep_their_status_early_and_late() {
    let gateway = gateway().await;
    for late in [false, true] {
        let mut peer = parked(&gateway, false).await;
        let Call { send, mut recv } = open(&gateway).await;
        peer.hear().await.unwrap();
        if late {
            peer.say(header());
            peer.say(trailer());
        }
        peer.say(error(Code::FailedPrecondition, "not today"));
        peer.hang_up();
        let end = loop {
            match recv.part().await.unwrap().unwrap() {
                Part::End { status, .. } => break status,
                Part::Header(_) => {}
                Part::Message(_) => panic!("no message was sent"),
            }
        };
        assert_eq!((end.code(), end.message()), (Code::FailedPrecondition, "not today"));
        drop(send);
        assert_eq!(peer.end().await.code(), Code::Ok);
    }
}

#[tokio::test]
async fn what_breaks_the_order_is_refused() {
    let gateway = gateway().await;
    // Before a tunnel exists.
    let beginnings: [Vec<Option<Msg>>; 4] = [
        vec![Some(message("x"))],
        vec![Some(header())],
        vec![None],
        vec![Some(Msg::Descriptor(tunnel::Descriptor { agent_descriptor: None }))],
    ];
    for frames in beginnings {
        let mut peer = Peer::connect(&gateway, "t", false).await;
        for frame in frames {
            peer.say(frame);
        }
        assert_eq!(peer.end().await.code(), Code::InvalidArgument);
    }
    // In the middle of a call.
    let middles: [Vec<Option<Msg>>; 8] = [
        vec![Some(message("x"))],
        vec![Some(trailer())],
        vec![descriptor()],
        vec![None],
        vec![Some(header()), Some(header())],
        vec![Some(header()), Some(error(Code::Aborted, "x"))],
        vec![Some(header()), Some(trailer()), Some(message("x"))],
        vec![Some(Msg::Error(tunnel::Error { status: None }))],
    ];
    for frames in middles {
        let mut peer = parked(&gateway, false).await;
        let Call { send, mut recv } = open(&gateway).await;
        peer.hear().await.unwrap();
        for frame in frames.clone() {
            peer.say(frame);
        }
        let failure = loop {
            match within("the end", recv.part()).await.unwrap() {
                Ok(Part::End { status, .. }) => panic!("{frames:?} was taken: {status}"),
                Ok(_) => {}
                Err(status) => break status,
            }
        };
        assert_eq!(failure.code(), Code::InvalidArgument, "{frames:?}");
        assert_eq!(peer.end().await.code(), Code::InvalidArgument, "{frames:?}");
        drop(send);
    }
    // An end where there may be none.
    let mut peer = parked(&gateway, false).await;
    let Call { send, mut recv } = open(&gateway).await;
    peer.hear().await.unwrap();
    peer.say(header());
    peer.hang_up();
    assert!(matches!(recv.part().await, Some(Ok(Part::Header(_)))));
    assert_eq!(recv.part().await.unwrap().unwrap_err().code(), Code::InvalidArgument);
    drop(send);
}

#[tokio::test]
async fn an_idle_tunnel_that_speaks_or_ends_is_not_given_to_a_caller() {
    let gateway = gateway().await;
    let mut talker = parked(&gateway, false).await;
    talker.say(header());
    let mut quitter = parked(&gateway, false).await;
    quitter.hang_up();
    let mut good = parked(&gateway, false).await;
    // Both have reached the gateway before the good one did; asking for a round trip makes sure.
    let probe = parked(&gateway, false).await;
    drop(probe);
    until("the probe to be gone", || gateway.tunnels(7).0 == 3).await;
    let Call { send, recv } = open(&gateway).await;
    assert!(matches!(good.hear().await.unwrap(), Told::RequestInfo(_)));
    assert_eq!(talker.end().await.code(), Code::InvalidArgument);
    assert_eq!(quitter.end().await.code(), Code::InvalidArgument);
    drop((send, recv));
    let end = good.end().await;
    assert_eq!((end.code(), end.message()), (Code::Cancelled, "the caller went away"));
}

#[tokio::test]
async fn an_agent_that_disappears_in_the_middle_is_a_lost_link() {
    let gateway = gateway().await;
    let mut peer = parked(&gateway, false).await;
    let Call { send, mut recv } = open(&gateway).await;
    peer.hear().await.unwrap();
    peer.say(header());
    assert!(matches!(recv.part().await, Some(Ok(Part::Header(_)))));
    drop(peer);
    let status = within("the loss", recv.part()).await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().starts_with("gateway → agent:"), "{status}");
    drop(send);
}

/// Whatever an agent says after it got a request, the request may have reached the API server.
#[tokio::test]
async fn an_agents_failure_is_502_and_no_reason_to_send_the_request_again() {
    let gateway = gateway().await;
    let path = MethodPath::of(Rpc::MakeRequest, Prefix::Gitlab);
    let (service, name) = path.as_str().trim_start_matches('/').split_once('/').unwrap();
    for (code, text) in [
        (Code::ResourceExhausted, "too many requests"),
        (Code::Unimplemented, "unknown method"),
        (Code::DeadlineExceeded, "context deadline exceeded"),
        (Code::PermissionDenied, "no"),
        (Code::NotFound, "no"),
        (Code::Unavailable, "the gateway is shutting down"),
        (Code::Unavailable, "gRPC -> HTTP: connection refused"),
    ] {
        for late in [false, true] {
            let mut peer = Peer::connect(&gateway, "t", false).await;
            peer.say(Descriptor::new([(service, vec![name])]).to_frame().msg);
            until("the tunnel to be parked", || gateway.tunnels(7).0 == 1).await;
            let caller = gateway.caller(7);
            let request = Request::delete("/api/v1/namespaces/a/pods/b").body(Body::empty()).unwrap();
            let call = tokio::spawn(async move { caller.call(request).await.map(drop) });
            while !matches!(peer.hear().await.unwrap(), Told::CloseSend(_)) {}
            if late {
                peer.say(header());
                peer.say(trailer());
            }
            peer.say(error(code, text));
            peer.hang_up();
            let failure = within("the failure", call).await.unwrap().unwrap_err();
            assert!(!failure.safe_to_retry(), "{code:?} {text}: {failure:?}");
            let LinkError::Denied(denial) = failure else { panic!("{failure}") };
            assert_eq!(denial.status, http::StatusCode::BAD_GATEWAY, "{code:?} {text}");
            peer.end().await;
            until("the tunnel to be gone", || gateway.tunnels(7) == (0, 0, 0)).await;
        }
    }
}

/// As the original: the tunnel waits, so that the agent does not pause longer and longer.
#[tokio::test]
async fn a_tunnel_waits_until_somebody_can_say_whose_it_is() {
    let gateway = gateway().await;
    gateway.desk.speechless.store(4, Ordering::SeqCst);
    let peer = parked(&gateway, false).await;
    assert_eq!(gateway.desk.speechless.load(Ordering::SeqCst), 0);
    // A clear no is still one.
    let mut stranger = Peer::connect(&gateway, "other", false).await;
    stranger.say(descriptor());
    assert_eq!(stranger.end().await.code(), Code::Unauthenticated);
    drop(peer);
}

/// The store may be slow, and the connection gone when it has noted what was said over it.
#[tokio::test]
async fn what_is_registered_after_the_end_of_its_connection_ends_with_it() {
    let gateway = gateway().await;
    let desk = Arc::clone(&gateway.desk);
    let peer = parked(&gateway, false).await;
    let slow = desk.store.lock().await;
    let registering = peer.also(&gateway, Rpc::Register, "t");
    let mut buffer = bytes::BytesMut::new();
    let request = agent_registrar::RegisterRequest { pod_id: 12, ..Default::default() };
    tarbet_reach::kas::frame::put(&mut buffer, &request);
    registering.bytes(&buffer);
    until("it to be noted", || desk.begun.load(Ordering::SeqCst) == 1).await;
    registering.cut();
    let seated = || desk.seated.lock().unwrap().clone();
    until("the connection to end", || seated().len() == 2).await;
    drop(slow);
    until("the end of what was said", || seated().len() == 5).await;
    let connection = seated()[0].rsplit(' ').next().unwrap().to_owned();
    let [carries, left] = ["carries at", "left"].map(|what| format!("7 {what} {connection}"));
    assert_eq!(
        seated(),
        [&carries, &left, &format!("7 sits as 12 at {connection}"), &carries, &left].map(String::clone)
    );
    assert!(desk.heard("7 registered 12 "));
}

/// The configuration an agent has may be richer than ours.
#[tokio::test]
async fn an_agent_that_has_a_configuration_keeps_it() {
    let gateway = gateway().await;
    let ask = async |commit: &str| {
        let peer = Peer::call(&gateway, Rpc::GetConfiguration, "t", true).await;
        let request = agent_configuration::ConfigurationRequest {
            commit_id: commit.to_owned(),
            skip_register: true,
            ..Default::default()
        };
        let mut buffer = bytes::BytesMut::new();
        tarbet_reach::kas::frame::put(&mut buffer, &request);
        peer.bytes(&buffer);
        peer
    };
    let mut bare = ask("").await;
    let answer = agent_configuration::ConfigurationResponse::decode(bare.next().await.unwrap()).unwrap();
    assert_eq!(answer.commit_id, "c0ffee");
    let mut configured = ask("323994034f3b2bf0f33041fa8bbd0dbc9c1aa1dc").await;
    configured.head().await.unwrap();
    gateway.ask_to_move();
    // Neither is told more than that it must move.
    for peer in [&mut bare, &mut configured] {
        assert_eq!(peer.next().await.unwrap_err().code(), Code::Ok);
    }
}

#[tokio::test]
async fn frames_that_are_no_frames_hurt_nobody_else() {
    let gateway = gateway().await;
    let mut bystander = parked(&gateway, false).await;
    for (bytes, code) in [
        (&[0, 0, 0, 0, 3, 0xff, 0xff, 0xff][..], Code::InvalidArgument),
        (&[0, 0xff, 0xff, 0xff, 0xff], Code::ResourceExhausted),
        (&[7, 0, 0, 0, 0], Code::Internal),
        (&[1, 0, 0, 0, 1, 0], Code::Internal),
    ] {
        let mut peer = Peer::connect(&gateway, "t", false).await;
        peer.bytes(bytes);
        assert_eq!(peer.end().await.code(), code, "{bytes:?}");
    }
    let mut bomb = Peer::connect(&gateway, "t", true).await;
    let packed = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut encoder, &vec![0; 16 << 20]).unwrap();
        encoder.finish().unwrap()
    };
    let mut frame = vec![1];
    frame.extend(u32::try_from(packed.len()).unwrap().to_be_bytes());
    frame.extend(packed);
    bomb.bytes(&frame);
    assert_eq!(bomb.end().await.code(), Code::ResourceExhausted);

    let call = open(&gateway).await;
    assert!(matches!(bystander.hear().await.unwrap(), Told::RequestInfo(_)));
    drop(call);
}

#[tokio::test]
async fn http_frames_out_of_order_are_refused_by_the_gateway() {
    use grpctool::http_response::{Data, Header, Message as Kind, Trailer, UpgradeData};
    let gateway = gateway().await;
    let make = MethodPath::of(Rpc::MakeRequest, Prefix::Gitlab);
    let announced = || Descriptor::new([(make.service(), vec![make.method()])]).to_frame().msg;
    let ok = |status_code| {
        Some(Kind::Header(Header {
            response: Some(prototool::HttpResponse { status_code, ..Default::default() }),
        }))
    };
    let frame = |message: Option<Kind>| {
        Some(Msg::Message(tunnel::Message {
            data: grpctool::HttpResponse { message }.encode_to_vec().into(),
        }))
    };
    let cases: [Vec<Option<Kind>>; 7] = [
        vec![Some(Kind::Data(Data::default()))],
        vec![Some(Kind::Trailer(Trailer {}))],
        vec![None],
        vec![Some(Kind::Header(Header { response: None }))],
        vec![ok(99)],
        vec![ok(101)],
        vec![ok(200), Some(Kind::UpgradeData(UpgradeData::default()))],
    ];
    for case in cases {
        let mut peer = Peer::connect(&gateway, "t", false).await;
        peer.say(announced());
        let caller = gateway.caller(7);
        let call = tokio::spawn(async move {
            let response = caller.send(get("/")).await?;
            http_body_util::BodyExt::collect(response.into_body())
                .await
                .map(drop)
                .map_err(|error| Status::unknown(error.to_string()))
        });
        peer.hear().await.unwrap();
        peer.say(Some(Msg::Header(tunnel::Header::default())));
        for message in case.clone() {
            peer.say(frame(message));
        }
        assert!(within("the refusal", call).await.unwrap().is_err(), "{case:?}");
        assert_eq!(peer.end().await.code(), Code::InvalidArgument, "{case:?}");
    }
}

/// An agent over a WebSocket that names its whole target as `:authority`, written byte by byte.
#[tokio::test]
async fn an_authority_that_is_a_url_is_served() {
    let gateway = Gateway::start(Over::WebSocket, Prefix::Gitlab, Desk::with(&[("t", 7)])).await;
    let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
    let url = gateway.url(Over::WebSocket);
    let limits = WebSocketLimits::default();
    let mut socket =
        tarbet_link::connect_websocket(stream, &url, "ws-tunnel", &HeaderMap::new(), limits).await.unwrap();

    let mut encoder = loona_hpack::Encoder::new();
    let list = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", Rpc::Register.path(Prefix::Gitlab)),
        (":authority", "wss:%2F%2Fhost%2Fpath%2F"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("authorization", "Bearer t"),
    ];
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let mut out = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
        out.extend([kind, flags]);
        out.extend(stream.to_be_bytes());
        out.extend(payload);
        out
    };
    let mut body = bytes::BytesMut::new();
    tarbet_reach::kas::frame::put(
        &mut body,
        &agent_registrar::RegisterRequest { agent_meta: None, pod_id: 5 },
    );
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    // Twice: the second time the authority is a reference into the table.
    for stream in [1, 3] {
        let block = encoder.encode(list.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes())));
        bytes.extend(frame(1, 4, stream, &block));
        bytes.extend(frame(0, 1, stream, &body));
    }
    socket.write_all(&bytes).await.unwrap();
    socket.flush().await.unwrap();

    let mut decoder = loona_hpack::Decoder::new();
    let mut answered = Vec::new();
    while answered.len() < 2 {
        let mut head = [0; 9];
        within("a frame", socket.read_exact(&mut head)).await.unwrap();
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut payload = vec![0; length];
        socket.read_exact(&mut payload).await.unwrap();
        assert!(head[3] != 3 && head[3] != 7, "reset or goaway: {payload:?}");
        if head[3] == 1 {
            let list = decoder.decode(&payload).unwrap();
            if let Some((_, status)) = list.iter().find(|(name, _)| name == b"grpc-status") {
                answered.push(status.clone());
            }
        }
    }
    assert_eq!(answered, [b"0".to_vec(), b"0".to_vec()]);
    assert!(gateway.desk.heard("7 registered 5 "));
}
