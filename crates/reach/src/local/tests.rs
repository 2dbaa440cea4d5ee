use super::*;
use crate::rig::{self, World};

#[tokio::test]
async fn links_are_picked_in_turn_and_never_twice_for_one_request() {
    let links = LocalLinks::default();
    let mut joined = Vec::new();
    for name in ["a", "b", "c"] {
        let one = rig::join("lab", World::named(name)).await;
        links.add(Arc::clone(&one.held));
        joined.push(one);
    }
    let lab = rig::site("lab");
    let mut seen: Vec<LinkId> = (0..3).map(|_| links.pick(&lab, Purpose::General, &[]).unwrap().id).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 3, "each in turn");
    let mut tried = Vec::new();
    while let Some(held) = links.pick(&lab, Purpose::General, &tried) {
        tried.push(held.id);
    }
    assert_eq!(tried.len(), 3);
    assert!(links.pick(&rig::site("other"), Purpose::General, &[]).is_none());
    for one in &joined {
        assert_eq!(links.remove(one.held.id).unwrap().id, one.held.id);
        assert!(links.remove(one.held.id).is_none());
    }
    assert!(links.pick(&lab, Purpose::General, &[]).is_none() && links.all().is_empty());
    assert!(links.lock().by_site.is_empty());
}

#[tokio::test]
async fn a_link_for_the_purpose_is_preferred_and_any_other_is_better_than_none() {
    let links = LocalLinks::default();
    let general = rig::join("lab", World::named("a")).await;
    let bulk = rig::join_for("lab", World::named("b"), Purpose::Bulk).await;
    links.add(Arc::clone(&general.held));
    links.add(Arc::clone(&bulk.held));
    let lab = rig::site("lab");
    for _ in 0..4 {
        assert_eq!(links.pick(&lab, Purpose::General, &[]).unwrap().id, general.held.id);
        assert_eq!(links.pick(&lab, Purpose::Bulk, &[]).unwrap().id, bulk.held.id);
    }
    assert_eq!(links.pick(&lab, Purpose::Bulk, &[bulk.held.id]).unwrap().id, general.held.id);
    assert_eq!(links.pick(&lab, Purpose::General, &[general.held.id]).unwrap().id, bulk.held.id);
    assert!(links.pick(&lab, Purpose::Bulk, &[bulk.held.id, general.held.id]).is_none());
}

#[tokio::test]
async fn a_ring_wakes_those_who_wait_for_that_site_and_leaves_nothing_behind() {
    let links = LocalLinks::default();
    let (lab, other) = (rig::site("lab"), rig::site("other"));
    let (first, second, stranger) = (links.wait_for(&lab), links.wait_for(&lab), links.wait_for(&other));
    let rings = [first.ring(), second.ring()];
    let unrung = stranger.ring();
    assert_eq!(links.awaited().into_iter().map(|(_, count)| count).sum::<usize>(), 3);
    let joined = rig::join("lab", World::named("a")).await;
    links.add(Arc::clone(&joined.held));
    for ring in rings {
        ring.await;
    }
    assert!(futures::FutureExt::now_or_never(unrung).is_none());
    drop((first, second, stranger));
    assert!(links.awaited().is_empty() && links.lock().bells.is_empty());
}

#[test]
fn a_link_id_survives_its_text() {
    let id = LinkId::fresh();
    assert_eq!(LinkId::parse(&id.to_string()), Some(id));
    assert_eq!(LinkId::parse("x"), None);
}

#[tokio::test]
async fn places_are_counted_with_the_links() {
    let links = LocalLinks::default();
    let lab = rig::site("lab");
    let first = links.reserve(&lab, 2).ok().unwrap();
    let joined = rig::join("lab", World::named("a")).await;
    links.add(Arc::clone(&joined.held));
    assert_eq!(links.reserve(&lab, 2).err(), Some(2), "the link, and the place kept");
    drop(first);
    drop(links.reserve(&lab, 2).ok().unwrap());
    assert!(links.lock().reserved.is_empty());
}
