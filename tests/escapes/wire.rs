//! HTTP as it stands in the attempt, byte for byte: no client of good manners tidies the path up.

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// A connection that is made again when the other end hangs up.
pub(super) struct Wire {
    port: u16,
    stream: Option<BufReader<TcpStream>>,
}

/// What came back; a status of 0 if nothing did.
#[derive(Debug, Default, Clone)]
pub(super) struct Said {
    pub(super) status: u16,
    pub(super) kind: String,
    pub(super) body: String,
}

impl Wire {
    pub(super) fn to(port: u16) -> Self {
        Self { port, stream: None }
    }

    /// Sends a request and reads its answer. `headers` end with a line break each.
    pub(super) async fn say(&mut self, method: &str, path: &str, headers: &str, body: &str) -> Result<Said> {
        let length = body.len();
        let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{}\r\n{headers}{kind}content-length: {length}\r\n\r\n{body}",
            self.port
        );
        // A connection that was hung up meanwhile is found out when it is used.
        let fresh = self.stream.is_none();
        match self.once(&text, method).await {
            Ok(said) if said.status != 0 || fresh => Ok(said),
            Err(error) if fresh => Err(error),
            _ => {
                self.stream = None;
                self.once(&text, method).await
            }
        }
    }

    async fn once(&mut self, text: &str, method: &str) -> Result<Said> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => BufReader::new(TcpStream::connect(("127.0.0.1", self.port)).await?),
        };
        stream.get_mut().write_all(text.as_bytes()).await?;
        let mut said = Said::default();
        let (mut length, mut chunked, mut last) = (None, false, false);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(said);
            }
            let line = line.trim_end().to_ascii_lowercase();
            if said.status == 0 {
                said.status =
                    line.split(' ').nth(1).and_then(|word| word.parse().ok()).context("no status")?;
                continue;
            }
            let Some((name, value)) = line.split_once(": ") else { break };
            match name {
                "content-length" => length = value.parse::<usize>().ok(),
                "transfer-encoding" => chunked = true,
                "connection" => last = value == "close",
                "content-type" => said.kind = value.to_owned(),
                _ => {}
            }
        }
        let bare = method == "HEAD" || [204, 304].contains(&said.status);
        let bytes = if bare {
            Vec::new()
        } else if chunked {
            chunks(&mut stream).await?
        } else {
            let mut bytes = vec![0; length.unwrap_or(0)];
            stream.read_exact(&mut bytes).await?;
            bytes
        };
        said.body = String::from_utf8_lossy(&bytes).into_owned();
        self.stream = (!last).then_some(stream);
        Ok(said)
    }
}

async fn chunks(stream: &mut BufReader<TcpStream>) -> Result<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Ok(size) = usize::from_str_radix(line.trim(), 16) else {
            bail!("a chunk without a size: {line}")
        };
        let begin = whole.len();
        whole.resize(begin + size + 2, 0);
        stream.read_exact(&mut whole[begin..]).await?;
        whole.truncate(begin + size);
        if size == 0 {
            return Ok(whole);
        }
    }
}
