//! A load generator and a backend of the plainest HTTP/1.1, so that they cost little themselves:
//! one thread each, as an event loop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const BUFFER: usize = 4096;

/// What a request is sent to.
#[derive(Clone)]
pub(crate) struct Aim {
    pub(crate) address: SocketAddr,
    pub(crate) request: Arc<[u8]>,
}

impl Aim {
    /// GET `path`, with these headers.
    pub(crate) fn get(address: SocketAddr, path: &str, headers: &str) -> Self {
        let request = format!("GET {path} HTTP/1.1\r\nHost: bench\r\n{headers}\r\n");
        Self { address, request: request.into_bytes().into() }
    }
}

/// What a run of requests gave.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    pub(crate) per_second: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) requests: u64,
}

impl Outcome {
    fn of(mut times: Vec<Duration>, elapsed: Duration) -> Result<Self> {
        ensure!(!times.is_empty(), "no request was answered");
        times.sort_unstable();
        let micros = |share: f64| {
            let index = ((times.len() - 1) as f64 * share) as usize;
            times[index].as_secs_f64() * 1e6
        };
        Ok(Self {
            per_second: times.len() as f64 / elapsed.as_secs_f64(),
            p50: micros(0.5),
            p99: micros(0.99),
            p999: micros(0.999),
            requests: times.len() as u64,
        })
    }
}

/// Runs a future on an event loop of its own in a thread of its own.
pub(crate) async fn alone<T, F>(work: impl FnOnce() -> F + Send + 'static) -> Result<T>
where
    T: Send + 'static,
    F: Future<Output = Result<T>>,
{
    let thread = tokio::task::spawn_blocking(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work())
    });
    thread.await?
}

/// Keeps `connections` busy for `time` with one request after another.
pub(crate) async fn keep_alive(aim: &Aim, connections: usize, time: Duration) -> Result<Outcome> {
    let aim = aim.clone();
    alone(move || async move {
        // Connections are made before the clock starts.
        let mut streams = Vec::new();
        for _ in 0..connections {
            let mut stream = aim.connect().await?;
            one_request(&mut stream, &aim.request, &mut vec![0; BUFFER]).await?;
            streams.push(stream);
        }
        let begun = Instant::now();
        let until = begun + time;
        let tasks: Vec<_> = streams
            .into_iter()
            .map(|mut stream| {
                let request = Arc::clone(&aim.request);
                tokio::spawn(async move {
                    let (mut times, mut buffer) = (Vec::new(), vec![0; BUFFER]);
                    while Instant::now() < until {
                        let begun = Instant::now();
                        one_request(&mut stream, &request, &mut buffer).await?;
                        times.push(begun.elapsed());
                    }
                    anyhow::Ok(times)
                })
            })
            .collect();
        Outcome::of(gather(tasks).await?, begun.elapsed())
    })
    .await
}

/// `clients` who connect, ask once and hang up, again and again for `time`.
pub(crate) async fn connecting(aim: &Aim, clients: usize, time: Duration) -> Result<Outcome> {
    let aim = aim.clone();
    alone(move || async move {
        let begun = Instant::now();
        let until = begun + time;
        let one = |aim: Aim| async move {
            let (mut times, mut buffer) = (Vec::new(), vec![0; BUFFER]);
            while Instant::now() < until {
                let begun = Instant::now();
                let mut stream = aim.connect().await?;
                one_request(&mut stream, &aim.request, &mut buffer).await?;
                times.push(begun.elapsed());
            }
            anyhow::Ok(times)
        };
        let tasks: Vec<_> = (0..clients).map(|_| tokio::spawn(one(aim.clone()))).collect();
        Outcome::of(gather(tasks).await?, begun.elapsed())
    })
    .await
}

async fn gather(tasks: Vec<tokio::task::JoinHandle<Result<Vec<Duration>>>>) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await??);
    }
    Ok(times)
}

/// Bytes a second that `streams` downloads get together.
pub(crate) async fn download(aim: &Aim, streams: usize, time: Duration) -> Result<f64> {
    let aim = aim.clone();
    alone(move || async move {
        let one = |aim: Aim| async move {
            let mut stream = aim.connect().await?;
            stream.write_all(&aim.request).await?;
            let mut buffer = vec![0; 256 * 1024];
            ensure!(stream.read(&mut buffer).await? > 0, "the download did not begin");
            // Windows and buffers fill before the clock starts.
            let (begun, mut bytes) = (Instant::now() + time / 4, 0);
            loop {
                let read = stream.read(&mut buffer).await?;
                ensure!(read > 0, "the download ended early");
                let now = Instant::now();
                if now >= begun {
                    bytes += read;
                }
                if now >= begun + time {
                    return Ok(bytes as f64 / (now - begun).as_secs_f64());
                }
            }
        };
        let tasks: Vec<_> = (0..streams).map(|_| tokio::spawn(one(aim.clone()))).collect();
        let mut total = 0.0;
        for task in tasks {
            total += task.await??;
        }
        Ok(total)
    })
    .await
}

impl Aim {
    async fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(self.address).await.context("connect")?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// What a run of connections that are kept gave.
pub(crate) struct Held {
    pub(crate) opened_in: Duration,
    pub(crate) alive: usize,
}

/// Opens so many connections, each proven by a request, has `look` take a look while all are open, and
/// tells how many of them still answer after that.
pub(crate) async fn hold<T: Send + 'static>(
    aim: &Aim,
    count: usize,
    look: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<(Held, T)> {
    /// As many at once as a listener's queue takes.
    const AT_ONCE: usize = 100;
    let aim = aim.clone();
    alone(move || async move {
        let begun = Instant::now();
        let (mut streams, mut buffer) = (Vec::with_capacity(count), vec![0; BUFFER]);
        while streams.len() < count {
            let some = (count - streams.len()).min(AT_ONCE);
            let mut fresh = Vec::with_capacity(some);
            for _ in 0..some {
                let mut stream = aim.connect().await?;
                stream.write_all(&aim.request).await?;
                fresh.push(stream);
            }
            for stream in &mut fresh {
                read_response(stream, &mut buffer).await?;
            }
            streams.extend(fresh);
        }
        let opened_in = begun.elapsed();
        let seen = look()?;
        let mut alive = 0;
        for stream in &mut streams {
            alive += usize::from(one_request(stream, &aim.request, &mut buffer).await.is_ok());
        }
        Ok((Held { opened_in, alive }, seen))
    })
    .await
}

async fn one_request(stream: &mut TcpStream, request: &[u8], buffer: &mut [u8]) -> Result<()> {
    stream.write_all(request).await?;
    read_response(stream, buffer).await
}

/// Reads one response with a Content-Length, and insists that it is a 200.
async fn read_response(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).await?;
        ensure!(read > 0, "the connection ended early");
        filled += read;
        let Some(end) = end_of_head(&buffer[..filled]) else { continue };
        ensure!(buffer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&buffer[..filled]));
        let length = content_length(&buffer[..end]);
        while filled < end + length {
            let read = stream.read(&mut buffer[filled..]).await?;
            ensure!(read > 0, "the connection ended early");
            filled += read;
        }
        return Ok(());
    }
}

/// Where a head ends, the empty line included.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

fn content_length(head: &[u8]) -> usize {
    const NAME: &[u8] = b"content-length:";
    let lines = head.split(|byte| *byte == b'\n');
    let mut values = lines.filter_map(|line| {
        let (name, value) = line.split_at_checked(NAME.len())?;
        name.eq_ignore_ascii_case(NAME).then(|| String::from_utf8_lossy(value).trim().parse().ok())?
    });
    values.next().unwrap_or_default()
}

/// A backend in a thread of its own: every request gets the same few bytes, `/bulk` bytes without end.
pub(crate) async fn backend() -> Result<SocketAddr> {
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async move {
            let listener = tokio::net::TcpSocket::new_v4()?;
            listener.set_reuseaddr(true)?;
            listener.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
            let listener: TcpListener = listener.listen(4096)?;
            tell.send(listener.local_addr()?).map_err(|_| anyhow!("nobody waits for the backend"))?;
            loop {
                let (stream, _) = listener.accept().await?;
                // A connection that breaks is the affair of the one who measures.
                tokio::spawn(async move { answer(stream).await.ok() });
            }
            #[expect(unreachable_code, reason = "it gives the block its type")]
            anyhow::Ok(())
        })
    });
    Ok(told.await?)
}

async fn answer(mut stream: TcpStream) -> Result<()> {
    const ANSWER: &[u8] =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n{\"hello\":\"you\"}";
    const BULK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000000\r\n\r\n";
    stream.set_nodelay(true)?;
    let (mut buffer, mut filled) = (vec![0; 2048], 0);
    loop {
        let read = stream.read(&mut buffer[filled..]).await?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        while let Some(end) = end_of_head(&buffer[..filled]) {
            if buffer.starts_with(b"GET /bulk") {
                stream.write_all(BULK).await?;
                let block = vec![b'x'; 256 * 1024];
                loop {
                    stream.write_all(&block).await?;
                }
            }
            stream.write_all(ANSWER).await?;
            buffer.copy_within(end..filled, 0);
            filled -= end;
        }
        ensure!(filled < buffer.len(), "a head that is too long");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_are_written() {
        let head = b"HTTP/1.1 200 OK\r\nA: b\r\ncontent-LENGTH: 15\r\n\r\nrest";
        assert_eq!(end_of_head(head), Some(head.len() - 4));
        assert_eq!(content_length(head), 15);
        assert_eq!(content_length(b"HTTP/1.1 200 OK\r\n\r\n"), 0);
    }
}
