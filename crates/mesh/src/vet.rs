//! What a peer says about a service is believed only within limits.
//!
//! A peer that is broken or hostile can make us import nonsense under names of its own; it cannot
//! take a name that belongs to this cluster, to discovery or to a private address, and it cannot
//! claim identities of another trust domain.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use crate::crd::Remote;
use crate::model::{Labels, Offer, cluster_name};
use crate::names::{is_host, is_label};

/// Ports of one service; Istio's own limit is 256.
const PORTS: usize = 100;
/// Labels of one service.
const LABELS: usize = 64;
/// Endpoints of one service in one mesh; Istio takes 4096 of all meshes together.
const ENDPOINTS: usize = 1000;
/// Identities of one service.
const IDENTITIES: usize = 64;
/// Protocols that Istio's ServiceEntry knows and a gateway can carry.
const PROTOCOLS: [&str; 10] =
    ["HTTP", "HTTPS", "HTTP2", "GRPC", "GRPC-Web", "TLS", "TCP", "MONGO", "REDIS", "MYSQL"];
/// Namespaces that belong to every cluster for itself.
const SYSTEM: [&str; 4] = ["default/kubernetes", "kube-system", "kube-public", "kube-node-lease"];

/// Names that no peer may offer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Namespaces of the control plane and of the controller.
    pub namespaces: BTreeSet<String>,
    /// Hosts that somebody here declared without us.
    pub hosts: BTreeSet<String>,
}

/// What is not taken over, and why.
pub type Refusal<'a> = (&'a Arc<Offer>, String);

/// Offers of one peer that were looked at before and found good, so that the change of one of them is
/// not a look at all others. An offer that did not change is the very same one.
#[derive(Debug, Default)]
pub struct Seen {
    trust_domain: String,
    reserved: Reserved,
    /// By where each lies; they are held, so that no other can come to lie there.
    good: HashMap<usize, Arc<Offer>>,
    looked: usize,
}

impl Seen {
    /// How many were looked at the last time; of the others it was known what they are.
    pub fn looked(&self) -> usize {
        self.looked
    }

    /// Nothing had to be looked at.
    pub(crate) fn rest(&mut self) {
        self.looked = 0;
    }

    /// What was found good under the same conditions.
    fn take(&mut self, remote: &Remote, reserved: &Reserved) -> HashMap<usize, Arc<Offer>> {
        self.looked = 0;
        let domain = &remote.identity.trust_domain;
        if self.trust_domain != *domain || self.reserved != *reserved {
            *self = Self { trust_domain: domain.clone(), reserved: reserved.clone(), ..Self::default() };
        }
        std::mem::take(&mut self.good)
    }
}

/// Sorts what a peer offers into what may be imported and what is refused, with the reason.
pub fn vet<'a>(
    remote: &Remote,
    offers: &'a [Arc<Offer>],
    reserved: &Reserved,
) -> (Vec<&'a Arc<Offer>>, Vec<Refusal<'a>>) {
    sort(offers, |offer| look(remote, offer, reserved))
}

/// The same with what was seen before; the outcome does not depend on it.
pub fn vet_again<'a>(
    remote: &Remote,
    offers: &'a [Arc<Offer>],
    reserved: &Reserved,
    seen: &mut Seen,
) -> (Vec<&'a Arc<Offer>>, Vec<Refusal<'a>>) {
    let mut before = seen.take(remote, reserved);
    sort(offers, |offer| {
        let place = Arc::as_ptr(offer).addr();
        let known = before.remove(&place);
        if known.is_none() {
            seen.looked += 1;
            look(remote, offer, reserved)?;
        }
        seen.good.insert(place, known.unwrap_or_else(|| Arc::clone(offer)));
        Ok(())
    })
}

/// Sorts offers by what is said of each; of several of one name the first is taken.
fn sort(
    offers: &[Arc<Offer>],
    mut verdict: impl FnMut(&Arc<Offer>) -> Result<(), String>,
) -> (Vec<&Arc<Offer>>, Vec<Refusal<'_>>) {
    let (mut good, mut refused, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
    for offer in offers {
        match verdict(offer) {
            Ok(()) if names.insert(&offer.hostname) => good.push(offer),
            Ok(()) => refused.push((offer, "the name is offered twice by the same mesh".to_owned())),
            Err(reason) => refused.push((offer, reason)),
        }
    }
    (good, refused)
}

fn look(remote: &Remote, offer: &Offer, reserved: &Reserved) -> Result<(), String> {
    name(offer, reserved)?;
    ports(offer)?;
    labels(&offer.labels)?;
    identities(remote, offer)?;
    places(offer)
}

fn name(offer: &Offer, reserved: &Reserved) -> Result<(), String> {
    let host = offer.hostname.as_str();
    if host.contains('*') {
        return Err("a wildcard is not the name of a service".to_owned());
    }
    if !is_host(host) {
        return Err("not a DNS name of two or more labels in lower case".to_owned());
    }
    if host.starts_with("federation-discovery-service-") {
        return Err("the name belongs to the discovery of a mesh".to_owned());
    }
    if reserved.hosts.contains(host) {
        return Err("a ServiceEntry of this mesh already has the name".to_owned());
    }
    match cluster_name(host) {
        Some((service, namespace))
            if is_system(service, namespace) || reserved.namespaces.contains(namespace) =>
        {
            return Err(format!("services of {namespace} belong to each cluster for itself"));
        }
        // Within the cluster's domain only whole names of services have a meaning.
        None if host == "svc.cluster.local"
            || host.ends_with(".cluster.local")
            || host.rsplit('.').next() == Some("svc") =>
        {
            return Err(
                "the name lies within the cluster's own domain but is not that of a service".to_owned()
            );
        }
        _ => {}
    }
    let bad = |text: &str| !text.is_empty() && !is_label(text);
    if bad(&offer.name) || bad(&offer.namespace) {
        return Err("its name or namespace of origin is not a DNS label".to_owned());
    }
    Ok(())
}

/// Whether a service is one that every cluster has for itself.
pub(crate) fn is_system(service: &str, namespace: &str) -> bool {
    SYSTEM.contains(&namespace) || SYSTEM.contains(&format!("{namespace}/{service}").as_str())
}

fn ports(offer: &Offer) -> Result<(), String> {
    if offer.ports.is_empty() || offer.ports.len() > PORTS {
        return Err(format!("{} ports; from 1 to {PORTS} are taken", offer.ports.len()));
    }
    let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for port in &offer.ports {
        if !(1..=65_535).contains(&port.number) || port.target_port > 65_535 {
            return Err(format!("port {} is out of range", port.number));
        }
        // A server name holds the number, an endpoint is found by the name: both must be unique.
        if !names.insert(&port.name) || !numbers.insert(port.number) {
            return Err(format!("port {} is listed twice", port.number));
        }
        if !is_label(&port.name) || port.name.len() > 62 {
            return Err(format!("port {} has no proper name", port.number));
        }
        if !PROTOCOLS.contains(&port.protocol.as_str()) {
            return Err(format!("port {} speaks something unknown", port.number));
        }
    }
    Ok(())
}

fn labels(labels: &Labels) -> Result<(), String> {
    if labels.len() > LABELS {
        return Err(format!("{} labels; up to {LABELS} are taken", labels.len()));
    }
    let word = |text: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        text.len() <= 63
            && text.bytes().all(inner)
            && !text.starts_with(['-', '_', '.'])
            && !text.ends_with(['-', '_', '.'])
    };
    let proper_key = |key: &str| match key.split_once('/') {
        Some((domain, name)) => {
            domain.len() <= 253 && domain.split('.').all(is_label) && !name.is_empty() && word(name)
        }
        None => !key.is_empty() && word(key),
    };
    match labels.iter().find(|(key, value)| !proper_key(key) || !word(value)) {
        Some(_) => Err("a label is not one that Kubernetes takes".to_owned()),
        None => Ok(()),
    }
}

fn identities(remote: &Remote, offer: &Offer) -> Result<(), String> {
    if offer.subject_alt_names.len() > IDENTITIES {
        return Err(format!("{} identities; up to {IDENTITIES} are taken", offer.subject_alt_names.len()));
    }
    let domain = &remote.identity.trust_domain;
    let own = |uri: &String| {
        let path = uri.strip_prefix("spiffe://").and_then(|rest| rest.strip_prefix(domain.as_str()));
        path.is_some_and(|path| {
            path.starts_with('/')
                && path.len() <= 512
                && path.bytes().all(|b| b.is_ascii_graphic() && b != b'*')
        })
    };
    if offer.subject_alt_names.iter().all(own) {
        Ok(())
    } else {
        Err(format!("an identity outside the trust domain {domain} of its mesh"))
    }
}

fn places(offer: &Offer) -> Result<(), String> {
    if offer.endpoints.len() > ENDPOINTS {
        return Err(format!("{} endpoints; up to {ENDPOINTS} are taken", offer.endpoints.len()));
    }
    if !offer.endpoints.iter().all(|address| address.parse().is_ok_and(is_elsewhere)) {
        return Err("an endpoint that is not an address of another machine".to_owned());
    }
    let word = |text: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        !text.is_empty() && text.len() <= 63 && text.bytes().all(inner)
    };
    let locality = offer.locality.as_str();
    if !locality.is_empty() && (locality.split('/').count() > 3 || !locality.split('/').all(word)) {
        return Err("a locality that is not region/zone/subzone".to_owned());
    }
    Ok(())
}

/// Addresses that mean the reader's own machine or no machine would let a peer reach into pods.
fn is_elsewhere(address: IpAddr) -> bool {
    if address.is_loopback() || address.is_unspecified() || address.is_multicast() {
        return false;
    }
    match address {
        IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_broadcast(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local() && v6.to_ipv4_mapped().is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::OfferedPort;
    use proptest::prelude::*;

    fn remote() -> Remote {
        serde_json::from_value(
            serde_json::json!({"id": "west", "network": "west", "identity": {"trustDomain": "mesh.west"}}),
        )
        .unwrap()
    }

    fn reserved() -> Reserved {
        Reserved {
            namespaces: BTreeSet::from(["istio-system".to_owned()]),
            hosts: BTreeSet::from(["mine.example.org".to_owned()]),
        }
    }

    fn offer(host: &str) -> Offer {
        let port = OfferedPort { name: "http".into(), number: 80, protocol: "HTTP".into(), target_port: 0 };
        Offer { hostname: host.into(), ports: vec![port], ..Offer::default() }
    }

    fn reason(offer: Offer) -> Option<String> {
        vet(&remote(), &[Arc::new(offer)], &reserved()).1.pop().map(|(_, reason)| reason)
    }

    #[test]
    fn names_of_this_cluster_are_not_given_away() {
        for good in
            ["ratings.bookinfo.svc.cluster.local", "ratings.mesh.global", "other.default.svc.cluster.local"]
        {
            assert_eq!(reason(offer(good)), None, "{good}");
        }
        for bad in [
            "kubernetes.default.svc.cluster.local",
            "kube-dns.kube-system.svc.cluster.local",
            "istiod.istio-system.svc.cluster.local",
            "federation-discovery-service-east.bookinfo.svc.cluster.local",
            "mine.example.org",
            "svc.cluster.local",
            "x.cluster.local",
            "a.b.c.svc.cluster.local",
            "kubernetes.default.svc",
            "kubernetes",
            "*.bookinfo.svc.cluster.local",
            "*",
            "",
            "UPPER.case",
            "under_score.x",
            "10.1.2.3",
        ] {
            assert!(reason(offer(bad)).is_some(), "{bad}");
        }
    }

    #[test]
    fn ports_labels_identities_and_endpoints_are_held_to_limits() {
        type Change = fn(&mut Offer);
        let bad: [Change; 16] = [
            |o| o.ports.clear(),
            |o| o.ports[0].number = 0,
            |o| o.ports[0].number = 65_536,
            |o| o.ports[0].name = String::new(),
            |o| o.ports[0].protocol = "UDP".into(),
            |o| o.ports.push(o.ports[0].clone()),
            |o| {
                o.ports = (1..=101)
                    .map(|n| OfferedPort { name: format!("p{n}"), number: n, ..o.ports[0].clone() })
                    .collect();
            },
            |o| o.labels = Labels::from([("a b".into(), "x".into())]),
            |o| o.labels = Labels::from([("a".into(), "x".repeat(64))]),
            |o| o.labels = (0..65).map(|n| (format!("k{n}"), String::new())).collect(),
            |o| o.subject_alt_names = vec!["spiffe://mesh.east/ns/a/sa/b".into()],
            |o| o.subject_alt_names = vec!["spiffe://mesh.west.evil/ns/a/sa/b".into()],
            |o| o.subject_alt_names = vec!["spiffe://mesh.west/*".into()],
            |o| o.endpoints = vec!["127.0.0.1".into()],
            |o| o.endpoints = vec!["169.254.169.254".into()],
            |o| o.locality = "a/b/c/d".into(),
        ];
        for (index, change) in bad.iter().enumerate() {
            let mut offer = offer("a.b");
            change(&mut offer);
            assert!(reason(offer).is_some(), "change {index} was taken");
        }
        let mut fine = offer("a.b");
        fine.subject_alt_names = vec!["spiffe://mesh.west/ns/a/sa/b".into()];
        fine.endpoints = vec!["10.0.0.7".into(), "fd00::7".into()];
        fine.locality = "eu/a".into();
        fine.labels = Labels::from([("app.kubernetes.io/name".into(), "x".into())]);
        assert_eq!(reason(fine), None);
    }

    #[test]
    fn of_two_offers_of_one_name_the_first_counts() {
        let offers = [offer("a.b"), offer("a.b"), offer("c.d")].map(Arc::new);
        let (remote, reserved) = (remote(), reserved());
        let (good, refused) = vet(&remote, &offers, &reserved);
        assert_eq!((good.len(), refused.len()), (2, 1));
    }

    #[test]
    fn only_what_changed_is_looked_at_again() {
        let (remote, mut reserved) = (remote(), reserved());
        let mut offers: Vec<Arc<Offer>> =
            (0..100).map(|number| Arc::new(offer(&format!("s{number}.x")))).collect();
        let mut seen = Seen::default();
        let mut count = |offers: &[Arc<Offer>], reserved: &Reserved| {
            let again = vet_again(&remote, offers, reserved, &mut seen);
            assert_eq!(again, vet(&remote, offers, reserved), "the outcome is that of a first look");
            seen.looked()
        };
        assert_eq!(count(&offers, &reserved), 100);
        assert_eq!(count(&offers, &reserved), 0);
        offers[7] = Arc::new(offer("s7.x"));
        offers[8] = Arc::new(offer("*"));
        offers.remove(9);
        assert_eq!(count(&offers, &reserved), 2);
        assert_eq!(count(&offers, &reserved), 1, "what is refused is looked at each time");
        offers.push(Arc::clone(&offers[0]));
        assert_eq!(count(&offers, &reserved), 2, "the same one twice is refused the second time");
        reserved.hosts.insert("s1.x".to_owned());
        assert_eq!(count(&offers, &reserved), offers.len(), "other names are taken now");
    }

    proptest! {
        #[test]
        fn whatever_is_taken_is_legal(host in ".{0,40}", port in any::<u32>(), name in ".{0,8}", san in ".{0,40}") {
            let mut odd = offer(&host);
            odd.ports[0] = OfferedPort { name, number: port, protocol: "HTTP".into(), target_port: port };
            odd.subject_alt_names = vec![san];
            if reason(odd.clone()).is_none() {
                prop_assert!(is_host(&odd.hostname) && (1..=65_535).contains(&odd.ports[0].number));
            }
        }
    }
}
