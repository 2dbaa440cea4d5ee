//! A bad line: every byte takes its time, and connections break in the middle, whenever it rains.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};

/// How long a connection holds in the rain, at least and at most.
const HOLDS: [Duration; 2] = [Duration::from_millis(300), Duration::from_secs(3)];
/// Pieces that are under way in one direction; then the sender waits, as for a window.
const WINDOW: usize = 256;

/// A relay on loopback between somebody who dials and a listener.
pub struct Relay {
    address: SocketAddr,
    state: Arc<State>,
    task: JoinHandle<()>,
}

struct State {
    raining: AtomicBool,
    cuts: AtomicUsize,
    /// Half of the way there and back.
    delay: Duration,
}

impl Relay {
    /// A line to this place, 200 ms there and back, on which it does not rain yet.
    pub async fn to(place: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let state = Arc::new(State {
            raining: AtomicBool::new(false),
            cuts: AtomicUsize::new(0),
            delay: Duration::from_millis(100),
        });
        let address = listener.local_addr()?;
        let task = tokio::spawn(accept(listener, place, Arc::clone(&state)));
        Ok(Self { address, state, task })
    }

    /// Where to dial.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether connections break, those that are there and new ones.
    pub fn rain(&self, raining: bool) {
        self.state.raining.store(raining, SeqCst);
    }

    /// How many broke.
    pub fn cuts(&self) -> usize {
        self.state.cuts.load(SeqCst)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, place: SocketAddr, state: Arc<State>) {
    // They end with it.
    let mut connections = JoinSet::new();
    while let Ok((near, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(connection(near, place, Arc::clone(&state)));
    }
}

async fn connection(near: TcpStream, place: SocketAddr, state: Arc<State>) {
    let Ok(far) = TcpStream::connect(place).await else { return };
    for end in [&near, &far] {
        // What is late is late by the line alone.
        let _as_it_is = end.set_nodelay(true);
    }
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    let carried = async {
        tokio::join!(carry(near_in, far_out, state.delay), carry(far_in, near_out, state.delay));
    };
    tokio::select! {
        () = carried => {}
        () = breaks(&state) => drop(state.cuts.fetch_add(1, SeqCst)),
    }
}

/// Ends when a connection breaks.
async fn breaks(state: &State) {
    loop {
        let [least, most] = HOLDS;
        // Another number each time: it is the seed of a hash.
        let chance = RandomState::new().build_hasher().finish() % 1_000;
        sleep(least + most.saturating_sub(least) * u32::try_from(chance).unwrap_or_default() / 1_000).await;
        if state.raining.load(SeqCst) {
            return;
        }
    }
}

/// Carries bytes one way, each as late as the others.
async fn carry(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, delay: Duration) {
    let (send, mut sent) = mpsc::channel::<(Instant, Vec<u8>)>(WINDOW);
    let read = async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            if send.send((Instant::now() + delay, buffer[..count].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((due, bytes)) = sent.recv().await {
            sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _closed = to.shutdown().await;
    };
    tokio::join!(read, write);
}
