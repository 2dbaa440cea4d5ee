//! `tarbet pods exec`: a command beside one that runs, with the caller's own streams or terminal.

use std::io::{IsTerminal, Read, Write, stderr, stdin, stdout};

use bytes::Bytes;
use clap::Args;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tarbet_pods::node::interlink::{FrameSink, FrameSource, Interlink};
use tarbet_pods::wire::{ExecRequest, Frame, PodStatus};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, pods};
use tarbet_telemetry::supervisor::Signals;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::told;
use crate::output::{INTERRUPTED, end_with, note};

/// What is read of the caller's input at once.
const PIECE: usize = 16 * 1024;

#[derive(Debug, Args)]
pub(super) struct ExecArgs {
    /// UID, the beginning of one, or name
    pub(super) pod: String,
    /// The container; the first if absent
    #[arg(long, default_value = "")]
    pub(super) container: String,
    /// Pass standard input on
    #[arg(long, short = 'i')]
    stdin: bool,
    /// Give the command a terminal, as large as this one
    #[arg(long, short = 't')]
    tty: bool,
    /// The command
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

pub(super) async fn start(interlink: &Interlink, found: PodStatus, args: ExecArgs) -> Result<(), Problem> {
    let ExecArgs { container, stdin: feed, command, .. } = args;
    let tty = args.tty && stdin().is_terminal();
    if args.tty && !tty {
        note("Standard input is no terminal, so the command gets none.");
    }
    let (namespace, pod_uid) = (found.namespace, found.uid);
    let request = ExecRequest { namespace, pod_uid, container, command, stdin: feed, tty };
    let frames = interlink.exec(&request).await.map_err(told)?;
    let unheard = |error: std::io::Error| {
        Problem::new(&ground::INTERNAL, "The command cannot listen for signals.").because(error.to_string())
    };
    let resized = if tty { Some(signal(SignalKind::window_change()).map_err(unheard)?) } else { None };
    let signals = Signals::listen().map_err(unheard)?;
    // Only now: whatever fails before is told on a terminal as it was. Where nothing is passed on, Ctrl-C stays ours.
    let raw = (tty && feed).then(Raw::enter).transpose().map_err(|error| {
        Problem::new(&ground::INTERNAL, "The terminal cannot be used.").because(error.to_string())
    })?;
    let speaking = tokio::spawn(speak(frames.input, feed.then(typed), resized));
    let ended = tokio::select! {
        ended = show(frames.output) => ended,
        () = signals.next() => Ok(INTERRUPTED),
    };
    speaking.abort();
    drop(raw);
    end_with(ended?)
}

/// Shows what the command says, until it has ended.
async fn show(mut output: FrameSource) -> Result<i32, Problem> {
    loop {
        match output.next().await {
            Frame::Stdout(bytes) => drop(stdout().write_all(&bytes).and_then(|()| stdout().flush())),
            Frame::Stderr(bytes) => drop(stderr().write_all(&bytes)),
            Frame::Exit(code) => return Ok(code),
            Frame::Failed(cause) => {
                return Err(Problem::new(&pods::RUNTIME_REFUSED, "The command did not run.").because(cause));
            }
            Frame::Stdin(_) | Frame::Resize(..) => {}
        }
    }
}

/// Tells the command how large the terminal is, whenever that changes, and what is typed.
async fn speak(mut input: FrameSink, typed: Option<mpsc::Receiver<Bytes>>, mut resized: Option<Signal>) {
    let mut typed = typed;
    let mut changed = resized.is_some();
    loop {
        if std::mem::take(&mut changed)
            && let Ok(size) = tcgetwinsize(stdin())
            && !input.send(&Frame::Resize(size.ws_col, size.ws_row)).await
        {
            return;
        }
        tokio::select! {
            // The end of input is an empty piece, and nothing comes after it.
            piece = async { typed.as_mut()?.recv().await }, if typed.is_some() => {
                let piece = piece.unwrap_or_default();
                if piece.is_empty() {
                    typed = None;
                }
                if !input.send(&Frame::Stdin(piece)).await {
                    return;
                }
            }
            Some(()) = async { resized.as_mut()?.recv().await }, if resized.is_some() => changed = true,
            // Kept until the command ends: closing it would mean that the caller left.
            else => std::future::pending().await,
        }
    }
}

/// What is typed, piece by piece. By a thread that nobody waits for: it may sit in a read for ever.
fn typed() -> mpsc::Receiver<Bytes> {
    let (pieces, typed) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut buffer = vec![0; PIECE];
        while let Ok(count @ 1..) = stdin().read(&mut buffer) {
            if pieces.blocking_send(Bytes::copy_from_slice(&buffer[..count])).is_err() {
                return;
            }
        }
    });
    typed
}

/// The caller's terminal while it passes every key on; as it was before once this is dropped.
struct Raw(Termios);

impl Raw {
    fn enter() -> rustix::io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut modes = before.clone();
        modes.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &modes)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // If even the terminal is gone there is nobody to see it.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.0);
    }
}
