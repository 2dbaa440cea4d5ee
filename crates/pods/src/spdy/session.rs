//! One connection: who dialled opens streams, we answer them.
//!
//! Streams are answered before anything is written on them: what the reading half has to say goes
//! out ahead of what waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::frame::{Decoder, Encoder, Frame, reset};
use super::header::Headers;
use crate::streams::{
    IN, OUT, Order, PARTING, PIECE, Session, SessionError, Stream, StreamReader, StreamWriter,
};

/// Streams that are open at once on one connection; a port-forward has two for each of its own.
const STREAMS: usize = 1024;

type Open = Arc<Mutex<HashMap<u32, mpsc::Sender<Bytes>>>>;

fn lock(open: &Open) -> MutexGuard<'_, HashMap<u32, mpsc::Sender<Bytes>>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session on a connection that was upgraded, and the future that drives it.
pub fn session<T>(io: T) -> (Session, impl Future<Output = Result<(), SessionError>> + Send)
where
    T: AsyncRead + AsyncWrite + Send,
{
    let (out, orders) = mpsc::channel(OUT);
    let (say, answers) = mpsc::channel(OUT);
    let (new, incoming) = mpsc::channel(STREAMS);
    let weak = out.downgrade();
    let session = Session { incoming, out };
    let driver = async move {
        let (from, to) = tokio::io::split(io);
        let reading = read(from, new, weak, say);
        let writing = write(to, orders, answers);
        tokio::pin!(reading, writing);
        tokio::select! {
            // The peer is gone: nothing that is still written would be read.
            ended = &mut reading => ended,
            written = &mut writing => {
                written?;
                // What the peer still sends is read, else the last frames could be lost on the way.
                let _ = tokio::time::timeout(PARTING, reading).await;
                Ok(())
            }
        }
    };
    (session, driver)
}

async fn read(
    mut from: impl AsyncRead + Unpin,
    new: mpsc::Sender<Stream>,
    out: mpsc::WeakSender<Order>,
    say: mpsc::Sender<Frame>,
) -> Result<(), SessionError> {
    let open = Open::default();
    let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::with_capacity(PIECE));
    let mut latest = 0;
    loop {
        while let Some(frame) = decoder.read(&mut buffer)? {
            // Once everybody who could answer is gone, the rest is only read away.
            let Some(out) = out.upgrade() else { continue };
            take(frame, &open, &new, &out, &say, &mut latest).await;
        }
        buffer.reserve(PIECE);
        if from.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
    }
}

async fn take(
    frame: Frame,
    open: &Open,
    new: &mpsc::Sender<Stream>,
    out: &mpsc::Sender<Order>,
    answers: &mpsc::Sender<Frame>,
    latest: &mut u32,
) {
    let say = |frame: Frame| async { answers.send(frame).await.is_ok() };
    match frame {
        Frame::SynStream { stream, fin, headers } => {
            // Streams of the one who dialled are odd and only grow.
            if stream % 2 == 0 || stream <= *latest {
                say(Frame::RstStream { stream, status: reset::PROTOCOL_ERROR }).await;
                return;
            }
            *latest = stream;
            if lock(open).len() >= STREAMS || new.capacity() == 0 || new.is_closed() {
                say(Frame::RstStream { stream, status: reset::REFUSED_STREAM }).await;
                return;
            }
            say(Frame::SynReply { stream, fin: false, headers: Headers::new() }).await;
            let (sender, pieces) = mpsc::channel(IN);
            if !fin {
                lock(open).insert(stream, sender);
            }
            let writer = StreamWriter { id: stream, out: out.clone() };
            let _ = new.send(Stream { id: stream, headers, reader: StreamReader { pieces }, writer }).await;
        }
        Frame::Data { stream, fin, content } => {
            let sender = lock(open).get(&stream).cloned();
            // What nobody reads any more is thrown away.
            if let Some(sender) = sender
                && !content.is_empty()
            {
                let _ = sender.send(content).await;
            }
            if fin {
                lock(open).remove(&stream);
            }
        }
        Frame::RstStream { stream, .. } | Frame::Headers { stream, fin: true, .. } => {
            lock(open).remove(&stream);
        }
        Frame::Ping(id) if id % 2 == 1 => {
            say(Frame::Ping(id)).await;
        }
        Frame::Ping(_)
        | Frame::SynReply { .. }
        | Frame::Settings
        | Frame::GoAway { .. }
        | Frame::Headers { .. }
        | Frame::WindowUpdate => {}
    }
}

async fn write(
    mut to: impl AsyncWrite + Unpin,
    mut orders: mpsc::Receiver<Order>,
    mut answers: mpsc::Receiver<Frame>,
) -> Result<(), SessionError> {
    let (mut encoder, mut buffer) = (Encoder::default(), BytesMut::with_capacity(PIECE));
    let mut closing = false;
    while !closing {
        let mut next = tokio::select! {
            biased;
            Some(answer) = answers.recv() => {
                encoder.write(&answer, &mut buffer)?;
                None
            }
            order = orders.recv() => match order {
                Some(order) => Some(order),
                None => break,
            },
        };
        // What is there already goes out together.
        loop {
            while let Ok(answer) = answers.try_recv() {
                encoder.write(&answer, &mut buffer)?;
            }
            if let Some(order) = next.take() {
                closing = matches!(order, Order::Close);
                encoder.write(&frame(order), &mut buffer)?;
            }
            if closing || buffer.len() >= 2 * PIECE {
                break;
            }
            match orders.try_recv() {
                Ok(order) => next = Some(order),
                Err(_) => break,
            }
        }
        to.write_all_buf(&mut buffer).await?;
        to.flush().await?;
    }
    to.shutdown().await?;
    Ok(())
}

fn frame(order: Order) -> Frame {
    match order {
        Order::Data { stream, content } => Frame::Data { stream, fin: false, content },
        Order::Finish { stream } => Frame::Data { stream, fin: true, content: Bytes::new() },
        Order::Reset { stream } => Frame::RstStream { stream, status: reset::CANCEL },
        Order::Close => Frame::GoAway { last: 0, status: 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn expect(
        io: &mut (impl AsyncRead + Unpin),
        decoder: &mut Decoder,
        buffer: &mut BytesMut,
    ) -> Frame {
        loop {
            if let Some(frame) = decoder.read(buffer).unwrap() {
                return frame;
            }
            assert!(io.read_buf(buffer).await.unwrap() > 0, "closed");
        }
    }

    #[tokio::test]
    async fn streams_carry_both_ways_and_end_in_order() {
        let (near, mut far) = tokio::io::duplex(1024);
        let (mut session, driver) = session(near);
        let serve = async {
            let mut stream = session.next().await.unwrap();
            assert_eq!(stream.header("StreamType"), Some("data"));
            let mut heard = Vec::new();
            while let Some(piece) = stream.reader.next().await {
                heard.extend_from_slice(&piece);
            }
            assert!(stream.writer.send(heard.into()).await);
            assert!(stream.writer.finish().await);
            session.close().await;
        };
        let peer = async {
            let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
            let (mut wire, mut buffer) = (BytesMut::new(), BytesMut::new());
            let headers = vec![("streamtype".to_owned(), "data".to_owned())];
            encoder.write(&Frame::SynStream { stream: 1, fin: false, headers }, &mut wire).unwrap();
            encoder.write(&Frame::Ping(7), &mut wire).unwrap();
            encoder
                .write(&Frame::SynStream { stream: 1, fin: true, headers: Vec::new() }, &mut wire)
                .unwrap();
            let content = Bytes::from(vec![7; 3000]);
            encoder.write(&Frame::Data { stream: 1, fin: true, content }, &mut wire).unwrap();
            far.write_all(&wire).await.unwrap();
            let mut next = async || expect(&mut far, &mut decoder, &mut buffer).await;
            assert!(matches!(next().await, Frame::SynReply { stream: 1, .. }));
            assert_eq!(next().await, Frame::Ping(7));
            let refused = Frame::RstStream { stream: 1, status: reset::PROTOCOL_ERROR };
            assert_eq!(next().await, refused, "an id is used once");
            let mut heard = 0;
            loop {
                match next().await {
                    Frame::Data { stream: 1, fin, content } => {
                        heard += content.len();
                        if fin {
                            break;
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(heard, 3000);
            assert!(matches!(next().await, Frame::GoAway { status: 0, .. }));
            drop(far);
        };
        let (driven, (), ()) = tokio::join!(driver, serve, peer);
        driven.unwrap();
    }
}
