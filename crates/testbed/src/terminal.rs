//! A terminal with a program in it, as a person has one.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::io::write;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::process::{Child, Command};

use crate::eventually;

/// A program whose streams are a terminal; it is killed when dropped.
pub struct Terminal {
    ours: OwnedFd,
    child: Child,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Runs a program in a window of this many columns and rows.
    pub fn start(words: &[&str], (columns, rows): (u16, u16)) -> Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags)?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let theirs = ioctl_tiocgptpeer(&ours, flags)?;
        // A session whose terminal this is: the program hears of new sizes.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).args(words).env("TERM", "xterm").kill_on_drop(true);
        command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, heard) = (std::fs::File::from(ours.try_clone()?), Arc::clone(&seen));
        set_size(&ours, columns, rows)?;
        let child = command.spawn()?;
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                heard.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..count]);
            }
        });
        Ok(Self { ours, child, seen })
    }

    /// Types something.
    pub fn type_in(&self, text: &str) -> Result<()> {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            rest = &rest[write(&self.ours, rest)?..];
        }
        Ok(())
    }

    /// Changes the size of the window.
    pub fn resize(&self, columns: u16, rows: u16) -> Result<()> {
        set_size(&self.ours, columns, rows)
    }

    /// All that was shown.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Waits until this is shown.
    pub async fn shows(&self, patience: Duration, text: &str) -> Result<()> {
        eventually(patience, &format!("the terminal to show {text:?}"), || async {
            let shown = self.shown();
            ensure!(shown.contains(text), "{shown:?}");
            Ok(())
        })
        .await
    }

    /// Waits for the program's end.
    pub async fn ends(&mut self, patience: Duration) -> Result<ExitStatus> {
        let end = tokio::time::timeout(patience, self.child.wait()).await;
        Ok(end.with_context(|| format!("the program goes on: {:?}", self.shown()))??)
    }
}

fn set_size(ours: &OwnedFd, columns: u16, rows: u16) -> Result<()> {
    Ok(tcsetwinsize(ours, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?)
}
