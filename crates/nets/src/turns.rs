//! One at a time for each name, many names at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

#[derive(Default)]
/// Turns by name.
pub(crate) struct Turns(Mutex<HashMap<String, Weak<AsyncMutex<()>>>>);

impl Turns {
    /// Waits for the turn of this name.
    pub(crate) async fn turn(&self, name: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Names that nobody waits for are forgotten from time to time.
            if locks.len() > 4096 {
                locks.retain(|_, lock| lock.strong_count() > 0);
            }
            let known = locks.get(name).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let lock = Arc::new(AsyncMutex::new(()));
                locks.insert(name.into(), Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }
}
