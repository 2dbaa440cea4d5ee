//! Joins two byte streams until both directions have ended.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::AsyncWrite;

use crate::duplex::{ByteStream, Duplex};

/// Bytes moved by a [`relay`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Relayed {
    /// From the first stream to the second.
    pub forth: u64,
    /// From the second stream to the first.
    pub back: u64,
}

/// Moves bytes both ways. The end of one direction is passed on while the other goes on; an error
/// in either ends both.
pub async fn relay(mut first: ByteStream, mut second: ByteStream) -> io::Result<Relayed> {
    let (mut forth, mut back) = (Direction::default(), Direction::default());
    std::future::poll_fn(|cx| {
        let one = forth.poll(cx, &mut first, &mut second)?;
        let two = back.poll(cx, &mut second, &mut first)?;
        match (one, two) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    })
    .await
    .map(|()| Relayed { forth: forth.moved, back: back.moved })
}

#[derive(Default)]
struct Direction {
    chunk: Bytes,
    state: State,
    moved: u64,
    // Written since the last flush: buffering writers (TLS, WebSocket) need one before a pause.
    dirty: bool,
}

#[derive(Default, PartialEq)]
enum State {
    #[default]
    Moving,
    Ending,
    Ended,
}

impl Direction {
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut ByteStream,
        to: &mut ByteStream,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.state == State::Ended {
                return Poll::Ready(Ok(()));
            }
            while !self.chunk.is_empty() {
                let before = self.chunk.len();
                ready!(to.poll_write_chunk(cx, &mut self.chunk))?;
                self.moved += (before - self.chunk.len()) as u64;
                self.dirty = true;
            }
            if self.state == State::Ending {
                ready!(Pin::new(&mut *to).poll_shutdown(cx))?;
                self.state = State::Ended;
                continue;
            }
            match from.poll_read_chunk(cx)? {
                Poll::Ready(Some(chunk)) => self.chunk = chunk,
                Poll::Ready(None) => self.state = State::Ending,
                Poll::Pending => {
                    if self.dirty {
                        ready!(Pin::new(&mut *to).poll_flush(cx))?;
                        self.dirty = false;
                    }
                    return Poll::Pending;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn each_direction_ends_by_itself() {
        let (mut left, a) = tokio::io::duplex(16);
        let (b, mut right) = tokio::io::duplex(16);
        let task = tokio::spawn(relay(ByteStream::new(a), ByteStream::new(b)));
        left.write_all(b"question").await.unwrap();
        left.shutdown().await.unwrap();
        let mut heard = String::new();
        right.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "question");
        right.write_all(b"a rather longer answer").await.unwrap();
        right.shutdown().await.unwrap();
        heard.clear();
        left.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "a rather longer answer");
        assert_eq!(task.await.unwrap().unwrap(), Relayed { forth: 8, back: 22 });
    }
}
