//! A way to Redis that can be disturbed: it forwards TCP and, when told, swallows the answer to a commit
//! or keeps a commit back until its sender has long given up on it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// Forwards to one server until dropped.
pub(crate) struct Relay {
    address: SocketAddr,
    state: Arc<State>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct State {
    cut: AtomicBool,
    cuts: AtomicU32,
    hold: AtomicBool,
    release: Notify,
    answered: Notify,
}

impl Relay {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await {
                    tokio::spawn(forward(client, server, Arc::clone(&shared)));
                }
            }
        });
        Self { address, state, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// The next answer to a commit is swallowed and its connection closed.
    pub(crate) fn cut_after_next_commit(&self) {
        self.state.cut.store(true, Ordering::SeqCst);
    }

    pub(crate) fn cuts(&self) -> u32 {
        self.state.cuts.load(Ordering::SeqCst)
    }

    /// The next commit does not reach the server until it is released.
    pub(crate) fn hold_next_commit(&self) {
        self.state.hold.store(true, Ordering::SeqCst);
    }

    /// Lets the commit that was kept back through, and waits until the server has answered it.
    pub(crate) async fn release(&self) {
        assert!(!self.state.hold.load(Ordering::SeqCst), "nothing was kept back");
        self.state.release.notify_one();
        self.state.answered.notified().await;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(client: TcpStream, server: TcpStream, state: Arc<State>) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let held = AtomicBool::new(false);
    let up = up(from_client, to_server, &state, &held);
    let down = down(from_server, to_client, &state, &held);
    // The server closes when its side is closed, so both come to an end.
    tokio::join!(up, down);
}

async fn up(mut client: OwnedReadHalf, mut server: OwnedWriteHalf, state: &State, held: &AtomicBool) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = client.read(&mut buffer).await {
        // Only commits name an operation.
        let commit = contains(&buffer[..count], b"\r\nput\r\n");
        if commit && state.hold.swap(false, Ordering::SeqCst) {
            state.release.notified().await;
            held.store(true, Ordering::SeqCst);
        }
        if server.write_all(&buffer[..count]).await.is_err() {
            return;
        }
        // A held commit is the last thing on its connection; its answer is still awaited.
        while held.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
    }
}

async fn down(mut server: OwnedReadHalf, mut client: OwnedWriteHalf, state: &State, held: &AtomicBool) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = server.read(&mut buffer).await {
        if held.swap(false, Ordering::SeqCst) {
            state.answered.notify_one();
            return;
        }
        // How the commit script says that it is done: the server has made the change.
        let done = contains(&buffer[..count], b"$4\r\ndone\r\n");
        if done && state.cut.swap(false, Ordering::SeqCst) {
            state.cuts.fetch_add(1, Ordering::SeqCst);
            return;
        }
        if client.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}
