//! Addresses of remotes that are known by a host name. A name that cannot be resolved for a while
//! keeps the addresses it had.

use std::net::IpAddr;

use super::Shared;

/// Resolves the wanted names, at once when they change and then again and again.
pub(super) async fn keep(shared: &Shared) {
    let mut wanted = shared.hostnames.subscribe();
    loop {
        let names = wanted.borrow_and_update().clone();
        let mut changed = false;
        for name in &names {
            match lookup(name).await {
                Ok(found) if !found.is_empty() => {
                    changed |= shared.resolved().insert(name.clone(), found.clone()) != Some(found);
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(host = name, cause = %error, "The host name of a remote cannot be resolved.");
                }
            }
        }
        shared.resolved().retain(|name, _| names.contains(name));
        if changed {
            shared.reconcile.add(());
        }
        let pause = async {
            if names.is_empty() {
                std::future::pending::<()>().await;
            } else {
                tokio::time::sleep(shared.config.resolve_every).await;
            }
        };
        tokio::select! {
            () = pause => {}
            changed = wanted.changed() => if changed.is_err() { return },
        }
    }
}

/// In a fixed order: a server that shuffles its answers changes nothing.
async fn lookup(name: &str) -> std::io::Result<Vec<IpAddr>> {
    let mut found: Vec<IpAddr> =
        tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}
