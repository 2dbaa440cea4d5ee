//! A command with a terminal: a shell that somebody types in.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::process::Command;
use tokio::sync::mpsc;

use super::attach::{QUEUE, dismiss, pump, told};
use crate::runner::Session;
use crate::wire::Frame;

/// How long the caller's first word, usually the size of its window, is waited for: a command that begins
/// before it draws for a window of no size.
const FIRST_WORD: Duration = Duration::from_secs(1);
/// What a terminal takes for the end of input.
const END_OF_INPUT: &[u8] = &[4];

/// Runs a command with a terminal for all its streams. A terminal that only `passes` on what comes
/// interprets nothing: another one does, where the command really runs.
pub(super) fn attach(mut command: Command, passes: bool) -> io::Result<Session> {
    let (ours, theirs) = open(passes)?;
    command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs).kill_on_drop(true);
    let (to_command, commands) = mpsc::channel::<Frame>(QUEUE);
    let (from_command, frames) = mpsc::channel::<Frame>(QUEUE);
    // Not a pipe, but it is read and written as one is.
    let (keys, screen) =
        (Sender::from_owned_fd_unchecked(ours.try_clone()?)?, Receiver::from_owned_fd_unchecked(ours)?);
    tokio::spawn(run(command, (keys, screen), commands, from_command));
    Ok(Session { input: to_command, output: frames })
}

/// Both ends of a new terminal.
fn open(passes: bool) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    if passes {
        let mut modes = tcgetattr(&theirs)?;
        modes.make_raw();
        tcsetattr(&theirs, OptionalActions::Now, &modes)?;
    }
    fcntl_setfl(&ours, fcntl_getfl(&ours)? | OFlags::NONBLOCK)?;
    Ok((ours, theirs))
}

async fn run(
    mut command: Command,
    (keys, screen): (Sender, Receiver),
    mut commands: mpsc::Receiver<Frame>,
    from_command: mpsc::Sender<Frame>,
) {
    let first = tokio::time::timeout(FIRST_WORD, commands.recv()).await.ok().flatten();
    if let Some(Frame::Resize(columns, rows)) = first {
        resize(&keys, columns, rows);
    }
    let spawned = command.spawn();
    // With its copies of the other end: our end is told when the last one goes.
    drop(command);
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            let _ = from_command.send(Frame::Failed(error.to_string())).await;
            return;
        }
    };
    let end = tokio::select! {
        () = from_command.closed() => None,
        () = feed(keys, first, commands) => None,
        end = async { pump(Some(screen), from_command.clone(), Frame::Stdout).await; child.wait().await } => Some(end),
    };
    // The terminal is gone by now, which hangs up.
    match end {
        Some(end) => drop(from_command.send(told(end)).await),
        None => dismiss(child).await,
    }
}

/// A terminal of the wrong size is still a terminal, so nobody hears of a failure.
fn resize(terminal: &Sender, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let _ = tcsetwinsize(terminal, size);
}

/// What the caller types, and the sizes of its window. Never ends by itself.
async fn feed(mut terminal: Sender, first: Option<Frame>, mut commands: mpsc::Receiver<Frame>) {
    let mut next = first;
    loop {
        match next {
            Some(Frame::Stdin(bytes)) => {
                let bytes = if bytes.is_empty() { END_OF_INPUT } else { &bytes };
                if terminal.write_all(bytes).await.is_err() {
                    break;
                }
            }
            Some(Frame::Resize(columns, rows)) => resize(&terminal, columns, rows),
            _ => {}
        }
        match commands.recv().await {
            Some(frame) => next = Some(frame),
            None => break,
        }
    }
    // How the command ends is heard from the other direction.
    std::future::pending::<()>().await;
}
