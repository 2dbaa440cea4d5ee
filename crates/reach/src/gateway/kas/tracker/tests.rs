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

#[tokio::test(start_paused = true)]
async fn a_process_whose_connection_broke_is_listed_no_more_while_others_are() {
    let tracker = tracker();
    let settled = async |right: &[i64]| {
        // What a connection means is noted by tasks of their own; all of them are at rest when time moves.
        for _ in 0..100 {
            tokio::time::advance(Duration::from_millis(1)).await;
            if tracker.lists().await == right {
                return;
            }
        }
        panic!("{:?}, not {right:?}", tracker.lists().await);
    };
    for (connection, pod) in [(1, 1), (2, 2)] {
        tracker.carried_over(7, connection);
        tracker.hears(pod).await;
        tracker.registered_over(7, pod, connection);
    }
    let since = |rows: Vec<Connected>, pod| rows.into_iter().find(|row| row.pod == pod).unwrap().since;
    let before = since(tracker.rows().await, 1);
    tracker.disconnected(7, 1, false);
    settled(&[2]).await;
    // It was the network: the same process by another connection.
    tracker.carried_over(7, 3);
    settled(&[1, 2]).await;
    assert_eq!(since(tracker.rows().await, 1), before);
    // Asked to move, it stays; another one in its place is one more, and the old one is none.
    tracker.disconnected(7, 3, true);
    settled(&[1, 2]).await;
    tracker.carried_over(7, 4);
    tracker.hears(9).await;
    tracker.registered_over(7, 9, 4);
    settled(&[2, 9]).await;
    // The last two of this gateway break off, and the agent has more elsewhere.
    tracker.disconnected(7, 2, false);
    tracker.disconnected(7, 4, false);
    tracker.broke_off(7).await;
    settled(&[]).await;
    // One that is known elsewhere by now is not taken back.
    tracker.hears(2).await;
    tracker.registered_over(7, 2, 5);
    tracker.carried_over(7, 5);
    let theirs = Connected { by: "another".into(), ..tracker.rows().await.remove(0) };
    tracker.table.put_for(&key(7, 2), &theirs, KEPT).await.unwrap();
    tracker.disconnected(7, 5, false);
    tracker.broke_off(7).await;
    assert_eq!(tracker.lists().await, [2]);
}

/// Looks again and again until this is listed; time passes meanwhile.
async fn comes_to_be(tracker: &Tracker, right: &[i64]) {
    for _ in 0..600 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if tracker.lists().await == right {
            return;
        }
    }
    panic!("{:?}, not {right:?}", tracker.lists().await);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_comes_back_at_another_gateway_is_listed_there() {
    for early in [true, false] {
        let store = Store::new(Unreliable::default());
        let gateway = |name: &str| Tracker::new(&store, None, Some(name.to_owned())).unwrap();
        let (one, two) = (gateway("one"), gateway("two"));
        one.carried_over(7, 1);
        one.hears(1).await;
        one.registered_over(7, 1, 1);
        let since = one.rows().await[0].since;
        let lose = async || {
            one.disconnected(7, 1, false);
            one.broke_off(7).await;
        };
        // It is at the other one before its loss is noticed, or after it.
        if early {
            two.carried_over(7, 2);
            tokio::time::sleep(Duration::from_secs(30)).await;
            lose().await;
        } else {
            lose().await;
            assert!(two.lists().await.is_empty());
            two.carried_over(7, 2);
        }
        comes_to_be(&two, &[1]).await;
        let row = two.rows().await.remove(0);
        assert_eq!((row.by.as_str(), row.since), ("two", since));
        // The same as if it had registered there: it ends with its connection.
        two.disconnected(7, 2, false);
        two.broke_off(7).await;
        assert!(two.lists().await.is_empty());
        // One that was nowhere for a while is known all the same, and one that says goodbye is not.
        two.went(7).await;
        one.carried_over(7, 3);
        comes_to_be(&one, &[1]).await;
        one.unregister(&agent(), 1).await.unwrap();
        one.disconnected(7, 3, false);
        two.carried_over(7, 4);
        tokio::time::sleep(KEPT).await;
        assert!(two.lists().await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn who_says_who_it_is_is_taken_for_nobody_else() {
    let store = Store::new(Unreliable::default());
    let gateway = |name: &str| Tracker::new(&store, None, Some(name.to_owned())).unwrap();
    let (one, two) = (gateway("one"), gateway("two"));
    one.carried_over(7, 1);
    one.hears(1).await;
    one.registered_over(7, 1, 1);
    // It dies, and another one starts elsewhere, which says so at once.
    one.disconnected(7, 1, false);
    one.broke_off(7).await;
    two.carried_over(7, 2);
    two.hears(2).await;
    two.registered_over(7, 2, 2);
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(two.lists().await, [2]);
    // Two gateways have a stranger each, and one process was lost: it is at one of them.
    two.disconnected(7, 2, false);
    two.broke_off(7).await;
    one.unregister(&agent(), 1).await.unwrap();
    one.carried_over(7, 3);
    two.carried_over(7, 4);
    comes_to_be(&one, &[2]).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let holders = [&one, &two].map(|tracker| locked(&tracker.seats).sits(7, 2));
    assert_eq!(holders.into_iter().filter(|sits| *sits).count(), 1);
    // The one that was taken for it says otherwise.
    let (holder, connection) = if holders[0] { (&one, 3) } else { (&two, 4) };
    holder.hears(5).await;
    holder.registered_over(7, 5, connection);
    comes_to_be(&one, &[5]).await;
}
