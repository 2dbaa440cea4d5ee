//! Ports for test parts, leased in blocks so that parallel tests never race for one.
//!
//! Binding port 0, closing it and handing the number on lets somebody else take it in between.
//! Here a block belongs to whoever holds the lock on its file. The kernel drops the lock with
//! the last open descriptor, so the lease of a dead process frees itself.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    net::{Ipv4Addr, TcpListener, UdpSocket},
    ops::Range,
    path::Path,
    process,
    sync::atomic::{AtomicU16, Ordering},
};

use anyhow::{Context, Result, bail, ensure};

use crate::folder;

/// Ports in one block: more than any part needs, few enough to have many blocks.
const BLOCK: u16 = 16;
/// Below 32768, where the kernel picks the ports of outgoing connections.
const RANGE: Range<u16> = 10_240..32_768;

/// Ports that nobody else who leases will get until this is dropped.
#[derive(Debug)]
pub struct Lease {
    first: u16,
    count: u16,
    // Holding the file open is holding the lease.
    _lock: File,
}

impl Lease {
    /// Leases `count` neighbouring ports (at most 16), each seen free for TCP and UDP.
    ///
    /// Lock files stay behind, empty: removing one would let two owners hold the same block.
    pub fn block(count: u16) -> Result<Self> {
        static TURN: AtomicU16 = AtomicU16::new(0);
        ensure!((1..=BLOCK).contains(&count), "a lease has 1 to {BLOCK} ports, not {count}");
        let locks = folder::home("ports");
        fs::create_dir_all(&locks).with_context(|| format!("create {}", locks.display()))?;

        // Processes start at different places, so that they rarely try the same block.
        let blocks = (RANGE.end - RANGE.start) / BLOCK;
        let start =
            (process::id() as u16).wrapping_mul(31).wrapping_add(TURN.fetch_add(1, Ordering::Relaxed));
        for step in 0..blocks {
            let index = (start % blocks + step) % blocks;
            let first = RANGE.start + index * BLOCK;
            if let Some(lock) = try_lock(&locks.join(first.to_string()))?
                && (first..first + count).all(is_free)
            {
                return Ok(Self { first, count, _lock: lock });
            }
        }
        bail!(
            "all {blocks} port blocks are leased or in use; end what holds the locks in {}",
            locks.display()
        )
    }

    /// The port at `index`, counted from 0. Panics past the end of the lease.
    pub fn port(&self, index: u16) -> u16 {
        assert!(index < self.count, "port {index} of a lease of {}", self.count);
        self.first + index
    }

    /// All ports of the lease.
    pub fn ports(&self) -> Range<u16> {
        self.first..self.first + self.count
    }
}

fn try_lock(path: &Path) -> Result<Option<File>> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    let file = file.with_context(|| format!("open the port lock {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("lock {}", path.display())),
    }
}

fn is_free(port: u16) -> bool {
    let address = (Ipv4Addr::LOCALHOST, port);
    TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_in_use_by_a_stranger_is_passed_over() {
        let first = Lease::block(1).unwrap();
        let port = first.port(0);
        let _stranger = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        drop(first);
        assert!(!is_free(port));
    }

    #[test]
    fn a_lease_has_sensible_sizes() {
        assert!(Lease::block(0).is_err());
        assert!(Lease::block(BLOCK + 1).is_err());
        let lease = Lease::block(BLOCK).unwrap();
        assert_eq!(lease.ports().len(), usize::from(BLOCK));
        assert!(lease.ports().end <= RANGE.end);
    }
}
