//! Tunnels of the first generation, which asks for a gateway before it says for whom: they wait without
//! addresses inside until it does.

use std::net::Ipv4Addr;

use super::Local;
use super::cloud::around;
use crate::error::Error;
use crate::plan::bgp::{TUNNELS_AGREED, agreed};

/// Where such tunnels are kept until they have addresses.
pub(super) fn keys() -> impl Iterator<Item = String> {
    (0..TUNNELS_AGREED).map(|number| format!("pending-{number}"))
}

impl Local {
    /// Gives the waiting tunnels to a cloud, with the addresses that both ends reckon. What was connected to
    /// that cloud before ends with it: the other end was told where the new ones are.
    pub(super) async fn take_up(&self, namespace: &str, cloud: &str) -> Result<Vec<Ipv4Addr>, Error> {
        let insides = agreed(&self.name, cloud);
        let _turn = self.shape.lock().await;
        for (key, inside) in keys().zip(&insides) {
            let unknown = || Error::Place(format!("the namespace {namespace} has no VPN gateway"));
            let mut hub = self.lock().hubs.get(namespace).cloned().ok_or_else(unknown)?;
            let Some(mut tunnel) = hub.tunnels.remove(&key) else {
                // Asked again.
                if hub.tunnels.contains_key(&around(*inside)) {
                    continue;
                }
                return Err(unknown());
            };
            (tunnel.cloud, tunnel.inside) = (cloud.to_owned(), Some(*inside));
            let before = hub.tunnels.insert(around(*inside), tunnel);
            self.lock().hubs.insert(namespace.to_owned(), hub.clone());
            self.records.put_hub(namespace, Some(&hub)).await?;
            if let Some(before) = before {
                self.remove_netns(&self.names.tunnel(namespace, before.index)).await?;
            }
        }
        Ok(insides)
    }
}
