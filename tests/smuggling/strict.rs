//! A server that reads HTTP by the letter and tells of everything else.

use std::sync::{Arc, Mutex};

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A request as it arrived.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// Its first line.
    pub(crate) line: String,
    /// Its other lines, in lower case.
    pub(crate) headers: Vec<String>,
    pub(crate) body: Vec<u8>,
    /// What two servers might understand differently.
    pub(crate) fault: Option<&'static str>,
}

pub(crate) struct Server {
    pub(crate) port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    pub(crate) async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (port, seen) = (listener.local_addr()?.port(), Arc::<Mutex<Vec<Seen>>>::default());
        let noted = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let noted = Arc::clone(&noted);
                tokio::spawn(async move {
                    while let Some(request) = read(&mut stream).await {
                        let faulty = request.fault.is_some();
                        noted.lock().unwrap().push(request);
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                        if faulty || stream.write_all(answer).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Ok(Self { port, seen })
    }

    /// What arrived since the last time.
    pub(crate) fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

/// The next request; none if the connection ends before it began.
async fn read(stream: &mut TcpStream) -> Option<Seen> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let text = String::from_utf8_lossy(&head[..head.len() - 4]).into_owned();
    let mut lines = text.split("\r\n").map(str::to_owned);
    let mut seen = Seen { line: lines.next().unwrap_or_default(), ..Seen::default() };
    seen.headers = lines.map(|line| line.to_ascii_lowercase()).collect();
    if text.split("\r\n").any(|line| line.contains(['\n', '\r', '\0']) || line.starts_with([' ', '\t'])) {
        seen.fault = Some("a line that is none");
        return Some(seen);
    }
    let of = |name: &str| -> Vec<String> {
        seen.headers.iter().filter_map(|line| line.strip_prefix(name)).map(|v| v.trim().to_owned()).collect()
    };
    let (lengths, codings) = (of("content-length:"), of("transfer-encoding:"));
    match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => {}
        ([length], []) => match length.parse() {
            Ok(length) => {
                seen.body = vec![0; length];
                stream.read_exact(&mut seen.body).await.ok()?;
            }
            Err(_) => seen.fault = Some("a length that is none"),
        },
        ([], [coding]) if coding == "chunked" => loop {
            // Who breaks off in the middle has sent no request.
            let Some(size) = size(stream).await.ok()? else {
                seen.fault = Some("a chunk without a size");
                break;
            };
            let begin = seen.body.len();
            seen.body.resize(begin + size + 2, 0);
            stream.read_exact(&mut seen.body[begin..]).await.ok()?;
            seen.body.truncate(begin + size);
            if size == 0 {
                break;
            }
        },
        _ => seen.fault = Some("two ends of one body"),
    }
    Some(seen)
}

/// The size of the next chunk, if it is one.
async fn size(stream: &mut TcpStream) -> std::io::Result<Option<usize>> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(stream.read_u8().await?);
    }
    let digits = std::str::from_utf8(&line[..line.len() - 2]).unwrap_or_default();
    Ok(usize::from_str_radix(digits, 16).ok())
}
