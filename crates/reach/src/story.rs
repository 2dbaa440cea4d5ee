//! What became of each recent request: the hops it took and when, for `tarbet why`.
//!
//! Writing is cheap (a few words under a lock of its own); reading is rare and turns them into
//! sentences. Only the newest requests are kept.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tarbet_telemetry::{RequestId, trace};
use tokio::time::Instant;

use crate::local::LinkId;
use crate::names::SiteName;

/// Steps of one request: more would only repeat that it was tried again.
const MAX_STEPS: usize = 40;

/// What a request wants, as far as a gateway looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// Its id.
    pub id: RequestId,
    /// Who asked.
    pub principal: String,
    /// Of which site.
    pub site: SiteName,
    /// Which service, and what of it.
    pub wants: String,
}

/// Something that happened to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nobody is connected: it waits.
    Waits,
    /// Sent over a link that this gateway holds.
    Link(LinkId),
    /// Sent to another gateway, for one of its links.
    Gateway(String, LinkId),
    /// That way failed, and why; another one is looked for.
    Broke(String),
    /// Answered with this status.
    Answered(u16),
    /// A byte stream was opened.
    Opened,
    /// Failed with this code, and why.
    Failed(String, String),
    /// The caller left before there was an answer.
    Abandoned,
}

impl Step {
    /// Whether the request is over with it.
    fn ends(&self) -> bool {
        matches!(self, Self::Answered(_) | Self::Opened | Self::Failed(..) | Self::Abandoned)
    }
}

/// The story of one request while it is being written.
#[derive(Debug)]
pub struct Story {
    subject: Subject,
    began: Timestamp,
    begun: Instant,
    steps: Mutex<Vec<(Duration, Step)>>,
    /// Whether those who follow traces have it.
    traced: AtomicBool,
}

impl Story {
    /// A story nobody else keeps.
    pub fn new(subject: Subject) -> Self {
        Self {
            subject,
            began: Timestamp::now(),
            begun: Instant::now(),
            steps: Mutex::default(),
            traced: AtomicBool::new(false),
        }
    }

    /// What the request wants.
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// How long it has been going on.
    pub fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Something happened.
    pub fn note(&self, step: Step) {
        let (at, ends) = (self.begun.elapsed(), step.ends());
        let told = ends && trace::wanted() && !self.traced.swap(true, Ordering::Relaxed);
        let part = told.then(|| self.part(at, &step));
        let mut steps = lock(&self.steps);
        if steps.len() < MAX_STEPS {
            steps.push((at, step));
        }
        drop(steps);
        if let Some(part) = part {
            trace::tell(part);
        }
    }

    /// What a collector of traces is told at its end.
    fn part(&self, took: Duration, end: &Step) -> trace::Part {
        let Subject { id, principal, site, wants } = self.subject.clone();
        let mut steps: Vec<_> =
            lock(&self.steps).iter().map(|(at, step)| (*at, sentence(step, site.as_str()))).collect();
        steps.push((took, sentence(end, site.as_str())));
        let failure = match end {
            Step::Failed(code, why) => Some(format!("{code}: {why}")),
            _ => None,
        };
        // The service and the verb: a path is different for every request.
        let name = wants.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let about =
            vec![("tarbet.site", site.to_string()), ("tarbet.principal", principal), ("tarbet.wants", wants)];
        trace::Part { request: id, name, began: SystemTime::from(self.began), took, steps, about, failure }
    }

    /// The story as it is told.
    pub fn tell(&self, gateway: &str) -> StoryView {
        let Subject { id, principal, site, wants } = self.subject.clone();
        let steps = lock(&self.steps);
        let told = steps.iter().map(|(at, step)| StepView {
            after_us: u64::try_from(at.as_micros()).unwrap_or(u64::MAX),
            what: sentence(step, site.as_str()),
        });
        StoryView {
            id,
            gateway: gateway.to_owned(),
            began: self.began,
            principal,
            steps: told.collect(),
            site,
            wants,
        }
    }
}

fn sentence(step: &Step, site: &str) -> String {
    match step {
        Step::Waits => format!("no agent of `{site}` is connected: waiting for one"),
        Step::Link(link) => format!("sent to the agent over link {link}, which this gateway holds"),
        Step::Gateway(url, link) => format!("sent to the gateway at {url}, for its link {link}"),
        Step::Broke(why) => format!("that way failed, trying another: {why}"),
        Step::Answered(status) => format!("answered with {status}"),
        Step::Opened => "the stream is open".into(),
        Step::Failed(code, why) => format!("failed with {code}: {why}"),
        Step::Abandoned => "the caller left before there was an answer".into(),
    }
}

/// The story of one request at one gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoryView {
    /// The request's id.
    pub id: RequestId,
    /// The gateway that tells it.
    pub gateway: String,
    /// When it came in there.
    pub began: Timestamp,
    /// Who asked.
    pub principal: String,
    /// Of which site.
    pub site: SiteName,
    /// Which service, and what of it.
    pub wants: String,
    /// What happened, in order.
    pub steps: Vec<StepView>,
}

/// One step of a story.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepView {
    /// Microseconds after the request came in.
    pub after_us: u64,
    /// What happened.
    pub what: String,
}

/// The newest stories. Cheap to clone.
#[derive(Clone)]
pub struct Stories(Arc<Ring>);

struct Ring {
    capacity: usize,
    stories: Mutex<VecDeque<Arc<Story>>>,
}

impl Stories {
    /// Keeps this many.
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Ring { capacity, stories: Mutex::default() }))
    }

    /// Begins a story, and forgets the oldest if there are too many.
    pub fn begin(&self, subject: Subject) -> Arc<Story> {
        let story = Arc::new(Story::new(subject));
        let mut stories = lock(&self.0.stories);
        if stories.len() >= self.0.capacity {
            stories.pop_front();
        }
        stories.push_back(Arc::clone(&story));
        story
    }

    /// The stories of a request: more than one if its id was used again.
    pub fn find(&self, id: RequestId) -> Vec<Arc<Story>> {
        lock(&self.0.stories).iter().filter(|story| story.subject.id == id).cloned().collect()
    }

    /// The newest, newest first.
    pub fn newest(&self, count: usize) -> Vec<Arc<Story>> {
        lock(&self.0.stories).iter().rev().take(count).cloned().collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> Subject {
        Subject {
            id: RequestId::fresh(),
            principal: "ann".into(),
            site: "lab".parse().unwrap(),
            wants: "kubernetes GET /version".into(),
        }
    }

    #[test]
    fn the_oldest_story_is_forgotten_first() {
        let stories = Stories::new(2);
        let ids: Vec<_> = (0..3).map(|_| stories.begin(subject()).subject().id).collect();
        assert!(stories.find(ids[0]).is_empty());
        assert_eq!(stories.find(ids[2]).len(), 1);
        let newest: Vec<_> = stories.newest(10).iter().map(|story| story.subject().id).collect();
        assert_eq!(newest, [ids[2], ids[1]]);
    }

    #[test]
    fn a_story_is_told_in_order_and_has_an_end() {
        let story = Story::new(subject());
        story.note(Step::Waits);
        story.note(Step::Answered(200));
        let told = story.tell("gw");
        assert!(told.steps[0].what.contains("waiting") && told.steps[1].what.contains("200"), "{told:?}");
        for _ in 0..100 {
            story.note(Step::Broke("again".into()));
        }
        assert_eq!(story.tell("gw").steps.len(), MAX_STEPS);
    }
}
