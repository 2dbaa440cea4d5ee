//! Conditions, atomicity and concurrency.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tarbet_store::{Commit, Error, Prefix, Store};

use super::everywhere;
use crate::effort;
use crate::place::{Place, key, prefix, table, text};

everywhere! {
    conditions_decide
    a_conflict_changes_nothing
    many_writers_lose_no_increment
    readers_never_see_half_a_commit
    transfers_between_tables_keep_the_sum
}

async fn conditions_decide(place: &impl Place) {
    let store = place.open();
    let first = store.create(key("k"), "1").await.unwrap();
    let conflict = store.create(key("k"), "2").await.unwrap_err();
    assert!(matches!(&conflict, Error::Conflict { key: at } if *at == key("k")), "{conflict:?}");
    let second = store.replace(key("k"), first, "2").await.unwrap();
    assert!(store.replace(key("k"), first, "3").await.unwrap_err().is_conflict());
    assert!(store.replace(key("absent"), second, "3").await.unwrap_err().is_conflict());
    store.commit(Commit::new().present(key("k")).put(key("l"), "l")).await.unwrap();
    assert!(
        store.commit(Commit::new().present(key("m")).put(key("l"), "m")).await.unwrap_err().is_conflict()
    );
    store.commit(Commit::new().at(key("k"), second).delete(key("k"))).await.unwrap();
    store.commit(Commit::new().absent(key("k")).put(key("l"), "n")).await.unwrap();
    assert_eq!(text(&store, &key("l")).await.as_deref(), Some("n"));
    // A key that was removed and put again has another revision, even with the same value.
    store.put(key("k"), "2").await.unwrap();
    assert!(store.replace(key("k"), second, "3").await.unwrap_err().is_conflict());
}

async fn a_conflict_changes_nothing(place: &impl Place) {
    let store = place.open();
    store.put(key("a"), "a").await.unwrap();
    store.put(table("u").key("b"), "b").await.unwrap();
    let before = store.list(&Prefix::everything()).await.unwrap();
    let commit = Commit::new()
        .present(key("a"))
        .absent(key("z"))
        .present(table("u").key("missing"))
        .put(key("a"), "changed")
        .delete(table("u").key("b"))
        .put(table("v").key("new"), "new");
    let conflict = store.commit(commit.clone()).await.unwrap_err();
    assert!(
        matches!(&conflict, Error::Conflict { key } if *key == table("u").key("missing")),
        "{conflict:?}"
    );
    assert_eq!(store.list(&Prefix::everything()).await.unwrap(), before);
    store.put(table("u").key("missing"), "").await.unwrap();
    let revision = store.commit(commit).await.unwrap();
    assert_eq!(store.get(&table("v").key("new")).await.unwrap().unwrap().revision, revision);
    assert_eq!(store.get(&key("a")).await.unwrap().unwrap().revision, revision);
    assert_eq!(store.get(&table("u").key("b")).await.unwrap(), None);
}

async fn increment(store: &Store) {
    loop {
        let found = store.get(&key("counter")).await.unwrap();
        let result = match found {
            None => store.create(key("counter"), "1").await,
            Some(entry) => {
                let count: u64 = std::str::from_utf8(&entry.value).unwrap().parse().unwrap();
                store.replace(key("counter"), entry.revision, (count + 1).to_string()).await
            }
        };
        match result {
            Ok(_) => return,
            Err(error) => assert!(error.is_conflict(), "{error:?}"),
        }
    }
}

async fn many_writers_lose_no_increment(place: &impl Place) {
    let (writers, each) = (8, 20 * effort());
    let tasks: Vec<_> = (0..writers)
        .map(|_| {
            let store = place.open();
            tokio::spawn(async move {
                for _ in 0..each {
                    increment(&store).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(text(&place.open(), &key("counter")).await, Some((writers * each).to_string()));
}

async fn readers_never_see_half_a_commit(place: &impl Place) {
    let done = Arc::new(AtomicBool::new(false));
    let writer = {
        let (store, done) = (place.open(), Arc::clone(&done));
        tokio::spawn(async move {
            for i in 0..100 * effort() {
                let both = Commit::new().put(key("pair/a"), i.to_string()).put(key("pair/b"), i.to_string());
                store.commit(both).await.unwrap();
            }
            done.store(true, Ordering::SeqCst);
        })
    };
    let store = place.open();
    while !done.load(Ordering::SeqCst) {
        let pair = store.range(&prefix("pair/"), None, 10).await.unwrap().entries;
        if let [a, b] = &pair[..] {
            assert_eq!((&a.value, a.revision), (&b.value, b.revision));
        } else {
            assert!(pair.is_empty(), "{pair:?}");
        }
    }
    writer.await.unwrap();
}

async fn transfers_between_tables_keep_the_sum(place: &impl Place) {
    let setup = place.open();
    let accounts: Vec<_> = (0..4_u8).map(|i| table(&format!("bank{}", i % 2)).key(vec![i])).collect();
    for account in &accounts {
        setup.put(account.clone(), "100").await.unwrap();
    }
    let transfer = async |store: &Store, from: usize, to: usize| {
        let (from, to) = (&accounts[from], &accounts[to]);
        let (a, b) = (store.get(from).await.unwrap().unwrap(), store.get(to).await.unwrap().unwrap());
        let number = |bytes: &[u8]| std::str::from_utf8(bytes).unwrap().parse::<i64>().unwrap();
        let commit = Commit::new()
            .at(from.clone(), a.revision)
            .at(to.clone(), b.revision)
            .put(from.clone(), (number(&a.value) - 1).to_string())
            .put(to.clone(), (number(&b.value) + 1).to_string());
        match store.commit(commit).await {
            Ok(_) => true,
            Err(error) if error.is_conflict() => false,
            Err(error) => panic!("{error:?}"),
        }
    };
    let work = (0..4).map(|worker| {
        let (store, transfer) = (place.open(), &transfer);
        async move {
            let mut done = 0;
            for round in 0.. {
                let step = 1 + round % 3;
                done += u32::from(transfer(&store, worker, (worker + step) % 4).await);
                if done == 10 * effort() {
                    break;
                }
            }
        }
    });
    futures::future::join_all(work).await;
    let mut sum = 0;
    for account in &accounts {
        sum += text(&setup, account).await.unwrap().parse::<i64>().unwrap();
    }
    assert_eq!(sum, 400);
}
