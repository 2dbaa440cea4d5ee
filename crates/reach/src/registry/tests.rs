use std::sync::atomic::AtomicUsize;

use tarbet_store::backend::Backend;
use tarbet_store::{Entry, Hints, Key, Page, Prefix, Revision};
use tarbet_telemetry::Health;

use super::*;
use crate::rig::{self, Joined, Unreliable, World};

struct Gateway {
    local: LocalLinks,
    registry: Registry,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

/// A gateway that keeps its entries true.
fn gateway(store: &Store, name: &str) -> Gateway {
    let local = LocalLinks::default();
    let url = format!("grpc://{name}");
    let registry =
        Registry::new(store, name, &url, local.clone(), Rhythm::default(), Timestamp::now()).unwrap();
    let (stop, keeping) = (CancellationToken::new(), registry.clone());
    let until = stop.clone();
    let task = tokio::spawn(async move { keeping.keep(until, Health::default().part("registry")).await });
    Gateway { local, registry, stop, task }
}

impl Gateway {
    async fn take(&self, site: &str) -> Joined {
        let joined = rig::join(site, World::named(site)).await;
        self.local.add(Arc::clone(&joined.held));
        self.registry.announce(&joined.held).await;
        joined
    }

    async fn sees(&self, site: &str) -> Vec<LinkId> {
        self.registry.distrust(&rig::site(site));
        let found = self.registry.elsewhere(&rig::site(site)).await.unwrap();
        found.in_turn(Purpose::General).map(|remote| remote.link).collect()
    }
}

fn two() -> (Gateway, Gateway, Unreliable) {
    let backend = Unreliable::default();
    let store = Store::new(backend.clone());
    (gateway(&store, "one"), gateway(&store, "two"), backend)
}

#[tokio::test(start_paused = true)]
async fn each_gateway_sees_the_links_of_the_others_and_not_its_own() {
    let (one, two, _) = two();
    let held = two.take("lab").await.held;
    let found = one.registry.elsewhere(&held.site).await.unwrap();
    let expected = Remote { link: held.id, url: "grpc://two".into(), purpose: Purpose::General };
    assert_eq!(found.in_turn(Purpose::Bulk).collect::<Vec<_>>(), [&expected]);
    assert!(two.sees("lab").await.is_empty());
    assert!(one.sees("other").await.is_empty());
    let listed = one.registry.everywhere().await.unwrap();
    assert_eq!((listed[0].site.as_str(), listed[0].gateway.as_str()), ("lab", "two"));
    assert_eq!(one.registry.colleagues().await.unwrap()[0].name, "two");
    two.registry.withdraw(&held).await;
    assert!(one.sees("lab").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_dies_takes_its_links_along_within_seconds() {
    let (one, two, _) = two();
    let _joined = two.take("lab").await;
    two.task.abort();
    tokio::time::sleep(Rhythm::default().alive + Duration::from_secs(1)).await;
    assert!(one.sees("lab").await.is_empty());
    assert!(one.registry.everywhere().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_that_starts_again_under_its_old_name_does_not_inherit() {
    let backend = Unreliable::default();
    let store = Store::new(backend.clone());
    let (one, old) = (gateway(&store, "one"), gateway(&store, "two"));
    let joined = old.take("lab").await;
    old.task.abort();
    let new = gateway(&store, "two");
    tokio::time::sleep(Rhythm::default().alive + Duration::from_secs(1)).await;
    assert!(one.sees("lab").await.is_empty(), "{:?} is gone", joined.held.id);
    let _joined = new.take("lab").await;
    assert_eq!(one.sees("lab").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_that_leaves_is_unknown_at_once_and_stays_so() {
    let (one, two, _) = two();
    let joined = two.take("lab").await;
    two.registry.leave().await;
    assert!(one.sees("lab").await.is_empty());
    tokio::time::sleep(Rhythm::default().refresh * 2).await;
    two.registry.announce(&joined.held).await;
    assert!(one.sees("lab").await.is_empty());
    assert!(one.registry.colleagues().await.unwrap().is_empty());
    two.stop.cancel();
    two.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_emptied_is_filled_again_by_the_next_heartbeat() {
    let (one, two, backend) = two();
    let joined = two.take("lab").await;
    let store = Store::new(backend);
    for entry in store.list(&tarbet_store::Prefix::everything()).await.unwrap() {
        store.delete(entry.key).await.unwrap();
    }
    assert!(one.sees("lab").await.is_empty());
    tokio::time::sleep(Rhythm::default().heartbeat * 2).await;
    assert_eq!(one.sees("lab").await, [joined.held.id]);
}

#[tokio::test(start_paused = true)]
async fn what_happened_while_the_store_was_away_is_made_up_for() {
    let (one, two, backend) = two();
    let gone = two.take("gone").await;
    backend.set_down(true);
    assert!(one.registry.elsewhere(&rig::site("other")).await.is_err());
    let come = two.take("come").await;
    two.local.remove(gone.held.id);
    two.registry.withdraw(&gone.held).await;
    tokio::time::sleep(Rhythm::default().alive * 2).await;
    backend.set_down(false);
    tokio::time::sleep(Rhythm::default().heartbeat * 2).await;
    assert_eq!(one.sees("come").await, [come.held.id]);
    assert!(one.sees("gone").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn links_live_as_long_as_they_are_held() {
    let (one, two, _) = two();
    let joined = two.take("lab").await;
    tokio::time::sleep(Rhythm::default().entry * 3).await;
    assert_eq!(one.sees("lab").await, [joined.held.id]);
}

#[tokio::test(start_paused = true)]
async fn a_site_is_followed_once_for_all_who_wait_and_no_longer() {
    let (one, two, _) = two();
    let lab = rig::site("lab");
    let (first, second) = (one.registry.following(&lab), one.registry.following(&lab));
    assert!(Arc::ptr_eq(&first, &second));
    assert!(one.registry.elsewhere(&lab).await.unwrap().is_empty());
    let waiting = one.local.wait_for(&lab);
    let ring = waiting.ring();
    let joined = two.take("lab").await;
    ring.await;
    // What was remembered before it came must not stand in the way.
    let found = one.registry.elsewhere(&lab).await.unwrap();
    assert_eq!(
        found.in_turn(Purpose::General).map(|remote| remote.link).collect::<Vec<_>>(),
        [joined.held.id]
    );
    let task = Arc::downgrade(&first);
    drop((first, second));
    assert!(task.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn all_who_wait_for_a_look_that_fails_are_told_and_who_comes_later_looks_again() {
    let store = rig::Mute::default();
    let (local, asked, lab) = (LocalLinks::default(), Arc::clone(&store.0), rig::site("lab"));
    let store = Store::new(store);
    let registry =
        Registry::new(&store, "one", "grpc://one", local, Rhythm::default(), Timestamp::now()).unwrap();
    for round in 1..3 {
        let looks = (0..20).map(|_| registry.elsewhere(&lab));
        let told = futures::future::join_all(looks).await;
        assert!(told.iter().all(|told| matches!(told, Err(Error::Unavailable { .. }))));
        assert_eq!(asked.load(Ordering::SeqCst), round);
    }
    registry.tidy();
    assert!(registry.cache().failures.is_empty());
}

/// A store that takes its time for a list, and counts how often it was asked for one.
#[derive(Clone, Default)]
struct Slow {
    inner: Unreliable,
    asked: Arc<AtomicUsize>,
}

const LOOK: Duration = Duration::from_millis(100);

#[async_trait::async_trait]
impl Backend for Slow {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, Error> {
        self.inner.get(key).await
    }

    async fn range(&self, prefix: &Prefix, after: Option<&Key>, limit: usize) -> Result<Page, Error> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(LOOK).await;
        self.inner.range(prefix, after, limit).await
    }

    async fn commit(&self, commit: Commit) -> Result<Revision, Error> {
        self.inner.commit(commit).await
    }

    fn changed(&self, prefix: &Prefix) -> Hints {
        self.inner.changed(prefix)
    }
}

#[tokio::test(start_paused = true)]
async fn a_doubt_about_one_site_takes_no_answer_of_another() {
    let store = Slow::default();
    let (asked, store) = (Arc::clone(&store.asked), Store::new(store));
    let two = gateway(&store, "two");
    let joined = two.take("lab").await;
    let (local, lab) = (LocalLinks::default(), joined.held.site.clone());
    let one = Registry::new(&store, "one", "grpc://one", local, Rhythm::default(), Timestamp::now()).unwrap();
    for (doubted, looks) in [("other", 1), ("lab", 2)] {
        one.distrust(&lab);
        let before = asked.load(Ordering::SeqCst);
        let doubt = async {
            tokio::time::sleep(LOOK / 2).await;
            // Somebody looks the other one up, too.
            let doubted = rig::site(doubted);
            let looking = one.looking(&doubted);
            one.distrust(&doubted);
            drop(looking);
        };
        let (found, ()) = futures::join!(one.elsewhere(&lab), doubt);
        assert_eq!(found.unwrap().len(), 1);
        one.elsewhere(&lab).await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst) - before, looks, "a doubt about {doubted}");
    }
}
