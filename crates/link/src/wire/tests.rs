use proptest::prelude::*;

use super::*;

fn parts(request: request::Builder) -> request::Parts {
    request.body(()).unwrap().into_parts().0
}

#[test]
fn what_belongs_to_a_connection_or_to_the_link_does_not_cross() {
    let request = call(parts(
        Request::get("http://api/x")
            .header("connection", "keep-alive, X-Hop")
            .header("keep-alive", "5")
            .header("transfer-encoding", "chunked")
            .header("te", "gzip")
            .header("x-hop", "1")
            .header("host", "other")
            .header("tarbet-code", "TB-1104")
            .header("tarbet-target", "tcp secret:1")
            .header("tarbet-request", "kept")
            .header("accept", "*/*"),
    ))
    .unwrap();
    let names: Vec<_> = request.headers().keys().map(HeaderName::as_str).collect();
    assert_eq!(names, ["tarbet-request", "accept"]);
    assert_eq!(request.version(), Version::HTTP_2);
}

#[test]
fn a_request_without_authority_keeps_its_host() {
    let request = call(parts(Request::get("/x?y=1").header("host", "api.local"))).unwrap();
    assert_eq!(
        (request.version(), request.headers()[HOST].to_str().unwrap()),
        (Version::HTTP_11, "api.local")
    );
    assert!(call(parts(Request::connect("a:1"))).is_err());
}

#[test]
fn an_upgrade_crosses_and_comes_back_as_it_was() {
    let asked = parts(
        Request::post("/api/v1/exec?command=sh")
            .header("host", "api.local")
            .header("connection", "keep-alive, Upgrade")
            .header("upgrade", "SPDY/3.1")
            .header("x-stream-protocol-version", "v4.channel.k8s.io"),
    );
    let token = upgrade_token(&asked.headers).unwrap();
    let crossed = upgrade(asked, token).unwrap();
    assert_eq!(crossed.method(), Method::CONNECT);
    assert_eq!(crossed.extensions().get::<Protocol>().unwrap().as_str(), UPGRADE);
    let mut seen = crossed.into_parts().0;
    restore_upgrade(&mut seen).unwrap();
    assert_eq!((&seen.method, seen.uri.path()), (&Method::POST, "/api/v1/exec"));
    assert_eq!(seen.uri.host(), Some("api.local"));
    assert_eq!(upgrade_token(&seen.headers).unwrap(), "SPDY/3.1");
    assert_eq!(seen.headers["x-stream-protocol-version"], "v4.channel.k8s.io");

    let answer =
        Response::builder().status(101).header("connection", "Upgrade").header("upgrade", "SPDY/3.1");
    let crossed = granted(answer.body(()).unwrap().into_parts().0);
    assert_eq!(crossed.status(), StatusCode::OK);
    let mut seen = crossed.into_parts().0;
    assert!(restore_granted(&mut seen));
    assert_eq!((seen.status.as_u16(), seen.headers[UPGRADE_HEADER].to_str().unwrap()), (101, "SPDY/3.1"));
}

#[test]
fn an_upgrade_needs_both_headers() {
    let asks = |request: request::Builder| upgrade_token(&parts(request).headers).is_some();
    assert!(!asks(Request::get("/").header("upgrade", "h2c")));
    assert!(!asks(Request::get("/").header("connection", "upgrade")));
    assert!(asks(Request::get("/").header("connection", "UPGRADE").header("upgrade", "websocket")));
}

proptest! {
    #[test]
    fn a_refusal_says_the_same_on_the_other_side(
        status in 400u16..600, code in "TB-[0-9]{4}", hop in ".{0,30}", message in ".{0,120}", untouched in any::<bool>(),
    ) {
        let denial = Denial { status: StatusCode::from_u16(status).unwrap(), code, hop, message, untouched };
        let parts = denied(&denial).into_parts().0;
        prop_assert_eq!(read_denial(&parts), Some(denial));
    }

    #[test]
    fn any_header_can_be_unescaped(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        let _ = unescape(&bytes);
    }
}
