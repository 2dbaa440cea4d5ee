//! Streams between two machines, over which each number that is sent comes back.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tarbet_testbed::{Netlab, eventually};
use tokio::task::JoinHandle;

use super::PATIENCE;

/// One stream.
pub(super) struct Echo(TcpStream);

impl Echo {
    /// Opens one between two machines; the far one answers at an address of its own.
    pub(super) fn open(lab: &Netlab, from: &str, at: &str, address: SocketAddr) -> Self {
        let listener = lab.listen(at, address).unwrap();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            std::io::copy(&mut &stream, &mut &stream)
        });
        Self(lab.connect(from, address, PATIENCE).unwrap())
    }

    pub(super) fn say(&self, number: u64) {
        (&self.0).write_all(&number.to_be_bytes()).unwrap();
    }

    /// What comes back within this time.
    pub(super) fn hear(&self, patience: Duration) -> std::io::Result<u64> {
        self.0.set_read_timeout(Some(patience))?;
        let mut back = [0; 8];
        (&self.0).read_exact(&mut back)?;
        Ok(u64::from_be_bytes(back))
    }
}

/// A stream that is never silent. Nothing of it may be lost.
pub(super) struct Talk {
    over: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Talk {
    pub(super) fn start(stream: Echo) -> Self {
        let (over, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, count) = (Arc::clone(&over), Arc::clone(&rounds));
        let task = tokio::task::spawn_blocking(move || {
            while !told.load(Ordering::SeqCst) {
                let round = count.load(Ordering::SeqCst);
                stream.say(round);
                assert_eq!(stream.hear(PATIENCE).unwrap(), round);
                count.store(round + 1, Ordering::SeqCst);
            }
        });
        Self { over, rounds, task }
    }

    /// Waits until more was said and heard than until now.
    pub(super) async fn goes_on(&self) {
        let before = self.rounds.load(Ordering::SeqCst);
        eventually(PATIENCE, "the stream goes on", || async {
            // What was under way when this was asked does not count.
            if self.rounds.load(Ordering::SeqCst) > before + 1 { Ok(()) } else { Err("it is silent") }
        })
        .await
        .unwrap();
    }

    pub(super) async fn end(self) {
        self.goes_on().await;
        self.over.store(true, Ordering::SeqCst);
        self.task.await.unwrap();
    }
}
