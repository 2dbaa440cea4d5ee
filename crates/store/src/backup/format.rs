//! The lines of a backup file.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::fs::File;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, BufWriter};

use super::BackupError;
use crate::clock::{Clock, micros};
use crate::commit::VALUE_MAX;
use crate::entry::Entry;
use crate::key::{Key, TableName};

/// The format this program writes.
pub(super) const VERSION: u32 = 1;
/// Longer than the longest entry in base64.
const LINE_MAX: usize = VALUE_MAX * 2;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    #[serde(rename = "tarbet-store-backup")]
    version: u32,
    created: jiff::Timestamp,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    table: String,
    key: String,
    value: String,
    /// Microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Foot {
    entries: u64,
    sha256: String,
}

/// An entry as read back.
pub(super) struct Line {
    pub(super) key: Key,
    pub(super) value: Vec<u8>,
    pub(super) expires: Option<u64>,
}

/// Writes beside the file first, so that an older backup stays until the new one is complete.
pub(super) struct Writer {
    path: PathBuf,
    part: PathBuf,
    file: BufWriter<File>,
    digest: Sha256,
    entries: u64,
}

impl Writer {
    pub(super) async fn create(path: &Path, clock: &Clock) -> Result<Self, BackupError> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        // It holds hashes of tokens: for this user's eyes only.
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&part).await;
        let file = file.map_err(failed("create", path))?;
        let file = BufWriter::new(file);
        let mut writer = Self { path: path.to_owned(), part, file, digest: Sha256::new(), entries: 0 };
        let created = jiff::Timestamp::from_microsecond(clock.micros().cast_signed()).unwrap_or_default();
        writer.line(&Head { version: VERSION, created }).await?;
        Ok(writer)
    }

    pub(super) async fn entry(&mut self, entry: &Entry, clock: &Clock) -> Result<(), BackupError> {
        self.entries += 1;
        let body = Body {
            table: entry.key.table.to_string(),
            key: BASE64.encode(&entry.key.bytes),
            value: BASE64.encode(&entry.value),
            expires: entry.expires_in.map(|left| clock.micros().saturating_add(micros(left))),
        };
        self.line(&body).await
    }

    /// Ends the file, waits for the disk, and puts it in its place.
    pub(super) async fn finish(mut self) -> Result<u64, BackupError> {
        let sha256 = hex::encode(self.digest.clone().finalize());
        self.line(&Foot { entries: self.entries, sha256 }).await?;
        let failed = failed("write", &self.path);
        if let Err(error) = self.file.flush().await {
            return Err(failed(error));
        }
        let done = match self.file.get_ref().sync_all().await {
            Ok(()) => tokio::fs::rename(&self.part, &self.path).await,
            Err(error) => Err(error),
        };
        done.map_err(failed)?;
        Ok(self.entries)
    }

    /// Leaves no trace.
    pub(super) async fn abandon(self) {
        let _gone_already = tokio::fs::remove_file(&self.part).await;
    }

    async fn line(&mut self, line: &impl Serialize) -> Result<(), BackupError> {
        let write = async {
            let mut line = serde_json::to_vec(line)?;
            line.push(b'\n');
            self.digest.update(&line);
            self.file.write_all(&line).await
        };
        write.await.map_err(failed("write", &self.path))
    }
}

/// Reads line by line. Only when it has come to the end is the file known to be intact.
pub(super) struct Reader {
    path: PathBuf,
    file: BufReader<File>,
    digest: Sha256,
    line: usize,
    entries: u64,
    buffer: Vec<u8>,
}

impl Reader {
    pub(super) async fn open(path: &Path) -> Result<Self, BackupError> {
        let file = File::open(path).await.map_err(failed("read", path))?;
        let (file, digest) = (BufReader::new(file), Sha256::new());
        let mut reader =
            Self { path: path.to_owned(), file, digest, line: 0, entries: 0, buffer: Vec::new() };
        reader.advance().await?;
        let head: Head = serde_json::from_slice(&reader.buffer)
            .map_err(|_| reader.damaged("it is not the head of a backup"))?;
        if head.version > VERSION {
            return Err(BackupError::Version { path: path.to_owned(), found: head.version });
        }
        Ok(reader)
    }

    /// The next entry, or nothing at the intact end.
    pub(super) async fn next(&mut self) -> Result<Option<Line>, BackupError> {
        let above = self.digest.clone();
        self.advance().await?;
        if let Ok(body) = serde_json::from_slice::<Body>(&self.buffer) {
            self.entries += 1;
            return self.decode(body).map(Some);
        }
        let foot: Foot = serde_json::from_slice(&self.buffer)
            .map_err(|_| self.damaged("it is neither an entry nor the foot; the file may be cut off"))?;
        if foot.entries != self.entries || foot.sha256 != hex::encode(above.finalize()) {
            return Err(self.damaged("the checksum does not match what stands above it"));
        }
        if self.read_line().await? != 0 {
            return Err(self.damaged("something follows the foot"));
        }
        Ok(None)
    }

    fn decode(&self, body: Body) -> Result<Line, BackupError> {
        let table =
            TableName::new(&body.table).map_err(|_| self.damaged("the table has an impossible name"))?;
        let key = BASE64.decode(body.key).map_err(|_| self.damaged("the key is not base64"))?;
        let value = BASE64.decode(body.value).map_err(|_| self.damaged("the value is not base64"))?;
        Ok(Line { key: table.key(key), value, expires: body.expires })
    }

    async fn advance(&mut self) -> Result<(), BackupError> {
        if self.read_line().await? == 0 {
            return Err(self.damaged("the file ends before its foot"));
        }
        self.digest.update(&self.buffer);
        Ok(())
    }

    async fn read_line(&mut self) -> Result<usize, BackupError> {
        self.line += 1;
        self.buffer.clear();
        let mut limited = (&mut self.file).take(LINE_MAX as u64);
        limited.read_until(b'\n', &mut self.buffer).await.map_err(failed("read", &self.path))
    }

    fn damaged(&self, why: &'static str) -> BackupError {
        BackupError::Damaged { path: self.path.clone(), line: self.line, why }
    }
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> BackupError + use<> {
    let path = path.to_owned();
    move |source| BackupError::File { operation, path, source }
}
