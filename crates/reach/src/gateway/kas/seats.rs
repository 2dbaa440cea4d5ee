//! Which process of an agent sits at which connection, so that the end of a connection is the end of its
//! process and of no other.
//!
//! A process tells who it is when it registers, over any of its connections, and does so again only minutes
//! later. Until then a connection that takes the place of one that ended is taken to be the same process.
//! Nothing here waits or writes: what it decides is done by the tracker.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

/// For how long a process that lost its connection may come back by another one.
const AWAITED: Duration = Duration::from_mins(11);

/// All agents at this gateway.
#[derive(Default)]
pub(super) struct Seats(HashMap<i64, Agent>);

#[derive(Default)]
struct Agent {
    seats: HashMap<u64, Seat>,
    /// Those whose connection ended, the latest last.
    standing: Vec<Standing>,
}

/// One connection.
#[derive(Default)]
struct Seat {
    /// Those who registered over it; several where a proxy lies in between.
    pods: BTreeSet<i64>,
    /// The one that is taken to be here and has not said so.
    guess: Option<i64>,
    /// Whether it has carried tunnels. One that only registered may have done so through a proxy, whose
    /// connections end without meaning anything.
    carried: bool,
}

struct Standing {
    pod: i64,
    since: Instant,
    /// Whether it was asked to move: then it lives.
    moves: bool,
}

impl Agent {
    fn sits(&self, pod: i64) -> bool {
        self.seats.values().any(|seat| seat.guess == Some(pod) || seat.pods.contains(&pod))
    }

    fn stand(&mut self, pod: i64, moves: bool) {
        self.standing.retain(|other| other.pod != pod && other.since.elapsed() < AWAITED);
        self.standing.push(Standing { pod, since: Instant::now(), moves });
    }
}

impl Seats {
    /// A connection carries its first tunnel. Gives the process that seems to have come back with it.
    pub(super) fn carried(&mut self, agent: i64, connection: u64) -> Option<i64> {
        let of_agent = self.0.entry(agent).or_default();
        let seat = of_agent.seats.entry(connection).or_default();
        seat.carried = true;
        if !seat.pods.is_empty() || seat.guess.is_some() {
            return None;
        }
        of_agent.standing.retain(|other| other.since.elapsed() < AWAITED);
        let back = of_agent.standing.pop()?;
        seat.guess = Some(back.pod);
        Some(back.pod)
    }

    /// A process said over this connection who it is. Gives the one that was taken to be there and is not.
    pub(super) fn registered(&mut self, agent: i64, connection: u64, pod: i64) -> Option<i64> {
        let of_agent = self.0.entry(agent).or_default();
        of_agent.standing.retain(|other| other.pod != pod);
        let seat = of_agent.seats.entry(connection).or_default();
        seat.pods.insert(pod);
        let mistaken = seat.guess.take().filter(|guess| *guess != pod)?;
        // Two that moved at the same time were taken for each other.
        if let Some(other) = of_agent.seats.values_mut().find(|seat| seat.guess == Some(pod)) {
            other.guess = Some(mistaken);
            return None;
        }
        if of_agent.sits(mistaken) {
            return None;
        }
        of_agent.stand(mistaken, false);
        Some(mistaken)
    }

    /// A process said that it leaves.
    pub(super) fn unregistered(&mut self, agent: i64, pod: i64) {
        let Some(of_agent) = self.0.get_mut(&agent) else { return };
        of_agent.standing.retain(|other| other.pod != pod);
        for seat in of_agent.seats.values_mut() {
            seat.pods.remove(&pod);
            seat.guess = seat.guess.filter(|guess| *guess != pod);
        }
    }

    /// A connection ended. Gives the processes that ended with it while others of the agent are still here;
    /// the end of the last one is noticed by its tunnels.
    pub(super) fn ended(&mut self, agent: i64, connection: u64, moves: bool) -> Vec<i64> {
        let Some(of_agent) = self.0.get_mut(&agent) else { return Vec::new() };
        let Some(Seat { pods, guess, carried }) = of_agent.seats.remove(&connection) else {
            return Vec::new();
        };
        let mut gone = Vec::new();
        for pod in pods.into_iter().chain(guess).filter(|_| carried) {
            if !of_agent.sits(pod) {
                of_agent.stand(pod, moves);
                gone.push(pod);
            }
        }
        let others = of_agent.seats.values().any(|seat| seat.carried);
        if of_agent.seats.is_empty() && of_agent.standing.is_empty() {
            self.0.remove(&agent);
        }
        if others && !moves { gone } else { Vec::new() }
    }

    /// The last tunnel of an agent left this gateway, and it has some elsewhere: those whose connection broke
    /// are not there.
    pub(super) fn broken(&self, agent: i64) -> Vec<i64> {
        let standing = self.0.get(&agent).into_iter().flat_map(|of_agent| &of_agent.standing);
        standing.filter(|other| !other.moves).map(|other| other.pod).collect()
    }

    /// Nobody of an agent is anywhere: who comes back is known by other means.
    pub(super) fn forget(&mut self, agent: i64) {
        if let Some(of_agent) = self.0.get_mut(&agent) {
            of_agent.standing.clear();
            if of_agent.seats.is_empty() {
                self.0.remove(&agent);
            }
        }
    }

    /// Whether nobody knows which process a connection with tunnels belongs to.
    pub(super) fn is_unknown(&self, agent: i64, connection: u64) -> bool {
        let seat = self.0.get(&agent).and_then(|of_agent| of_agent.seats.get(&connection));
        seat.is_some_and(|seat| seat.carried && seat.pods.is_empty() && seat.guess.is_none())
    }

    /// Takes this process to be at such a connection. Tells whether it is taken to be here now.
    pub(super) fn guess(&mut self, agent: i64, connection: u64, pod: i64) -> bool {
        if self.is_unknown(agent, connection)
            && !self.sits(agent, pod)
            && let Some(of_agent) = self.0.get_mut(&agent)
            && let Some(seat) = of_agent.seats.get_mut(&connection)
        {
            seat.guess = Some(pod);
            of_agent.standing.retain(|other| other.pod != pod);
        }
        self.sits(agent, pod)
    }

    /// Whether a process was asked to move, and has not been heard of since.
    pub(super) fn moves(&self, agent: i64, pod: i64) -> bool {
        let standing = self.0.get(&agent).into_iter().flat_map(|of_agent| &of_agent.standing);
        standing.into_iter().any(|other| other.moves && other.pod == pod && other.since.elapsed() < AWAITED)
    }

    /// Whether a process is taken to be here.
    pub(super) fn sits(&self, agent: i64, pod: i64) -> bool {
        self.0.get(&agent).is_some_and(|of_agent| of_agent.sits(pod))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGENT: i64 = 7;

    fn two() -> Seats {
        let mut seats = Seats::default();
        for (connection, pod) in [(1, 10), (2, 20)] {
            assert_eq!(seats.carried(AGENT, connection), None);
            assert_eq!(seats.registered(AGENT, connection, pod), None);
        }
        seats
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_connection_is_the_end_of_its_process_alone() {
        let mut seats = two();
        assert_eq!(seats.ended(AGENT, 1, false), [10]);
        assert!(!seats.sits(AGENT, 10) && seats.sits(AGENT, 20));
        // The last one is noticed by its tunnels, and asked for here only if the agent is elsewhere.
        assert!(seats.ended(AGENT, 2, false).is_empty());
        assert_eq!(seats.broken(AGENT), [10, 20]);
        seats.forget(AGENT);
        assert!(seats.broken(AGENT).is_empty() && seats.0.is_empty());

        // One that has two connections is there while it has one.
        let mut seats = two();
        seats.registered(AGENT, 3, 10);
        assert!(seats.ended(AGENT, 1, false).is_empty() && seats.sits(AGENT, 10));
        // One that said goodbye does not end once more.
        let mut seats = two();
        seats.unregistered(AGENT, 10);
        assert!(seats.ended(AGENT, 1, false).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_comes_back_is_taken_to_be_the_same_until_it_says_otherwise() {
        let mut seats = two();
        assert_eq!(seats.ended(AGENT, 1, false), [10]);
        assert_eq!(seats.carried(AGENT, 3), Some(10));
        assert_eq!(seats.registered(AGENT, 3, 10), None);
        assert_eq!(seats.ended(AGENT, 3, false), [10]);
        assert_eq!(seats.carried(AGENT, 4), Some(10));
        assert_eq!(seats.registered(AGENT, 4, 30), Some(10), "it is another one");
        assert!(!seats.sits(AGENT, 10) && seats.sits(AGENT, 30));
        // After so long nobody comes back.
        let mut seats = two();
        seats.ended(AGENT, 1, false);
        tokio::time::advance(AWAITED).await;
        assert_eq!(seats.carried(AGENT, 3), None);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_asked_to_move_stays_listed() {
        let mut seats = two();
        assert!(seats.ended(AGENT, 1, true).is_empty() && seats.ended(AGENT, 2, true).is_empty());
        assert!(seats.broken(AGENT).is_empty(), "they may be at another gateway");
        // Taken for each other, until one of them says who it is.
        assert_eq!((seats.carried(AGENT, 3), seats.carried(AGENT, 4)), (Some(20), Some(10)));
        assert_eq!(seats.registered(AGENT, 3, 10), None);
        assert!(seats.sits(AGENT, 10) && seats.sits(AGENT, 20));
        assert_eq!(seats.ended(AGENT, 4, false), [20]);
    }

    #[test]
    fn a_connection_that_only_registers_means_nothing() {
        let mut seats = Seats::default();
        seats.carried(AGENT, 1);
        seats.registered(AGENT, 2, 10);
        assert!(seats.ended(AGENT, 2, false).is_empty());
        assert!(seats.ended(AGENT, 1, false).is_empty() && seats.0.is_empty());
    }
}
