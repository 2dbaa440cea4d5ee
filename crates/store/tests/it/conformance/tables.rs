//! Typed tables.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tarbet_store::table::TableChange;
use tarbet_store::{Commit, Error, Record, Table};

use super::everywhere;
use crate::effort;
use crate::place::Place;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Link {
    gateway: String,
    uses: u32,
}

impl Record for Link {
    const KIND: &'static str = "link";
}

fn link(gateway: &str) -> Link {
    Link { gateway: gateway.into(), uses: 0 }
}

everywhere! {
    records_come_back
    pairs_are_listed_by_their_first_part
    one_unreadable_record_hides_no_other
    an_update_loses_nothing
}

async fn records_come_back(place: &impl Place) {
    let store = place.open();
    let links: Table<String, Link> = Table::new(&store, "links").unwrap();
    let numbers: Table<u64, Link> = Table::new(&store, "numbers").unwrap();
    assert!(Table::<String, Link>::new(&store, "Links!").is_err());
    let name = "lab".to_owned();
    assert_eq!(links.get(&name).await.unwrap(), None);
    let revision = links.create(&name, &link("g1")).await.unwrap();
    assert!(links.create(&name, &link("g2")).await.unwrap_err().is_conflict());
    let found = links.get(&name).await.unwrap().unwrap();
    assert_eq!((found.value, found.revision, found.expires_in), (link("g1"), revision, None));
    let both = Commit::new()
        .expect(links.at(&name, revision))
        .expect(numbers.absent(&7))
        .with(links.put_op(&name, &link("g2")).unwrap())
        .with(numbers.put_for_op(&7, &link("g2"), Duration::from_mins(1)).unwrap());
    let later = store.commit(both).await.unwrap();
    assert!(links.replace(&name, revision, &link("g3")).await.unwrap_err().is_conflict());
    links.replace(&name, later, &link("g3")).await.unwrap();
    assert!(numbers.get(&7).await.unwrap().unwrap().expires_in.is_some());
    numbers.refresh(&7, Duration::from_mins(2)).await.unwrap();
    assert!(numbers.refresh(&8, Duration::from_mins(2)).await.unwrap_err().is_conflict());
    links.delete(&name).await.unwrap();
    assert!(links.list().await.unwrap().records.is_empty());
    store.commit(Commit::new().expect(numbers.present(&7)).with(numbers.delete_op(&7))).await.unwrap();
    assert_eq!(numbers.get(&7).await.unwrap(), None);
}

async fn pairs_are_listed_by_their_first_part(place: &impl Place) {
    let store = place.open();
    let links: Table<(String, u64), Link> = Table::new(&store, "links").unwrap();
    for (site, number) in [("a", 2), ("ab", 1), ("a", 1), ("b", 1)] {
        links.put(&(site.into(), number), &link(site)).await.unwrap();
    }
    let under = links.list_under(&"a".into()).await.unwrap();
    let keys: Vec<_> = under.records.into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, [("a".into(), 1), ("a".into(), 2)]);
    let mut watch = links.watch_under(&"b".into());
    let there = watch.next().await.unwrap();
    assert!(matches!(&there[..], [TableChange::Put((site, 1), _)] if site == "b"), "{there:?}");
    links.put(&("a".into(), 9), &link("a")).await.unwrap();
    links.delete(&("b".into(), 1)).await.unwrap();
    let gone = watch.next().await.unwrap();
    assert!(matches!(&gone[..], [TableChange::Deleted((site, 1))] if site == "b"), "{gone:?}");
}

async fn one_unreadable_record_hides_no_other(place: &impl Place) {
    let store = place.open();
    let links: Table<u64, Link> = Table::new(&store, "links").unwrap();
    links.put(&1, &link("g")).await.unwrap();
    store.put(links.key(&2), "not a record").await.unwrap();
    store.put(tarbet_store::TableName::new("links").unwrap().key("short"), "{}").await.unwrap();
    let listing = links.list().await.unwrap();
    assert_eq!((listing.records.len(), listing.unreadable.len()), (1, 2));
    assert!(matches!(links.get(&2).await, Err(Error::Record { .. })));
    let there = links.watch().next().await.unwrap();
    let readable = there.iter().filter(|change| matches!(change, TableChange::Put(1, _))).count();
    let unreadable = there.iter().filter(|change| matches!(change, TableChange::Unreadable(_))).count();
    assert_eq!((readable, unreadable), (1, 2));
}

async fn an_update_loses_nothing(place: &impl Place) {
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let links: Table<String, Link> = Table::new(&place.open(), "links").unwrap();
            tokio::spawn(async move {
                for _ in 0..5 * effort() {
                    let more = |found: Option<Link>| {
                        let found = found.unwrap_or_else(|| link("g"));
                        Some(Link { uses: found.uses + 1, ..found })
                    };
                    links.update(&"k".into(), more).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let links: Table<String, Link> = Table::new(&place.open(), "links").unwrap();
    assert_eq!(links.get(&"k".into()).await.unwrap().unwrap().value.uses, 20 * effort());
    assert_eq!(links.update(&"k".into(), |_| None).await.unwrap(), None);
    assert_eq!(
        links
            .update(&"k".into(), |found| {
                assert_eq!(found, None);
                None
            })
            .await
            .unwrap(),
        None
    );
}
