//! A command with its streams as frames.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use crate::runner::Session;
use crate::wire::Frame;
use crate::wire::extension::MAX_FRAME;

/// Frames under way in each direction before the sender waits.
pub(super) const QUEUE: usize = 16;
/// What a command gets to end after its caller left.
const PARTING: Duration = Duration::from_secs(10);

/// Runs a command with its streams.
pub(super) fn attach(mut command: Command, stdin: bool) -> io::Result<Session> {
    command.stdin(if stdin { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let (to_command, mut commands) = mpsc::channel::<Frame>(QUEUE);
    let (from_command, frames) = mpsc::channel::<Frame>(QUEUE);
    let mut input = child.stdin.take();
    let feed = tokio::spawn(async move {
        while let Some(frame) = commands.recv().await {
            let Frame::Stdin(bytes) = frame else { continue };
            let Some(pipe) = &mut input else { continue };
            if bytes.is_empty() || pipe.write_all(&bytes).await.is_err() {
                input = None;
            }
        }
    });
    let (out, err) = (child.stdout.take(), child.stderr.take());
    tokio::spawn(async move {
        let pumps = async {
            tokio::join!(
                pump(out, from_command.clone(), Frame::Stdout),
                pump(err, from_command.clone(), Frame::Stderr)
            );
        };
        // When nobody listens any more the command is ended.
        let end = tokio::select! {
            () = from_command.closed() => None,
            end = async { pumps.await; child.wait().await } => Some(end),
        };
        feed.abort();
        match end {
            Some(end) => drop(from_command.send(told(end)).await),
            None => dismiss(child).await,
        }
    });
    Ok(Session { input: to_command, output: frames })
}

/// How a command ended, as the last frame.
pub(super) fn told(end: io::Result<ExitStatus>) -> Frame {
    match end {
        Ok(status) => Frame::Exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())),
        Err(error) => Frame::Failed(error.to_string()),
    }
}

/// Ends a command whose caller left. It is asked first: one that is merely killed leaves behind what it
/// runs on another machine.
pub(super) async fn dismiss(mut child: Child) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        let _ = kill_process(pid, Signal::TERM);
    }
    if tokio::time::timeout(PARTING, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

/// What a pipe gives, as frames.
pub(super) async fn pump(
    pipe: Option<impl tokio::io::AsyncRead + Unpin>,
    to: mpsc::Sender<Frame>,
    wrap: fn(Bytes) -> Frame,
) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0; MAX_FRAME / 4];
    while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
        if to.send(wrap(Bytes::copy_from_slice(&buffer[..count]))).await.is_err() {
            return;
        }
    }
}
