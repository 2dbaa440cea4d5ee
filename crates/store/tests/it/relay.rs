//! A way to Redis that can be cut: forwards TCP and, when told, drops answers on the floor.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Forwards to one server until dropped.
pub(crate) struct Relay {
    address: SocketAddr,
    state: Arc<State>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct State {
    armed: AtomicBool,
    cuts: AtomicU32,
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
        self.state.armed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn cuts(&self) -> u32 {
        self.state.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(client: TcpStream, server: TcpStream, state: Arc<State>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async { drop(tokio::io::copy(&mut from_client, &mut to_server).await) };
    let down = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
            let answer = &buffer[..count];
            // How the commit script says that it is done: the server has made the change.
            let done = answer.windows(10).any(|bytes| bytes == b"$4\r\ndone\r\n");
            if done && state.armed.swap(false, Ordering::SeqCst) {
                state.cuts.fetch_add(1, Ordering::SeqCst);
                return;
            }
            if to_client.write_all(answer).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}
