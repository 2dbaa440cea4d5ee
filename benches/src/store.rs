//! Commits to the store by 64 writers, beside a program that syncs a file for each write.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tarbet_store::{Clock, RedbConfig, RedisConfig, Store, StoreConfig, TableName};
use tarbet_testbed::{Folder, Redis};

use crate::Bench;
use crate::figure::{Figure, Section, median};
use crate::growth::{Growth, SIZES};

const WRITERS: usize = 64;

pub(crate) async fn measure(bench: &Bench) -> Result<Vec<Section>> {
    let (folder, redis) = (Folder::new("store-bench")?, Redis::start().await?);
    let redb = StoreConfig::Redb(RedbConfig::at(folder.path().join("bench.redb")));
    let shared = StoreConfig::Redis(Box::new(RedisConfig::at(redis.url().parse()?)));
    let time = Duration::from_secs(bench.scale.seconds);
    let stores = [
        ("memory", tarbet_store::open(&StoreConfig::Memory {}, Clock::system()).await?),
        ("redb", tarbet_store::open(&redb, Clock::system()).await?),
        ("redis", tarbet_store::open(&shared, Clock::system()).await?),
    ];
    let mut synced = Vec::new();
    let mut rates = vec![Vec::new(); stores.len()];
    for _ in 0..bench.scale.rounds {
        synced.push(synced_file(&folder, time)?);
        for ((_, store), rates) in stores.iter().zip(&mut rates) {
            rates.push(commits(store, time).await?);
        }
    }
    let mut section =
        Section::new("Commits", "64 writers; beside a program that syncs a file for each write.");
    for ((name, _), rates) in stores.iter().zip(rates) {
        section.push(Figure::new(*name, "commits/s", rates).beside("synced file", synced.iter().copied()));
    }
    for (name, store) in &stores {
        section.growth.extend(growth(bench, name, store).await?);
    }
    Ok(vec![section])
}

/// What reading and writing one entry costs among more and more, and each of a list of all.
async fn growth(bench: &Bench, name: &str, store: &Store) -> Result<Vec<Growth>> {
    const CALLS: usize = 500;
    const VALUE: &str = "a value of an ordinary size, about sixty bytes of it";
    let table = TableName::new("growth")?;
    let key = |number: usize| table.key(format!("entry-{number:05}"));
    let mut get = Growth::new(format!("{name}: reading one of so many entries"), "µs");
    let mut put = Growth::new(format!("{name}: writing one of so many entries"), "µs");
    let mut list = Growth::new(format!("{name}: each of so many entries of a list"), "µs");
    let mut there = 0;
    for size in SIZES {
        for number in there..size {
            store.put(key(number), VALUE).await?;
        }
        there = size;
        for _ in 0..bench.scale.rounds {
            let (mut gets, mut puts) = (Vec::with_capacity(CALLS), Vec::with_capacity(CALLS));
            for call in 0..CALLS {
                let key = key(call * 7919 % size);
                let begun = Instant::now();
                ensure!(store.get(&key).await?.is_some(), "{key:?} is not there");
                gets.push(begun.elapsed().as_secs_f64() * 1e6);
                let begun = Instant::now();
                store.put(key, VALUE).await?;
                puts.push(begun.elapsed().as_secs_f64() * 1e6);
            }
            get.at(size, median(&gets));
            put.at(size, median(&puts));
            let begun = Instant::now();
            let all = store.list(&table.prefix("")).await?.len();
            list.at(size, begun.elapsed().as_secs_f64() * 1e6 / size as f64);
            ensure!(all == size, "{all} of {size} are listed");
        }
    }
    Ok(vec![get, put, list])
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
