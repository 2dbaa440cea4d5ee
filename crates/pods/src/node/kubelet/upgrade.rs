//! From HTTP to the streams of a command or a forward: by SPDY or by WebSocket.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::{Kubelet, Refusal};
use crate::spdy;
use crate::streams::{Driver, Session};
use crate::websocket::{self, Channel, Coding};

const PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const ACCEPTED: &str = "x-accepted-stream-protocol-versions";
const SPDY: &str = "SPDY/3.1";

/// What can carry the streams of a call, best first, by the protocol's name; the last of each also
/// stands for callers that name none.
pub(super) struct Protocols {
    /// Over SPDY.
    pub(super) spdy: &'static [&'static str],
    /// Over WebSocket.
    pub(super) websocket: &'static [(&'static str, Messages)],
}

/// What the messages of a WebSocket are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Messages {
    /// Pieces of channels.
    Channels(Coding),
    /// Bytes of a SPDY connection.
    Spdy,
}

impl Messages {
    /// Channels without and with ends, and as text.
    pub(super) const PLAIN: Self = Self::Channels(Coding { base64: false, ends: false });
    pub(super) const ENDING: Self = Self::Channels(Coding { base64: false, ends: true });
    pub(super) const TEXT: Self = Self::Channels(Coding { base64: true, ends: false });
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Spdy,
    WebSocket(Messages),
}

/// A request that will be a connection of streams once it is answered.
pub(super) struct Upgrade {
    on: OnUpgrade,
    /// The protocol both ends know.
    pub(super) protocol: &'static str,
    carrier: Carrier,
    /// The caller named the protocol, so the answer does.
    named: bool,
    /// What a WebSocket is answered with.
    accept: Option<HeaderValue>,
}

/// Checks that the request asks for one of these protocols.
pub(super) fn upgrade(request: &mut Request, known: &Protocols) -> Result<Upgrade, Box<Response>> {
    let headers = request.headers();
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let refused = |text: String| Box::new(Refusal::new(StatusCode::BAD_REQUEST, text).into_response());
    let upgrades = text(header::CONNECTION).to_ascii_lowercase().contains("upgrade");
    let wanted = text(header::UPGRADE).to_ascii_lowercase();
    if upgrades && wanted == "websocket" {
        let key = text(header::SEC_WEBSOCKET_KEY);
        if key.is_empty() || text(header::SEC_WEBSOCKET_VERSION) != "13" {
            return Err(refused(
                "unable to upgrade: this is no request for a WebSocket of version 13".into(),
            ));
        }
        let names: Vec<_> = known.websocket.iter().map(|(name, _)| *name).collect();
        let asked = list(headers, &header::SEC_WEBSOCKET_PROTOCOL);
        // The caller's order counts, as it does for kubelets.
        let chosen = match asked.as_slice() {
            [] => known.websocket.last(),
            asked => asked.iter().find_map(|name| known.websocket.iter().find(|(known, _)| known == name)),
        };
        let Some(&(protocol, messages)) = chosen else { return Err(Box::new(unknown(&names))) };
        let (named, accept) = (!asked.is_empty(), HeaderValue::from_str(&derive_accept_key(key.as_bytes())));
        let carrier = Carrier::WebSocket(messages);
        let accept = Some(accept.map_err(|error| refused(format!("unable to upgrade: {error}")))?);
        return Ok(Upgrade { on: hyper::upgrade::on(request), protocol, carrier, named, accept });
    }
    if upgrades && wanted.eq_ignore_ascii_case(SPDY) {
        let asked = list(headers, &PROTOCOL);
        let chosen = match asked.as_slice() {
            [] => known.spdy.last(),
            asked => known.spdy.iter().find(|name| asked.contains(name)),
        };
        let Some(&protocol) = chosen else { return Err(Box::new(unknown(known.spdy))) };
        let carrier = Carrier::Spdy;
        return Ok(Upgrade { on: hyper::upgrade::on(request), protocol, carrier, named: true, accept: None });
    }
    Err(refused(
        "unable to upgrade: this needs the headers Connection: Upgrade and Upgrade: SPDY/3.1 or websocket"
            .into(),
    ))
}

fn unknown(known: &[&'static str]) -> Response {
    let text = format!("unable to upgrade: none of the protocols is known, only {}", known.join(", "));
    let mut response = Refusal::new(StatusCode::FORBIDDEN, text).into_response();
    for name in known {
        response.headers_mut().append(ACCEPTED, HeaderValue::from_static(name));
    }
    response
}

fn list<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<&'a str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',').map(str::trim)).filter(|value| !value.is_empty()).collect()
}

impl Upgrade {
    /// Whether the caller may open the streams it likes; otherwise they are the channels.
    pub(super) fn opens_streams(&self) -> bool {
        !matches!(self.carrier, Carrier::WebSocket(Messages::Channels(_)))
    }

    /// Answers the request; `serve` runs on the connection that it becomes. A WebSocket of channels
    /// has these.
    pub(super) fn accept<F, T>(self, kubelet: &Arc<Kubelet>, channels: Vec<Channel>, serve: F) -> Response
    where
        F: FnOnce(Session, Driver) -> T + Send + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        let (on, carrier, stop) = (self.on, self.carrier, kubelet.stop.clone());
        kubelet.streams.spawn(async move {
            match on.await {
                Ok(stream) => {
                    let (session, driver) = begin(TokioIo::new(stream), carrier, channels);
                    tokio::select! {
                        () = serve(session, driver) => {}
                        () = stop.cancelled() => {}
                    }
                }
                Err(error) => tracing::debug!(error = %error, "A caller left before its upgrade."),
            }
        });
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        let (what, name) = match carrier {
            Carrier::Spdy => (SPDY, PROTOCOL),
            Carrier::WebSocket(_) => ("websocket", header::SEC_WEBSOCKET_PROTOCOL),
        };
        headers.insert(header::UPGRADE, HeaderValue::from_static(what));
        if self.named {
            headers.insert(name, HeaderValue::from_static(self.protocol));
        }
        if let Some(accept) = self.accept {
            headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
        }
        response
    }
}

fn begin<T>(io: T, carrier: Carrier, channels: Vec<Channel>) -> (Session, Driver)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn boxed<D>((session, driver): (Session, D)) -> (Session, Driver)
    where
        D: Future<Output = Result<(), crate::streams::SessionError>> + Send + 'static,
    {
        (session, Box::pin(driver))
    }
    match carrier {
        Carrier::Spdy => boxed(spdy::session(io)),
        Carrier::WebSocket(Messages::Channels(coding)) => boxed(websocket::channels(io, channels, coding)),
        Carrier::WebSocket(Messages::Spdy) => boxed(websocket::tunnel(io)),
    }
}

/// Reads a caller's wish for streams and what follows it, as fuzzing does: the lines of a head, an empty
/// one, and the bytes of the connection it becomes.
pub(crate) async fn read_any(data: &[u8]) {
    let end = data.windows(2).position(|pair| pair == b"\n\n");
    let (head, rest) = end.map_or((data, &[][..]), |end| (&data[..end], &data[end + 2..]));
    for known in [&super::command::PROTOCOLS, &super::forward::PROTOCOLS] {
        let mut request = Request::new(Body::empty());
        for line in head.split(|byte| *byte == b'\n') {
            let at = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
            let name = HeaderName::from_bytes(&line[..at]);
            let value = HeaderValue::from_bytes(line.get(at + 1..).unwrap_or_default().trim_ascii());
            if let (Ok(name), Ok(value)) = (name, value) {
                request.headers_mut().append(name, value);
            }
        }
        let Ok(upgrade) = upgrade(&mut request, known) else { continue };
        let channels = vec![Channel::new(0, "stdin"), Channel::new(1, "stdout"), Channel::new(4, "resize")];
        let io = tokio::io::join(std::io::Cursor::new(rest.to_vec()), tokio::io::sink());
        let (mut session, driver) = begin(io, upgrade.carrier, channels);
        let reading = async {
            let mut readers = Vec::new();
            while let Some(mut stream) = session.next().await {
                readers.push(tokio::spawn(async move { while stream.reader.next().await.is_some() {} }));
            }
            session.close().await;
        };
        let (_ended, ()) = tokio::join!(driver, reading);
    }
}
