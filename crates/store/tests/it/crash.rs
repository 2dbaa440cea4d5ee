//! A process that writes to a redb store is killed at a random moment, again and again.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rand::Rng;
use tarbet_store::backend::Redb;
use tarbet_store::{Clock, Commit, RedbConfig, Store};
use tarbet_testbed::verified;

use crate::effort;
use crate::place::table;

/// Names the store for the process that is to be killed.
const CHILD: &str = "TARBET_STORE_CRASH_CHILD";
const WRITERS: u64 = 4;

fn open(path: &Path) -> Store {
    Store::new(Redb::open(&RedbConfig::at(path), Clock::system()).unwrap())
}

/// Not a test by itself: the process that is killed. Each writer counts up in commits over three tables
/// and says so once a commit is acknowledged.
#[test]
fn child() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = open(&PathBuf::from(path));
        let writers = (0..WRITERS).map(|writer| tokio::spawn(write(store.clone(), writer)));
        futures::future::join_all(writers).await;
    });
}

async fn write(store: Store, writer: u64) {
    let name = |table_name: &str| table(table_name).key(writer.to_be_bytes().to_vec());
    let found = store.get(&name("first")).await.unwrap();
    let mut count = found.map_or(0, |entry| number(&entry.value));
    loop {
        count += 1;
        let line = table("log").key([writer.to_be_bytes(), count.to_be_bytes()].concat());
        let value = count.to_be_bytes().to_vec();
        let mut commit = Commit::new()
            .put(name("first"), value.clone())
            .put(name("second"), value)
            .put(line, vec![writer as u8; (count * 37 % 3000) as usize])
            .put_for(name("brief"), "", Duration::from_millis(5));
        if count > 50 {
            commit =
                commit.delete(table("log").key([writer.to_be_bytes(), (count - 50).to_be_bytes()].concat()));
        }
        // One of them waits for the disk, and the others' journal starts anew with it.
        let commit = if writer == 0 { commit.on_disk() } else { commit };
        store.commit(commit).await.unwrap();
        // One write call, so that a line is whole or not there.
        std::io::stdout().lock().write_all(format!("\nack {writer} {count}\n").as_bytes()).unwrap();
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().unwrap())
}

#[test]
fn kill_9_loses_no_acknowledged_write_and_corrupts_nothing() {
    let mut rng = rand::rng();
    for round in 0..2 * effort() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.redb");
        let mut acknowledged = BTreeMap::new();
        for run in 0..10 {
            // Up to and over a flush or two.
            let acks = rng.random_range(0..1000);
            let spin = rng.random_range(0..3000);
            acknowledged.extend(run_and_kill(&path, acks, spin));
            verify(&path, &acknowledged, &format!("round {round}, run {run}, after {acks} and {spin} µs"));
        }
    }
    verified("kill -9 of a writing store loses no acknowledged write", 10 * 2 * effort() as usize);
}

/// What a machine that lost power may leave: a journal that ends anywhere. No commit is there by half.
#[test]
fn a_journal_cut_anywhere_leaves_whole_commits() {
    let mut rng = rand::rng();
    let rounds = 3 * effort();
    for round in 0..rounds {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.redb");
        run_and_kill(&path, rng.random_range(1..400), 0);
        let journal = folder.path().join("store.redb.journal");
        let length = journal.metadata().unwrap().len();
        let cut = rng.random_range(0..=length);
        std::fs::File::options().write(true).open(&journal).unwrap().set_len(cut).unwrap();
        verify(&path, &BTreeMap::new(), &format!("round {round}, cut at {cut} of {length}"));
    }
    verified("a journal of the store cut anywhere gives whole commits", rounds as usize);
}

/// Runs the child until it has said so much and then some; gives the last count of each writer.
fn run_and_kill(path: &Path, acks: usize, spin: u64) -> BTreeMap<u64, u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child", "--nocapture", "--test-threads=1"])
        .env(CHILD, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let (sender, lines) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split(' ').collect();
            if let ["ack", writer, count] = words[..] {
                let _gone = sender.send((writer.parse::<u64>().unwrap(), count.parse::<u64>().unwrap()));
            }
        }
    });
    let mut last = BTreeMap::new();
    let mut note = |(writer, count)| _ = last.insert(writer, count);
    for _ in 0..acks {
        note(lines.recv_timeout(Duration::from_mins(1)).expect("the child writes"));
    }
    // Up to a few milliseconds more, to fall into any part of a write.
    let end = std::time::Instant::now() + Duration::from_micros(spin);
    while std::time::Instant::now() < end {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // What it said before it died counts too.
    reader.join().unwrap();
    lines.try_iter().for_each(note);
    last
}

fn verify(path: &Path, acknowledged: &BTreeMap<u64, u64>, when: &str) {
    if !path.exists() {
        assert!(acknowledged.is_empty(), "{when}");
        return;
    }
    let mut database = redb::Database::builder().create(path).unwrap();
    assert!(database.check_integrity().unwrap(), "{when}: redb finds damage");
    drop(database);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = open(path);
        for writer in 0..WRITERS {
            let name = |table_name: &str| table(table_name).key(writer.to_be_bytes().to_vec());
            let first = store.get(&name("first")).await.unwrap();
            let second = store.get(&name("second")).await.unwrap();
            assert_eq!(
                first.as_ref().map(|entry| (&entry.value, entry.revision)),
                second.as_ref().map(|entry| (&entry.value, entry.revision)),
                "{when}: half a commit"
            );
            let count = first.map_or(0, |entry| number(&entry.value));
            let acked = acknowledged.get(&writer).copied().unwrap_or(0);
            assert!(count >= acked, "{when}: writer {writer} was told {acked}, the store has {count}");
            let log = store.list(&table("log").prefix(writer.to_be_bytes().to_vec())).await.unwrap();
            let lines: Vec<u64> = log.iter().map(|entry| number(&entry.key.bytes[8..])).collect();
            let expected: Vec<u64> = (count.saturating_sub(49).max(1)..=count).collect();
            assert_eq!(lines, expected, "{when}: the log of writer {writer}");
            for entry in &log {
                let length = (number(&entry.key.bytes[8..]) * 37 % 3000) as usize;
                assert_eq!(entry.value, vec![writer as u8; length], "{when}: a value");
            }
        }
    });
}
