//! Watches over a link while it lives: PINGs the peer, and resets streams nobody reads.

use std::sync::Arc;
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::Instant;

use crate::error::CloseReason;
use crate::keepalive::{Keepalive, Signs, Step};
use crate::shared::{Shared, Side};
use crate::window;

/// How often unread streams are looked for while any are open.
const SWEEP: Duration = Duration::from_millis(250);
/// The least time over which a rate is told.
const LEAST: Duration = Duration::from_millis(20);

/// Ends only when the peer is gone.
pub(crate) async fn watch_over(shared: Arc<Shared>, mut pings: PingPong) -> CloseReason {
    let leads = shared.side == Side::Gateway;
    let keepalive = if leads { shared.settings.keepalive } else { shared.settings.keepalive.follower() };
    // The gateway has measured its first round trip before it got here.
    let waiting = !leads && pings.send_ping(Ping::opaque()).is_ok();
    let mut signs = Signs { heard: Instant::now(), pinged: Instant::now(), waiting, busy: false };
    let mut sweeper = Sweeper::default();
    loop {
        let now = Instant::now();
        signs.heard = shared.meter.heard();
        signs.busy = shared.meter.open() > 0;
        let wake = match next(&keepalive, now, signs, leads) {
            Step::Dead(silent) => return CloseReason::Silent(silent),
            Step::Ping => {
                // It fails only on a connection that has ended, which its driver notices.
                signs.waiting = pings.send_ping(Ping::opaque()).is_ok();
                signs.pinged = now;
                continue;
            }
            Step::Wait(until) if signs.busy => until.min(sweeper.look(&shared, now)),
            Step::Wait(until) => until,
        };
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(wake) => {}
            () = shared.woken.notified(), if !signs.busy => {}
            pong = std::future::poll_fn(|cx| pings.poll_pong(cx)), if signs.waiting => {
                signs.waiting = false;
                if pong.is_err() {
                    // The driver ends first and knows better why.
                    std::future::pending::<()>().await;
                }
                shared.meter.round_trip(signs.pinged.elapsed());
            }
        }
    }
}

// A PING that could not be sent must not be tried again at once.
fn next(keepalive: &Keepalive, now: Instant, signs: Signs, leads: bool) -> Step {
    match keepalive.step(now, signs, leads) {
        Step::Ping if signs.pinged == now => Step::Wait(now + keepalive.interval),
        step => step,
    }
}

#[derive(Default)]
struct Sweeper {
    next: Option<Instant>,
    last: Option<Instant>,
    bytes_in: u64,
    taken: u64,
    unread: usize,
}

impl Sweeper {
    // Sweeps when it is time, and tells when it will be next.
    fn look(&mut self, shared: &Shared, now: Instant) -> Instant {
        if let Some(next) = self.next
            && now < next
        {
            return next;
        }
        let (bytes_in, taken) = (shared.meter.bytes_in(), shared.meter.taken());
        let since = self.last.map(|last| now.saturating_duration_since(last));
        // What a window is worth shows after two round trips; one that still grows is looked at again then.
        let soon = shared.meter.distance().map_or(SWEEP, |distance| (distance * 2).clamp(LEAST, SWEEP));
        let begins = since.is_none_or(|since| since > SWEEP * 2);
        let mut pause = if begins { soon } else { SWEEP };
        // Nothing came in and nothing lay there: there is nothing to find.
        if self.unread > 0 || bytes_in != self.bytes_in {
            let settings = &shared.settings;
            let (gone, unread) = shared.ledger.sweep(now, settings.unread_budget, settings.stall_grace);
            if gone > 0 {
                shared.meter.stalled(gone);
                tracing::warn!(
                    streams = gone,
                    "Streams that nobody read were reset to keep the link moving."
                );
            }
            // What was read, not what came: a reader that stopped has no use for a larger window.
            let rate = (taken - self.taken) as f64 / since.unwrap_or(SWEEP).max(LEAST).as_secs_f64();
            let (current, distance) = (shared.window(), shared.meter.distance());
            let suited = window::suited(settings, current, rate, distance, unread);
            if suited > current {
                pause = soon;
            }
            shared.want_window(suited);
            (self.bytes_in, self.taken, self.unread) = (bytes_in, taken, unread);
        }
        self.last = Some(now);
        *self.next.insert(now + pause)
    }
}
