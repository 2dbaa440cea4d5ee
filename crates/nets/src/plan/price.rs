//! What a connection between clouds, or inside one, is paid for. A hint: what an hour costs changes, and depends on the contract.

use super::connect::{End, Link, Side};

/// What the end of a connection is paid for, by the hour; nothing where it is free. A namespace has one gateway in a
/// cloud for all its connections: where another connection keeps it, it is not paid for because of this one.
fn of_end(link: &Link, side: Side, others: &[Link]) -> Option<String> {
    let cloud = &link.ends(side).0.cloud;
    let count = |what: &str| match link.pair.tunnels {
        1 => format!("a {what}"),
        many => format!("{many} {what}s"),
    };
    let what = match (cloud.as_str(), keeps_gateway(link, side, others)) {
        ("azure", false) => "a VPN gateway and its public addresses".to_owned(),
        ("aws", _) | ("ibm", true) => count("VPN connection"),
        ("gcp", _) => count("VPN tunnel"),
        ("ibm", false) => format!("a VPN gateway and {}", count("connection")),
        // With Azure's gateway all is paid for.
        _ => return None,
    };
    Some(format!("{cloud}: {what}"))
}

/// Whether one of the others ends at the same gateway.
fn keeps_gateway(link: &Link, side: Side, others: &[Link]) -> bool {
    let end = link.ends(side).0;
    let is_same = |other: &End| {
        (&other.cloud, &other.namespace) == (&end.cloud, &end.namespace) && other.gateway.is_some()
    };
    let others = others.iter().filter(|other| other.name() != link.name());
    others.flat_map(|other| [&other.a, &other.b]).any(is_same)
}

/// What is paid for once a connection is made that is not paid for now, beside the others that there are.
pub fn begins(link: &Link, others: &[Link]) -> Vec<String> {
    let made = made(link);
    told(link, others, |side| !made(side), "by the hour from then on")
}

/// What is no longer paid for once a connection is taken down and the others stay.
pub fn ends(link: &Link, others: &[Link]) -> Vec<String> {
    told(link, others, made(link), "no longer by the hour")
}

/// What is paid for as long as a connection stays that nobody needs, beside the others that are needed.
pub fn goes_on(link: &Link, others: &[Link]) -> Vec<String> {
    told(link, others, made(link), "by the hour until it is pruned")
}

/// What a way to public addresses is paid for, where a cloud has yet to make it.
pub fn way_out(cloud: &str) -> Option<String> {
    let what = match cloud {
        "azure" => "a NAT gateway and its public address, by the hour",
        "aws" => "an Elastic IP, by the hour",
        "gcp" => "Cloud NAT, by the hour and the gigabyte",
        "ibm" => "a public gateway, by the hour",
        _ => return None,
    };
    Some(format!("{cloud}: {what}, unless there is one already"))
}

/// What two connected networks of one cloud are paid for.
pub fn peering(cloud: &str) -> Option<String> {
    let what = match cloud {
        "azure" | "aws" => "what passes between networks, by the gigabyte",
        "ibm" => "connections of a transit gateway, each by the hour, unless they are there already",
        _ => return None,
    };
    Some(format!("{cloud}: {what}"))
}

fn made(link: &Link) -> impl Fn(&Side) -> bool {
    |side| link.ends(*side).0.gateway.is_some()
}

fn told(link: &Link, others: &[Link], which: impl Fn(&Side) -> bool, how: &str) -> Vec<String> {
    let paid = [Side::A, Side::B].into_iter().filter(which).filter_map(|side| of_end(link, side, others));
    paid.map(|what| format!("{what}, {how}")).collect()
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;
    use crate::plan::connect::Gateway;

    fn link(a: &str, b: &str) -> Link {
        let end = |cloud: &str| End {
            cloud: cloud.into(),
            namespace: "default".into(),
            deployment: "d".into(),
            spaces: vec!["10.0.0.0/16".into()],
            asked: false,
            gateway: None,
            connected: false,
            chooses: false,
        };
        Link::new(end(a), end(b)).unwrap()
    }

    #[test]
    fn only_what_is_new_is_told() {
        let mut link = link("azure", "gcp");
        assert_eq!(
            begins(&link, &[]),
            [
                "azure: a VPN gateway and its public addresses, by the hour from then on",
                "gcp: 2 VPN tunnels, by the hour from then on"
            ]
        );
        assert!(ends(&link, &[]).is_empty() && goes_on(&link, &[]).is_empty());
        link.a.gateway = Some(Gateway { asn: 64512, addresses: Vec::new() });
        assert_eq!(begins(&link, &[]), ["gcp: 2 VPN tunnels, by the hour from then on"]);
        assert_eq!(
            ends(&link, &[]),
            ["azure: a VPN gateway and its public addresses, no longer by the hour"]
        );
        assert_eq!(goes_on(&link, &[]).len(), 1);
    }

    #[test]
    fn a_gateway_that_another_connection_keeps_neither_begins_nor_ends() {
        let has = |mut link: Link, clouds: &[&str]| {
            for end in [&mut link.a, &mut link.b].into_iter().filter(|end| clouds.contains(&&*end.cloud)) {
                end.gateway = Some(Gateway { asn: 64512, addresses: Vec::new() });
            }
            link
        };
        let (new, other) = (link("azure", "gcp"), link("azure", "aws"));
        assert_eq!(begins(&new, from_ref(&other)).len(), 2, "the other has none yet");
        let mut other = has(other, &["azure"]);
        let tunnels = "gcp: 2 VPN tunnels";
        assert_eq!(begins(&new, from_ref(&other)), [format!("{tunnels}, by the hour from then on")]);
        let made = has(new, &["azure", "gcp"]);
        assert_eq!(ends(&made, from_ref(&other)), [format!("{tunnels}, no longer by the hour")]);
        assert_eq!(goes_on(&made, from_ref(&other)), [format!("{tunnels}, by the hour until it is pruned")]);
        assert_eq!(ends(&made, from_ref(&made)).len(), 2, "a connection does not keep its own");
        (other.a.namespace, other.b.namespace) = ("elsewhere".into(), "elsewhere".into());
        assert_eq!(ends(&made, &[other]).len(), 2, "each namespace has its own");

        // Where a gateway is paid for beside its connections, those are told alone.
        let (far, mut near) = (has(link("azure", "ibm"), &["ibm"]), has(link("azure", "ibm"), &["ibm"]));
        for end in [&mut near.a, &mut near.b].into_iter().filter(|end| end.cloud == "azure") {
            end.namespace = "other".into();
        }
        assert_eq!(ends(&far, &[near]), ["ibm: 2 VPN connections, no longer by the hour"]);
    }

    #[test]
    fn networks_of_one_cloud_are_paid_for_as_it_says() {
        assert!(way_out("azure").unwrap().contains("NAT gateway"));
        assert!(peering("ibm").unwrap().contains("transit gateway"));
        assert!(peering("gcp").is_none(), "they are free there");
        assert!(way_out("east").is_none() && peering("east").is_none());
    }

    #[test]
    fn clouds_of_ones_own_cost_nothing() {
        assert!(begins(&link("east", "west"), &[]).is_empty());
    }
}
