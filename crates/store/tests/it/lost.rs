//! A device that loses what a flush should have written: what was acknowledged comes back from the journal.

use std::time::Duration;

use tarbet_store::backend::Redb;
use tarbet_store::{Clock, Error, RedbConfig, Store};
use tarbet_testbed::{Disk, eventually, verified};

use crate::effort;
use crate::place::key;

const PATIENCE: Duration = Duration::from_mins(1);
/// More than the file has room for, so that the device must find some.
const LARGE: usize = 200 * 1024;

#[tokio::test]
async fn what_a_failed_flush_lost_is_on_the_disk_after_a_restart() {
    for _ in 0..effort() {
        let disk = Disk::new().unwrap();
        let path = disk.path().join("store.redb");
        let open = || Store::new(Redb::open(&RedbConfig::at(&path), Clock::system()).unwrap());
        let store = open();
        // Where the file's blocks are is on the device before it fails, and so is room for the journal.
        for number in 0..3 {
            store.put(key("before"), vec![number; LARGE]).await.unwrap();
        }
        store.clone().on_disk().put(key("firm"), "v").await.unwrap();
        disk.fail().unwrap();
        for number in 0..4_u8 {
            let put = store.put(key([number]), vec![number; LARGE]).await;
            if put.is_err() {
                break;
            }
        }
        let acknowledged = store.get(&key([0])).await;
        let failed = eventually(PATIENCE, "a flush that fails", || async {
            store.ping().await.err().ok_or("the store takes all")
        });
        let failed = failed.await.unwrap();
        assert!(matches!(failed, Error::Unflushed { .. }), "{failed:?}");
        acknowledged.unwrap();
        disk.mend().unwrap();
        drop(store);

        // The kernel still has what was lost, and the journal begins anew with the first change.
        let store = open();
        store.put(key("after"), vec![9; LARGE]).await.unwrap();
        store.clone().on_disk().put(key("firm"), "w").await.unwrap();
        drop(store);
        disk.replug().unwrap();
        let store = open();
        for (name, number) in [(key("before"), 2), (key([0]), 0), (key("after"), 9)] {
            let found = store.get(&name).await.unwrap().map(|entry| entry.value);
            assert_eq!(found.as_deref(), Some(&vec![number; LARGE][..]), "{name}");
        }
        assert_eq!(store.get(&key("firm")).await.unwrap().unwrap().value, "w");
    }
    verified(
        "a device loses what the store flushed: nothing that was acknowledged is lost",
        effort() as usize,
    );
}
