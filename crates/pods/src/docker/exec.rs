//! Commands in running containers.

use bollard::Docker as Api;
use bollard::container::LogOutput;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use bollard::query_parameters::ResizeExecOptions;
use futures::StreamExt;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc;

use super::engine::failed;
use crate::error::RunError;
use crate::runner::Session;
use crate::wire::extension::MAX_FRAME;
use crate::wire::{ExecRequest, Frame};

/// Frames under way in each direction before the sender waits.
const QUEUE: usize = 16;

/// Runs a command in the container of this name.
pub(super) async fn exec(api: Api, name: &str, request: ExecRequest) -> Result<Session, RunError> {
    let what = || failed("run a command");
    let options = CreateExecOptions {
        attach_stdin: Some(request.stdin),
        attach_stdout: Some(true),
        attach_stderr: Some(!request.tty),
        tty: Some(request.tty),
        cmd: Some(request.command),
        ..Default::default()
    };
    let id = api.create_exec(name, options).await.map_err(what())?.id;
    let start = StartExecOptions { tty: request.tty, output_capacity: Some(MAX_FRAME), ..Default::default() };
    let StartExecResults::Attached { mut output, mut input } =
        api.start_exec(&id, Some(start)).await.map_err(what())?
    else {
        return Err(RunError::Unsupported("Docker ran the command without its streams".into()));
    };
    let (to_command, mut commands) = mpsc::channel::<Frame>(QUEUE);
    let (from_command, frames) = mpsc::channel::<Frame>(QUEUE);
    let (resizing, resized) = (api.clone(), id.clone());
    let feed = tokio::spawn(async move {
        while let Some(frame) = commands.recv().await {
            let written = match frame {
                Frame::Stdin(bytes) if bytes.is_empty() => input.shutdown().await,
                Frame::Stdin(bytes) => input.write_all(&bytes).await,
                Frame::Resize(columns, rows) => {
                    let size = ResizeExecOptions { w: i32::from(columns), h: i32::from(rows) };
                    // A terminal of the wrong size is still a terminal.
                    let _ = resizing.resize_exec(&resized, size).await;
                    Ok(())
                }
                _ => Ok(()),
            };
            if written.is_err() {
                break;
            }
        }
    });
    tokio::spawn(async move {
        while let Some(piece) = output.next().await {
            let frame = match piece {
                Ok(LogOutput::StdErr { message }) => Frame::Stderr(message),
                Ok(other) => Frame::Stdout(other.into_bytes()),
                Err(error) => Frame::Failed(error.to_string()),
            };
            let last = matches!(frame, Frame::Failed(_));
            if from_command.send(frame).await.is_err() || last {
                feed.abort();
                return;
            }
        }
        feed.abort();
        let end = match api.inspect_exec(&id).await {
            Ok(seen) => Frame::Exit(seen.exit_code.and_then(|code| i32::try_from(code).ok()).unwrap_or(255)),
            Err(error) => Frame::Failed(error.to_string()),
        };
        let _ = from_command.send(end).await;
    });
    Ok(Session { input: to_command, output: frames })
}
