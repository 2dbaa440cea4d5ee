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
}

impl Tape {
    pub(super) fn new(file: Arc<File>, end: u64, head: Head) -> Self {
        Self { file, end, left: Vec::new(), head }
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
        self.left.drain(..written);
        if result.is_ok() {
            self.head = head;
        }
        result
    }
}
