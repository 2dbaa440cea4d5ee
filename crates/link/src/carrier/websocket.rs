//! Bytes in a WebSocket, for networks that let only HTTP/1.1 pass.
//!
//! Bytes travel in binary messages whose boundaries mean nothing. No pings are sent and nothing
//! is compressed; a ping of the other side is answered. A close frame ends the stream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures::{Sink, Stream};
use http::header::{HeaderMap, HeaderValue, SEC_WEBSOCKET_PROTOCOL};
use http::{Request, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::server::{
    ErrorResponse, Request as Asked, Response as Answer,
};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};

use crate::duplex::take_into;

/// How large messages may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebSocketLimits {
    /// The largest message that is taken.
    pub largest_read: usize,
    /// The largest message that is sent.
    pub largest_write: usize,
}

impl Default for WebSocketLimits {
    fn default() -> Self {
        Self { largest_read: 10 * 1024 * 1024, largest_write: 128 * 1024 }
    }
}

impl WebSocketLimits {
    fn config(self) -> WebSocketConfig {
        WebSocketConfig::default()
            // Allocated for each connection, idle or not.
            .read_buffer_size(16 * 1024)
            .write_buffer_size(0)
            .max_write_buffer_size(self.largest_write * 2 + 1024)
            .max_message_size(Some(self.largest_read))
            .max_frame_size(Some(self.largest_read))
    }
}

/// Why there is no WebSocket.
#[derive(Debug, thiserror::Error)]
pub enum WebSocketError {
    /// The URL or a header is not valid.
    #[error("the request for a WebSocket cannot be written")]
    Request(#[source] http::Error),
    /// The server answered something else.
    #[error("the server answered {status} instead of opening a WebSocket")]
    Refused {
        /// The HTTP status.
        status: u16,
    },
    /// The server did not choose the subprotocol.
    #[error("the server did not agree to the subprotocol `{0}`")]
    Subprotocol(String),
    /// The exchange failed.
    #[error("the opening of the WebSocket failed")]
    Exchange(#[source] Box<tungstenite::Error>),
}

/// Opens a WebSocket over a connected stream.
pub async fn connect_websocket<S>(
    stream: S,
    url: &str,
    subprotocol: &str,
    headers: &HeaderMap,
    limits: WebSocketLimits,
) -> Result<WebSocket<S>, WebSocketError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let uri: http::Uri = url.parse().map_err(|error| WebSocketError::Request(http::Error::from(error)))?;
    let mut request = Request::get(url)
        .header("host", host(&uri))
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", generate_key())
        .header(SEC_WEBSOCKET_PROTOCOL, subprotocol)
        .body(())
        .map_err(WebSocketError::Request)?;
    for (name, value) in headers {
        request.headers_mut().append(name, value.clone());
    }
    let opened = tokio_tungstenite::client_async_with_config(request, stream, Some(limits.config())).await;
    match opened {
        Ok((socket, response)) => match response.headers().get(SEC_WEBSOCKET_PROTOCOL) {
            Some(chosen) if chosen == subprotocol => Ok(WebSocket::new(socket, limits)),
            _ => Err(WebSocketError::Subprotocol(subprotocol.to_owned())),
        },
        Err(tungstenite::Error::Http(response)) => {
            Err(WebSocketError::Refused { status: response.status().as_u16() })
        }
        Err(tungstenite::Error::Protocol(
            tungstenite::error::ProtocolError::SecWebSocketSubProtocolError(_),
        )) => Err(WebSocketError::Subprotocol(subprotocol.to_owned())),
        Err(error) => Err(WebSocketError::Exchange(Box::new(error))),
    }
}

/// The host as clients of the web name it: without the port that goes without saying. Some proxies know a
/// site by nothing else.
fn host(uri: &http::Uri) -> &str {
    let named = uri.authority().map_or("", |authority| authority.as_str());
    let usual = match uri.scheme_str() {
        Some("wss" | "https") => ":443",
        _ => ":80",
    };
    named.strip_suffix(usual).unwrap_or(named)
}

/// Takes a WebSocket on a stream that speaks HTTP/1.1, if it asks for one of the subprotocols.
///
/// Gives the request too: its path and headers may matter.
pub async fn accept_websocket<S>(
    stream: S,
    subprotocols: &[&'static str],
    limits: WebSocketLimits,
) -> Result<(WebSocket<S>, Request<()>, &'static str), WebSocketError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut asked = None;
    let choose = |request: &Asked, mut response: Answer| -> Result<Answer, ErrorResponse> {
        let offered = request.headers().get_all(SEC_WEBSOCKET_PROTOCOL);
        let offered =
            offered.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        let offered: Vec<&str> = offered.map(str::trim).collect();
        if let Some(chosen) = subprotocols.iter().copied().find(|ours| offered.contains(ours)) {
            response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(chosen));
            asked = Some((request.clone(), chosen));
            return Ok(response);
        }
        let text = format!("This port takes WebSockets with the subprotocol {}.", subprotocols.join(" or "));
        let mut refusal = ErrorResponse::new(Some(text));
        *refusal.status_mut() = StatusCode::BAD_REQUEST;
        Err(refusal)
    };
    let opened = tokio_tungstenite::accept_hdr_async_with_config(stream, choose, Some(limits.config())).await;
    match (opened, asked) {
        (Ok(socket), Some((request, chosen))) => Ok((WebSocket::new(socket, limits), request, chosen)),
        (Ok(_), None) => Err(WebSocketError::Subprotocol(subprotocols.join(","))),
        (Err(tungstenite::Error::Http(response)), _) => {
            Err(WebSocketError::Refused { status: response.status().as_u16() })
        }
        (Err(error), _) => Err(WebSocketError::Exchange(Box::new(error))),
    }
}

/// A WebSocket as a stream of bytes.
pub struct WebSocket<S> {
    socket: WebSocketStream<S>,
    chunk: Bytes,
    ended: bool,
    largest_write: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    fn new(socket: WebSocketStream<S>, limits: WebSocketLimits) -> Self {
        Self { socket, chunk: Bytes::new(), ended: false, largest_write: limits.largest_write }
    }

    /// The server's end of a connection that some HTTP server has upgraded already.
    pub async fn server(stream: S, limits: WebSocketLimits) -> Self {
        let config = Some(limits.config());
        Self::new(WebSocketStream::from_raw_socket(stream, Role::Server, config).await, limits)
    }

    fn send(&mut self, message: Bytes) -> io::Result<()> {
        Pin::new(&mut self.socket).start_send(Message::Binary(message)).map_err(broken)
    }
}

fn broken(error: tungstenite::Error) -> io::Error {
    match error {
        tungstenite::Error::Io(error) => error,
        tungstenite::Error::ConnectionClosed | tungstenite::Error::AlreadyClosed => {
            io::ErrorKind::BrokenPipe.into()
        }
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocket<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.chunk.is_empty() && !this.ended {
            match ready!(Pin::new(&mut this.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(chunk))) => this.chunk = chunk,
                Some(Ok(Message::Text(_))) => {
                    let text = "a WebSocket that carries bytes received a text message";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
                }
                // Many programs leave without a close frame.
                Some(
                    Ok(Message::Close(_))
                    | Err(tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)),
                )
                | None => this.ended = true,
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(broken(error))),
            }
        }
        take_into(&mut this.chunk, buf);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocket<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        ready!(Pin::new(&mut this.socket).poll_ready(cx)).map_err(broken)?;
        let count = buf.len().min(this.largest_write);
        this.send(Bytes::copy_from_slice(&buf[..count]))?;
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.socket).poll_ready(cx)).map_err(broken)?;
        let total: usize = bufs.iter().map(|part| part.len()).sum();
        if total == 0 {
            return Poll::Ready(Ok(0));
        }
        // One message for all, so that a frame header does not become a message of its own.
        let mut message = BytesMut::with_capacity(total.min(this.largest_write));
        for part in bufs {
            let room = this.largest_write - message.len();
            message.extend_from_slice(&part[..part.len().min(room)]);
        }
        let count = message.len();
        this.send(message.freeze())?;
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx).map_err(broken)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match ready!(Pin::new(&mut self.get_mut().socket).poll_close(cx)) {
            Ok(()) => Poll::Ready(Ok(())),
            Err(error) => match broken(error) {
                // It is closed already.
                error if error.kind() == io::ErrorKind::BrokenPipe => Poll::Ready(Ok(())),
                error => Poll::Ready(Err(error)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_usual_port_is_not_named() {
        for (url, host) in [
            ("wss://kas.example.org:443/-/kubernetes-agent/", "kas.example.org"),
            ("ws://kas.example.org:80/", "kas.example.org"),
            ("wss://kas.example.org:80/", "kas.example.org:80"),
            ("ws://[::1]:8150/", "[::1]:8150"),
            ("wss://[::443]/", "[::443]"),
        ] {
            assert_eq!(super::host(&url.parse().unwrap()), host, "{url}");
        }
    }
}
