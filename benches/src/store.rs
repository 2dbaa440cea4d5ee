//! Commits to the store by 64 writers, beside a program that syncs a file for each write.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use tarbet_store::{Clock, RedbConfig, RedisConfig, Store, StoreConfig, TableName};
use tarbet_testbed::{Folder, Redis};

use crate::Scale;
use crate::report::{Report, median};

const WRITERS: usize = 64;

pub(crate) async fn measure(report: &mut Report, scale: Scale) -> Result<()> {
    let (folder, redis) = (Folder::new("store-bench")?, Redis::start().await?);
    let redb = StoreConfig::Redb(RedbConfig { path: folder.path().join("bench.redb") });
    let shared = StoreConfig::Redis(Box::new(RedisConfig::at(redis.url().parse()?)));
    let time = Duration::from_secs(scale.seconds);
    let mut rates: Vec<(&str, Vec<f64>)> = vec![
        ("a file synced for each write", vec![]),
        ("memory", vec![]),
        ("redb", vec![]),
        ("redis", vec![]),
    ];
    let stores = [
        tarbet_store::open(&StoreConfig::Memory {}, Clock::system()).await?,
        tarbet_store::open(&redb, Clock::system()).await?,
        tarbet_store::open(&shared, Clock::system()).await?,
    ];
    for _ in 0..scale.rounds {
        rates[0].1.push(synced_file(&folder, time)?);
        for (row, store) in stores.iter().enumerate() {
            rates[row + 1].1.push(commits(store, time).await?);
        }
    }
    for (name, runs) in rates {
        report.store(name, median(runs.into_iter()));
    }
    Ok(())
}

async fn commits(store: &Store, time: Duration) -> Result<f64> {
    let (begun, count) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let until = begun + time;
    let table = TableName::new("bench")?;
    let writers = (0..WRITERS).map(|writer| {
        let (store, table, count) = (store.clone(), table.clone(), Arc::clone(&count));
        tokio::spawn(async move {
            while Instant::now() < until {
                store
                    .put(
                        table.key(format!("writer-{writer}")),
                        "a value of an ordinary size, about sixty bytes of it",
                    )
                    .await?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await??;
    }
    Ok(count.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64())
}

fn synced_file(folder: &Folder, time: Duration) -> Result<f64> {
    let mut file = std::fs::File::create(folder.path().join("synced"))?;
    let (begun, mut count) = (Instant::now(), 0u64);
    while begun.elapsed() < time {
        file.write_all(b"a value of an ordinary size, about sixty bytes of it\n")?;
        file.sync_data()?;
        count += 1;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}
