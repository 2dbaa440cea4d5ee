//! The end of the file: what was taken is written in order, and what a disk does not take is kept and tried again.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::chain::Head;

pub(super) struct Tape {
    file: Arc<File>,
    /// Where the file ends, as far as it was written here.
    end: u64,
    /// What comes next there.
    left: Vec<u8>,
    head: Head,
    /// What lies before the end and may not be on the disk yet.
    loose: Vec<u8>,
    /// The last record that is on the disk.
    fast: Head,
}

/// How far a tape was written at some moment.
pub(super) struct Mark {
    end: u64,
    /// The last record before it.
    pub(super) head: Head,
}

impl Tape {
    pub(super) fn new(file: Arc<File>, end: u64, head: Head) -> Self {
        Self { file, end, left: Vec::new(), head, loose: Vec::new(), fast: head }
    }

    /// The last record that is in the file.
    pub(super) fn head(&self) -> Head {
        self.head
    }

    /// Takes over lines; the buffer keeps its room.
    pub(super) fn take(&mut self, buffer: &mut Vec<u8>) {
        self.left.append(buffer);
    }

    /// Writes what was taken, which ends in `head`. A disk that is full may take a part, even of a line; the
    /// rest goes exactly there when there is room.
    pub(super) fn write(&mut self, head: Head) -> io::Result<()> {
        let mut written = 0;
        let result = loop {
            if written == self.left.len() {
                break Ok(());
            }
            match self.file.write_at(&self.left[written..], self.end) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    written += count;
                    self.end += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.loose.extend(self.left.drain(..written));
        if result.is_ok() {
            self.head = head;
        }
        result
    }

    /// What a sync that begins now brings to the disk.
    pub(super) fn mark(&self) -> Mark {
        Mark { end: self.end, head: self.head }
    }

    /// A sync succeeded that began at the mark.
    pub(super) fn fasten(&mut self, mark: &Mark) {
        let still = usize::try_from(self.end.saturating_sub(mark.end)).unwrap_or(usize::MAX);
        self.loose.drain(..self.loose.len().saturating_sub(still));
        self.fast = mark.head;
    }

    /// A sync failed. The system may have thrown away what it could not bring to the disk, and the next sync would
    /// not tell; so all of it is written once more.
    pub(super) fn rewind(&mut self) {
        self.end -= self.loose.len() as u64;
        self.loose.append(&mut self.left);
        self.left = std::mem::take(&mut self.loose);
        self.head = self.fast;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sync_lost_is_written_again_in_its_place() {
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, b"old\n").unwrap();
        let file = Arc::new(file);
        let head = |seq: u64| format!("{seq}:{}", "0".repeat(64)).parse::<Head>().unwrap();
        let mut tape = Tape::new(Arc::clone(&file), 4, head(1));
        let put = |tape: &mut Tape, line: &str, seq| {
            tape.take(&mut line.as_bytes().to_vec());
            tape.write(head(seq)).unwrap();
        };
        put(&mut tape, "two\n", 2);
        let mark = tape.mark();
        put(&mut tape, "three\n", 3);
        tape.fasten(&mark);
        put(&mut tape, "four\n", 4);
        // The disk did not take what came after the mark, and one more line comes before anybody hears of it.
        file.write_all_at(&[0; 11], 8).unwrap();
        tape.take(&mut b"five\n".to_vec());
        tape.rewind();
        assert_eq!(tape.head().seq, 2, "no more is safe");
        tape.write(head(5)).unwrap();
        assert_eq!(tape.head().seq, 5);
        let mut text = [0; 24];
        file.read_exact_at(&mut text, 0).unwrap();
        assert_eq!(std::str::from_utf8(&text).unwrap(), "old\ntwo\nthree\nfour\nfive\n");
        // All of it is on the disk: nothing is written again.
        tape.fasten(&tape.mark());
        tape.rewind();
        assert_eq!((tape.end, tape.left.len(), tape.head().seq), (24, 0, 5));
    }
}
