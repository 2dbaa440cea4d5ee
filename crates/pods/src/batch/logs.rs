//! Logs of jobs: files that grow until a status file appears beside them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use jiff::Timestamp;

use super::aside;
use super::pod::Pod;
use super::script::Share;
use crate::docker::limited;
use crate::error::RunError;
use crate::runner::LogStream;
use crate::wire::LogOptions;

/// How often a followed file is looked at. Networked file systems tell nobody when they change.
const LOOK: Duration = Duration::from_millis(200);
const CHUNK: usize = 64 * 1024;

/// The log of one container.
pub(super) struct Source {
    pub(super) pod: Arc<Pod>,
    /// `run-NAME` or `init-NAME`.
    pub(super) stem: String,
    /// The job that runs it.
    pub(super) job: Share,
}

impl Source {
    /// Its own, or what the job itself wrote if that ended before the container began.
    fn file(&self, ended: bool) -> Option<File> {
        let own = self.pod.folder.open_file(&format!("{}.out", self.stem)).ok();
        let of_job = || self.pod.folder.open_file(&format!("{}.out", self.job.stem())).ok();
        own.or_else(|| ended.then(of_job).flatten())
    }

    fn ended(&self) -> bool {
        // The pod's folder goes with the pod.
        self.pod.folder.has(&format!("{}.status", self.stem))
            || !self.pod.folder.has("pod.json")
            || self.pod.has_ended(self.job)
    }
}

struct Reading {
    source: Source,
    file: Option<File>,
    follow: bool,
    skip_to_tail: Option<usize>,
    since: Option<Timestamp>,
}

pub(super) fn read(source: Source, options: LogOptions) -> LogStream {
    let since = match options.since_seconds {
        0 => options.since_time,
        seconds => Timestamp::now()
            .checked_sub(jiff::SignedDuration::from_secs(
                i64::try_from(seconds.min(1 << 40)).unwrap_or_default(),
            ))
            .ok(),
    };
    let skip_to_tail = (options.tail > 0).then(|| usize::try_from(options.tail).unwrap_or(usize::MAX));
    let reading = Reading { source, file: None, follow: options.follow, skip_to_tail, since };
    let log = stream::try_unfold(reading, |mut reading| async move {
        loop {
            let looked = aside(move || (reading.look(), reading)).await;
            reading = looked.1;
            match looked.0.map_err(RunError::folder("read a log"))? {
                Look::Piece(piece) => return Ok(Some((piece, reading))),
                Look::End => return Ok(None),
                Look::Later => tokio::time::sleep(LOOK).await,
            }
        }
    });
    if options.bytes == 0 { log.boxed() } else { limited(log.boxed(), options.bytes) }
}

/// What a look at a log finds.
enum Look {
    Piece(Bytes),
    /// Nothing more comes.
    End,
    /// Nothing is there yet.
    Later,
}

impl Reading {
    fn look(&mut self) -> std::io::Result<Look> {
        // Looked at first: what is written before the end is still read after it.
        let ended = self.source.ended();
        if self.file.is_none() {
            self.file = self.source.file(ended);
            if let Some(file) = &mut self.file {
                begin(file, self.skip_to_tail, self.since)?;
            }
        }
        if let Some(file) = &mut self.file {
            let mut buffer = vec![0; CHUNK];
            let count = file.read(&mut buffer)?;
            if count > 0 {
                buffer.truncate(count);
                return Ok(Look::Piece(buffer.into()));
            }
        }
        Ok(if !self.follow || ended { Look::End } else { Look::Later })
    }
}

/// Goes to where the asked part begins. Lines carry no times: a log that was not written to since
/// has nothing new, any other is given whole.
fn begin(file: &mut File, tail: Option<usize>, since: Option<Timestamp>) -> std::io::Result<()> {
    if let Some(since) = since
        && Timestamp::try_from(file.metadata()?.modified()?).is_ok_and(|written| written < since)
    {
        file.seek(SeekFrom::End(0))?;
        return Ok(());
    }
    let Some(lines) = tail else { return Ok(()) };
    // Where each of the last lines begins.
    let mut starts = VecDeque::from([0u64]);
    let (mut at, mut buffer) = (0u64, vec![0; CHUNK]);
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        for (offset, _) in buffer[..count].iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
            starts.push_back(at + offset as u64 + 1);
            if starts.len() > lines.saturating_add(1) {
                starts.pop_front();
            }
        }
        at += count as u64;
    }
    // A start at the very end begins no line.
    if starts.back() == Some(&at) {
        starts.pop_back();
    } else if starts.len() > lines {
        starts.pop_front();
    }
    file.seek(SeekFrom::Start(starts.front().copied().unwrap_or(at)))?;
    Ok(())
}
