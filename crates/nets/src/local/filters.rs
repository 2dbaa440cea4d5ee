//! Changes to the filter of a network that come together are loaded together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, oneshot};

use super::kernel;
use super::state::MachineName;
use crate::error::Error;

type Waiting = Vec<(String, oneshot::Sender<Result<(), Error>>)>;

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    turn: AsyncMutex<()>,
}

/// A change that is queued and not yet loaded.
pub(super) struct Queued {
    netns: String,
    queue: Arc<Queue>,
    outcome: oneshot::Receiver<Result<(), Error>>,
    /// Whose change it is and its number, unless it is of a whole network.
    of: Option<(MachineName, u64)>,
    owed: Arc<Owed>,
}

/// The queues of all networks.
#[derive(Default)]
pub(super) struct Filters {
    queues: Mutex<HashMap<String, Arc<Queue>>>,
    owed: Arc<Owed>,
}

/// The last change of each machine that the kernel may not have: it failed, or whoever asked for it left.
#[derive(Default)]
struct Owed(Mutex<(u64, HashMap<MachineName, u64>)>);

impl Filters {
    /// Queues the filter of a machine.
    pub(super) fn push_machine(&self, machine: &MachineName, netns: String, rules: String) -> Queued {
        let number = self.owed.owe(machine);
        Queued { of: Some((machine.clone(), number)), ..self.push(netns, rules) }
    }

    /// Queues a change; changes to one network are loaded in the order they are queued.
    pub(super) fn push(&self, netns: String, rules: String) -> Queued {
        let queue = Arc::clone(
            self.queues.lock().unwrap_or_else(PoisonError::into_inner).entry(netns.clone()).or_default(),
        );
        let (sender, outcome) = oneshot::channel();
        queue.waiting.lock().unwrap_or_else(PoisonError::into_inner).push((rules, sender));
        Queued { netns, queue, outcome, of: None, owed: Arc::clone(&self.owed) }
    }

    /// Whether the kernel may not have what was last asked for.
    pub(super) fn owes(&self, machine: &MachineName) -> bool {
        self.owed.lock().1.contains_key(machine)
    }
}

impl Owed {
    fn lock(&self) -> MutexGuard<'_, (u64, HashMap<MachineName, u64>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn owe(&self, machine: &MachineName) -> u64 {
        let (last, owed) = &mut *self.lock();
        *last += 1;
        owed.insert(machine.clone(), *last);
        *last
    }

    /// The change with this number is loaded; a later one may not be.
    fn settle(&self, machine: &MachineName, number: u64) {
        let (_, owed) = &mut *self.lock();
        if owed.get(machine) == Some(&number) {
            owed.remove(machine);
        }
    }
}

impl Queued {
    /// Loads what waits, or finds that somebody else did.
    pub(super) async fn loaded(self) -> Result<(), Error> {
        let _turn = self.queue.turn.lock().await;
        let batch = std::mem::take(&mut *self.queue.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        if !batch.is_empty() {
            load(&self.netns, batch).await;
        }
        self.outcome.await.map_err(|_| Error::Internal("a change to a filter was dropped".into()))??;
        if let Some((machine, number)) = &self.of {
            self.owed.settle(machine, *number);
        }
        Ok(())
    }
}

async fn load(netns: &str, batch: Waiting) {
    let all: String = batch.iter().map(|(rules, _)| rules.as_str()).collect();
    let outcome = kernel::load_filter(netns.to_owned(), all).await;
    let alone = batch.len() == 1;
    let mut outcome = Some(outcome);
    for (rules, sender) in batch {
        // Only the one that is wrong should fail: the others are tried by themselves.
        let answer = match outcome.take_if(|outcome| alone || outcome.is_ok()) {
            Some(Ok(())) => {
                outcome = Some(Ok(()));
                Ok(())
            }
            Some(Err(error)) => Err(error),
            None => kernel::load_filter(netns.to_owned(), rules).await,
        };
        // Who asked may have left; the change stands.
        let _ = sender.send(answer);
    }
}
