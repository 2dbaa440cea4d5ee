//! A load generator and a backend of the plainest HTTP/1.1, so that they cost little themselves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

/// What a request is sent to.
#[derive(Clone)]
pub(crate) struct Aim {
    pub(crate) address: SocketAddr,
    pub(crate) request: Arc<[u8]>,
    pub(crate) tls: Option<TlsConnector>,
}

impl Aim {
    /// GET `path`, with these headers.
    pub(crate) fn get(address: SocketAddr, path: &str, headers: &str) -> Self {
        let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\n{headers}\r\n");
        Self { address, request: request.into_bytes().into(), tls: None }
    }

    /// The same over TLS, trusting this authority.
    pub(crate) fn trusting(mut self, authority_pem: &[u8]) -> Result<Self> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authority_pem) {
            roots.add(certificate.map_err(|error| anyhow::anyhow!("{error}"))?)?;
        }
        let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        self.tls = Some(TlsConnector::from(Arc::new(config)));
        Ok(self)
    }
}

/// What a run of requests gave.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) per_second: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) requests: u64,
}

/// Keeps `connections` busy for `time` with one request after another.
pub(crate) async fn keep_alive(aim: &Aim, connections: usize, time: Duration) -> Result<Outcome> {
    let begun = Instant::now();
    let until = begun + time;
    let tasks: Vec<_> = (0..connections).map(|_| tokio::spawn(one_connection(aim.clone(), until))).collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await??);
    }
    let elapsed = begun.elapsed().as_secs_f64();
    times.sort_unstable();
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or_default();
    ensure!(!times.is_empty(), "no request was answered");
    Ok(Outcome {
        per_second: times.len() as f64 / elapsed,
        p50: at(0.5),
        p99: at(0.99),
        requests: times.len() as u64,
    })
}

async fn one_connection(aim: Aim, until: Instant) -> Result<Vec<Duration>> {
    let tcp = TcpStream::connect(aim.address).await.context("connect")?;
    tcp.set_nodelay(true)?;
    match &aim.tls {
        None => requests(tcp, &aim.request, until).await,
        Some(tls) => {
            let name = ServerName::try_from("localhost")?;
            requests(tls.connect(name, tcp).await.context("TLS")?, &aim.request, until).await
        }
    }
}

async fn requests<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    request: &[u8],
    until: Instant,
) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    let mut buffer = vec![0; 16 * 1024];
    while Instant::now() < until {
        let begun = Instant::now();
        stream.write_all(request).await?;
        stream.flush().await?;
        read_response(&mut stream, &mut buffer).await?;
        times.push(begun.elapsed());
    }
    Ok(times)
}

/// Reads one response with a Content-Length, and insists that it is a 200.
async fn read_response<S: AsyncRead + Unpin>(stream: &mut S, buffer: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).await?;
        ensure!(read > 0, "the connection ended early");
        filled += read;
        let head = &buffer[..filled];
        let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let text = std::str::from_utf8(&head[..end])?.to_ascii_lowercase();
        ensure!(text.starts_with("http/1.1 200"), "{}", text.lines().next().unwrap_or_default());
        let length = text
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"))
            .unwrap_or(" 0")
            .trim()
            .parse::<usize>()?;
        while filled < end + 4 + length {
            let read = stream.read(&mut buffer[filled..]).await?;
            ensure!(read > 0, "the connection ended early");
            filled += read;
        }
        return Ok(());
    }
}

/// A backend that answers every request with the same few bytes.
pub(crate) async fn backend() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                // A connection that breaks is the affair of the one who measures.
                let _ = answer(stream).await;
            });
        }
    });
    Ok(address)
}

async fn answer(mut stream: TcpStream) -> Result<()> {
    const ANSWER: &[u8] =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"hello\":\"you\"}";
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 16 * 1024];
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).await?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        while let Some(end) = buffer[..filled].windows(4).position(|window| window == b"\r\n\r\n") {
            stream.write_all(ANSWER).await?;
            buffer.copy_within(end + 4..filled, 0);
            filled -= end + 4;
        }
    }
}
