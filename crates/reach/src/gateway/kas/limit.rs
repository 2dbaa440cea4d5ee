//! How many calls a token may make in a minute.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

/// Tokens that are counted at one time; they are known ones, so there are not many.
const MOST: usize = 100_000;
const MINUTE: u64 = 60;

/// What one more call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    Within,
    /// The first one too many in this minute.
    JustOver,
    Over,
}

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

    /// Counts one call.
    pub(super) fn take(&self, token: &str) -> Taken {
        let minute = self.begun.elapsed().as_secs() / MINUTE;
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MOST {
            counts.retain(|_, (counted, _)| *counted == minute);
        }
        // Only a token that was not seen yet costs a copy of its name.
        if !counts.contains_key(token) {
            counts.insert(token.to_owned(), (minute, 0));
        }
        let Some((counted, count)) = counts.get_mut(token) else { return Taken::Over };
        if *counted != minute {
            (*counted, *count) = (minute, 0);
        }
        *count = count.saturating_add(1);
        match *count {
            count if count <= self.most => Taken::Within,
            count if count - 1 == self.most => Taken::JustOver,
            _ => Taken::Over,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Taken::{JustOver, Over, Within};
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn each_token_has_its_own_count_and_each_minute_begins_anew() {
        let limit = Limit::new(2);
        let take = |tokens: [&str; 4]| tokens.map(|token| limit.take(token));
        assert_eq!(take(["a", "a", "b", "a"]), [Within, Within, Within, JustOver]);
        assert_eq!(take(["a", "b", "b", "b"]), [Over, Within, JustOver, Over]);
        tokio::time::advance(Duration::from_secs(MINUTE)).await;
        assert_eq!(take(["a", "a", "a", "a"]), [Within, Within, JustOver, Over]);
    }
}
