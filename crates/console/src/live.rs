//! The stream: panels are read while somebody watches, and what differs is sent.
//!
//! One task reads for all pages together. A page that is slow misses steps in between, never the
//! last one, because only the newest reading of each panel is kept.

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
        let looking = async {
            loop {
                if inner.newest.receiver_count() == 0 {
                    inner.somebody_came.notified().await;
                }
                self.look().await;
                tokio::time::sleep(PACE).await;
            }
        };
        tokio::select! {
            () = inner.stop.cancelled() => {}
            () = looking => {}
        }
    }

    async fn look(&self) {
        let reads = self.0.readings.iter().map(|(name, read)| async { (*name, told(read).await) });
        let now: BTreeMap<_, _> = futures::future::join_all(reads).await.into_iter().collect();
        self.0.newest.send_if_modified(|newest| {
            let differs = now.iter().any(|(name, text)| newest.get(name).map(|old| &**old) != Some(text));
            if differs {
                // What is equal stays the very same text: streams tell old from new by that.
                let kept = now.into_iter().map(|(name, text)| {
                    let same = newest.get(name).filter(|old| ***old == *text).cloned();
                    (name, same.unwrap_or_else(|| Arc::from(text)))
                });
                *newest = Arc::new(kept.collect());
            }
            differs
        });
    }

    /// What a page listens to: everything once, then whatever changes.
    pub(crate) fn stream(&self) -> Sse<impl Stream<Item = Result<Event, Infallible>> + use<>> {
        let mut newest = self.0.newest.subscribe();
        newest.mark_changed();
        self.0.somebody_came.notify_one();
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
