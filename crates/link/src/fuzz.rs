//! Every parser of outside bytes behind one call each, for fuzz targets: any input, no panic.

use futures::FutureExt;
use http::HeaderMap;
use tokio::io::{AsyncReadExt, join, sink};

use crate::carrier::{ProxyUrl, WebSocket, WebSocketLimits, accept_websocket, connect_websocket, tunnel};
use crate::target::Address;

const SMALL: WebSocketLimits = WebSocketLimits { largest_read: 1 << 16, largest_write: 1 << 12 };

/// The head of a request for a WebSocket as it comes to the port of agents, and what follows it.
pub fn upgrade(data: &[u8]) {
    let accepted = accept_websocket(join(data, sink()), &["tarbet-link", "ws-tunnel"], SMALL).now_or_never();
    if let Some(Ok((socket, request, chosen))) = accepted {
        let asked = request.headers().get_all("sec-websocket-protocol");
        let asked = asked
            .iter()
            .any(|value| value.as_bytes().windows(chosen.len()).any(|part| part == chosen.as_bytes()));
        assert!(asked, "no protocol is chosen that was not asked for");
        drain(socket);
    }
}

/// The messages of a WebSocket that was opened.
pub fn messages(data: &[u8]) {
    if let Some(socket) = WebSocket::server(join(data, sink()), SMALL).now_or_never() {
        drain(socket);
    }
}

/// What a gateway answers to the request for a WebSocket, and a proxy to the wish for a tunnel.
pub fn answer(data: &[u8]) {
    let (near, none) = (join(data, sink()), HeaderMap::new());
    drop(connect_websocket(near, "ws://gateway.example.org/", "tarbet-link", &none, SMALL).now_or_never());
    let target = Address::new("gateway.example.org", 443);
    let proxy = ProxyUrl::parse("http://name:word@proxy.example.org:3128");
    if let (Ok(target), Ok(proxy)) = (target, proxy)
        && let Some(Ok(mut through)) = tunnel(join(data, sink()), &target, &proxy).now_or_never()
    {
        drop(through.read_to_end(&mut Vec::new()).now_or_never());
    }
}

fn drain(mut socket: impl tokio::io::AsyncRead + Unpin) {
    let mut heard = Vec::new();
    let ended = socket.read_to_end(&mut heard).now_or_never();
    assert!(ended.is_some(), "all of it is there, so nothing is waited for");
}
