//! One page of a part, for probes and dumps.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, bail};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    time::timeout,
};

const ANSWER: Duration = Duration::from_mins(1);

/// The page at this path on loopback; anything but 200 is an error.
pub(crate) async fn get(port: u16, path: &str) -> Result<String> {
    let asking = async { ask(TcpStream::connect(("127.0.0.1", port)).await?, "127.0.0.1", path).await };
    page(path, timeout(ANSWER, asking).await.with_context(|| format!("no answer to {path}"))??)
}

/// The same behind a socket file.
pub(crate) async fn get_at(socket: &Path, path: &str) -> Result<String> {
    let asking = async { ask(UnixStream::connect(socket).await?, "localhost", path).await };
    page(path, timeout(ANSWER, asking).await.with_context(|| format!("no answer to {path}"))??)
}

fn page(path: &str, (status, body): (u16, String)) -> Result<String> {
    if status == 200 { Ok(body) } else { bail!("{path}: {status}: {body}") }
}

/// Asks for one page over an open connection: the status and the body.
pub(crate) async fn ask(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    host: &str,
    path: &str,
) -> Result<(u16, String)> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").context("not an HTTP answer")?;
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { joined(body)? } else { body.to_owned() };
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.context("no status in the answer")?, body))
}

/// A chunked body in one piece.
fn joined(mut rest: &str) -> Result<String> {
    let mut body = String::new();
    loop {
        let (size, after) = rest.split_once("\r\n").context("a chunk without a size")?;
        let size = usize::from_str_radix(size.trim(), 16).context("a chunk without a size")?;
        if size == 0 {
            return Ok(body);
        }
        body.push_str(after.get(..size).context("a chunk that is cut off")?);
        rest = after.get(size + 2..).context("a chunk that is cut off")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined() {
        assert_eq!(joined("3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").unwrap(), "abcde");
        assert!(joined("5\r\nabc").is_err());
    }
}
