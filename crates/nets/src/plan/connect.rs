//! Connecting two clouds: which pairs, by how many tunnels, and what comes next.
//!
//! The steps are not a list that is walked but what is still missing in the record of the link, so
//! that an orchestrator that stopped anywhere goes on from the record alone.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::model::SharedKey;
use crate::plan::bgp::Ends;
use crate::plan::target;

/// Why two clouds are not connected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// Inside a cloud networks are peered.
    #[error("{0} cannot be connected to itself; its networks are peered by its own plugin")]
    Same(String),
    /// A pair one of the plugins cannot do.
    #[error("{0} and {1} cannot be connected: {2}")]
    Pair(String, String, &'static str),
}

/// How two clouds are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Tunnels side by side.
    pub tunnels: u8,
    /// Routes by BGP; otherwise each end is told the other's prefixes.
    pub bgp: bool,
    /// Azure and AWS take only some addresses inside tunnels.
    pub azure: bool,
}

/// AWS tells where its tunnels end only once it knows where the other ends are.
fn is_late(cloud: &str) -> bool {
    cloud == "aws"
}

/// The table of pairs. A name that is none of the public clouds is a cloud of our own kind.
pub fn pair(a: &str, b: &str) -> Result<Pair, ConnectError> {
    if a == b {
        return Err(ConnectError::Same(a.into()));
    }
    let is = |name: &str| a == name || b == name;
    match (is("azure"), is("ibm")) {
        (true, true) => Ok(Pair { tunnels: 2, bgp: false, azure: true }),
        (false, true) => {
            Err(ConnectError::Pair(a.into(), b.into(), "ibm has no BGP, and only azure takes static routes"))
        }
        (azure, false) => Ok(Pair { tunnels: 2, bgp: true, azure: azure || is("aws") }),
    }
}

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The cloud.
    pub cloud: String,
    /// The namespace in it.
    pub namespace: String,
    /// The deployment in it.
    pub deployment: String,
    /// The spaces of the network that is being connected.
    #[serde(default)]
    pub spaces: Vec<String>,
    /// Whether the cloud was asked for all spaces of that network.
    #[serde(default)]
    pub asked: bool,
    /// Its VPN gateway, once made.
    #[serde(default)]
    pub gateway: Option<Gateway>,
    /// Whether it was told of the other end.
    #[serde(default)]
    pub connected: bool,
    /// Whether its cloud chooses its addresses inside the tunnels itself, once it has a gateway.
    #[serde(default)]
    pub chooses: bool,
}

/// A VPN gateway as its cloud reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gateway {
    /// Its autonomous system number.
    pub asn: u32,
    /// Its public addresses, one for each tunnel.
    pub addresses: Vec<String>,
}

/// Two clouds, connected or on the way to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// How.
    pub pair: Pair,
    /// The first end.
    pub a: End,
    /// The second end.
    pub b: End,
    /// The addresses in the tunnels, once chosen.
    #[serde(default)]
    pub tunnels: Vec<Ends>,
    /// The key, made once and kept whatever is tried again.
    #[serde(default)]
    pub key: Option<SharedKey>,
    /// Spaces at both ends that were connected before the present ones.
    #[serde(default)]
    pub earlier: Vec<(Vec<String>, Vec<String>)>,
}

/// Which end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// The first.
    A,
    /// The second.
    B,
}

/// What a link needs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Choose addresses inside the tunnels.
    ChooseAddresses,
    /// Ask for the other prefixes of the network at one end.
    AskSpaces(Side),
    /// Make the gateway of one end.
    MakeGateway(Side),
    /// Make the shared key.
    MakeKey,
    /// Tell one end of the other.
    Connect(Side),
    /// Nothing.
    Done,
}

impl Link {
    /// A link of which nothing exists yet. Ends are put in the order of their names, so that a pair
    /// has one record whoever asks.
    pub fn new(a: End, b: End) -> Result<Self, ConnectError> {
        let pair = pair(&a.cloud, &b.cloud)?;
        // The first side has the first host of each tunnel, which AWS always takes; then comes Azure's.
        let first =
            |end: &End| (end.cloud != "aws", end.cloud != "azure", end.cloud.clone(), end.namespace.clone());
        let (a, b) = if first(&a) <= first(&b) { (a, b) } else { (b, a) };
        Ok(Self { pair, a, b, tunnels: Vec::new(), key: None, earlier: Vec::new() })
    }

    /// What its record is called.
    pub fn name(&self) -> String {
        format!("{}.{}-{}.{}", self.a.namespace, self.a.cloud, self.b.namespace, self.b.cloud)
    }

    /// What it needs next.
    pub fn next(&self) -> Step {
        let chooser = |end: &End| self.pair.bgp && end.chooses && end.gateway.is_none();
        if self.tunnels.is_empty() && chooser(&self.a) {
            Step::MakeGateway(Side::A)
        } else if self.tunnels.is_empty() && chooser(&self.b) {
            Step::MakeGateway(Side::B)
        } else if self.tunnels.is_empty() {
            Step::ChooseAddresses
        } else if !self.pair.bgp && !self.a.asked {
            Step::AskSpaces(Side::A)
        } else if !self.pair.bgp && !self.b.asked {
            Step::AskSpaces(Side::B)
        } else if self.a.gateway.is_none() {
            Step::MakeGateway(Side::A)
        } else if self.b.gateway.is_none() {
            Step::MakeGateway(Side::B)
        } else if self.key.is_none() {
            Step::MakeKey
        } else {
            self.next_connection()
        }
    }

    /// An end is told of the other when the other's addresses are known. One that has none is asked for them
    /// again once it was told.
    fn next_connection(&self) -> Step {
        let sides = [Side::A, Side::B];
        let told = |end: &End| end.gateway.as_ref().is_some_and(|gateway| !gateway.addresses.is_empty());
        let open = |side: &Side| !self.ends(*side).0.connected;
        let ready = sides.iter().find(|side| open(side) && told(self.ends(**side).1));
        let silent = sides.iter().find(|side| !open(side) && !told(self.ends(**side).0));
        match (ready, silent, sides.iter().find(|side| open(side))) {
            (Some(side), ..) | (None, None, Some(side)) => Step::Connect(*side),
            (None, Some(side), Some(_)) => Step::MakeGateway(*side),
            (None, _, None) => Step::Done,
        }
    }

    /// Turns to the networks that a request is about. Without BGP an end knows of the other's networks only
    /// what it is told, so networks that were not connected yet are told, by the same key.
    pub fn turn_to(&mut self, request: &Self) {
        let connected =
            |(a, b): (&[String], &[String])| covers(a, &request.a.spaces) && covers(b, &request.b.spaces);
        let earlier = self.earlier.iter().map(|(a, b)| (a.as_slice(), b.as_slice()));
        if self.pair.bgp || earlier.chain([(&*self.a.spaces, &*self.b.spaces)]).any(connected) {
            return;
        }
        if self.next() == Step::Done {
            self.earlier.push((self.a.spaces.clone(), self.b.spaces.clone()));
        }
        for (end, new) in [(&mut self.a, &request.a), (&mut self.b, &request.b)] {
            if !covers(&end.spaces, &new.spaces) {
                end.spaces.clone_from(&new.spaces);
                end.asked = false;
            }
            (end.gateway, end.connected) = (None, false);
        }
    }

    /// Notes what the cloud of an end told of the network there. What was named and is not in it stays.
    pub fn learn(&mut self, side: Side, told: Vec<String>) {
        let end = self.end_mut(side);
        let mut spaces: Vec<String> = end
            .spaces
            .iter()
            .map(|text| prefix(text))
            .filter(|space| !covers(&told, std::slice::from_ref(space)))
            .collect();
        spaces.extend(told);
        (end.spaces, end.asked) = (spaces, true);
    }

    /// Forgets the key, so that another one is made and told to both ends. Gives the networks that have to be
    /// [told](Self::tell) of it, each by the spaces at both ends: with BGP the tunnels are shared by all.
    pub fn forget_key(&mut self) -> Vec<(Vec<String>, Vec<String>)> {
        self.key = None;
        let mut networks = if self.pair.bgp { Vec::new() } else { std::mem::take(&mut self.earlier) };
        networks.push((self.a.spaces.clone(), self.b.spaces.clone()));
        networks
    }

    /// Turns to networks that are connected already, to tell them of the key.
    pub fn tell(&mut self, (a, b): (Vec<String>, Vec<String>)) {
        for (end, spaces) in [(&mut self.a, a), (&mut self.b, b)] {
            (end.spaces, end.connected) = (spaces, false);
            if !self.pair.bgp {
                // Each network has a gateway of its own.
                (end.gateway, end.asked) = (None, true);
            }
        }
    }

    /// The end and the one across.
    pub fn ends(&self, side: Side) -> (&End, &End) {
        match side {
            Side::A => (&self.a, &self.b),
            Side::B => (&self.b, &self.a),
        }
    }

    /// The end, to be changed.
    pub fn end_mut(&mut self, side: Side) -> &mut End {
        match side {
            Side::A => &mut self.a,
            Side::B => &mut self.b,
        }
    }

    /// The addresses of an end inside the tunnels.
    pub fn addresses(&self, side: Side) -> Vec<String> {
        let of = |ends: &Ends| if side == Side::A { ends.a } else { ends.b };
        self.tunnels.iter().map(|ends| of(ends).to_string()).collect()
    }

    /// All steps from here on, for a plan that is only shown.
    pub fn remaining(&self) -> Vec<Step> {
        let mut link = self.clone();
        let mut steps = Vec::new();
        loop {
            let step = link.next();
            if step == Step::Done {
                return steps;
            }
            link.pretend(step);
            steps.push(step);
        }
    }

    /// Fills in what a step would, with stand-ins.
    fn pretend(&mut self, step: Step) {
        let nowhere = std::net::Ipv4Addr::UNSPECIFIED;
        match step {
            Step::ChooseAddresses => {
                self.tunnels = vec![Ends { a: nowhere, b: nowhere }; usize::from(self.pair.tunnels)];
            }
            Step::AskSpaces(side) => self.end_mut(side).asked = true,
            Step::MakeGateway(side) => {
                let end = self.end_mut(side);
                let addresses =
                    if is_late(&end.cloud) && !end.connected { vec![] } else { vec![nowhere.to_string()] };
                end.gateway = Some(Gateway { asn: 0, addresses });
            }
            Step::MakeKey => self.key = Some(SharedKey::new("")),
            Step::Connect(side) => self.end_mut(side).connected = true,
            Step::Done => {}
        }
    }
}

/// A bare address as a prefix of one, which is what routes are made of.
fn prefix(text: &str) -> String {
    target::parse(text).map_or_else(|| text.to_owned(), |net| net.to_string())
}

/// Whether each of the spaces is in one that is known.
fn covers(known: &[String], spaces: &[String]) -> bool {
    let known: Vec<IpNet> = known.iter().filter_map(|text| target::parse(text)).collect();
    let mut wanted = spaces.iter().filter_map(|text| target::parse(text));
    wanted.all(|space| known.iter().any(|one| one.contains(&space)))
}

impl Side {
    /// The other one.
    #[must_use]
    pub fn across(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(cloud: &str) -> End {
        End {
            cloud: cloud.into(),
            namespace: "default".into(),
            deployment: "d".into(),
            spaces: vec![],
            asked: false,
            gateway: None,
            connected: false,
            chooses: false,
        }
    }

    #[test]
    fn the_table_of_pairs() {
        assert_eq!(pair("aws", "azure").unwrap(), Pair { tunnels: 2, bgp: true, azure: true });
        assert_eq!(pair("local", "aws").unwrap(), Pair { tunnels: 2, bgp: true, azure: true });
        assert!(matches!(pair("aws", "ibm"), Err(ConnectError::Pair(..))));
        assert_eq!(pair("azure", "gcp").unwrap(), Pair { tunnels: 2, bgp: true, azure: true });
        assert_eq!(pair("ibm", "azure").unwrap(), Pair { tunnels: 2, bgp: false, azure: true });
        assert_eq!(pair("east", "west").unwrap(), Pair { tunnels: 2, bgp: true, azure: false });
        assert_eq!(pair("gcp", "east").unwrap(), Pair { tunnels: 2, bgp: true, azure: false });
        assert!(matches!(pair("ibm", "gcp"), Err(ConnectError::Pair(..))));
        assert!(matches!(pair("ibm", "east"), Err(ConnectError::Pair(..))));
        assert_eq!(pair("gcp", "gcp"), Err(ConnectError::Same("gcp".into())));
    }

    #[test]
    fn a_pair_has_one_name_and_some_come_first() {
        let one = Link::new(end("gcp"), end("azure")).unwrap();
        let other = Link::new(end("azure"), end("gcp")).unwrap();
        assert_eq!(one.name(), other.name());
        assert_eq!(one.a.cloud, "azure");
    }

    #[test]
    fn steps_come_in_order_and_each_once() {
        use Side::{A, B};
        let link = Link::new(end("azure"), end("gcp")).unwrap();
        let rest =
            [Step::MakeGateway(A), Step::MakeGateway(B), Step::MakeKey, Step::Connect(A), Step::Connect(B)];
        assert_eq!(link.remaining(), [&[Step::ChooseAddresses][..], &rest].concat());
        let link = Link::new(end("azure"), end("ibm")).unwrap();
        let first = [Step::ChooseAddresses, Step::AskSpaces(A), Step::AskSpaces(B)];
        assert_eq!(link.remaining(), [&first[..], &rest].concat());
        goes_on_where_it_was(link);
    }

    #[test]
    fn who_chooses_its_addresses_does_so_once_it_has_a_gateway() {
        use Side::{A, B};
        let rest = [Step::MakeKey, Step::Connect(A), Step::Connect(B)];
        let chooser = |cloud: &str| End { chooses: true, ..end(cloud) };
        let both = Link::new(chooser("azure"), chooser("gcp")).unwrap();
        let first = [Step::MakeGateway(A), Step::MakeGateway(B), Step::ChooseAddresses];
        assert_eq!(both.remaining(), [&first[..], &rest].concat(), "the first generation's own order");
        goes_on_where_it_was(both);
        let one = Link::new(end("azure"), chooser("gcp")).unwrap();
        let first = [Step::MakeGateway(B), Step::ChooseAddresses, Step::MakeGateway(A)];
        assert_eq!(one.remaining(), [&first[..], &rest].concat());
        goes_on_where_it_was(one);
    }

    fn at(cloud: &str, space: &str) -> End {
        End { spaces: vec![space.into()], ..end(cloud) }
    }

    fn made(mut link: Link) -> Link {
        while link.next() != Step::Done {
            link.pretend(link.next());
        }
        link
    }

    #[test]
    fn a_further_network_without_bgp_is_told_to_both_ends() {
        use Side::{A, B};
        let request = |azure: &str, ibm: &str| Link::new(at("ibm", ibm), at("azure", azure)).unwrap();
        let mut link = request("10.0.0.5", "10.1.0.0/16");
        link.learn(A, vec!["10.0.0.0/16".into()]);
        link.learn(B, vec!["10.1.0.0/18".into(), "10.1.64.0/18".into()]);
        assert_eq!(link.a.spaces, ["10.0.0.0/16"]);
        assert_eq!(link.b.spaces, ["10.1.0.0/16", "10.1.0.0/18", "10.1.64.0/18"], "what was named stays");
        let mut link = made(link);
        let key = link.key.clone();
        link.turn_to(&request("10.0.7.0/24", "10.1.1.1"));
        assert_eq!(link.next(), Step::Done, "both are connected already");
        link.turn_to(&request("10.0.7.0/24", "10.2.0.0/16"));
        let again = [
            Step::AskSpaces(B),
            Step::MakeGateway(A),
            Step::MakeGateway(B),
            Step::Connect(A),
            Step::Connect(B),
        ];
        assert_eq!(link.remaining(), again);
        assert_eq!((link.key.clone(), link.b.spaces.clone()), (key, vec!["10.2.0.0/16".to_owned()]));
        let mut link = made(link);
        link.turn_to(&request("10.0.0.5", "10.1.0.0/16"));
        assert_eq!(link.next(), Step::Done, "the first was not forgotten");
        let mut bgp = made(Link::new(at("azure", "10.0.0.0/16"), at("gcp", "10.1.0.0/16")).unwrap());
        bgp.turn_to(&Link::new(at("azure", "10.8.0.0/16"), at("gcp", "10.9.0.0/16")).unwrap());
        assert_eq!(bgp.next(), Step::Done, "BGP tells by itself");
    }

    #[test]
    fn a_bare_address_becomes_a_prefix() {
        let mut link = Link::new(at("ibm", "10.1.0.0/16"), at("azure", "10.0.0.5")).unwrap();
        link.learn(Side::A, Vec::new());
        assert_eq!(link.a.spaces, ["10.0.0.5/32"]);
    }

    #[test]
    fn aws_is_told_first_and_then_asked_where_its_tunnels_end() {
        use Side::{A, B};
        let link = Link::new(end("acme"), end("aws")).unwrap();
        assert_eq!(link.a.cloud, "aws", "the first host is its own");
        let wanted = [
            Step::ChooseAddresses,
            Step::MakeGateway(A),
            Step::MakeGateway(B),
            Step::MakeKey,
            Step::Connect(A),
            Step::MakeGateway(A),
            Step::Connect(B),
        ];
        assert_eq!(link.remaining(), wanted);
        goes_on_where_it_was(link);
    }

    #[test]
    fn a_stop_anywhere_goes_on_where_it_was() {
        goes_on_where_it_was(Link::new(end("east"), end("west")).unwrap());
    }

    fn goes_on_where_it_was(mut link: Link) {
        let all = link.remaining();
        for done in 0..=all.len() {
            assert_eq!(link.remaining(), all[done..], "after {done} steps");
            // What is remembered is what is written down.
            let text = serde_json::to_string(&link).unwrap();
            link = serde_json::from_str(&text).unwrap();
            link.pretend(link.next());
        }
    }
}
