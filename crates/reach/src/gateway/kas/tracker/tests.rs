use super::*;
use crate::rig::Unreliable;

fn tracker() -> Tracker {
    Tracker::new(&Store::new(Unreliable::default()), None, None).unwrap()
}

fn agent() -> Agent {
    Agent { id: 7, name: "lab".into(), project_id: 5 }
}

impl Tracker {
    async fn hears(&self, pod: i64) {
        self.register(&agent(), pod, AgentMeta::default(), Timestamp::now()).await.unwrap();
    }

    async fn lists(&self) -> Vec<i64> {
        let mut pods: Vec<_> = self.rows().await.into_iter().map(|row| row.pod).collect();
        pods.sort_unstable();
        pods
    }

    async fn rows(&self) -> Vec<Connected> {
        let rows = self.noted_of(&wanted::Request::AgentId(7)).await.unwrap();
        assert_eq!(rows, self.noted_of(&wanted::Request::ProjectId(5)).await.unwrap());
        rows
    }
}

#[tokio::test(start_paused = true)]
async fn one_word_of_a_process_may_be_late_or_lost() {
    let tracker = tracker();
    tracker.hears(1).await;
    // Every five minutes, and ten seconds more after a failure; then the next in its turn.
    tokio::time::advance(Duration::from_mins(10) + Duration::from_secs(30)).await;
    assert_eq!(tracker.lists().await, [1]);
    tokio::time::advance(Duration::from_mins(1)).await;
    assert!(tracker.lists().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_leaves_takes_its_processes_along_and_brings_them_back() {
    let tracker = tracker();
    tracker.hears(1).await;
    tracker.hears(2).await;
    assert_eq!(tracker.noted().into_iter().collect::<Vec<_>>(), [7]);
    let before = tracker.rows().await;
    tracker.went(7).await;
    assert!(tracker.lists().await.is_empty() && tracker.noted().is_empty());
    // A network that was away: the same processes, which do not register again for minutes.
    tracker.came(7).await;
    assert_eq!(tracker.rows().await, before);
    tracker.hears(2).await;
    assert_eq!(tracker.lists().await, [1, 2]);
    // One that says that it leaves does not come back.
    tracker.went(7).await;
    tracker.unregister(&agent(), 1).await.unwrap();
    tracker.came(7).await;
    assert_eq!(tracker.lists().await, [2]);
}

#[tokio::test(start_paused = true)]
async fn a_new_process_of_an_agent_that_was_away_takes_the_place_of_the_old_ones() {
    let tracker = tracker();
    tracker.hears(1).await;
    // Its word comes after its first tunnel, or before.
    tracker.went(7).await;
    tracker.came(7).await;
    tracker.hears(2).await;
    assert_eq!(tracker.lists().await, [2]);
    tracker.went(7).await;
    tracker.hears(3).await;
    tracker.came(7).await;
    assert_eq!(tracker.lists().await, [3]);
    // Later it is one more, not another one.
    tracker.went(7).await;
    tracker.came(7).await;
    tokio::time::advance(SUCCESSION).await;
    tracker.hears(4).await;
    assert_eq!(tracker.lists().await, [3, 4]);
}
