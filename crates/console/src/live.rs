//! The stream: panels are read while somebody watches, and what differs is sent.
//!
//! One loop a panel reads for all pages together, so a panel that hangs delays no other. A page that is
//! slow misses steps in between, never the last one, because only the newest reading of each is kept.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Sse;
use axum::response::sse::{Event, KeepAlive};
use futures::stream::{self, Stream, StreamExt};
use serde_json::json;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::ground;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::panel::{Content, Panel, Reading};

/// Between two looks: what happens is on the page well within a second.
const PACE: Duration = Duration::from_millis(300);
/// A panel that takes longer is shown as failing.
const PATIENCE: Duration = Duration::from_secs(5);

/// The newest reading of each panel, as the text of its event.
type Newest = Arc<BTreeMap<&'static str, Arc<str>>>;

#[derive(Clone)]
pub(crate) struct Live(Arc<Inner>);

struct Inner {
    readings: Vec<(&'static str, Reading)>,
    newest: watch::Sender<Newest>,
    somebody_came: Notify,
    stop: CancellationToken,
}

impl Live {
    pub(crate) fn new(panels: &[Panel], stop: CancellationToken) -> Self {
        let readings = panels.iter().filter_map(|panel| match &panel.content {
            Content::Live(read) => Some((panel.name, Arc::clone(read))),
            Content::Fixed(_) => None,
        });
        Self(Arc::new(Inner {
            readings: readings.collect(),
            newest: watch::Sender::default(),
            somebody_came: Notify::new(),
            stop,
        }))
    }

    /// Reads the panels while somebody watches, until the end.
    pub(crate) async fn keep(&self) {
        let inner = &self.0;
        let looking = inner.readings.iter().map(|(name, read)| self.follow(name, read));
        inner.stop.run_until_cancelled(futures::future::join_all(looking)).await;
    }

    /// Reads one panel again and again.
    async fn follow(&self, name: &'static str, read: &Reading) {
        let inner = &self.0;
        loop {
            // Made before the look at the number, so that nobody comes unnoticed in between.
            let somebody_came = inner.somebody_came.notified();
            if inner.newest.receiver_count() == 0 {
                somebody_came.await;
            }
            let began = Instant::now();
            let text = told(read).await;
            inner.newest.send_if_modified(|newest| put(newest, name, text));
            // What is dear to read is read less often.
            tokio::time::sleep(PACE.max(began.elapsed())).await;
        }
    }

    /// What a page listens to: everything once, then whatever changes.
    pub(crate) fn stream(&self) -> Sse<impl Stream<Item = Result<Event, Infallible>> + use<>> {
        let mut newest = self.0.newest.subscribe();
        newest.mark_changed();
        self.0.somebody_came.notify_waiters();
        let steps = stream::unfold((newest, Newest::default()), |(mut newest, sent)| async move {
            newest.changed().await.ok()?;
            let now = Arc::clone(&newest.borrow_and_update());
            let events: Vec<_> = changed(&sent, &now).collect();
            Some((stream::iter(events), (newest, now)))
        });
        let stop = self.0.stop.clone();
        let events = steps.flatten().map(|(name, text)| Ok(Event::default().event(name).data(text)));
        Sse::new(events.take_until(stop.cancelled_owned())).keep_alive(KeepAlive::default())
    }
}

/// Keeps a reading if it differs. What is equal stays the very same text: streams tell old from new by that.
fn put(newest: &mut Newest, name: &'static str, text: String) -> bool {
    let differs = newest.get(name).is_none_or(|old| **old != *text);
    if differs {
        Arc::make_mut(newest).insert(name, Arc::from(text));
    }
    differs
}

/// The panels whose text is another one than before.
fn changed(sent: &Newest, now: &Newest) -> impl Iterator<Item = (&'static str, Arc<str>)> {
    now.iter().filter_map(|(name, text)| {
        let same = sent.get(name).is_some_and(|old| Arc::ptr_eq(old, text));
        (!same).then(|| (*name, Arc::clone(text)))
    })
}

/// A reading as the text of its event: `{"value": …}` or `{"problem": …}`.
async fn told(read: &Reading) -> String {
    let problem = match tokio::time::timeout(PATIENCE, read()).await {
        Ok(Ok(value)) => return json!({ "value": value }).to_string(),
        Ok(Err(problem)) => problem,
        Err(_) => Problem::new(&ground::INTERNAL, "This panel did not answer in time.")
            .at("console")
            .because(format!("its reading took longer than {} seconds", PATIENCE.as_secs())),
    };
    json!({ "problem": problem }).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// The clock stands until everybody waits, so the order is certain.
    #[tokio::test(start_paused = true)]
    async fn a_panel_that_hangs_delays_no_other() {
        let count = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&count);
        let panels = [
            Panel::live("count", move || {
                let value = json!(counted.fetch_add(1, Ordering::SeqCst));
                async move { Ok(value) }
            }),
            Panel::live("hangs", std::future::pending),
        ];
        let live = Live::new(&panels, CancellationToken::new());
        let mut newest = live.0.newest.subscribe();
        let told = async {
            newest.wait_for(|newest| newest.contains_key("hangs")).await.unwrap()["hangs"].to_string()
        };
        let told = tokio::select! {
            told = told => told,
            () = live.keep() => unreachable!("nobody stops it"),
        };
        assert!(told.contains("did not answer in time"), "{told}");
        assert!(count.load(Ordering::SeqCst) > 10, "read {count:?} times meanwhile");
    }

    #[test]
    fn what_is_equal_stays_the_very_same_text() {
        let mut newest = Newest::default();
        assert!(put(&mut newest, "a", "1".into()) && put(&mut newest, "b", "1".into()));
        let sent = Arc::clone(&newest);
        assert!(!put(&mut newest, "a", "1".into()) && put(&mut newest, "b", "2".into()));
        assert_eq!(changed(&sent, &newest).collect::<Vec<_>>(), [("b", Arc::from("2"))]);
    }
}
