//! "Look again": wake-ups for watchers. They carry nothing, may come late, merged, too often or never.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::key::{Key, Prefix};

/// Wakes whoever watches a prefix.
#[derive(Debug)]
pub struct Hints {
    notify: Arc<Notify>,
    id: u64,
    hub: Arc<Hub>,
}

impl Hints {
    /// Waits until something may have changed. Hints that come while nobody waits are kept as one.
    pub async fn changed(&mut self) {
        self.notify.notified().await;
    }
}

impl Drop for Hints {
    fn drop(&mut self) {
        self.hub.lock().watchers.remove(&self.id);
    }
}

/// All watchers of one back end in this process.
#[derive(Debug, Default)]
pub(crate) struct Hub(Mutex<Watchers>);

#[derive(Debug, Default)]
struct Watchers {
    next: u64,
    watchers: HashMap<u64, (Prefix, Arc<Notify>)>,
}

impl Hub {
    pub(crate) fn subscribe(self: &Arc<Self>, prefix: &Prefix) -> Hints {
        let notify = Arc::new(Notify::new());
        let mut inner = self.lock();
        let id = inner.next;
        inner.next += 1;
        inner.watchers.insert(id, (prefix.clone(), Arc::clone(&notify)));
        Hints { notify, id, hub: Arc::clone(self) }
    }

    /// Wakes the watchers of these keys.
    pub(crate) fn touch<'a>(&self, keys: impl IntoIterator<Item = &'a Key>) {
        let inner = self.lock();
        if inner.watchers.is_empty() {
            return;
        }
        for key in keys {
            for (prefix, notify) in inner.watchers.values() {
                if prefix.contains(key) {
                    notify.notify_one();
                }
            }
        }
    }

    /// Wakes everybody: hints may have been missed.
    pub(crate) fn touch_all(&self) {
        for (_, notify) in self.lock().watchers.values() {
            notify.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Watchers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::TableName;
    use futures::FutureExt;

    #[test]
    fn only_watchers_of_the_prefix_wake_and_hints_merge() {
        let hub = Arc::new(Hub::default());
        let table = TableName::new("t").unwrap();
        let mut near = hub.subscribe(&table.prefix("a"));
        let mut far = hub.subscribe(&table.prefix("b"));
        hub.touch([&table.key("a1"), &table.key("a2")]);
        assert!(near.changed().now_or_never().is_some());
        assert!(near.changed().now_or_never().is_none(), "two hints are one");
        assert!(far.changed().now_or_never().is_none());
        hub.touch_all();
        assert!(far.changed().now_or_never().is_some());
        drop((near, far));
        assert!(hub.lock().watchers.is_empty());
    }
}
