//! Lines of a stream that never falls silent, such as the one of pushed states.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};

/// Whoever pushes states says at least every ten seconds that it is alive.
pub const SILENCE: Duration = Duration::from_secs(30);
/// No state of a pod comes near this.
const LONGEST: usize = 16 * 1024 * 1024;

/// Why no more lines come, although the stream has not ended.
#[derive(Debug, thiserror::Error)]
pub enum Cut {
    /// The connection broke.
    #[error("{0}")]
    Broken(String),
    /// The other side vanished without a word.
    #[error("nothing was heard for {} s", SILENCE.as_secs())]
    Silent,
    /// Nothing that makes sense is said.
    #[error("a line is longer than {LONGEST} bytes")]
    Long,
}

/// The lines that are not empty; what comes after the last end of a line is dropped with the stream.
pub fn lines<S, E>(pieces: S) -> impl Stream<Item = Result<Bytes, Cut>> + Send
where
    S: Stream<Item = Result<Bytes, E>> + Send + Unpin,
    E: std::fmt::Display + Send,
{
    let begin = (pieces, BytesMut::new(), 0);
    futures::stream::try_unfold(begin, |(mut pieces, mut held, mut looked)| async move {
        loop {
            if let Some(at) = held[looked..].iter().position(|&byte| byte == b'\n') {
                let line = held.split_to(looked + at + 1);
                looked = 0;
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return Ok(Some((line.freeze(), (pieces, held, looked))));
            }
            looked = held.len();
            if looked > LONGEST {
                return Err(Cut::Long);
            }
            match tokio::time::timeout(SILENCE, pieces.next()).await {
                Ok(Some(Ok(piece))) => held.extend_from_slice(&piece),
                Ok(Some(Err(error))) => return Err(Cut::Broken(error.to_string())),
                Ok(None) => return Ok(None),
                Err(_) => return Err(Cut::Silent),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream;
    use proptest::prelude::*;

    use super::*;

    fn good(pieces: Vec<Bytes>) -> impl Stream<Item = Result<Bytes, Infallible>> + Send + Unpin {
        stream::iter(pieces.into_iter().map(Ok))
    }

    async fn read(
        pieces: impl Stream<Item = Result<Bytes, Infallible>> + Send + Unpin,
    ) -> Vec<Result<Bytes, Cut>> {
        lines(pieces).collect().await
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_an_end() {
        let pieces = good(vec![Bytes::from_static(b"one\n\ntw")]).chain(stream::pending());
        let read = read(pieces).await;
        assert!(matches!(&read[..], [Ok(line), Err(Cut::Silent)] if line == "one\n"), "{read:?}");
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_one() {
        let piece = Bytes::from(vec![b'x'; LONGEST / 4]);
        let read = read(stream::repeat_with(move || Ok(piece.clone()))).await;
        assert!(matches!(&read[..], [Err(Cut::Long)]), "{}", read.len());
    }

    proptest! {
        #[test]
        fn pieces_may_fall_anywhere(text in "[ab\n]{0,60}", cut in 1usize..9) {
            let pieces = text.as_bytes().chunks(cut).map(Bytes::copy_from_slice).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let read = runtime.block_on(read(good(pieces)));
            let read: Vec<String> =
                read.into_iter().map(|line| String::from_utf8(line.unwrap().to_vec()).unwrap()).collect();
            let wanted: Vec<&str> = text.split_inclusive('\n').filter(|line| line.len() > 1 && line.ends_with('\n')).collect();
            prop_assert_eq!(read, wanted);
        }
    }
}
