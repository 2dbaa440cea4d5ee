//! A long line: a relay that holds every byte back for a while, and loses none.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::Instant;

/// Bytes that are on the line in one direction at most: what 1.5 GB/s need at 40 ms, and more.
const ON_THE_LINE: usize = 64 << 20;
const CHUNK: usize = 256 * 1024;

/// Starts a line to `to` in a thread of its own, and gives its near end.
pub(super) fn start(to: SocketAddr, one_way: Duration) -> Result<SocketAddr> {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            tell.send(listener.local_addr()?).ok();
            while let Ok((near, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(to).await else { return };
                    if near.set_nodelay(true).is_err() || far.set_nodelay(true).is_err() {
                        return;
                    }
                    let ((near_read, near_write), (far_read, far_write)) =
                        (near.into_split(), far.into_split());
                    carry(near_read, far_write, one_way);
                    carry(far_read, near_write, one_way);
                });
            }
            std::io::Result::Ok(())
        })
    });
    told.recv().context("the line did not start")
}

fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, one_way: Duration) {
    let room = Arc::new(Semaphore::new(ON_THE_LINE));
    let (send, mut receive) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let free = Arc::clone(&room);
    tokio::spawn(async move {
        loop {
            let mut chunk = Vec::with_capacity(CHUNK);
            match from.read_buf(&mut chunk).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => return,
            }
            let Ok(taken) = room.acquire_many(chunk.len() as u32).await else { return };
            taken.forget();
            // What is small must not keep the memory of what could have been large.
            chunk.shrink_to_fit();
            if send.send((Instant::now() + one_way, chunk)).is_err() {
                return;
            }
        }
    });
    tokio::spawn(async move {
        while let Some((due, chunk)) = receive.recv().await {
            tokio::time::sleep_until(due).await;
            if to.write_all(&chunk).await.is_err() {
                return;
            }
            free.add_permits(chunk.len());
        }
    });
}
