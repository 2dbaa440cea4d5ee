//! Which tags were changed by other hands, for whoever keeps permit lists in line with them.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use crate::plan::tags::Write;

/// With more names than this it is simpler to look at everything. It also bounds what a process keeps in which
/// nobody asks.
const NAMES_MAX: usize = 4096;

/// What stands for something else now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touched {
    /// These tags, and so all above them.
    Tags(BTreeSet<String>),
    /// It is not known which.
    Everything,
}

impl Default for Touched {
    fn default() -> Self {
        Self::Tags(BTreeSet::new())
    }
}

/// Changes until somebody asks for them.
#[derive(Debug, Default)]
pub(super) struct News {
    touched: Mutex<Touched>,
    more: Notify,
}

impl News {
    pub(super) fn add(&self, news: Touched) {
        if news == Touched::default() {
            return;
        }
        {
            let mut known = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
            *known = match (std::mem::take(&mut *known), news) {
                (Touched::Tags(mut known), Touched::Tags(names))
                    if known.len() + names.len() <= NAMES_MAX =>
                {
                    known.extend(names);
                    Touched::Tags(known)
                }
                _ => Touched::Everything,
            };
        }
        self.more.notify_one();
    }

    pub(super) async fn heard(&self) -> Touched {
        loop {
            let news = std::mem::take(&mut *self.touched.lock().unwrap_or_else(PoisonError::into_inner));
            if news != Touched::default() {
                return news;
            }
            self.more.notified().await;
        }
    }
}

/// The tags that stand for something else after these writes. Of a membership it is the group; what is above
/// it is found in the hierarchy.
pub(super) fn touched(writes: &[Write]) -> BTreeSet<String> {
    writes.iter().filter_map(crate::plan::tags::touched).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn news_wait_until_they_are_asked_for_and_never_grow_beyond_measure() {
        let news = News::default();
        let tags =
            |names: std::ops::Range<usize>| Touched::Tags(names.map(|name| name.to_string()).collect());
        news.add(tags(0..2));
        news.add(tags(1..3));
        assert_eq!(news.heard().await, tags(0..3));
        news.add(tags(0..NAMES_MAX));
        news.add(tags(NAMES_MAX..NAMES_MAX + 1));
        assert_eq!(news.heard().await, Touched::Everything);
        news.add(tags(0..1));
        assert_eq!(news.heard().await, tags(0..1));
    }
}
