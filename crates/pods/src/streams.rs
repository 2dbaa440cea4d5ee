//! Streams of one connection between a caller and a node, whichever protocol carries them.
//!
//! A carrier ([`spdy`](crate::spdy), [`websocket`](crate::websocket)) gives a [`Session`] and a
//! driver. The driver is a future that whoever serves the connection polls beside its own work; it
//! ends when the peer is gone or after [`Session::close`].

use std::io;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite;

use crate::spdy::frame::BadFrame;
use crate::spdy::header::{self, Headers};

/// Pieces that wait to be written before writers wait too.
pub(crate) const OUT: usize = 32;
/// Pieces that wait to be read of one stream before its connection waits.
pub(crate) const IN: usize = 32;
/// What the peer gets to read the last pieces and go.
pub(crate) const PARTING: Duration = Duration::from_secs(5);
/// Pieces are cut to this, so that streams take turns.
pub(crate) const PIECE: usize = 32 * 1024;

/// Why a connection ended early.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The connection broke.
    #[error("the connection broke")]
    Connection(#[from] io::Error),
    /// The peer does not speak SPDY/3.1.
    #[error("the peer sent something that is not SPDY/3.1")]
    Frame(#[from] BadFrame),
    /// The peer does not speak WebSocket, or left without a word.
    #[error("the WebSocket broke")]
    WebSocket(#[source] Box<tungstenite::Error>),
}

/// Drives a session.
pub type Driver = Pin<Box<dyn Future<Output = Result<(), SessionError>> + Send>>;

/// What is to be written.
pub(crate) enum Order {
    Data { stream: u32, content: Bytes },
    Finish { stream: u32 },
    Reset { stream: u32 },
    Close,
}

/// The side of a connection that takes streams.
pub struct Session {
    pub(crate) incoming: mpsc::Receiver<Stream>,
    pub(crate) out: mpsc::Sender<Order>,
}

/// A stream that the peer opened.
pub struct Stream {
    /// Its id.
    pub id: u32,
    /// What it is for.
    pub headers: Headers,
    /// What the peer says.
    pub reader: StreamReader,
    /// What we say.
    pub writer: StreamWriter,
}

impl Stream {
    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        header::get(&self.headers, name)
    }
}

/// The peer's half of a stream.
pub struct StreamReader {
    pub(crate) pieces: mpsc::Receiver<Bytes>,
}

impl StreamReader {
    /// One that has nothing to say.
    pub fn ended() -> Self {
        Self { pieces: mpsc::channel(1).1 }
    }

    /// The next piece; `None` once the peer has ended its half.
    pub async fn next(&mut self) -> Option<Bytes> {
        self.pieces.recv().await
    }
}

/// Our half of a stream. Dropping it without [`finish`](Self::finish) ends nothing.
#[derive(Clone)]
pub struct StreamWriter {
    pub(crate) id: u32,
    pub(crate) out: mpsc::Sender<Order>,
}

impl StreamWriter {
    /// Sends content; false once the connection is gone.
    pub async fn send(&self, mut content: Bytes) -> bool {
        while !content.is_empty() {
            let piece = content.split_to(content.len().min(PIECE));
            if !self.put(Order::Data { stream: self.id, content: piece }).await {
                return false;
            }
        }
        true
    }

    /// Ends our half.
    pub async fn finish(&self) -> bool {
        self.put(Order::Finish { stream: self.id }).await
    }

    /// Ends both halves at once.
    pub async fn reset(&self) -> bool {
        self.put(Order::Reset { stream: self.id }).await
    }

    async fn put(&self, order: Order) -> bool {
        self.out.send(order).await.is_ok()
    }
}

impl Session {
    /// The next stream; `None` once no more can come.
    pub async fn next(&mut self) -> Option<Stream> {
        self.incoming.recv().await
    }

    /// Ends the connection after everything written so far.
    pub async fn close(&self) {
        let _ = self.out.send(Order::Close).await;
    }
}
