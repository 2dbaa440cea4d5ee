//! One tunnel of the agent: open, wait, serve, open again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::Core;
use super::channel::Answer;
use super::service::{Reader, Replies, Requests, ServiceCall};
use super::sizes::Counts;
use crate::kas::frame::put_raw;
use crate::kas::outbox::{Outbox, outbox};
use crate::kas::prefix::{MethodPath, Rpc};
use crate::kas::proto::reverse_tunnel as tunnel;
use crate::kas::{locked, meta};

/// How long the kas may take to end a tunnel whose call is over.
const FAREWELL: Duration = Duration::from_secs(30);

/// Opens the first tunnels.
pub(super) fn start(core: &Arc<Core>, stop: &CancellationToken) {
    let count = core.config.sizes.at_start();
    core.count(|counts| counts.idle += count);
    for _ in 0..count {
        spawn(core, stop);
    }
}

fn spawn(core: &Arc<Core>, stop: &CancellationToken) {
    core.tracker.spawn(keep_open(Arc::clone(core), stop.clone()));
}

/// Counted as idle when it begins, and no longer counted when it ends.
async fn keep_open(core: Arc<Core>, stop: CancellationToken) {
    let (mut failures, mut used) = (0u32, Instant::now());
    loop {
        let opened = Instant::now();
        let outcome = tokio::select! {
            () = stop.cancelled() => break,
            outcome = wait_for_request(&core) => outcome,
        };
        match outcome {
            Ok(Some(request)) => {
                core.no_trouble();
                activate(&core, &stop);
                request.serve(&core).await;
                core.count(|counts| *counts = Counts { idle: counts.idle + 1, busy: counts.busy - 1 });
                (failures, used) = (0, Instant::now());
            }
            Ok(None) => failures = 0,
            Err(status) => {
                if opened.elapsed() >= core.config.reopen.stable {
                    failures = 0;
                }
                tracing::debug!(code = ?status.code(), cause = status.message(), "A tunnel could not be opened.");
                // These two are how a kas ends tunnels of calls that nobody waits for any more.
                if !matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded) {
                    core.status.send_modify(|now| now.trouble = Some(status.message().to_owned()));
                    let pause = core.config.reopen.delay(failures, rand::random());
                    failures = failures.saturating_add(1);
                    tokio::select! {
                        () = stop.cancelled() => break,
                        () = tokio::time::sleep(pause) => {}
                    }
                }
            }
        }
        let retires = {
            let mut counts = locked(&core.counts);
            let retires = core.config.sizes.to_retire(*counts, used.elapsed());
            counts.idle -= usize::from(retires);
            retires
        };
        if retires {
            return core.count(|_| {});
        }
    }
    core.count(|counts| counts.idle -= 1);
}

/// One of the idle became busy: there must be more of them.
fn activate(core: &Arc<Core>, stop: &CancellationToken) {
    let mut more = 0;
    core.count(|counts| {
        *counts = Counts { idle: counts.idle - 1, busy: counts.busy + 1 };
        if !stop.is_cancelled() {
            more = core.config.sizes.to_open(*counts);
            counts.idle += more;
        }
    });
    for _ in 0..more {
        spawn(core, stop);
    }
}

/// A tunnel that a request came through.
struct Request {
    info: tunnel::RequestInfo,
    reader: Reader,
    outbox: Outbox,
}

/// Opens a tunnel and waits until it is needed; `None` when the kas wants it opened anew.
async fn wait_for_request(core: &Core) -> Result<Option<Request>, Status> {
    let (outbox, body) = outbox();
    outbox.push(|buffer| put_raw(buffer, &core.descriptor));
    let mut answer = core.channel.call(Rpc::Connect.path(core.config.prefix), body).await?;
    let Some(frame) = answer.message().await? else { return Ok(None) };
    let mut reader = Reader::new(answer.inbox);
    let info = reader.request_info(frame)?;
    Ok(Some(Request { info, reader, outbox }))
}

impl Request {
    async fn serve(self, core: &Core) {
        let Self { info, reader, outbox } = self;
        let mut replies = Replies::new(outbox.clone());
        let (requests, back) = Requests::new(reader);
        let outcome = tokio::select! {
            outcome = dispatch(core, info, requests, &mut replies) => outcome,
            // The caller went away, or the connection did. What ran for it is dropped.
            () = outbox.gone() => return,
        };
        if let Err(status) = &outcome {
            tracing::debug!(code = ?status.code(), cause = status.message(), "A call through a tunnel failed.");
        }
        replies.finish(outcome);
        // The stream may only be let go when the kas has ended it, or what was just written is lost.
        let farewell = async {
            if let Ok(reader) = back.await {
                let mut answer = Answer { inbox: reader.inbox };
                while let Ok(Some(_)) = answer.message().await {}
            }
        };
        let _ = timeout(FAREWELL, farewell).await;
    }
}

async fn dispatch(
    core: &Core,
    info: tunnel::RequestInfo,
    requests: Requests,
    replies: &mut Replies,
) -> Result<(), Status> {
    let method =
        MethodPath::parse(&info.method_name).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let service = core
        .services
        .find(&method)
        .ok_or_else(|| Status::unimplemented(format!("agent: it does not offer {method}")))?;
    let metadata = meta::from_wire(info.meta)?;
    service.serve(ServiceCall { method, metadata, requests }, replies).await
}

impl Core {
    /// Changes the count and tells everybody.
    fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = locked(&self.counts);
        change(&mut counts);
        let now = *counts;
        self.status.send_modify(|status| (status.idle, status.busy) = (now.idle, now.busy));
    }

    /// Something that failed before succeeded.
    pub(super) fn no_trouble(&self) {
        self.status.send_if_modified(|status| status.trouble.take().is_some());
    }

    /// Waits until no call runs.
    pub(super) async fn wait_for_calls(&self) {
        let mut status = self.status.subscribe();
        // The core holds the sender, so this cannot fail.
        let _ = status.wait_for(|status| status.busy == 0).await;
    }
}
