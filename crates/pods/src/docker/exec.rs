//! Commands in running containers, and their own processes.

use std::sync::Arc;

use bollard::Docker as Api;
use bollard::container::LogOutput;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use bollard::query_parameters::{
    AttachContainerOptions, InspectContainerOptions, ResizeContainerTTYOptions, ResizeExecOptions,
};
use futures::{Stream, StreamExt};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::engine::failed;
use crate::error::RunError;
use crate::runner::Session;
use crate::wire::extension::MAX_FRAME;
use crate::wire::{ExecRequest, Frame};

/// Frames under way in each direction before the sender waits.
const QUEUE: usize = 16;

/// Where the streams lead.
enum End {
    /// A command, by Docker's id.
    Command(String),
    /// A container's own process, by the container's name.
    Container(String),
}

/// Runs a command in the container of this name, or attaches to what runs there already.
pub(super) async fn exec(api: Api, name: &str, request: ExecRequest) -> Result<Session, RunError> {
    if request.command.is_empty() {
        return attach(api, name, &request).await;
    }
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
    let StartExecResults::Attached { output, input } =
        api.start_exec(&id, Some(start)).await.map_err(what())?
    else {
        return Err(RunError::Unsupported("Docker ran the command without its streams".into()));
    };
    Ok(carry(api, End::Command(id), output, input))
}

async fn attach(api: Api, name: &str, request: &ExecRequest) -> Result<Session, RunError> {
    let options = AttachContainerOptions {
        stream: true,
        stdin: request.stdin,
        stdout: true,
        stderr: true,
        ..Default::default()
    };
    let attached =
        api.attach_container(name, Some(options)).await.map_err(failed("attach to a container"))?;
    Ok(carry(api, End::Container(name.to_owned()), attached.output, attached.input))
}

fn carry(
    api: Api,
    end: End,
    mut output: impl Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send + Unpin + 'static,
    mut input: impl AsyncWrite + Send + Unpin + 'static,
) -> Session {
    let (to_command, mut commands) = mpsc::channel::<Frame>(QUEUE);
    let (from_command, frames) = mpsc::channel::<Frame>(QUEUE);
    let end = Arc::new(end);
    let (resizing, resized) = (api.clone(), Arc::clone(&end));
    let feed = tokio::spawn(async move {
        while let Some(frame) = commands.recv().await {
            let written = match frame {
                Frame::Stdin(bytes) if bytes.is_empty() => input.shutdown().await,
                Frame::Stdin(bytes) => input.write_all(&bytes).await,
                Frame::Resize(columns, rows) => {
                    resized.resize(&resizing, i32::from(columns), i32::from(rows)).await;
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
        let _ = from_command.send(end.told(&api).await).await;
    });
    Session { input: to_command, output: frames }
}

impl End {
    /// A terminal of the wrong size is still a terminal, so nobody hears of a failure.
    async fn resize(&self, api: &Api, w: i32, h: i32) {
        let _ = match self {
            Self::Command(id) => api.resize_exec(id, ResizeExecOptions { w, h }).await,
            Self::Container(name) => api.resize_container_tty(name, ResizeContainerTTYOptions { w, h }).await,
        };
    }

    async fn told(&self, api: &Api) -> Frame {
        let code = match self {
            Self::Command(id) => api.inspect_exec(id).await.map(|seen| seen.exit_code),
            Self::Container(name) => {
                let seen = api.inspect_container(name, None::<InspectContainerOptions>).await;
                seen.map(|seen| seen.state.and_then(|state| state.exit_code))
            }
        };
        match code {
            Ok(code) => Frame::Exit(code.and_then(|code| i32::try_from(code).ok()).unwrap_or(255)),
            Err(error) => Frame::Failed(error.to_string()),
        }
    }
}
