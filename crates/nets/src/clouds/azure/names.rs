//! What things are called in Azure, and how to read it back.

use sha2::{Digest, Sha256};

use crate::error::Error;

/// What every name begins with.
pub(super) const PREFIX: &str = "paraglider";
/// The tag that every object carries, with the namespace as its value.
pub(super) const NAMESPACE_TAG: &str = "paraglider-namespace";
/// The tag of a packet filter and of a network interface that others made and that were taken in, with the namespace
/// as its value.
pub(super) const ATTACHED_TAG: &str = "paraglider-attached";
/// The subnet of machines.
pub(super) const SUBNET: &str = "default";
/// Azure wants gateways in a subnet of this name.
pub(super) const GATEWAY_SUBNET: &str = "GatewaySubnet";

/// A resource group: where a deployment is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    id: String,
}

impl Group {
    /// Reads `/subscriptions/S/resourceGroups/RG`.
    pub(super) fn parse(field: &str, id: &str) -> Result<Self, Error> {
        let wrong =
            || Error::invalid(field, format!("`{id}` is not of the form /subscriptions/S/resourceGroups/RG"));
        let (group, rest) = Self::split(id).ok_or_else(wrong)?;
        if rest.is_empty() { Ok(group) } else { Err(wrong()) }
    }

    /// The group of a resource's id.
    pub(super) fn of(resource: &str) -> Option<Self> {
        Self::split(resource).map(|(group, _)| group)
    }

    /// The group and the name of a resource that is to be made: `GROUP/providers/PROVIDER/KIND/NAME`, or
    /// `GROUP/NAME`.
    pub(super) fn and_name(id: &str) -> Result<(Self, String), Error> {
        let wrong = || {
            let id = id.escape_debug();
            Error::invalid("id", format!("`{id}` is not of the form GROUP/providers/PROVIDER/KIND/NAME"))
        };
        let (group, rest) = Self::split(id).ok_or_else(wrong)?;
        match rest.split('/').collect::<Vec<_>>().as_slice() {
            [name] | ["providers", _, _, name] if !name.is_empty() => Ok((group, (*name).to_owned())),
            _ => Err(wrong()),
        }
    }

    fn split(id: &str) -> Option<(Self, &str)> {
        let mut parts = id.strip_prefix('/')?.splitn(5, '/');
        let (word, subscription) = (parts.next()?, parts.next()?);
        let (second, group, rest) = (parts.next()?, parts.next()?, parts.next().unwrap_or_default());
        let legal = |part: &str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'(' | b')'))
                && part.bytes().any(|b| b != b'.')
        };
        let ours = word.eq_ignore_ascii_case("subscriptions")
            && second.eq_ignore_ascii_case("resourceGroups")
            && legal(subscription)
            && legal(group)
            && (rest.is_empty() || rest.split('/').all(legal));
        ours.then(|| (Self { id: format!("/subscriptions/{subscription}/resourceGroups/{group}") }, rest))
    }

    /// Its id.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// An object of the network, or the list of all of its kind.
    pub(super) fn network(&self, path: &str) -> String {
        format!("{}/providers/Microsoft.Network/{path}", self.id)
    }

    /// A cluster.
    pub(super) fn cluster(&self, name: &str) -> String {
        format!("{}/{name}", self.clusters())
    }

    /// The list of all clusters.
    pub(super) fn clusters(&self) -> String {
        format!("{}/providers/Microsoft.ContainerService/managedClusters", self.id)
    }

    /// A machine.
    pub(super) fn machine(&self, name: &str) -> String {
        format!("{}/providers/Microsoft.Compute/virtualMachines/{name}", self.id)
    }
}

/// Names of a namespace's objects.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names<'a>(pub(super) &'a str);

impl Names<'_> {
    pub(super) fn vnet(self, location: &str) -> String {
        format!("{PREFIX}-{}-{location}-vnet", self.0)
    }

    pub(super) fn gateway_vnet(self) -> String {
        format!("{PREFIX}-{}-vpn-gw-vnet", self.0)
    }

    pub(super) fn gateway(self) -> String {
        format!("{PREFIX}-{}-vpn-gw", self.0)
    }

    pub(super) fn gateway_ip(self, index: usize) -> String {
        format!("{}-ip-{index}", self.gateway())
    }

    pub(super) fn local_gateway(self, cloud: &str, index: usize) -> String {
        format!("{PREFIX}-{}-{cloud}-local-gw-{index}", self.0)
    }

    pub(super) fn connection(self, cloud: &str, index: usize) -> String {
        format!("{PREFIX}-{}-{cloud}-conn-{index}", self.0)
    }

    /// The index of one of its local gateways to a cloud.
    pub(super) fn local_gateway_index(self, cloud: &str, name: &str) -> Option<usize> {
        name.strip_prefix(&format!("{PREFIX}-{}-{cloud}-local-gw-", self.0))?.parse().ok()
    }

    pub(super) fn nat(self, location: &str) -> String {
        format!("{PREFIX}-{}-{location}-nat-gw", self.0)
    }

    /// That of a network which was taken in: no gateway serves two networks.
    pub(super) fn nat_of(self, vnet: &str) -> String {
        let plain = format!("{PREFIX}-{}-of-{vnet}-nat-gw", self.0);
        if plain.len() + "-ip".len() <= NAME_MAX {
            return plain;
        }
        format!("{PREFIX}-{}-of-{}-nat-gw", self.0, digest(vnet))
    }
}

/// Azure's longest name of what is in a network.
const NAME_MAX: usize = 80;
const NIC: &str = "paraglider-nic-";

/// The network interface of a machine. Its UUID is made of the machine's id, so that whoever asks
/// again after a crash finds it.
pub(super) fn nic(machine: &str) -> String {
    let hash = Sha256::digest(machine.to_ascii_lowercase().as_bytes());
    let mut bytes = [0_u8; 16];
    bytes.copy_from_slice(&hash[..16]);
    format!("{NIC}{}", uuid::Builder::from_custom_bytes(bytes).into_uuid())
}

/// The packet filter of a network interface or a cluster.
pub(super) fn nsg(of: &str) -> String {
    format!("{of}-default-nsg")
}

/// What a packet filter is for.
pub(super) fn of_nsg(nsg: &str) -> &str {
    nsg.strip_suffix("-default-nsg").unwrap_or_default()
}

/// Whether this is the name of a machine's network interface.
pub(super) fn is_nic(name: &str) -> bool {
    name.get(..NIC.len()).is_some_and(|first| first.eq_ignore_ascii_case(NIC))
}

/// The subnet of a cluster.
pub(super) fn subnet(cluster: &str) -> String {
    format!("{cluster}-subnet")
}

/// The tag of a packet filter for a subnet behind it whose cluster was taken in: subnets have no tags of their own.
pub(super) fn attached_subnet(subnet: &str) -> String {
    format!("{ATTACHED_TAG}-{}", digest(&subnet.to_ascii_lowercase()))
}

/// Whether a network is called as those that are made here.
fn is_network(name: &str) -> bool {
    name.starts_with(&format!("{PREFIX}-")) && name.ends_with("-vnet")
}

/// One half of a peering. Between two networks of others it has a name that nobody else gives: they may well have
/// peered them as `A-to-B` themselves.
pub(super) fn peering(local: &str, remote: &str) -> String {
    let ours = is_network(local) || is_network(remote);
    let plain = if ours { format!("{local}-to-{remote}") } else { format!("{PREFIX}-{local}-to-{remote}") };
    if plain.len() <= NAME_MAX {
        return plain;
    }
    format!("{PREFIX}-{}-to-{}", digest(local), digest(remote))
}

/// Stands for a text where there is no room for it.
fn digest(text: &str) -> String {
    hex::encode(&Sha256::digest(text.as_bytes())[..8])
}

/// The last part of an id.
pub(super) fn last(id: &str) -> &str {
    id.rsplit('/').next().unwrap_or_default()
}

/// The id around a child, such as the network of a subnet.
pub(super) fn parent(id: &str) -> &str {
    let cut = id.rmatch_indices('/').nth(1).map_or(0, |(at, _)| at);
    &id[..cut]
}

/// `West US 2` and `westus2` are one place.
pub(super) fn location(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase).collect()
}

/// Names of machines go into paths.
pub(super) fn check(field: &str, name: &str) -> Result<(), Error> {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    let last = name.bytes().last().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_');
    if first && last && name.len() <= 64 && name.bytes().all(legal) {
        return Ok(());
    }
    let message = format!(
        "`{}` is not a name in Azure: 1 to 64 of letters, digits, `-`, `_` and `.`, not ending in `-` or `.`",
        name.escape_debug()
    );
    Err(Error::invalid(field, message))
}

/// Names of clusters go into paths and into names of what belongs to them.
pub(super) fn check_cluster(field: &str, name: &str) -> Result<(), Error> {
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    if is_nic(name) {
        return Err(Error::invalid(field, format!("names of network interfaces begin with `{NIC}`")));
    }
    if edge(name.bytes().next()) && edge(name.bytes().last()) && name.len() <= 63 && name.bytes().all(legal) {
        return Ok(());
    }
    let message = format!(
        "`{}` is not a cluster's name in Azure: 1 to 63 of letters, digits, `-` and `_`, a letter or digit at both ends",
        name.escape_debug()
    );
    Err(Error::invalid(field, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_originals() {
        let names = Names("default");
        assert_eq!(names.vnet("westus2"), "paraglider-default-westus2-vnet");
        assert_eq!(names.gateway_vnet(), "paraglider-default-vpn-gw-vnet");
        assert_eq!(names.gateway_ip(1), "paraglider-default-vpn-gw-ip-1");
        assert_eq!(names.local_gateway("gcp", 0), "paraglider-default-gcp-local-gw-0");
        assert_eq!(names.connection("ibm", 1), "paraglider-default-ibm-conn-1");
        assert_eq!(names.nat("westus2"), "paraglider-default-westus2-nat-gw");
        assert_eq!(names.nat_of("theirs"), "paraglider-default-of-theirs-nat-gw");
        assert!(names.nat_of(&"v".repeat(80)).len() <= 77);
        assert_eq!(names.local_gateway_index("gcp", "paraglider-default-gcp-local-gw-12"), Some(12));
        assert_eq!(names.local_gateway_index("gcp", "paraglider-default-ibm-local-gw-0"), None);
        let nic = nic("/subscriptions/S/x/VM1");
        assert_eq!(nic, super::nic("/subscriptions/s/x/vm1"), "Azure's ids have no case");
        assert!(nic.starts_with("paraglider-nic-") && nic.len() == "paraglider-nic-".len() + 36);
        assert_eq!(nsg("n"), "n-default-nsg");
        assert_eq!((of_nsg("n-default-nsg"), subnet("c").as_str()), ("n", "c-subnet"));
        assert!(is_nic(&nic) && !is_nic("paraglider"));
        let hub = names.gateway_vnet();
        assert_eq!(peering("theirs", &hub), "theirs-to-paraglider-default-vpn-gw-vnet");
        assert_eq!(peering("hub", "spoke"), "paraglider-hub-to-spoke", "both are of others");
        assert!(peering(&"v".repeat(64), &hub).len() <= 80);
        assert_eq!(attached_subnet("/V/S"), attached_subnet("/v/s"), "Azure's ids have no case");
        assert_eq!(location("West US 2"), "westus2");
        assert_eq!(parent("/a/virtualNetworks/v/subnets/s"), "/a/virtualNetworks/v");
    }

    #[test]
    fn groups_are_read_and_nothing_else() {
        let group = Group::parse("deployment", "/subscriptions/s1/resourcegroups/rg").unwrap();
        assert_eq!(group.id(), "/subscriptions/s1/resourceGroups/rg");
        assert_eq!(Group::of(&group.machine("vm")).unwrap(), group);
        for id in [group.machine("vm"), format!("{}/vm", group.id())] {
            assert_eq!(Group::and_name(&id).unwrap(), (group.clone(), "vm".to_owned()));
        }
        for bad in [group.id(), &group.machine(""), &group.machine("vm/extensions/x"), "vm"] {
            assert!(Group::and_name(bad).is_err(), "{bad}");
        }
        for bad in [
            "",
            "/",
            "subscriptions/s/resourceGroups/r",
            "/subscriptions//resourceGroups/r",
            "/subscriptions/../resourceGroups/r",
            "/subscriptions/s/resourceGroups/r?x",
            "/subscriptions/s/resourceGroups/r/providers/x",
        ] {
            assert!(Group::parse("deployment", bad).is_err(), "{bad}");
        }
        for bad in [
            "../../../resourceGroups/other/providers/x/y/vm",
            "providers/x/y/..",
            "providers/x/y/%2e%2e",
            "providers/x/y/v\\m",
            "providers/x/y/vm?z",
            "providers/x//vm",
        ] {
            assert!(Group::of(&format!("{}/{bad}", group.id())).is_none(), "{bad}");
        }
        for bad in ["", "-a", "a-", "a/b", "a b", &"a".repeat(65)] {
            assert!(check("name", bad).is_err() && check_cluster("name", bad).is_err(), "{bad}");
        }
        assert!(check_cluster("name", "c-1_b").is_ok());
        for bad in ["a.b", "a_", "paraglider-nic-1", &"a".repeat(64)] {
            assert!(check_cluster("name", bad).is_err(), "{bad}");
        }
        let cluster = group.cluster("c");
        assert_eq!(Group::and_name(&cluster).unwrap(), (group.clone(), "c".to_owned()));
    }
}
