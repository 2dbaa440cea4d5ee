//! A disk that fails and heals.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use ::redb::{Database, StorageBackend};

use super::*;
use crate::error::Retry;
use crate::key::TableName;
use crate::store::Store;

/// A file in memory that outlives its handles, as one on a disk does.
#[derive(Clone, Debug, Default)]
struct Disk {
    bytes: Arc<RwLock<Vec<u8>>>,
    full: Arc<AtomicBool>,
}

impl Disk {
    fn check(&self) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.read().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let start = offset as usize;
        out.copy_from_slice(&self.bytes.read().unwrap()[start..start + out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check()?;
        self.bytes.write().unwrap().resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        let start = offset as usize;
        self.bytes.write().unwrap()[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }
}

#[tokio::test]
async fn a_disk_that_was_full_is_used_again() {
    let disk = Disk::default();
    let device = disk.clone();
    let opener = Box::new(move || Database::builder().create_with_backend(device.clone()));
    let file = Arc::new(File::open_with(Path::new("in memory"), opener).unwrap());
    let store = Store::new(Redb::with_file(file, Clock::system()).unwrap());
    let table = TableName::new("t").unwrap();
    let key = |name: &str| table.key(name.to_owned());
    let revision = store.put(key("before"), "v").await.unwrap();

    disk.full.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        let error = store.put(key("lost"), "v").await.unwrap_err();
        assert!(matches!(error, Error::File { operation: "write" | "open", .. }), "{error:?}");
        assert_eq!(error.class().retry, Retry::Later);
    }
    disk.full.store(false, Ordering::SeqCst);
    assert!(store.put(key("after"), "v").await.unwrap() > revision);
    assert_eq!(store.get(&key("before")).await.unwrap().unwrap().revision, revision);
    assert_eq!(store.get(&key("lost")).await.unwrap(), None);

    // Reads recover too, without waiting for somebody to write.
    disk.full.store(true, Ordering::SeqCst);
    store.put(key("lost"), "v").await.unwrap_err();
    disk.full.store(false, Ordering::SeqCst);
    let recovered = async {
        while store.get(&key("after")).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), recovered).await.unwrap();
}
