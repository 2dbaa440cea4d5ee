//! Parting with a machine or cluster that others made: it stays, and what was put into its packet filter goes; its
//! network is let go with the last of them.

use serde_json::{Value, json};

use super::machine::{address, filter_of, network};
use super::names::{self, ATTACHED_TAG, Group, NAMESPACE_TAG};
use super::network::{id, is_ours, namespace_of, subnets};
use super::peering::{halves, remote};
use super::public::Network;
use super::rules::Tags;
use super::{Azure, rules};
use crate::clouds::ways::HasWays as _;
use crate::error::Error;
use crate::plan::target;

/// The namespace that a packet filter or a network interface of others was taken into.
pub(super) fn attached_to(object: &Value) -> Option<&str> {
    object["tags"][ATTACHED_TAG].as_str()
}

/// The tags of an object, and these for a namespace.
pub(super) fn tags_with(object: &Value, more: &[&str], namespace: &str) -> Value {
    let mut tags = object["tags"].as_object().cloned().unwrap_or_default();
    tags.extend(more.iter().map(|tag| ((*tag).to_owned(), json!(namespace))));
    json!({ "tags": tags })
}

/// The tags of an object without these.
fn tags_without(object: &Value, gone: &[&str]) -> Value {
    let mut tags = object["tags"].as_object().cloned().unwrap_or_default();
    tags.retain(|tag, _| !gone.contains(&tag.as_str()));
    json!({ "tags": tags })
}

fn is_interface(id: &str) -> bool {
    id.to_ascii_lowercase().contains("/networkinterfaces/")
}

/// What was taken in.
pub(super) struct Guest<'a> {
    /// Its address, or a cluster's range.
    pub(super) address: &'a str,
    pub(super) nsg: &'a str,
    pub(super) vnet: &'a str,
    /// The network interface or subnet that is behind its packet filter.
    pub(super) behind: &'a str,
}

impl Azure {
    /// Parts with a machine whose network interface is this.
    pub(super) async fn part_with_machine(
        &self,
        group: &Group,
        namespace: &str,
        uri: &str,
        nic: &Value,
    ) -> Result<(), Error> {
        let unknown = || Error::Resource { namespace: namespace.into(), resource: uri.into() };
        let guest = Guest {
            address: address(nic).unwrap_or_default(),
            nsg: filter_of(nic).ok_or_else(unknown)?,
            vnet: network(nic).ok_or_else(unknown)?,
            behind: id(nic),
        };
        self.part_with(group, namespace, uri, &guest).await
    }

    /// Takes back all that was done to a resource of others. Its packet filter's tag goes last: while it is there,
    /// so may be the rest.
    pub(super) async fn part_with(
        &self,
        group: &Group,
        namespace: &str,
        uri: &str,
        guest: &Guest<'_>,
    ) -> Result<(), Error> {
        let unknown = || Error::Resource { namespace: namespace.into(), resource: uri.into() };
        let filter = self.arm.settled(guest.nsg).await?.ok_or_else(unknown)?;
        let vnet = self.arm.settled(guest.vnet).await?.ok_or_else(unknown)?;
        match (namespace_of(&vnet), attached_to(&filter)) {
            (Some(of), _) | (None, Some(of)) if of == namespace => {}
            (None, None) => return Err(unknown()),
            _ => return Err(Error::Foreign { namespace: namespace.into(), resource: uri.into() }),
        }
        let shared = is_shared(&filter, guest.behind);
        self.remove_permissions(namespace, &filter, shared.then_some(guest.address)).await?;
        self.take_ways(Some(Network::new(group, namespace, guest.vnet))).await?;
        self.let_go(group, namespace, guest).await?;
        self.tidy(group, namespace).await?;
        let _turn = self.shape(group, namespace).await;
        match self.filter_if_last(group, guest).await? {
            Some(filter) if attached_to(&filter).is_some() => {
                self.arm.patch(guest.nsg, &tags_without(&filter, &[ATTACHED_TAG])).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Marks what is taken in and its packet filter.
    pub(super) async fn mark(&self, filter: &Value, behind: &Value, namespace: &str) -> Result<(), Error> {
        let subnet = names::attached_subnet(id(behind));
        let of_filter = if is_interface(id(behind)) { &[ATTACHED_TAG][..] } else { &[ATTACHED_TAG, &subnet] };
        if of_filter.iter().any(|tag| filter["tags"][*tag].is_null()) {
            self.arm.patch(id(filter), &tags_with(filter, of_filter, namespace)).await?;
        }
        if is_interface(id(behind)) && attached_to(behind).is_none() {
            self.arm.patch(id(behind), &tags_with(behind, &[ATTACHED_TAG], namespace)).await?;
        }
        Ok(())
    }

    async fn unmark(&self, guest: &Guest<'_>) -> Result<(), Error> {
        let subnet = names::attached_subnet(guest.behind);
        let (marked, tag) =
            if is_interface(guest.behind) { (guest.behind, ATTACHED_TAG) } else { (guest.nsg, &*subnet) };
        match self.arm.settled(marked).await? {
            Some(object) if !object["tags"][tag].is_null() => {
                self.arm.patch(marked, &tags_without(&object, &[tag])).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    /// A guest's packet filter, if nobody else who was taken in is behind it.
    async fn filter_if_last(&self, group: &Group, guest: &Guest<'_>) -> Result<Option<Value>, Error> {
        let Some(filter) = self.arm.settled(guest.nsg).await? else { return Ok(None) };
        let nics = self.arm.list(&group.network("networkInterfaces")).await?;
        Ok(is_last(&filter, &nics, guest).then_some(filter))
    }

    /// Removes permissions from a packet filter: all of ours, or those of one address.
    async fn remove_permissions(
        &self,
        namespace: &str,
        filter: &Value,
        address: Option<&str>,
    ) -> Result<(), Error> {
        let nsg = id(filter);
        let _turn = self.turns.turn(nsg).await;
        let address = address.map(target::parse);
        for found in filter["properties"]["securityRules"].as_array().into_iter().flatten() {
            let Some((rule, tags)) = rules::read(found) else { continue };
            if address.is_some_and(|address| rules::near(found) != address) {
                continue;
            }
            self.remove_permission(namespace, nsg, &rule.name, tags == Tags::Kept).await?;
        }
        Ok(())
    }

    /// Whether anything else in a network was taken in.
    async fn has_guests(
        &self,
        group: &Group,
        namespace: &str,
        vnet: &Value,
        but: &Guest<'_>,
    ) -> Result<bool, Error> {
        let filters = self.arm.list(&group.network("networkSecurityGroups")).await?;
        let is = |one: &str, other: &str| one.eq_ignore_ascii_case(other);
        let behind = |object: &Value| {
            let own = filter_of(object)?;
            filters.iter().find(|nsg| is(id(nsg), own) && !is(id(nsg), but.nsg))
        };
        // The original marks neither filters nor who is behind them.
        let is_old = |object: &Value| behind(object).is_some_and(is_marked_by_rules_alone);
        let is_marked = |subnet: &Value| {
            let own = filter_of(subnet).and_then(|own| filters.iter().find(|nsg| is(id(nsg), own)));
            own.is_some_and(|nsg| !nsg["tags"][names::attached_subnet(id(subnet))].is_null())
        };
        if subnets(vnet).iter().any(|one| !is(id(one), but.behind) && (is_marked(one) || is_old(one))) {
            return Ok(true);
        }
        let nics = self.arm.list(&group.network("networkInterfaces")).await?;
        let mut others = nics
            .iter()
            .filter(|nic| !is(id(nic), but.behind) && network(nic).is_some_and(|of| is(of, id(vnet))));
        Ok(others.any(|nic| attached_to(nic) == Some(namespace) || is_old(nic)))
    }

    /// Lets a network and a packet filter of others go if this was the last guest there: the network's peerings, its
    /// way to public addresses and the tag that leads here, and the filter's denials.
    async fn let_go(&self, group: &Group, namespace: &str, guest: &Guest<'_>) -> Result<(), Error> {
        // Who takes in another guest has the same turn, so it is asked for in here. Of two that part at once the
        // second finds that it is the last: the mark goes first.
        let _turn = self.shape(group, namespace).await;
        self.unmark(guest).await?;
        if let Some(vnet) = self.arm.settled(guest.vnet).await?
            && !is_ours(&vnet, namespace)
            && !self.has_guests(group, namespace, &vnet, guest).await?
        {
            for half in halves(&vnet) {
                if let Some(other) = remote(half)
                    && self.made_peering(id(&vnet), half).await?
                {
                    self.unpeer(id(&vnet), other).await?;
                }
            }
            self.close_public(group, namespace, &vnet).await?;
            if namespace_of(&vnet).is_some() {
                self.arm.patch(id(&vnet), &tags_without(&vnet, &[NAMESPACE_TAG])).await?;
            }
        }
        if let Some(filter) = self.filter_if_last(group, guest).await? {
            for rule in built_in(&filter) {
                self.arm.delete(&format!("{}/securityRules/{rule}", guest.nsg)).await?;
            }
        }
        Ok(())
    }
}

fn rules_of(nsg: &Value) -> impl Iterator<Item = &Value> {
    nsg["properties"]["securityRules"].as_array().into_iter().flatten()
}

/// The names of rules in a packet filter that were put there with a resource.
fn built_in(nsg: &Value) -> impl Iterator<Item = &str> {
    rules_of(nsg).filter(|rule| rules::is_built_in_rule(rule)).filter_map(|rule| rule["name"].as_str())
}

/// Whether others are behind a packet filter, too.
pub(super) fn is_shared(nsg: &Value, behind: &str) -> bool {
    ["networkInterfaces", "subnets"].iter().any(|kind| {
        let all = nsg["properties"][*kind].as_array();
        all.into_iter().flatten().any(|other| !id(other).eq_ignore_ascii_case(behind))
    })
}

/// Whether only its rules tell that a packet filter is one of a resource that was taken in.
fn is_marked_by_rules_alone(nsg: &Value) -> bool {
    let ruled = built_in(nsg).next().is_some() || rules_of(nsg).any(|rule| rules::read(rule).is_some());
    attached_to(nsg).is_none() && ruled
}

/// Whether nobody else who was taken in, or who has permissions, is behind a guest's packet filter. Others who are
/// behind it, and were not taken in, do not count.
fn is_last(filter: &Value, nics: &[Value], guest: &Guest<'_>) -> bool {
    if !is_shared(filter, guest.behind) {
        return true;
    }
    // The original marks nobody, so anybody may have been taken in.
    if attached_to(filter).is_none() {
        return false;
    }
    let is = |one: &str, other: &str| one.eq_ignore_ascii_case(other);
    let other_interface = nics.iter().any(|nic| {
        let here = filter_of(nic).is_some_and(|nsg| is(nsg, id(filter)));
        here && !is(id(nic), guest.behind) && attached_to(nic).is_some()
    });
    let other_subnet = filter["properties"]["subnets"].as_array().into_iter().flatten().any(|subnet| {
        !is(id(subnet), guest.behind) && !filter["tags"][names::attached_subnet(id(subnet))].is_null()
    });
    let address = target::parse(guest.address);
    let other_permission =
        rules_of(filter).any(|rule| rules::read(rule).is_some() && rules::near(rule) != address);
    !other_interface && !other_subnet && !other_permission
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_of_several_is_known() {
        let nsg = json!({ "properties": { "networkInterfaces": [{ "id": "/A" }] } });
        assert!(!is_shared(&nsg, "/a") && is_shared(&nsg, "/b") && !is_shared(&json!({}), "/a"));
        let nsg =
            json!({ "properties": { "subnets": [{ "id": "/s" }] }, "tags": { ATTACHED_TAG: "a", "x": "y" } });
        assert!(is_shared(&nsg, "/a"));
        assert_eq!(attached_to(&nsg), Some("a"));
        assert_eq!(tags_without(&nsg, &[ATTACHED_TAG]), json!({ "tags": { "x": "y" } }));
        assert_eq!(tags_with(&json!({}), &["x"], "y"), json!({ "tags": { "x": "y" } }));
    }

    #[test]
    fn the_last_guest_behind_a_filter_is_known_among_strangers() {
        let guest = Guest { address: "10.0.0.4", nsg: "/n", vnet: "/v", behind: "/networkInterfaces/A" };
        let nic = |name: &str, tags: Value| {
            json!({ "id": format!("/networkInterfaces/{name}"), "tags": tags, "properties": {
                "networkSecurityGroup": { "id": "/N" },
            } })
        };
        let marked = || json!({ ATTACHED_TAG: "ns" });
        let filter = |tags: Value, rules: Value| {
            json!({ "id": "/n", "tags": tags, "properties": {
                "networkInterfaces": [{ "id": "/networkInterfaces/a" }, { "id": "/networkInterfaces/b" }],
                "subnets": [{ "id": "/v/subnets/s" }], "securityRules": rules,
            } })
        };
        let shared = filter(marked(), json!([]));
        let (a, b) = (nic("a", marked()), nic("b", json!({})));
        assert!(is_last(&shared, &[a.clone(), b.clone()], &guest), "the other is a stranger");
        assert!(!is_last(&shared, &[a.clone(), nic("b", marked())], &guest));
        assert!(
            !is_last(&filter(json!({}), json!([])), &[a.clone(), b.clone()], &guest),
            "nobody was marked"
        );
        let mut tags = marked();
        tags[names::attached_subnet("/V/subnets/s")] = json!("ns");
        assert!(!is_last(&filter(tags, json!([])), &[a.clone(), b.clone()], &guest));
        let rule = |near: &str| {
            json!([{ "name": "paraglider-web", "properties": {
                "access": "Allow", "direction": "Inbound", "protocol": "Tcp", "destinationAddressPrefix": near,
                "sourceAddressPrefix": "10.0.0.9", "sourcePortRange": "*", "destinationPortRange": "443",
            } }])
        };
        assert!(!is_last(&filter(marked(), rule("10.0.0.5")), &[a.clone(), b.clone()], &guest));
        assert!(is_last(&filter(marked(), rule("10.0.0.4")), &[a, b], &guest));
    }
}
