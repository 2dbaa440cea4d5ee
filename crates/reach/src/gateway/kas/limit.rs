//! How many calls a token may make in a minute.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// Tokens that are counted at one time; they are known ones, so there are not many.
const MOST: usize = 100_000;
const MINUTE: u64 = 60;

/// Counts calls by token and minute, in this process.
pub(super) struct Limit {
    most: u32,
    begun: Instant,
    counts: Mutex<HashMap<String, (u64, u32)>>,
}

impl Limit {
    pub(super) fn new(most: u32) -> Self {
        Self { most, begun: Instant::now(), counts: Mutex::default() }
    }

    /// Counts one call; `false` if it is one too many.
    pub(super) fn take(&self, token: &str) -> bool {
        let minute = self.begun.elapsed().as_secs() / MINUTE;
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MOST {
            counts.retain(|_, (counted, _)| *counted == minute);
        }
        if let Some((counted, count)) = counts.get_mut(token) {
            if *counted != minute {
                (*counted, *count) = (minute, 0);
            }
            *count += 1;
            return *count <= self.most;
        }
        counts.insert(token.to_owned(), (minute, 1));
        self.most > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn each_token_has_its_own_count_and_each_minute_begins_anew() {
        let limit = Limit::new(2);
        assert!(limit.take("a") && limit.take("a") && limit.take("b"));
        assert!(!limit.take("a"), "the third in one minute");
        assert!(limit.take("b"));
        tokio::time::advance(Duration::from_secs(MINUTE)).await;
        assert!(limit.take("a") && limit.take("a") && !limit.take("a"));
    }
}
