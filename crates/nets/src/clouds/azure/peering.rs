//! Peerings of networks with each other and with the gateway's, and whose they are.

use serde_json::{Value, json};

use super::arm::{Sight, holds};
use super::names::{self, Group, Names};
use super::network::{id, namespace_of, prefixes, spaces};
use super::{Azure, rules};
use crate::error::Error;
use crate::plan::target::Owner;

/// How two networks are peered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passage {
    /// Their machines reach each other.
    Plain,
    /// The first has the VPN gateway, and the second uses it.
    Gateway,
}

/// The halves of a network's peerings that are at its end.
pub(super) fn halves(vnet: &Value) -> impl Iterator<Item = &Value> {
    vnet["properties"]["virtualNetworkPeerings"].as_array().into_iter().flatten()
}

/// The network at the other end of half of a peering.
pub(super) fn remote(half: &Value) -> Option<&str> {
    half["properties"]["remoteVirtualNetwork"]["id"].as_str()
}

/// Whether half of a peering is called as ours between these networks are.
fn is_called_as_ours(vnet: &str, half: &Value) -> bool {
    let ours = remote(half).map(|other| names::peering(names::last(vnet), names::last(other)));
    ours.is_some_and(|ours| half["name"].as_str().is_some_and(|name| name.eq_ignore_ascii_case(&ours)))
}

/// Whether half of a peering is called as ours are, and its other end is one that ours have: a network of a
/// namespace, or one that is gone. What we may not see is of others, and so is a name that anybody could give.
fn is_made_here(vnet: &str, half: &Value, far: &Sight) -> bool {
    is_called_as_ours(vnet, half)
        && match far {
            Sight::There(other) => namespace_of(other).is_some(),
            Sight::Gone => true,
            Sight::Hidden => false,
        }
}

/// A network's half of a peering with another that others made: Azure has only one between two networks.
fn of_others<'a>(vnet: &'a Value, other: &str) -> Option<&'a Value> {
    halves(vnet).find(|half| {
        remote(half).is_some_and(|far| far.eq_ignore_ascii_case(other)) && !is_called_as_ours(id(vnet), half)
    })
}

/// Whether half of a peering of others lets pass what ours would.
fn serves(half: &Value, wanted: &Value) -> bool {
    let (told, wanted) = (&half["properties"], wanted["properties"].as_object());
    told["peeringState"] == "Connected"
        && wanted.into_iter().flatten().all(|(field, value)| *value != true || told[field] == true)
}

/// Half of a peering as it is, without what only Azure writes.
fn peering_body(half: &Value) -> Value {
    let told = &half["properties"];
    let mut properties = json!({ "remoteVirtualNetwork": { "id": told["remoteVirtualNetwork"]["id"] } });
    for field in
        ["allowVirtualNetworkAccess", "allowForwardedTraffic", "allowGatewayTransit", "useRemoteGateways"]
    {
        if !told[field].is_null() {
            properties[field] = told[field].clone();
        }
    }
    json!({ "properties": properties })
}

/// Whether both halves of a peering know all spaces of the other network.
pub(super) fn is_in_step(half: &Value) -> bool {
    half["properties"]["peeringSyncLevel"].as_str().is_none_or(|level| level == "FullyInSync")
}

impl Azure {
    /// Whether we made a peering, of which this is the half at a network's end. Others' are never changed.
    pub(super) async fn made_peering(&self, vnet: &str, half: &Value) -> Result<bool, Error> {
        let Some(other) = remote(half) else { return Ok(false) };
        // By the name alone first: most that are not ours need no question.
        if !is_called_as_ours(vnet, half) {
            return Ok(false);
        }
        Ok(is_made_here(vnet, half, &self.arm.look(other).await?))
    }

    /// Has both ends of a network's peerings learn spaces that came or went; until then no packet finds its way
    /// to the new ones.
    pub(super) async fn tell_peers(&self, vnet: &Value) -> Result<(), Error> {
        for half in halves(vnet).filter(|half| !is_in_step(half)) {
            let Some(other) = remote(half) else { continue };
            if !self.made_peering(id(vnet), half).await? {
                continue;
            }
            self.arm.sync(id(half), &peering_body(half)).await?;
            let name = names::peering(names::last(other), names::last(id(vnet)));
            let far = format!("{other}/virtualNetworkPeerings/{name}");
            if let Some(found) = self.arm.settled(&far).await? {
                self.arm.sync(&far, &peering_body(&found)).await?;
            }
        }
        Ok(())
    }

    /// Peers two networks, both ways. A peering of others between them is used as it is.
    pub(super) async fn peer(&self, first: &str, second: &str, passage: Passage) -> Result<(), Error> {
        let gateway = passage == Passage::Gateway;
        let mut halves = Vec::new();
        for (own, other, serves) in [(first, second, true), (second, first, false)] {
            let name = names::peering(names::last(own), names::last(other));
            let id = format!("{own}/virtualNetworkPeerings/{name}");
            let body = json!({
                "properties": {
                    "remoteVirtualNetwork": { "id": other },
                    "allowVirtualNetworkAccess": true,
                    "allowForwardedTraffic": gateway,
                    "allowGatewayTransit": gateway && serves,
                    "useRemoteGateways": gateway && !serves,
                },
            });
            let mut found = self.arm.settled(&id).await?;
            // A half whose other half was removed never comes back by itself, and stands in the way of a new one.
            if found.as_ref().is_some_and(|half| half["properties"]["peeringState"] == "Disconnected") {
                self.arm.delete(&id).await?;
                found = None;
            }
            if found.is_none()
                && let Some(vnet) = self.arm.get(own).await?
                && let Some(theirs) = of_others(&vnet, other)
            {
                return self.use_theirs(own, theirs, &body);
            }
            halves.push((id, body, found));
        }
        for (id, body, found) in halves {
            if !found.is_some_and(|half| holds(&half, &body)) {
                self.arm.put(&id, &body).await?;
            }
        }
        Ok(())
    }

    /// Half of a peering of others stays as it is, so it has to do.
    fn use_theirs(&self, own: &str, half: &Value, wanted: &Value) -> Result<(), Error> {
        if serves(half, wanted) {
            return Ok(());
        }
        let said =
            "others peered these networks: let it connect both and allow access between them, or remove it";
        Err(self.arm.failed(&format!("the peering {} of {}", names::last(id(half)), names::last(own)), said))
    }

    /// Takes a peering away, both ways.
    pub(super) async fn unpeer(&self, first: &str, second: &str) -> Result<(), Error> {
        // The far half first: the near one, which callers look at, leads to it after a crash.
        for (own, other) in [(second, first), (first, second)] {
            let name = names::peering(names::last(own), names::last(other));
            self.arm.delete(&format!("{own}/virtualNetworkPeerings/{name}")).await?;
        }
        Ok(())
    }

    /// Peers a network with one that somebody's targets are in.
    pub(super) async fn peer_with(&self, group: &Group, vnet: &Value, other: &Owner) -> Result<(), Error> {
        let there = match &other.deployment {
            Some(deployment) => Group::parse("deployment", deployment)?,
            None => group.clone(),
        };
        let vnets = self.vnets(&there, &other.namespace).await?;
        let Some(peer) = vnets.iter().find(|vnet| spaces(vnet).contains(&other.space)) else {
            // Of all that is reported only these are in no network that rules lead to.
            let message = format!(
                "{} is of the Services of a cluster, which only the cluster knows, or of a gateway's network",
                other.space
            );
            return Err(Error::invalid("targets", message));
        };
        // Two spaces of one network reach each other already.
        if id(peer).eq_ignore_ascii_case(id(vnet)) {
            return Ok(());
        }
        let _turn = self.turns.turn("peerings").await;
        self.peer(id(vnet), id(peer), Passage::Plain).await
    }

    /// Takes away peerings of a network that no rule needs any more.
    pub(super) async fn prune(&self, vnet_id: &str) -> Result<(), Error> {
        let _turn = self.turns.turn("peerings").await;
        let Some(vnet) = self.arm.get(vnet_id).await? else { return Ok(()) };
        let own = spaces(&vnet);
        let hub = namespace_of(&vnet).map(|namespace| Names(namespace).gateway_vnet());
        for half in halves(&vnet) {
            let Some(other) = remote(half) else { continue };
            if hub.as_deref() == Some(names::last(other)) || !self.made_peering(vnet_id, half).await? {
                continue;
            }
            let far = prefixes(&half["properties"]["remoteAddressSpace"]);
            let mut groups: Vec<Group> = [vnet_id, other].iter().filter_map(|id| Group::of(id)).collect();
            groups.dedup();
            let mut filters = Vec::new();
            for group in groups {
                for nsg in self.arm.list(&group.network("networkSecurityGroups")).await? {
                    filters
                        .extend(nsg["properties"]["securityRules"].as_array().cloned().unwrap_or_default());
                }
            }
            if !rules::joins(&filters, &own, &far) {
                self.unpeer(vnet_id, other).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peering_is_ours_by_its_name_and_its_other_end() {
        let half =
            |name: &str| json!({ "name": name, "properties": { "remoteVirtualNetwork": { "id": "/x/b" } } });
        let ours = |name: &str, far: Sight| is_made_here("/x/a", &half(name), &far);
        let tagged = || Sight::There(json!({ "tags": { names::NAMESPACE_TAG: "other" } }));
        let name = "paraglider-a-to-b";
        assert!(ours(name, tagged()) && ours(name, Sight::Gone));
        assert!(!ours(name, Sight::There(json!({ "tags": { "team": "them" } }))), "it is between others");
        assert!(!ours(name, Sight::Hidden));
        assert!(!ours("paraglider-b-to-a", tagged()) && !ours("link", Sight::Gone));
        assert!(!ours("a-to-b", tagged()), "anybody calls one so, and both networks are of others");
        let half = json!({ "name": "a-to-paraglider-x-vpn-gw-vnet", "properties": {
            "remoteVirtualNetwork": { "id": "/x/paraglider-x-vpn-gw-vnet" },
        } });
        assert!(is_made_here("/x/a", &half, &tagged()), "one end was made here");
        assert!(is_in_step(&json!({})));
    }

    #[test]
    fn a_peering_of_others_does_if_it_lets_pass_what_ours_would() {
        let half = |state: &str, access: bool| {
            json!({ "id": "/x/a/virtualNetworkPeerings/mine", "name": "mine", "properties": {
                "remoteVirtualNetwork": { "id": "/X/B" }, "peeringState": state,
                "allowVirtualNetworkAccess": access, "useRemoteGateways": true,
            } })
        };
        let wanted = json!({ "properties": {
            "remoteVirtualNetwork": { "id": "/x/b" }, "allowVirtualNetworkAccess": true, "useRemoteGateways": false,
        } });
        assert!(serves(&half("Connected", true), &wanted), "a gateway that they use beside is theirs to use");
        assert!(!serves(&half("Connected", false), &wanted) && !serves(&half("Initiated", true), &wanted));
        let vnet =
            json!({ "id": "/x/a", "properties": { "virtualNetworkPeerings": [half("Connected", true)] } });
        assert!(of_others(&vnet, "/x/b").is_some() && of_others(&vnet, "/x/c").is_none());
    }
}
