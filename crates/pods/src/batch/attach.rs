//! A command with its streams as frames.

use std::io;
use std::process::Stdio;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::sync::mpsc;

use crate::runner::Session;
use crate::wire::Frame;
use crate::wire::extension::MAX_FRAME;

/// Runs a command with its streams.
pub(super) fn attach(mut command: Command, stdin: bool) -> io::Result<Session> {
    command.stdin(if stdin { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let (to_command, mut commands) = mpsc::channel::<Frame>(16);
    let (from_command, frames) = mpsc::channel::<Frame>(16);
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
        // When nobody listens any more the command is ended with its handle.
        let end = tokio::select! {
            () = from_command.closed() => return,
            end = async { pumps.await; child.wait().await } => end,
        };
        feed.abort();
        let last = match end {
            Ok(status) => {
                use std::os::unix::process::ExitStatusExt;
                Frame::Exit(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default()))
            }
            Err(error) => Frame::Failed(error.to_string()),
        };
        let _ = from_command.send(last).await;
    });
    Ok(Session { input: to_command, output: frames })
}

/// What a pipe gives, as frames.
async fn pump(
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
