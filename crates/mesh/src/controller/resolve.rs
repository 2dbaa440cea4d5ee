//! Addresses of remotes that are known by a host name. A name that cannot be resolved for a while
//! keeps the addresses it had.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::Shared;

/// Resolves the wanted names, at once when they change and then again and again.
pub(super) async fn keep(shared: &Shared) {
    let wanted = shared.hostnames.subscribe();
    let changed = || shared.reconcile.add(());
    follow(wanted, shared.config.resolve_every, lookup, &shared.resolved, changed).await;
}

async fn follow(
    mut wanted: watch::Receiver<Vec<String>>,
    every: Duration,
    lookup: impl AsyncFn(&str) -> io::Result<Vec<IpAddr>>,
    resolved: &Mutex<BTreeMap<String, Vec<IpAddr>>>,
    changed: impl Fn(),
) {
    let known = || resolved.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let names = wanted.borrow_and_update().clone();
        let mut moved = false;
        for name in &names {
            match lookup(name).await {
                Ok(found) if !found.is_empty() => {
                    moved |= known().insert(name.clone(), found.clone()) != Some(found);
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(host = name, cause = %error, "The host name of a remote cannot be resolved.");
                }
            }
        }
        known().retain(|name, _| names.contains(name));
        if moved {
            changed();
        }
        let pause = async {
            if names.is_empty() {
                std::future::pending::<()>().await;
            } else {
                tokio::time::sleep(every).await;
            }
        };
        tokio::select! {
            () = pause => {}
            changed = wanted.changed() => if changed.is_err() { return },
        }
    }
}

/// In a fixed order: a server that shuffles its answers changes nothing.
async fn lookup(name: &str) -> io::Result<Vec<IpAddr>> {
    let mut found: Vec<IpAddr> =
        tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn names_are_resolved_again_and_a_failure_forgets_nothing() {
        let answers: Mutex<Option<Vec<IpAddr>>> = Mutex::new(Some(vec![[192, 0, 2, 1].into()]));
        let resolved: Mutex<BTreeMap<String, Vec<IpAddr>>> = Mutex::default();
        let told = AtomicUsize::new(0);
        let names = watch::Sender::new(vec!["router.west.example".to_owned()]);
        let lookup = async |_: &str| answers.lock().unwrap().clone().ok_or_else(|| io::Error::other("away"));
        let changed = || {
            told.fetch_add(1, Ordering::Relaxed);
        };
        let following = follow(names.subscribe(), Duration::from_secs(10), lookup, &resolved, changed);
        let seen = || (resolved.lock().unwrap().values().next().cloned(), told.load(Ordering::Relaxed));
        let later = || tokio::time::sleep(Duration::from_secs(25));
        let story = async {
            later().await;
            assert_eq!(seen(), (Some(vec![[192, 0, 2, 1].into()]), 1), "told once, not at every look");
            *answers.lock().unwrap() = None;
            later().await;
            assert_eq!(seen(), (Some(vec![[192, 0, 2, 1].into()]), 1), "a name server that is away");
            *answers.lock().unwrap() = Some(vec![[192, 0, 2, 7].into(), [192, 0, 2, 8].into()]);
            later().await;
            assert_eq!(seen(), (Some(vec![[192, 0, 2, 7].into(), [192, 0, 2, 8].into()]), 2));
            names.send_replace(Vec::new());
            later().await;
            assert_eq!(seen().0, None, "nobody wants it any more");
        };
        tokio::select! {
            () = following => panic!("it must go on for as long as names may change"),
            () = story => {}
        }
    }
}
