//! How long a request waits, and at which of several ways.
//!
//! A tunnel of the kas protocol carries one request, so a way may be there and have none free, while the
//! agent's tunnels at another gateway are idle. Such ways are asked one after the other, each for a moment,
//! then each for longer, until one of them takes the request or its time is over.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Request};
use tarbet_link::{Body, LinkError};
use tarbet_telemetry::codes::reach;
use tokio::time::Instant;

use crate::local::LinkId;

/// How long another gateway may go on looking for a way to the agent, in milliseconds. It is told with each
/// request that goes through it, and goes no further.
pub(super) const WAIT: HeaderName = HeaderName::from_static("tarbet-wait");

/// How long the first of several ways is waited for before the next is asked, as a kas does it: an agent
/// opens its next tunnel right after each call.
const FIRST: Duration = Duration::from_millis(10);
/// In later rounds, and twice as long each time.
const SECOND: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);
/// Replicas of a kas are asked through connections that may have to be made first.
const BESIDE: Duration = Duration::from_millis(500);

/// Until when a way may wait before it sends a request on; among the request's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Until {
    /// The moment.
    pub(crate) at: Instant,
    /// Whether the request fails then, or is tried elsewhere.
    pub(crate) last: bool,
}

impl Until {
    /// What a request says, else so long from now.
    pub(crate) fn of(request: &Request<Body>, longest: Duration) -> Self {
        let said = request.extensions().get::<Self>().copied();
        said.unwrap_or_else(|| Self { at: Instant::now() + longest, last: true })
    }

    /// What another gateway said of a request, within what is usual here.
    pub(crate) fn take(headers: &mut HeaderMap, longest: Duration) -> Self {
        let told = headers.remove(WAIT).and_then(|value| value.to_str().ok()?.parse().ok());
        let wait = told.map_or(longest, |told| longest.min(Duration::from_millis(told)));
        Self { at: Instant::now() + wait, last: true }
    }

    /// For another gateway.
    pub(super) fn tell(self, headers: &mut HeaderMap) {
        let left = self.at.saturating_duration_since(Instant::now()).as_millis();
        headers.insert(WAIT, HeaderValue::from(u64::try_from(left).unwrap_or(u64::MAX)));
    }
}

/// Whether a way is there and had no tunnel free in time.
pub(super) fn is_busy(error: &LinkError) -> bool {
    let LinkError::Denied(denial) = error else { return false };
    denial.untouched && denial.code == reach::SITE_NOT_CONNECTED.id
}

/// The waiting of one request over all ways to its site.
pub(super) struct Rounds {
    deadline: Instant,
    /// How long each way is waited for; without a limit, until the deadline.
    slice: Option<Duration>,
    busy: Vec<LinkId>,
}

impl Rounds {
    /// Until the deadline. One that knows of no others waits at its only way.
    pub(super) fn new(deadline: Instant, several: bool) -> Self {
        Self { deadline, slice: several.then_some(FIRST), busy: Vec::new() }
    }

    /// Until when the next way may wait.
    pub(super) fn until(&self, beside: bool) -> Until {
        let last = Until { at: self.deadline, last: true };
        let Some(slice) = self.slice else { return last };
        let at = Instant::now() + if beside { slice.max(BESIDE) } else { slice };
        if at < self.deadline { Until { at, last: false } } else { last }
    }

    /// Those that had no tunnel free in this round.
    pub(super) fn busy(&self) -> &[LinkId] {
        &self.busy
    }

    /// Leaves a way for the next round.
    pub(super) fn put_off(&mut self, link: LinkId) {
        self.busy.push(link);
    }

    /// Begins another round with those that were put off; nothing, if there are none. Where there is only one,
    /// it is the last: it serves in order whoever stays with it.
    pub(super) fn again(&mut self) -> bool {
        self.slice = match self.busy.len() {
            0 => return false,
            1 => None,
            _ => self.slice.map(|slice| (slice * 2).clamp(SECOND, LONGEST)),
        };
        self.busy.clear();
        Instant::now() < self.deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Duration = Duration::from_secs(20);

    #[tokio::test(start_paused = true)]
    async fn one_way_is_waited_for_to_the_end_and_several_in_turn() {
        let deadline = Instant::now() + SPAN;
        let last = Until { at: deadline, last: true };
        assert_eq!(Rounds::new(deadline, false).until(false), last);

        let mut rounds = Rounds::new(deadline, true);
        assert_eq!(rounds.until(false), Until { at: Instant::now() + FIRST, last: false });
        assert!(!rounds.again(), "nobody was put off");
        let mut slices = Vec::new();
        for _ in 0..8 {
            rounds.put_off(LinkId::fresh());
            rounds.put_off(LinkId::fresh());
            assert_eq!(rounds.busy().len(), 2);
            assert!(rounds.again() && rounds.busy().is_empty());
            slices.push((rounds.until(false).at - Instant::now()).as_millis());
        }
        assert_eq!(slices, [100, 200, 400, 800, 1600, 2000, 2000, 2000]);
        tokio::time::advance(SPAN / 20 * 19).await;
        assert_eq!(rounds.until(false), last, "no shorter than what is left");

        let mut rounds = Rounds::new(Instant::now() + SPAN, true);
        assert_eq!(rounds.until(true).at, Instant::now() + BESIDE);
        rounds.put_off(LinkId::fresh());
        assert!(rounds.again());
        assert!(rounds.until(false).last, "there is no other");
        rounds.put_off(LinkId::fresh());
        tokio::time::advance(SPAN).await;
        assert!(!rounds.again(), "time is up");
    }

    #[test]
    fn another_gateway_is_told_how_long_and_waits_no_longer_than_it_would() {
        let start = Instant::now();
        let mut headers = HeaderMap::new();
        Until { at: start + Duration::from_hours(1), last: true }.tell(&mut headers);
        assert!(headers.contains_key(WAIT));
        let most = Until::take(&mut headers, SPAN);
        assert!(most.at <= Instant::now() + SPAN && headers.is_empty());
        headers.insert(WAIT, HeaderValue::from_static("5000"));
        let told = Until::take(&mut headers, Duration::from_hours(1));
        assert!(told.at <= Instant::now() + Duration::from_secs(5));
        for odd in ["", "-1", "x", "1.5"] {
            headers.insert(WAIT, HeaderValue::from_static(odd));
            assert!(Until::take(&mut headers, SPAN).at >= start + SPAN, "{odd}");
        }
    }
}
