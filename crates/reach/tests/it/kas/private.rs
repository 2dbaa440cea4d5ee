//! Two gateways: requests enter at one and leave by the other.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, StatusCode};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tarbet_identity::SecretBytes;
use tarbet_identity::jwt::kas::KasSigner;
use tarbet_link::{Body, Upgraded};
use tarbet_reach::audit::AuditLog;
use tarbet_reach::config::GatewayConfig;
use tarbet_reach::kas::kubernetes::make_request;
use tarbet_reach::kas::outbox::OutboxBody;
use tarbet_reach::kas::private::{Knock, Offer, knock, serve};
use tarbet_reach::kas::{Call, MethodPath, Part, Prefix, Rpc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::Code;

use super::raw::Peer;
use super::*;
use crate::it::lab::Lab;

/// The private listener of a gateway.
async fn listen(pool: &TunnelPool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let pool = pool.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let pool = pool.clone();
            let service = service_fn(move |request| {
                std::future::ready(Ok::<_, Infallible>(serve(&pool, request, PATIENCE)))
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

/// A connection from the gateway that a request entered at.
struct Entry {
    client: SendRequest<OutboxBody>,
    address: SocketAddr,
}

impl Entry {
    async fn connect(address: SocketAddr) -> Self {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (client, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self { client, address }
    }

    fn knock(&self, method: &MethodPath, agent: i64) -> Knock {
        let (mut client, address) = (self.client.clone(), self.address);
        let metadata = headers(&[("x-m", "v"), ("kas-hop-other", "w")]);
        knock(method, agent, &"jwt".into(), &metadata, move |mut request| {
            let path = request.uri().path().to_owned();
            *request.uri_mut() = format!("http://{address}{path}").parse().unwrap();
            client.send_request(request)
        })
        .unwrap()
    }

    async fn open(&self, method: &MethodPath, agent: i64) -> Call {
        let mut knock = self.knock(method, agent);
        loop {
            match within("an offer", knock.offer()).await.unwrap() {
                Some(Offer::Ready) => return knock.start().unwrap(),
                Some(Offer::NotYet) => {}
                None => panic!("the other gateway ended it"),
            }
        }
    }
}

fn method() -> MethodPath {
    MethodPath::of(Rpc::MakeRequest, Prefix::Gitlab)
}

#[tokio::test]
async fn requests_cross_two_gateways() {
    let (gateway, _agent, _site) = connected(Over::Tcp, Prefix::Gitlab).await;
    let entry = Entry::connect(listen(&gateway.pool).await).await;
    let options = RequestOptions { product: "entry".into(), ..RequestOptions::default() };
    for size in [0, 10, 500_000] {
        let request = Request::post("/sum").body(Body::from(vec![1u8; size])).unwrap();
        let call = entry.open(&method(), 7).await;
        let response = within("a response", make_request(call, request, &options)).await.unwrap();
        assert_eq!(text(response).await, size.to_string());
    }
    let request = Request::get("/upgrade").header("connection", "upgrade").header("upgrade", "websocket");
    let call = entry.open(&method(), 7).await;
    let mut response = make_request(call, request.body(Body::empty()).unwrap(), &options).await.unwrap();
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let mut stream = Upgraded::take(&mut response).unwrap();
    stream.write_all(b"through both").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut back = String::new();
    within("the echo", stream.read_to_string(&mut back)).await.unwrap();
    assert_eq!(back, "through both");
    drop(stream);
    until("all tunnels to be idle", || gateway.tunnels(7).1 == 0).await;
}

#[tokio::test]
async fn one_that_has_no_tunnel_says_so_and_may_have_one_later() {
    let site = Site::start().await;
    let gateway = Gateway::start(Over::Tcp, Prefix::Gitlab, Desk::with(&[("t", 7)])).await;
    let entry = Entry::connect(listen(&gateway.pool).await).await;
    let mut first = entry.knock(&method(), 7);
    assert_eq!(within("an offer", first.offer()).await.unwrap(), Some(Offer::NotYet));
    let _agent = run_agent(agent_config(&gateway, Over::Tcp, "t"), &site);
    assert_eq!(within("an offer", first.offer()).await.unwrap(), Some(Offer::Ready));
    until("the other tunnel", || gateway.tunnels(7).0 == 1).await;
    assert_eq!(gateway.tunnels(7), (1, 1, 0));
    // Not taken: it goes back whole.
    drop(first);
    until("the tunnel to be back", || gateway.tunnels(7) == (2, 0, 0)).await;
    let call = entry.open(&method(), 7).await;
    let response = make_request(call, get("/bytes/4"), &RequestOptions::default()).await.unwrap();
    assert_eq!(text(response).await, "xxxx");
}

/// As the original: whoever waits at a gateway that leaves is told at once, and looks elsewhere.
#[tokio::test]
async fn who_waits_at_a_gateway_that_leaves_is_told() {
    let lab = Lab::new().await;
    let gateway = lab.gateway("one", GatewayConfig::default(), AuditLog::none());
    let stream = lab.net.connect("replica", "one:8155").await.unwrap();
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let token = KasSigner::private_api(SecretBytes::new(vec![7; 32])).token(Timestamp::now());
    let mut waiting = knock(&method(), 7, &token, &HeaderMap::new(), move |mut request| {
        *request.uri_mut() = format!("http://one:8155{}", request.uri().path()).parse().unwrap();
        client.send_request(request)
    })
    .unwrap();
    assert_eq!(within("an offer", waiting.offer()).await.unwrap(), Some(Offer::NotYet));
    let leaving = tokio::spawn(async move { gateway.leave(&lab.net).await });
    let told = within("the word", waiting.offer()).await.unwrap_err();
    assert_eq!(told.code(), Code::Unavailable, "{told}");
    assert!(told.message().contains("shutting down"), "{told}");
    within("the gateway to leave", leaving).await.unwrap();
}

#[tokio::test]
async fn a_caller_that_leaves_at_the_entry_ends_the_call_at_the_site() {
    let (gateway, _agent, site) = connected(Over::Tcp, Prefix::Gitlab).await;
    let entry = Entry::connect(listen(&gateway.pool).await).await;
    let call = entry.open(&method(), 7).await;
    let waiting =
        tokio::spawn(
            async move { make_request(call, get("/hold"), &RequestOptions::default()).await.map(drop) },
        );
    until("the request to arrive", || site.held() == 1).await;
    waiting.abort();
    until("the request to be given up", || site.left() == 1).await;
}

#[tokio::test]
async fn an_early_error_keeps_its_status_and_secrets_stay_with_the_gateways() {
    use tarbet_reach::kas::descriptor::Descriptor;
    use tarbet_reach::kas::proto::reverse_tunnel as tunnel;
    use tarbet_reach::kas::proto::rpc;
    let gateway = Gateway::start(Over::Tcp, Prefix::Gitlab, Desk::with(&[("t", 7)])).await;
    let entry = Entry::connect(listen(&gateway.pool).await).await;
    let mut peer = Peer::connect(&gateway, "t", false).await;
    peer.say(Descriptor::new([("test.Echo", vec!["Say"])]).to_frame().msg);
    let echo = MethodPath::parse("/test.Echo/Say").unwrap();
    let Call { mut send, mut recv } = entry.open(&echo, 7).await;
    send.send(&tarbet_reach::kas::frame::Raw(Bytes::from("ping"))).await.unwrap();
    let tunnel::connect_response::Msg::RequestInfo(info) = peer.hear().await.unwrap() else { panic!() };
    assert_eq!(info.meta.keys().collect::<Vec<_>>(), ["x-m"]);
    assert!(
        matches!(peer.hear().await.unwrap(), tunnel::connect_response::Msg::Message(m) if m.data == "ping")
    );
    let status =
        rpc::Status { code: Code::NotFound as i32, message: "no such thing".into(), details: Vec::new() };
    peer.say(Some(tunnel::connect_request::Msg::Error(tunnel::Error { status: Some(status) })));
    peer.hang_up();
    assert!(matches!(within("a header", recv.part()).await, Some(Ok(Part::Header(_)))));
    let Some(Ok(Part::End { status, .. })) = within("an end", recv.part()).await else { panic!() };
    assert_eq!((status.code(), status.message()), (Code::NotFound, "no such thing"));
    assert_eq!(peer.end().await.code(), Code::Ok);
}

#[tokio::test]
async fn what_is_asked_wrongly_is_refused() {
    let (gateway, _agent, _site) = connected(Over::Tcp, Prefix::Gitlab).await;
    let address = listen(&gateway.pool).await;
    let entry = Entry::connect(address).await;
    let other = MethodPath::parse("/no.such.Service/Method").unwrap();
    let mut unknown = entry.knock(&other, 7);
    assert_eq!(unknown.offer().await.unwrap(), Some(Offer::NotYet));
    assert_eq!(within("a refusal", unknown.offer()).await.unwrap_err().code(), Code::Unimplemented);

    for ids in [&[][..], &["x"], &["7", "7"], &["9223372036854775808"]] {
        let (mut client, ids) = (entry.client.clone(), ids.to_vec());
        let mut wrong = knock(&method(), 7, &"jwt".into(), &HeaderMap::new(), move |mut request| {
            let path = request.uri().path().to_owned();
            *request.uri_mut() = format!("http://{address}{path}").parse().unwrap();
            request.headers_mut().remove("kas-hop-routing-agent-id");
            for id in ids {
                request.headers_mut().append("kas-hop-routing-agent-id", id.parse().unwrap());
            }
            client.send_request(request)
        })
        .unwrap();
        assert_eq!(within("a refusal", wrong.offer()).await.unwrap_err().code(), Code::InvalidArgument);
    }

    // A gateway that is not there is a failure of that hop.
    let mut nowhere = knock(&method(), 7, &"jwt".into(), &HeaderMap::new(), |_| async {
        Err::<http::Response<Body>, _>(std::io::Error::other("refused"))
    })
    .unwrap();
    let status = nowhere.offer().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().starts_with("entry gateway → holding gateway"), "{status}");
}
