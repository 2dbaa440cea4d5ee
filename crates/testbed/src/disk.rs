//! A small disk that can run out of room or lose what it took, and be well again, under whoever has files open on it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::Folder;

/// What it says it holds.
const SIZE: u64 = 8 * 1024 * 1024;

/// A file system on a device that may have promised more than it has: where there is nothing left beneath it, what
/// is written is taken and lost, and only who asks whether it is safe is told.
pub struct Disk {
    at: PathBuf,
    beneath: PathBuf,
    _folder: Folder,
}

impl Disk {
    /// Mounts one. This needs root.
    pub fn new() -> Result<Self> {
        let folder = Folder::new("disk")?;
        let disk =
            Self { at: folder.path().join("disk"), beneath: folder.path().join("beneath"), _folder: folder };
        for place in [&disk.at, &disk.beneath] {
            std::fs::create_dir(place)?;
        }
        let size = format!("size={}", 2 * SIZE);
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&disk.beneath))?;
        let image = disk.beneath.join("image");
        File::create(&image)?.set_len(SIZE)?;
        // Without a journal, which would give up for ever at the first error; and with blocks so large, all of its own
        // written at once, that a file of a test never needs one to find others by: that one would be lost for good,
        // however often somebody writes again.
        let whole = ["-q", "-m", "0", "-b", "4096", "-E", "nodiscard,lazy_itable_init=0"];
        run(Command::new("mkfs.ext2").args(whole).arg(&image))?;
        disk.mount()?;
        Ok(disk)
    }

    fn mount(&self) -> Result<()> {
        run(Command::new("mount").args(["-o", "loop"]).arg(self.beneath.join("image")).arg(&self.at))
    }

    /// Puts it in anew, so that only what is on the device is there. Nobody may have files open on it.
    pub fn replug(&self) -> Result<()> {
        run(Command::new("umount").arg(&self.at))?;
        self.mount()
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.at
    }

    /// Takes all its room, to the last byte.
    pub fn fill(&self) -> Result<()> {
        fill(&self.at)
    }

    /// Gives the room back.
    pub fn empty(&self) -> Result<()> {
        Ok(std::fs::remove_file(self.at.join(FILLER))?)
    }

    /// From now on what needs a new block is lost.
    pub fn fail(&self) -> Result<()> {
        // What was written before is safe. An earlier loss that nobody asked about is told to whoever asks first.
        let sync = || run(Command::new("sync").arg("--file-system").arg(&self.at));
        sync().or_else(|_| sync())?;
        fill(&self.beneath)
    }

    /// It works again.
    pub fn mend(&self) -> Result<()> {
        Ok(std::fs::remove_file(self.beneath.join(FILLER))?)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        for place in [&self.at, &self.beneath] {
            let _left = Command::new("umount").arg("--lazy").arg(place).output();
        }
    }
}

const FILLER: &str = "filler";

fn fill(folder: &Path) -> Result<()> {
    let mut filler = OpenOptions::new().create(true).append(true).open(folder.join(FILLER))?;
    for piece in [64 * 1024, 512, 1] {
        // Until there is no more room.
        while filler.write_all(&vec![0; piece]).is_ok() {}
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let ran = command.output()?;
    ensure!(ran.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ran.stderr));
    Ok(())
}
