//! A peer that writes its frames by hand.

use std::io::Write;

use bytes::{Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use http::Request;
use http_body::Frame;
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tarbet_reach::kas::frame::put;
use tarbet_reach::kas::inbox::Inbox;
use tarbet_reach::kas::proto::reverse_tunnel as tunnel;
use tarbet_reach::kas::{Prefix, Rpc, status};
use tokio::sync::mpsc;
use tonic::Status;
use tunnel::connect_request::Msg;

use super::*;

type OutBody = UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// A connection, and the socket it uses.
type Wire = (SendRequest<OutBody>, Arc<std::net::TcpStream>);

/// An agent by hand: its frames go out as they are said, packed if wanted.
pub(super) struct Peer {
    sender: Option<mpsc::UnboundedSender<Bytes>>,
    gzip: bool,
    response: tokio::task::JoinHandle<hyper::Result<http::Response<hyper::body::Incoming>>>,
    inbox: Option<Inbox>,
    connection: Wire,
}

impl Peer {
    pub(super) async fn connect(gateway: &Gateway, token: &str, gzip: bool) -> Self {
        Self::call(gateway, Rpc::Connect, token, gzip).await
    }

    pub(super) async fn call(gateway: &Gateway, rpc: Rpc, token: &str, gzip: bool) -> Self {
        let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap().into_std().unwrap();
        let wire = Arc::new(stream.try_clone().unwrap());
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        let (client, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self::over((client, wire), gateway, rpc, token, gzip)
    }

    /// One more call over the same connection.
    pub(super) fn also(&self, gateway: &Gateway, rpc: Rpc, token: &str) -> Self {
        Self::over(self.connection.clone(), gateway, rpc, token, false)
    }

    /// Ends the connection in the middle of whatever goes on over it.
    pub(super) fn cut(self) {
        self.connection.1.shutdown(std::net::Shutdown::Both).unwrap();
    }

    fn over(mut connection: Wire, gateway: &Gateway, rpc: Rpc, token: &str, gzip: bool) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let frames =
            futures::stream::unfold(receiver, |mut receiver: mpsc::UnboundedReceiver<Bytes>| async move {
                Some((Ok(Frame::data(receiver.recv().await?)), receiver))
            });
        let request = Request::post(format!("http://{}{}", gateway.address, rpc.path(Prefix::Gitlab)))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-encoding", if gzip { "gzip" } else { "identity" })
            .header("authorization", format!("Bearer {token}"))
            .body(UnsyncBoxBody::new(StreamBody::new(frames)))
            .unwrap();
        let response = tokio::spawn(connection.0.send_request(request));
        Self { sender: Some(sender), gzip, response, inbox: None, connection }
    }

    pub(super) fn say(&self, msg: impl Into<Option<Msg>>) {
        let message = tunnel::ConnectRequest { msg: msg.into() };
        let mut buffer = BytesMut::new();
        if self.gzip {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(&message.encode_to_vec()).unwrap();
            let packed = encoder.finish().unwrap();
            buffer.extend_from_slice(&[1]);
            buffer.extend_from_slice(&u32::try_from(packed.len()).unwrap().to_be_bytes());
            buffer.extend_from_slice(&packed);
        } else {
            put(&mut buffer, &message);
        }
        self.bytes(&buffer);
    }

    pub(super) fn bytes(&self, bytes: &[u8]) {
        let _ = self.sender.as_ref().unwrap().send(Bytes::copy_from_slice(bytes));
    }

    pub(super) fn hang_up(&mut self) {
        self.sender = None;
    }

    async fn inbox(&mut self) -> Result<&mut Inbox, Status> {
        if self.inbox.is_none() {
            let (head, body) = within("the head", &mut self.response).await.unwrap().unwrap().into_parts();
            if let Some(status) = Status::from_header_map(&head.headers) {
                return Err(status);
            }
            self.inbox = Some(Inbox::new(&head.headers, body).unwrap());
        }
        Ok(self.inbox.as_mut().unwrap())
    }

    /// Waits until the gateway has begun to answer.
    pub(super) async fn head(&mut self) -> Result<(), Status> {
        self.inbox().await.map(drop)
    }

    /// The next message of the gateway, whatever it is.
    pub(super) async fn next(&mut self) -> Result<Bytes, Status> {
        let inbox = self.inbox().await?;
        match within("a frame", inbox.message()).await {
            Some(message) => message,
            None => Err(status::of_response(inbox.trailers())),
        }
    }

    /// The next frame of the gateway.
    pub(super) async fn hear(&mut self) -> Result<tunnel::connect_response::Msg, Status> {
        Ok(tunnel::ConnectResponse::decode(self.next().await?).unwrap().msg.unwrap())
    }

    /// How the gateway ended the tunnel.
    pub(super) async fn end(&mut self) -> Status {
        loop {
            if let Err(status) = self.hear().await {
                return status;
            }
        }
    }
}
