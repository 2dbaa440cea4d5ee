//! WebSocket, as Kubernetes uses it for exec, attach and port-forward.
//!
//! Either each message belongs to a numbered channel, whose number is its first byte ([`channels`]),
//! or the messages are the bytes of a SPDY connection ([`tunnel`]). Channels are agreed on by the
//! request; nobody opens them. Half of a channel can only be ended in the fifth protocol: by a
//! message of the byte 255 and the channel's number.

use std::collections::HashMap;
use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};

use crate::spdy;
use crate::spdy::header::Headers;
use crate::streams::{
    IN, OUT, Order, PARTING, PIECE, Session, SessionError, Stream, StreamReader, StreamWriter,
};

/// The largest message that is taken, as kubelets have it: some callers send a whole file as one.
const LARGEST: usize = 32 * 1024 * 1024;
/// The channel of messages about channels.
const ABOUT_CHANNELS: u8 = 255;

/// One channel of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Channel {
    /// Its number.
    pub number: u8,
    /// What it is for, as a SPDY stream would say it.
    pub headers: Headers,
    /// Whether the caller has something to say on it.
    pub heard: bool,
    /// What is written on it before anything else, even if that is nothing.
    pub greeting: Option<Bytes>,
}

impl Channel {
    /// A channel of a kind that says nothing at the beginning.
    pub fn new(number: u8, kind: &str) -> Self {
        let headers = vec![("streamtype".to_owned(), kind.to_owned())];
        Self { number, headers, heard: matches!(kind, "stdin" | "resize" | "data"), greeting: None }
    }
}

/// How messages are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coding {
    /// As text: the channel's number as a digit, the rest as base64.
    pub base64: bool,
    /// Channels can be ended by the caller.
    pub ends: bool,
}

fn broken(error: tungstenite::Error) -> SessionError {
    match error {
        tungstenite::Error::Io(error) => SessionError::Connection(error),
        other => SessionError::WebSocket(Box::new(other)),
    }
}

async fn open<T: AsyncRead + AsyncWrite + Unpin>(io: T) -> WebSocketStream<T> {
    let config = WebSocketConfig::default()
        .read_buffer_size(PIECE)
        .write_buffer_size(0)
        .max_message_size(Some(LARGEST))
        .max_frame_size(Some(LARGEST));
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await
}

/// A session whose streams are the channels of a WebSocket, and the future that drives it.
pub fn channels<T>(
    io: T,
    channels: Vec<Channel>,
    coding: Coding,
) -> (Session, impl Future<Output = Result<(), SessionError>> + Send)
where
    T: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (out, orders) = mpsc::channel(OUT);
    // All there will ever be: who takes them sees the end after the last.
    let (new, incoming) = mpsc::channel(channels.len().max(1));
    let (mut heard, mut greetings) = (HashMap::new(), Vec::new());
    for Channel { number, headers, heard: speaks, greeting } in channels {
        let (sender, pieces) = mpsc::channel(IN);
        if speaks {
            heard.insert(number, sender);
        }
        greetings.extend(greeting.map(|content| (number, content)));
        let writer = StreamWriter { id: u32::from(number), out: out.clone() };
        let stream = Stream { id: u32::from(number), headers, reader: StreamReader { pieces }, writer };
        // There is room for each of them.
        let _ = new.try_send(stream);
    }
    let driver = async move {
        let (to, from) = open(io).await.split();
        let reading = read(from, heard, coding);
        let writing = write(to, orders, greetings, coding);
        tokio::pin!(reading, writing);
        tokio::select! {
            ended = &mut reading => ended,
            written = &mut writing => {
                written?;
                let _ = tokio::time::timeout(PARTING, reading).await;
                Ok(())
            }
        }
    };
    (Session { incoming, out }, driver)
}

/// Takes a message apart: its channel and what is said there.
fn decode(message: Message) -> Option<(u8, Bytes)> {
    match message {
        Message::Binary(mut content) if !content.is_empty() => {
            let first = content.split_to(1);
            Some((first[0], content))
        }
        Message::Text(text) => {
            let (&first, rest) = text.as_bytes().split_first()?;
            let number = first.checked_sub(b'0')?;
            Some((number, STANDARD.decode(rest).ok()?.into()))
        }
        _ => None,
    }
}

fn encode(number: u8, content: &[u8], coding: Coding) -> Message {
    if coding.base64 {
        let mut text = String::from(char::from(b'0'.saturating_add(number)));
        STANDARD.encode_string(content, &mut text);
        return Message::text(text);
    }
    let mut bytes = BytesMut::with_capacity(1 + content.len());
    bytes.put_u8(number);
    bytes.put_slice(content);
    Message::Binary(bytes.freeze())
}

async fn read<T: AsyncRead + AsyncWrite + Unpin>(
    mut from: SplitStream<WebSocketStream<T>>,
    mut heard: HashMap<u8, mpsc::Sender<Bytes>>,
    coding: Coding,
) -> Result<(), SessionError> {
    while let Some(message) = from.next().await {
        let message = match message {
            Ok(Message::Close(_)) | Err(tungstenite::Error::ConnectionClosed) => return Ok(()),
            Ok(message) => message,
            Err(error) => return Err(broken(error)),
        };
        // Pings are answered underneath, and what has no channel says nothing.
        let Some((number, content)) = decode(message) else { continue };
        if number == ABOUT_CHANNELS && coding.ends {
            if let Some(ended) = content.first() {
                heard.remove(ended);
            }
        } else if let Some(sender) = heard.get(&number)
            && !content.is_empty()
        {
            // What nobody reads any more is thrown away.
            let _ = sender.send(content).await;
        }
    }
    Ok(())
}

async fn write<T: AsyncRead + AsyncWrite + Unpin>(
    mut to: SplitSink<WebSocketStream<T>, Message>,
    mut orders: mpsc::Receiver<Order>,
    greetings: Vec<(u8, Bytes)>,
    coding: Coding,
) -> Result<(), SessionError> {
    for (number, content) in greetings {
        to.send(encode(number, &content, coding)).await.map_err(broken)?;
    }
    while let Some(order) = orders.recv().await {
        match order {
            Order::Data { stream, content } => {
                let number = u8::try_from(stream).unwrap_or(ABOUT_CHANNELS);
                to.send(encode(number, &content, coding)).await.map_err(broken)?;
            }
            // A channel cannot be ended alone on our side.
            Order::Finish { .. } | Order::Reset { .. } => {}
            Order::Close => break,
        }
    }
    match to.send(Message::Close(None)).await {
        Ok(()) | Err(tungstenite::Error::ConnectionClosed) => Ok(()),
        Err(error) => Err(broken(error)),
    }
}

/// A session of SPDY inside the binary messages of a WebSocket, and the future that drives it.
pub fn tunnel<T>(io: T) -> (Session, impl Future<Output = Result<(), SessionError>> + Send)
where
    T: AsyncRead + AsyncWrite + Unpin + Send,
{
    let (near, far) = tokio::io::duplex(2 * PIECE);
    let (session, inner) = spdy::session(near);
    let driver = async move {
        let (mut to, mut from) = open(io).await.split();
        let (mut said, mut hears) = tokio::io::split(far);
        // Each owns its end of the pipe: what carries the session takes it along, however it ends.
        let reading = async move {
            while let Some(message) = from.next().await {
                match message {
                    Ok(Message::Binary(content)) => hears.write_all(&content).await?,
                    Ok(Message::Close(_)) | Err(tungstenite::Error::ConnectionClosed) => break,
                    Ok(_) => {}
                    Err(error) => return Err(broken(error)),
                }
            }
            hears.shutdown().await?;
            Ok(())
        };
        let writing = async move {
            let mut buffer = BytesMut::with_capacity(PIECE);
            while said.read_buf(&mut buffer).await? > 0 {
                to.send(Message::Binary(buffer.split().freeze())).await.map_err(broken)?;
                buffer.reserve(PIECE);
            }
            to.send(Message::Close(None)).await.map_err(broken)
        };
        let carried = async move {
            tokio::pin!(reading, writing);
            tokio::select! {
                ended = &mut reading => ended,
                written = &mut writing => {
                    written?;
                    // What the peer still sends is read, else the last messages could be lost on the way.
                    let _ = tokio::time::timeout(PARTING, reading).await;
                    Ok(())
                }
            }
        };
        let (carried, inner) = tokio::join!(carried, inner);
        carried.and(match inner {
            // The pipe ends with what carried it.
            Err(SessionError::Connection(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        })
    };
    (session, driver)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::spdy::frame::{Decoder, Encoder, Frame};

    async fn client(io: tokio::io::DuplexStream) -> WebSocketStream<tokio::io::DuplexStream> {
        WebSocketStream::from_raw_socket(io, Role::Client, None).await
    }

    #[tokio::test]
    async fn channels_carry_both_ways_and_the_fifth_protocol_ends_input() {
        let (near, far) = tokio::io::duplex(1024);
        let mut stdout = Channel::new(1, "stdout");
        stdout.greeting = Some(Bytes::new());
        let coding = Coding { base64: false, ends: true };
        let (mut session, driver) = channels(near, vec![Channel::new(0, "stdin"), stdout], coding);
        let serve = async {
            let mut stdin = session.next().await.unwrap();
            let stdout = session.next().await.unwrap();
            assert!(session.next().await.is_none(), "there are as many as were agreed on");
            let mut heard = Vec::new();
            while let Some(piece) = stdin.reader.next().await {
                heard.extend_from_slice(&piece);
            }
            assert!(stdout.writer.send(heard.into()).await && stdout.writer.finish().await);
            session.close().await;
        };
        let peer = async {
            let mut socket = client(far).await;
            assert_eq!(socket.next().await.unwrap().unwrap(), Message::binary(vec![1]));
            // Nobody listens there.
            socket.send(Message::binary(vec![1, b'n'])).await.unwrap();
            socket.send(Message::binary(vec![0, b'h'])).await.unwrap();
            socket.send(Message::binary(vec![0, b'i'])).await.unwrap();
            socket.send(Message::binary(vec![255, 0])).await.unwrap();
            let mut heard = Vec::new();
            loop {
                match socket.next().await.unwrap().unwrap() {
                    Message::Binary(piece) => heard.extend_from_slice(&piece[1..]),
                    Message::Close(_) => break,
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(heard, b"hi");
        };
        let (driven, (), ()) = tokio::join!(driver, serve, peer);
        driven.unwrap();
    }

    #[tokio::test]
    async fn a_tunnel_carries_spdy() {
        let (near, far) = tokio::io::duplex(1024);
        let (mut session, driver) = tunnel(near);
        let serve = async {
            let mut stream = session.next().await.unwrap();
            let said = stream.reader.next().await.unwrap();
            stream.writer.send(said).await;
            stream.writer.finish().await;
            session.close().await;
        };
        let peer = async {
            let mut socket = client(far).await;
            let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
            let mut wire = BytesMut::new();
            let open = Frame::SynStream { stream: 1, fin: false, headers: Headers::new() };
            encoder.write(&open, &mut wire).unwrap();
            let data = Frame::Data { stream: 1, fin: true, content: Bytes::from_static(b"through") };
            encoder.write(&data, &mut wire).unwrap();
            // Messages may fall anywhere in a frame.
            for piece in wire.chunks(3) {
                socket.send(Message::binary(piece.to_vec())).await.unwrap();
            }
            let (mut buffer, mut frames) = (BytesMut::new(), Vec::new());
            while let Some(Ok(message)) = socket.next().await {
                if let Message::Binary(piece) = message {
                    buffer.extend_from_slice(&piece);
                }
                while let Some(frame) = decoder.read(&mut buffer).unwrap() {
                    frames.push(frame);
                }
            }
            assert!(matches!(frames[0], Frame::SynReply { stream: 1, .. }), "{frames:?}");
            let content = Bytes::from_static(b"through");
            assert_eq!(frames[1], Frame::Data { stream: 1, fin: false, content });
        };
        let (driven, (), ()) = tokio::join!(driver, serve, peer);
        driven.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_breaks_takes_its_tunnel_along() {
        let (near, far) = tokio::io::duplex(1024);
        let (mut session, driver) = tunnel(near);
        let peer = async {
            let mut socket = client(far).await;
            let mut wire = BytesMut::new();
            let open = Frame::SynStream { stream: 1, fin: false, headers: Headers::new() };
            Encoder::default().write(&open, &mut wire).unwrap();
            socket.send(Message::binary(wire.to_vec())).await.unwrap();
            // Killed: neither SPDY nor WebSocket is ended.
            let stream = session.next().await.unwrap();
            drop(socket);
            stream
        };
        // Whoever serves it holds its streams until the driver has ended.
        let (driven, mut stream) =
            tokio::time::timeout(4 * PARTING, async { tokio::join!(driver, peer) }).await.unwrap();
        assert!(
            matches!(driven, Err(SessionError::WebSocket(_) | SessionError::Connection(_))),
            "{driven:?}"
        );
        assert!(stream.reader.next().await.is_none(), "its stream has ended too");
    }

    proptest! {
        #[test]
        fn messages_are_read_as_they_were_written(number in 0..10_u8, content: Vec<u8>, base64: bool) {
            let coding = Coding { base64, ends: false };
            let read = decode(encode(number, &content, coding));
            prop_assert_eq!(read, Some((number, Bytes::from(content))));
        }

        #[test]
        fn nothing_that_is_sent_breaks_reading(bytes: Vec<u8>, text: String) {
            let _ = decode(Message::binary(bytes));
            let _ = decode(Message::text(text));
        }
    }
}
