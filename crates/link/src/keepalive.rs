//! When to send a PING, and when to give a peer up. Pure: time comes in.

use std::time::Duration;

use tokio::time::Instant;

/// How a dead peer is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Between PINGs on a link without requests.
    pub interval: Duration,
    /// Silence after which a PING is sent while requests are under way.
    pub busy_interval: Duration,
    /// Silence after a PING that means the peer is gone.
    pub timeout: Duration,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self {
            // 10,000 idle links then cost some 700 small packets a second: a PING and its answer take a gateway
            // about 50 µs. Only who is idle waits so long for the word that a peer is gone.
            interval: Duration::from_secs(15),
            // A request in a dead link waits at most this and the timeout.
            busy_interval: Duration::from_secs(1),
            timeout: Duration::from_secs(3),
        }
    }
}

/// What is known of a connection at some moment.
#[derive(Debug, Clone, Copy)]
pub struct Signs {
    /// When bytes last came in.
    pub heard: Instant,
    /// When the last PING was sent.
    pub pinged: Instant,
    /// Whether that PING is still unanswered.
    pub waiting: bool,
    /// Whether requests are under way.
    pub busy: bool,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Send a PING.
    Ping,
    /// Look again then, or when the signs change.
    Wait(Instant),
    /// The peer is gone; it was silent this long.
    Dead(Duration),
}

impl Keepalive {
    /// The settings of the end that lets the other do the pinging, and does it only when the
    /// other fails to: one PING a link and interval is enough.
    #[must_use]
    pub fn follower(self) -> Self {
        Self { interval: self.interval * 3 / 2, ..self }
    }

    /// Decides.
    pub fn step(&self, now: Instant, signs: Signs, leads: bool) -> Step {
        let quiet_since = signs.heard.max(signs.pinged);
        if signs.waiting {
            // Bytes that come in show life as well as a PONG that may be queued behind them.
            let silent = now.saturating_duration_since(quiet_since);
            return if silent >= self.timeout {
                Step::Dead(now.saturating_duration_since(signs.heard))
            } else {
                Step::Wait(quiet_since + self.timeout)
            };
        }
        let regular = if leads { signs.pinged } else { quiet_since } + self.interval;
        let due = if signs.busy { regular.min(quiet_since + self.busy_interval) } else { regular };
        if now >= due { Step::Ping } else { Step::Wait(due) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    proptest! {
        // Plays a peer that falls silent for ever at some moment.
        #[test]
        fn a_silent_peer_is_given_up_in_bounded_time(
            dies in 0u32..20_000, busy in any::<bool>(), leads in any::<bool>(), rhythm in 1u32..3_000,
        ) {
            let keepalive = Keepalive::default();
            let start = Instant::now();
            let mut signs = Signs { heard: start, pinged: start, waiting: false, busy };
            let mut now = start;
            let death = start + MS * dies;
            loop {
                // It talks in its rhythm, and answers a PING at once, while it lives.
                if now < death {
                    let talked = u32::try_from((now - start).as_millis()).unwrap() / rhythm * rhythm;
                    signs.heard = signs.heard.max(start + MS * talked);
                    if signs.waiting {
                        (signs.waiting, signs.heard) = (false, now);
                    }
                }
                match keepalive.step(now, signs, leads) {
                    Step::Ping => (signs.waiting, signs.pinged) = (true, now),
                    Step::Wait(until) => {
                        prop_assert!(until > now, "it would spin");
                        now = until.min(now + MS * 50);
                    }
                    Step::Dead(_) => {
                        prop_assert!(now >= death, "given up while alive");
                        let limit = keepalive.interval + keepalive.timeout + MS * 100;
                        prop_assert!(now - death <= limit, "{:?}", now - death);
                        break;
                    }
                }
            }
        }
    }
}
