//! Making and removing the parts of a local cloud, each from what is written down.

use std::net::Ipv4Addr;

use super::state::{MachineName, NetworkName};
use super::{Local, kernel, plan, vpn, wan};
use crate::error::Error;

impl Local {
    /// Looks into these namespaces of ours.
    async fn look(&self, into: Vec<String>) -> Result<plan::Seen, Error> {
        kernel::look(self.names.everything(), into).await
    }

    /// Everything but tunnels that is missing.
    pub(super) async fn missing(&self, renew: bool) -> Result<Vec<plan::Step>, Error> {
        let state = self.lock().clone();
        let mut into: Vec<String> = state.networks.keys().map(|name| self.names.network(name)).collect();
        into.extend(state.hubs.keys().map(|namespace| self.names.hub(namespace)));
        let seen = self.look(into).await?;
        let mut steps = Vec::new();
        for name in state.networks.keys() {
            steps.extend(plan::network(&self.names, name, &state, renew, &seen));
        }
        for (name, machine) in &state.machines {
            let Some(network) = state.networks.get(&name.network) else { continue };
            let whole = seen.netns.contains(&self.names.machine(name))
                && seen.has_link(&self.names.network(&name.network), &format!("v{}", machine.port));
            if !whole {
                steps.extend(plan::machine(&self.names, name, machine, network, &seen));
            }
        }
        for (name, network) in &state.networks {
            // Each peering is written down at both ends; one of them makes it.
            for peer in network.peers.iter().filter(|peer| name < *peer) {
                if let Some(other) = state.networks.get(peer) {
                    steps.extend(plan::peering(&self.names, (name, network), (peer, other), &seen));
                }
            }
        }
        Ok(steps)
    }

    /// Brings the kernel in line with what is written down.
    pub(super) async fn restore(&self) -> Result<(), Error> {
        let _turn = self.shape.lock().await;
        kernel::carry_out(self.missing(true).await?).await?;
        let namespaces: Vec<String> = self.lock().hubs.keys().cloned().collect();
        for namespace in namespaces {
            self.make_hub(&namespace).await?;
            self.make_tunnels(&namespace).await?;
        }
        Ok(())
    }

    pub(super) async fn make_network(&self, name: &NetworkName) -> Result<(), Error> {
        let seen = self.look(vec![self.names.network(name)]).await?;
        let state = self.lock().clone_for(name);
        kernel::carry_out(plan::network(&self.names, name, &state, false, &seen)).await?;
        if self.lock().hubs.contains_key(&name.namespace) {
            self.make_hub(&name.namespace).await?;
            self.route(&name.namespace).await?;
        }
        Ok(())
    }

    pub(super) async fn make_machine(&self, name: &MachineName) -> Result<(), Error> {
        let seen = self.look(vec![self.names.network(&name.network)]).await?;
        let (machine, network) = {
            let state = self.lock();
            let (Some(machine), Some(network)) =
                (state.machines.get(name), state.networks.get(&name.network))
            else {
                return Ok(());
            };
            (machine.clone(), network.clone())
        };
        kernel::carry_out(plan::machine(&self.names, name, &machine, &network, &seen)).await
    }

    /// Writes the filter of a network anew from what is written down.
    pub(super) async fn make_filter(&self, name: &NetworkName) -> Result<(), Error> {
        let queued = {
            let state = self.lock();
            let rules = super::nft::network(state.machines_of(name).map(|(_, machine)| machine));
            self.filters.push(self.names.network(name), rules)
        };
        queued.loaded().await
    }

    pub(super) async fn make_peering(&self, a: &NetworkName, b: &NetworkName) -> Result<(), Error> {
        let (low, high) = if a < b { (a, b) } else { (b, a) };
        let seen = self.look(vec![self.names.network(low)]).await?;
        let networks = {
            let state = self.lock();
            state.networks.get(low).cloned().zip(state.networks.get(high).cloned())
        };
        let Some((network_low, network_high)) = networks else { return Ok(()) };
        kernel::carry_out(plan::peering(&self.names, (low, &network_low), (high, &network_high), &seen)).await
    }

    pub(super) async fn unmake_peering(&self, a: &NetworkName, b: &NetworkName) -> Result<(), Error> {
        let (low, high) = if a < b { (a, b) } else { (b, a) };
        let seen = self.look(vec![self.names.network(low)]).await?;
        kernel::carry_out(plan::no_peering(&self.names, low, high, &seen)).await
    }

    /// The hub of a namespace, with a way to the outside if it has one.
    pub(super) async fn make_hub(&self, namespace: &str) -> Result<(), Error> {
        let here = self.names.hub(namespace);
        let Some(public) = self.lock().hubs.get(namespace).map(|hub| hub.public) else { return Ok(()) };
        let seen = self.look(vec![here.clone()]).await?;
        let outside: Option<Ipv4Addr> = if public {
            kernel::carry_out(plan::netns(&here, true, &seen)).await?;
            Some(wan::attach(self.config.wan.clone(), here.clone()).await?)
        } else {
            None
        };
        let seen = self.look(vec![here]).await?;
        let state = self.lock().clone();
        kernel::carry_out(plan::hub(&self.names, namespace, outside, &state, &seen)).await
    }

    /// A namespace for a tunnel that is plugged into the wide area, and its address there.
    pub(super) async fn make_tunnel_end(&self, namespace: &str, index: u32) -> Result<Ipv4Addr, Error> {
        let here = self.names.tunnel(namespace, index);
        let seen = self.look(vec![]).await?;
        kernel::carry_out(plan::netns(&here, true, &seen)).await?;
        wan::attach(self.config.wan.clone(), here).await
    }

    /// Every tunnel of a namespace whose other end is known, and the routes over them.
    pub(super) async fn make_tunnels(&self, namespace: &str) -> Result<(), Error> {
        let Some(hub) = self.lock().hubs.get(namespace).cloned() else { return Ok(()) };
        for tunnel in hub.tunnels.values() {
            let outside = self.make_tunnel_end(namespace, tunnel.index).await?;
            if outside != tunnel.outside {
                tracing::warn!(was = %tunnel.outside, now = %outside, "A tunnel has another public address than before; connect its clouds again.");
            }
            let (Some(inside), Some(peer)) = (tunnel.inside, &tunnel.peer) else { continue };
            let ends = vec![self.names.hub(namespace), self.names.tunnel(namespace, tunnel.index)];
            let seen = self.look(ends).await?;
            let steps = plan::tunnel(&self.names, namespace, tunnel.index, inside, peer.inside, &seen);
            kernel::carry_out(steps).await?;
            vpn::tunnel(&self.config.folder, &self.names, namespace, tunnel, peer).await?;
        }
        self.route(namespace).await
    }

    pub(super) async fn route(&self, namespace: &str) -> Result<(), Error> {
        let state = self.lock().clone();
        match state.hubs.get(namespace) {
            Some(hub) => vpn::routing(&self.config.folder, &self.names, namespace, hub, &state).await,
            None => Ok(()),
        }
    }

    pub(super) async fn remove_netns(&self, netns: &str) -> Result<(), Error> {
        wan::detach(self.config.wan.clone(), netns.to_owned()).await?;
        kernel::remove(netns.to_owned()).await?;
        let folder = vpn::folder(&self.config.folder, netns);
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::Tool { command: format!("rm -r {}", folder.display()), said: error.to_string() })
            }
            _ => Ok(()),
        }
    }
}
