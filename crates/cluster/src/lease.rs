//! Leadership by a Lease, for roles of which one replica may work at a time.
//!
//! Whether a lease has run out is judged by how long its record has not changed under our own
//! eyes, never by comparing clocks of two machines. The holder stops *before* its lease can be
//! taken: it gives up when it could not renew for [`Timings::renew`], and the work it started is
//! dropped well within [`Timings::duration`]. The number of the term rises with every change of
//! holder, so that an effect can carry it and a late one be told from a current one.

mod decide;

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use decide::{Decision, Seen, decide};

/// The times of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timings {
    /// How long others wait after the last renewal before they take it.
    pub duration: Duration,
    /// How long the holder goes on without a successful renewal; must be shorter.
    pub renew: Duration,
    /// How often it is renewed, or tried for.
    pub retry: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// One time of being the leader.
#[derive(Debug, Clone)]
pub struct Term {
    ended: CancellationToken,
    number: i32,
}

impl Term {
    /// Ends when work must stop: leadership was lost, or the process stops.
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Rises by one with each change of holder.
    pub fn number(&self) -> i32 {
        self.number
    }

    /// A term without an election, for a role that runs alone.
    pub fn alone(stop: CancellationToken) -> Self {
        Self { ended: stop, number: 0 }
    }
}

/// A candidate for one lease.
#[derive(Clone)]
pub struct Election {
    api: Api<Lease>,
    name: String,
    identity: String,
    timings: Timings,
}

impl Election {
    /// A candidate called `identity` (unique to this process) for the lease `name` in `namespace`.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str, timings: Timings) -> Self {
        let api = Api::namespaced(client, namespace);
        Self { api, name: name.to_owned(), identity: identity.to_owned(), timings }
    }

    /// Runs `work` whenever this process leads, until `stop`.
    ///
    /// Work is asked to end through its term and dropped if it does not in time. When it has ended
    /// because of `stop`, the lease is given back so that another replica need not wait.
    pub async fn lead<F, T>(&self, stop: CancellationToken, mut work: F)
    where
        F: FnMut(Term) -> T,
        T: Future<Output = ()>,
    {
        while let Some(Held { number, renewed }) = self.acquire(&stop).await {
            tracing::info!(lease = %self.name, identity = %self.identity, term = number, "Leading.");
            let term = Term { ended: stop.child_token(), number };
            let lost = self.work(&term, renewed, work(term.clone())).await;
            if !lost {
                self.release().await;
                return;
            }
            tracing::warn!(lease = %self.name, identity = %self.identity, term = number, "Leadership is lost.");
        }
    }

    /// Works and renews; true if leadership was lost while work should have gone on.
    async fn work(&self, term: &Term, renewed: Instant, work: impl Future<Output = ()>) -> bool {
        let mut work = pin!(work);
        let until = tokio::select! {
            () = &mut work => return !term.ended.is_cancelled(),
            until = self.keep(term, renewed) => until,
        };
        let stopped = term.ended.is_cancelled();
        term.ended.cancel();
        if stopped {
            // Finishing in good order may take longer than a lease: it stays ours meanwhile.
            let forever = CancellationToken::new();
            let term = Term { ended: forever, number: term.number };
            tokio::select! {
                () = &mut work => return false,
                until = self.keep(&term, Instant::now()) => sleep_until(until).await,
            }
            return true;
        }
        tokio::select! {
            () = &mut work => {}
            // The future is dropped here: nothing it awaits can go on after this moment.
            () = sleep_until(until) => {}
        }
        true
    }

    /// Renews until the term ends or renewing failed for too long. Returns the moment by which all
    /// work must have ended: a margin before others may take the lease.
    async fn keep(&self, term: &Term, mut renewed: Instant) -> Instant {
        let Timings { duration, renew, retry } = self.timings;
        loop {
            tokio::select! {
                () = term.ended.cancelled() => return renewed + duration,
                () = sleep(retry) => {}
            }
            // Counted from before the request: the server's clock starts no earlier.
            let asked = Instant::now();
            let left = (renewed + renew).saturating_duration_since(asked);
            match timeout(left, self.attempt(&mut None)).await {
                Ok(Ok(Decision::Renew)) => renewed = asked,
                // Somebody else holds it: there is no time left at all.
                Ok(Ok(Decision::Wait | Decision::Take { .. })) => return asked,
                Ok(Err(error)) => {
                    tracing::warn!(lease = %self.name, cause = %crate::describe(&error), "The lease could not be renewed.");
                }
                Err(_) => {}
            }
            if renewed.elapsed() >= renew {
                return renewed + renew + duration.saturating_sub(renew) * 3 / 4;
            }
        }
    }

    async fn acquire(&self, stop: &CancellationToken) -> Option<Held> {
        let mut seen = None;
        loop {
            let asked = Instant::now();
            tokio::select! {
                () = stop.cancelled() => return None,
                tried = timeout(self.timings.renew, self.attempt(&mut seen)) => match tried {
                    Ok(Ok(Decision::Take { number })) => return Some(Held { number, renewed: asked }),
                    // Ours from before, as after a restart under the same name.
                    Ok(Ok(Decision::Renew)) => return Some(Held { number: 0, renewed: asked }),
                    Ok(Ok(Decision::Wait)) | Err(_) => {}
                    Ok(Err(error)) => {
                        tracing::warn!(lease = %self.name, cause = %crate::describe(&error), "The lease could not be read or taken.");
                    }
                },
            }
            tokio::select! {
                () = stop.cancelled() => return None,
                () = sleep(self.timings.retry) => {}
            }
        }
    }

    /// Reads the lease and writes it if the decision says so. A write that came too late is `Wait`.
    async fn attempt(&self, seen: &mut Option<Seen>) -> kube::Result<Decision> {
        let now = Instant::now();
        let lease = self.api.get_opt(&self.name).await?;
        let spec = lease.as_ref().and_then(|lease| lease.spec.as_ref());
        if let Some(spec) = spec {
            Seen::note(seen, spec, now);
        }
        let decision = decide(spec, &self.identity, seen.as_ref(), now);
        if decision == Decision::Wait {
            return Ok(decision);
        }
        let written = match lease {
            None => {
                let mut lease = Lease::default();
                lease.metadata.name = Some(self.name.clone());
                lease.spec = Some(self.record(None, decision));
                self.api.create(&PostParams::default(), &lease).await
            }
            Some(mut lease) => {
                lease.spec = Some(self.record(lease.spec.as_ref(), decision));
                // The resource version travels along: of two candidates one is refused.
                self.api.replace(&self.name, &PostParams::default(), &lease).await
            }
        };
        match written {
            Ok(_) => Ok(decision),
            Err(error) if matches!(crate::class(&error), crate::Class::Conflict | crate::Class::Exists) => {
                Ok(Decision::Wait)
            }
            Err(error) => Err(error),
        }
    }

    fn record(&self, before: Option<&LeaseSpec>, decision: Decision) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let mut spec = before.cloned().unwrap_or_default();
        if let Decision::Take { number } = decision {
            spec.acquire_time = Some(now.clone());
            spec.lease_transitions = Some(number);
        }
        spec.holder_identity = Some(self.identity.clone());
        spec.lease_duration_seconds =
            Some(i32::try_from(self.timings.duration.as_secs().max(1)).unwrap_or(i32::MAX));
        spec.renew_time = Some(now);
        spec
    }

    async fn release(&self) {
        let given_back = async {
            let Some(mut lease) = self.api.get_opt(&self.name).await? else { return Ok(()) };
            let Some(spec) = lease.spec.as_mut() else { return Ok(()) };
            if spec.holder_identity.as_deref() != Some(&self.identity) {
                return Ok(());
            }
            spec.holder_identity = None;
            spec.lease_duration_seconds = Some(1);
            self.api.replace(&self.name, &PostParams::default(), &lease).await.map(drop)
        };
        match timeout(self.timings.retry, given_back).await {
            Ok(Ok(())) => tracing::info!(lease = %self.name, "The lease is given back."),
            Ok(Err(error)) => {
                tracing::warn!(lease = %self.name, cause = %crate::describe(&error), "The lease could not be given back; it runs out by itself.");
            }
            Err(_) => {
                tracing::warn!(lease = %self.name, "The lease could not be given back in time; it runs out by itself.");
            }
        }
    }
}

struct Held {
    number: i32,
    renewed: Instant,
}
