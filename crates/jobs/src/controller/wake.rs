//! Which work a change on either side makes due.

use tarbet_cluster::Change;

use super::{Shared, Work};
use crate::remote::{Owner, RemoteSide};
use crate::request::Request;
use crate::run::Run;

impl Shared {
    pub(super) fn request_changed(&self, remote: &RemoteSide, change: &Change<Request>) {
        match change {
            Change::Applied(request) => {
                // Thousands may be over; most need nothing any more.
                let leaving = remote.leaves(&request.key.namespace) && self.needs_us(request);
                let idle = request.phase.is_final()
                    && !request.deleting
                    && !leaving
                    && !self.turns().knows(&request.key);
                let run = || self.local.runs.get(&self.local.namespace, &self.adopted.run_name(request));
                if !idle || run().is_some() {
                    self.queue.add(Work::Request(request.key.clone()));
                }
            }
            Change::Deleted(request) => {
                self.queue.add(Work::Request(request.key.clone()));
                self.queue.add(Work::Stray(self.adopted.run_name(request)));
            }
            Change::Listed => {
                for name in self
                    .local
                    .runs
                    .select(|_, name, run| Self::is_stray(remote, run).then(|| name.to_owned()))
                {
                    self.queue.add(Work::Stray(name));
                }
            }
            Change::Failing(_) | Change::Back => {}
        }
        self.metrics.depth(self.queue.depth());
    }

    /// Whether the request of a run is not to be seen on this remote.
    pub(super) fn is_stray(remote: &RemoteSide, run: &Run) -> bool {
        run.serves.as_ref().is_some_and(|key| {
            let known = || remote.requests.get(&key.namespace, &key.name);
            key.remote == remote.name && known().is_none_or(|request| request.uid != run.request_uid)
        })
    }

    pub(super) fn run_changed(&self, change: &Change<Run>) {
        let (Change::Applied(run) | Change::Deleted(run)) = change else { return };
        self.adopted.note(run, matches!(change, Change::Deleted(_)));
        let Some(key) = &run.serves else { return };
        let Some(remote) = self.remote(key).filter(|remote| remote.requests.is_listed()) else { return };
        if Self::is_stray(remote, run) {
            self.queue.add(Work::Stray(run.name.clone()));
            if matches!(change, Change::Deleted(_)) {
                // Nobody else gives its turn back.
                self.queue.add(Work::Request(key.clone()));
            }
        } else if run.ending.is_some() || run.deleting || matches!(change, Change::Deleted(_)) {
            self.queue.add(Work::Request(key.clone()));
        }
    }

    /// Looks again at everything that waits: the line may move, or the answer be another one.
    pub(super) fn config_changed(&self, change: &Change<()>) {
        if matches!(change, Change::Applied(_) | Change::Deleted(_)) {
            let waiting = self.turns().waiting();
            for key in waiting {
                self.queue.add(Work::Request(key));
            }
        }
    }
}
