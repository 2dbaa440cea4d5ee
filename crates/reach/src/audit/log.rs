//! The file behind the chain: a request's record is in it before the request goes on, synced in batches, and
//! continued after a restart.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::reach;
use tarbet_telemetry::health::Part;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::chain::{self, Entry, Event, Head, Joined};
use super::tape::Tape;

/// How long a disk may take for what lies before it; then it is as good as broken.
const PATIENCE: Duration = Duration::from_secs(15);
/// The least time between two syncs: one sync serves all records of the time between.
const BATCH: Duration = Duration::from_millis(100);
/// Enough of the end of a file to hold its last record.
const TAIL: u64 = 128 * 1024;

/// Characters of what was wanted that are kept.
const MAX_WANTS: usize = 1024;

/// Where the record of requests is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// The file. Absent: no record is kept.
    pub file: Option<PathBuf>,
}

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// It cannot be opened or read.
    #[error("the audit log {} cannot be used", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It is some other file.
    #[error("{} does not end in a record: it is no audit log, or it was edited", .0.display())]
    Foreign(PathBuf),
}

/// A log that is being written. Cheap to clone; without a file it takes nothing in.
#[derive(Clone, Default)]
pub struct AuditLog(Option<Arc<Inner>>);

struct Inner {
    path: PathBuf,
    state: Mutex<State>,
    /// Whoever holds it writes what is buffered, for all who wait for it.
    tape: Arc<tokio::sync::Mutex<Tape>>,
    wake: Notify,
    failing: AtomicBool,
}

struct State {
    head: Head,
    buffer: Vec<u8>,
}

/// Syncs the log to disk and brings what nobody waits for; whoever opened it must run this.
pub struct Writer {
    /// The same file, so that a sync holds up no record.
    file: Arc<File>,
    inner: Arc<Inner>,
}

impl AuditLog {
    /// Keeps no record.
    pub fn none() -> Self {
        Self::default()
    }

    /// Opens a log or begins one, and goes on where it ended.
    pub fn open(path: &Path) -> Result<(Self, Writer), AuditError> {
        let failed = |source| AuditError::Open { path: path.to_owned(), source };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(failed)?;
        let (last, end) =
            last_record(&mut file).map_err(failed)?.ok_or_else(|| AuditError::Foreign(path.to_owned()))?;
        // What a crash left half written was never part of the chain.
        file.set_len(end).map_err(failed)?;
        let known = read_head(path).map_err(failed)?.unwrap_or_default();
        // A file that ends before its head was shortened. The chain goes on after the head, so that
        // the gap stays to be seen.
        let head = if known.seq > last.seq { known } else { last };
        let file = Arc::new(file);
        let inner = Arc::new(Inner {
            path: path.to_owned(),
            state: Mutex::new(State { head, buffer: Vec::new() }),
            tape: Arc::new(tokio::sync::Mutex::new(Tape::new(Arc::clone(&file), end, head))),
            wake: Notify::new(),
            failing: AtomicBool::new(false),
        });
        let log = Self(Some(Arc::clone(&inner)));
        if known.seq > last.seq {
            tracing::error!(file = %path.display(), found = last.seq, expected = known.seq, "Records are missing from the audit log.");
            let wants =
                format!("records {} to {} were missing when the log was opened", last.seq + 1, known.seq);
            log.record(Timestamp::now(), &Event { wants, outcome: "failed".into(), ..Event::default() });
        }
        Ok((log, Writer { file, inner }))
    }

    /// Takes a record, which is in the file a moment later. Its number, if records are kept.
    pub fn record(&self, now: Timestamp, event: &Event) -> Option<u64> {
        self.0.as_ref()?;
        self.record_made(now, || event.clone())
    }

    /// Takes a record that is only made if any are kept: it costs more than most of what it tells of.
    pub fn record_made(&self, now: Timestamp, make: impl FnOnce() -> Event) -> Option<u64> {
        let inner = self.0.as_ref()?;
        let mut event = make();
        if let Some((end, _)) = event.wants.char_indices().nth(MAX_WANTS) {
            event.wants.truncate(end);
        }
        let mut state = inner.lock();
        let (line, head) = state.head.append(now, &event);
        state.head = head;
        state.buffer.extend_from_slice(line.as_bytes());
        state.buffer.push(b'\n');
        drop(state);
        inner.wake.notify_one();
        Some(head.seq)
    }

    /// Waits until the record of this number is in the file, where the end of this process does not harm
    /// it. What it tells of must not happen before.
    pub async fn written(&self, seq: u64) -> Result<(), Problem> {
        let Some(inner) = &self.0 else { return Ok(()) };
        tokio::time::timeout(PATIENCE, self.write_up_to(inner, seq)).await.unwrap_or_else(|_| {
            tracing::error!(file = %inner.path.display(), "The audit log takes no record in time.");
            // Until the disk answers, and what waits is written.
            inner.failing.store(true, Ordering::Relaxed);
            Err(unwritable())
        })
    }

    async fn write_up_to(&self, inner: &Arc<Inner>, seq: u64) -> Result<(), Problem> {
        let mut tape = Arc::clone(&inner.tape).lock_owned().await;
        if tape.head().seq >= seq {
            return Ok(());
        }
        self.ready()?;
        let this = Arc::clone(inner);
        // A disk may take its time, and only requests wait for it.
        let wrote = tokio::task::spawn_blocking(move || this.put(&mut tape)).await;
        match wrote {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                tracing::error!(file = %inner.path.display(), %error, "The audit log takes no record.");
                inner.failing.store(true, Ordering::Relaxed);
                // It is tried again until it is taken.
                inner.wake.notify_one();
                Err(unwritable())
            }
            // The process is ending.
            Err(_) => Err(unwritable()),
        }
    }

    /// Whether another record can be taken; else why not.
    pub fn ready(&self) -> Result<(), Problem> {
        match &self.0 {
            Some(inner) if inner.failing.load(Ordering::Relaxed) => Err(unwritable()),
            _ => Ok(()),
        }
    }

    /// Where the chain ends now.
    pub fn head(&self) -> Option<Head> {
        self.0.as_ref().map(|inner| inner.lock().head)
    }
}

fn unwritable() -> Problem {
    Problem::new(
        &reach::AUDIT_UNWRITABLE,
        "The record of requests cannot be written, so no request is taken.",
    )
}

impl Inner {
    /// Writes what is buffered.
    fn put(&self, tape: &mut Tape) -> io::Result<()> {
        let head = {
            let mut state = self.lock();
            tape.take(&mut state.buffer);
            state.head
        };
        tape.write(head)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    /// Writes until `stop`, and what is left after it.
    pub async fn run(mut self, stop: CancellationToken, health: Part) {
        health.ready();
        loop {
            tokio::select! {
                () = self.inner.wake.notified() => {}
                () = stop.cancelled() => break,
            }
            self = self.flush(&health).await;
            tokio::select! {
                () = tokio::time::sleep(BATCH) => {}
                () = stop.cancelled() => break,
            }
        }
        let done = self.flush(&health).await;
        let head = done.inner.lock().head;
        tracing::info!(file = %done.inner.path.display(), %head, "The audit log ends here for now.");
    }

    async fn flush(self, health: &Part) -> Self {
        let inner = Arc::clone(&self.inner);
        let written = async {
            let mut tape = Arc::clone(&inner.tape).lock_owned().await;
            tokio::task::spawn_blocking(move || {
                let result = self.inner.put(&mut tape).and_then(|()| {
                    let mark = tape.mark();
                    // Records go on being written meanwhile.
                    drop(tape);
                    let synced = self.file.sync_data();
                    let mut tape = self.inner.tape.blocking_lock();
                    match synced {
                        Ok(()) => tape.fasten(&mark),
                        Err(error) => {
                            tape.rewind();
                            return Err(error);
                        }
                    }
                    drop(tape);
                    write_head(&self.inner.path, mark.head)
                });
                (self, result)
            })
            .await
        };
        let mut written = std::pin::pin!(written);
        let in_time = tokio::time::timeout(PATIENCE, written.as_mut()).await;
        if in_time.is_err() {
            health.failing(format!("the audit log {} takes no record in time", inner.path.display()));
        }
        let written = match in_time {
            Ok(written) => written,
            Err(_) => written.await,
        };
        match written {
            Ok((this, result)) => {
                inner.failing.store(result.is_err(), Ordering::Relaxed);
                match result {
                    Ok(()) => health.ready(),
                    Err(error) => {
                        tracing::error!(file = %inner.path.display(), %error, "The audit log cannot be written.");
                        health.failing(format!(
                            "the audit log {} cannot be written: {error}",
                            inner.path.display()
                        ));
                        // Tried again at the next record, or after the pause.
                        inner.wake.notify_one();
                    }
                }
                this
            }
            // Only a panic in the few lines above gets here, and it has been reported.
            Err(_) => std::future::pending().await,
        }
    }
}

fn head_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".head");
    name.into()
}

fn write_head(path: &Path, head: Head) -> io::Result<()> {
    let file = head_path(path);
    let new = file.with_extension("head.new");
    let mut beside = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    writeln!(beside, "{head}")?;
    std::fs::rename(&new, file)
}

/// The head that lies beside a log, if one does.
pub fn read_head(path: &Path) -> io::Result<Option<Head>> {
    match std::fs::read_to_string(head_path(path)) {
        Ok(text) => text.parse().map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The head of the last whole record and where it ends; nothing if the end is no record.
fn last_record(file: &mut File) -> io::Result<Option<(Head, u64)>> {
    let length = file.metadata()?.len();
    let start = length.saturating_sub(TAIL);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else {
        // Nothing, or one record that was never finished.
        let begun = bytes.is_empty() || bytes.starts_with(b"{\"hash\"") || b"{\"hash\"".starts_with(&bytes);
        return Ok(begun.then(|| (Head::default(), 0)));
    };
    let begin = bytes[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    Ok(chain::head_of(&bytes[begin..end]).map(|head| (head, start + end as u64 + 1)))
}

/// The last records of a log, oldest first. What began and ended is one record: its end.
pub fn tail(path: &Path, count: usize) -> io::Result<Vec<Entry>> {
    let text = std::fs::read(path)?;
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).rev();
    let mut joined = Joined::default();
    let mut entries: Vec<Entry> = lines
        .filter_map(|line| chain::read(line).map(|(entry, _, _)| entry))
        .filter(|entry| joined.stands_alone(entry))
        .take(count)
        .collect();
    entries.reverse();
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::super::{Broken, verify};
    use super::*;
    use tarbet_telemetry::Health;

    fn event(wants: &str) -> Event {
        Event { wants: wants.into(), outcome: "answered".into(), status: Some(200), ..Event::default() }
    }

    /// Opens, writes, and closes in good order.
    async fn session(path: &Path, events: &[&str]) {
        let (log, writer) = AuditLog::open(path).unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn(writer.run(stop.clone(), Health::default().part("audit")));
        for wants in events {
            log.record(Timestamp::now(), &event(wants));
        }
        stop.cancel();
        running.await.unwrap();
    }

    fn check(path: &Path) -> Result<super::super::Verified, Broken> {
        let file = io::BufReader::new(File::open(path).unwrap());
        verify(file, read_head(path).unwrap())
    }

    #[tokio::test]
    async fn a_log_goes_on_after_a_restart_and_after_a_crash() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        session(&path, &["one", "two"]).await;
        session(&path, &["three"]).await;
        assert_eq!(check(&path).unwrap().head.seq, 3);
        // A crash in the middle of a record.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"hash\":\"00").unwrap();
        assert!(check(&path).unwrap().torn);
        session(&path, &["four"]).await;
        assert_eq!(check(&path).unwrap().head.seq, 4);
        let wants: Vec<String> = tail(&path, 2).unwrap().into_iter().map(|entry| entry.event.wants).collect();
        assert_eq!(wants, ["three", "four"]);
    }

    #[tokio::test]
    async fn a_shortened_log_is_noticed_and_stays_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        session(&path, &["one", "two", "three"]).await;
        let text = std::fs::read_to_string(&path).unwrap();
        let first = text.lines().next().unwrap();
        std::fs::write(&path, format!("{first}\n")).unwrap();
        assert_eq!(check(&path), Err(Broken::Truncated { found: 1, expected: 3 }));
        session(&path, &["later"]).await;
        assert!(matches!(check(&path), Err(Broken::Chain { before: 1, found: 4, .. })), "{:?}", check(&path));
    }

    #[tokio::test]
    async fn another_file_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        std::fs::write(&path, "dear diary\n").unwrap();
        assert!(matches!(AuditLog::open(&path), Err(AuditError::Foreign(_))));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "dear diary\n");
    }
}
