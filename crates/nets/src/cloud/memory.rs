//! A cloud that is only remembered: for trying things out, for benchmarks, and as the outside of tests.
//!
//! It keeps all promises of a cloud but carries no packets. A [`Calls`] watcher sees every call before and
//! after its effect, and may delay or fail it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures::future::BoxFuture;
use ipnet::IpNet;

use super::{Cloud, Held, Need, NewConnections, NewGateway, NewResource, OldConnections, needs};
use crate::controller::{ConnectRequest, Controller};
use crate::error::Error;
use crate::model::{Created, Deployment, Flags, ForeignNetwork, Mapping, Rule};
use crate::plan::bgp::{TUNNELS_AGREED, agreed};
use crate::plan::connect::Gateway;
use crate::plan::target::{Map, Owner};

/// Sees each call: its name, and whether its effect was made already.
pub type Calls = Arc<dyn Fn(&'static str, bool) -> BoxFuture<'static, Result<(), Error>> + Send + Sync>;

/// Nothing slows down: there is nothing behind it.
const AT_ONCE: usize = 1024;

/// Clouds keep the first addresses of a network for themselves.
const FIRST_HOST: u128 = 4;

#[derive(Debug, Default)]
struct State {
    networks: BTreeMap<String, IpNet>,
    resources: BTreeMap<String, Kept>,
    gateways: BTreeMap<String, Gateway>,
    tunnels: BTreeMap<(String, String), (Vec<Ipv4Addr>, Option<NewConnections>)>,
    peerings: BTreeSet<(IpNet, IpNet)>,
    public: bool,
    others: Vec<ForeignNetwork>,
    broken: Vec<String>,
    flags: Flags,
}

#[derive(Debug)]
struct Kept {
    namespace: String,
    name: String,
    ip: IpAddr,
    space: IpNet,
    rules: BTreeMap<String, Rule>,
}

/// A remembered cloud.
pub struct MemoryCloud {
    name: String,
    controller: Arc<dyn Controller>,
    calls: Option<Calls>,
    looks: Option<Calls>,
    /// Networks of others in the same cloud.
    foreign: Vec<IpNet>,
    state: Mutex<State>,
}

impl MemoryCloud {
    /// An empty cloud of this name.
    pub fn new(name: &str, controller: Arc<dyn Controller>) -> Self {
        let (calls, looks) = (None, None);
        Self { name: name.into(), controller, calls, looks, foreign: Vec::new(), state: Mutex::default() }
    }

    /// The same with a watcher.
    #[must_use]
    pub fn watched(mut self, calls: Calls) -> Self {
        self.calls = Some(calls);
        self
    }

    /// The same with a watcher of the calls that only look: for used spaces, for a permit list, for what differs.
    #[must_use]
    pub fn looked_at(mut self, looks: Calls) -> Self {
        self.looks = Some(looks);
        self
    }

    /// The same with networks that were there before: their spaces are reported as used.
    #[must_use]
    pub fn beside(mut self, networks: Vec<IpNet>) -> Self {
        self.foreign = networks;
        self
    }

    /// Others make and remove networks: from now on these are theirs.
    pub fn others_have(&self, networks: Vec<ForeignNetwork>) {
        self.lock().others = networks;
    }

    /// Something breaks: from now on this differs, until it is mended.
    pub fn breaks(&self, what: &str) {
        self.lock().broken.push(what.to_owned());
    }

    /// The key of each finished tunnel and the cloud it leads to, to compare both ends.
    pub fn tunnels(&self) -> Vec<(String, String)> {
        let state = self.lock();
        let made = state.tunnels.values().filter_map(|(_, connections)| connections.as_ref());
        made.map(|connections| (connections.cloud.clone(), connections.key.expose().to_owned())).collect()
    }

    /// What was switched on last.
    pub fn flags(&self) -> Flags {
        self.lock().flags
    }

    /// How many peerings there are.
    pub fn peerings(&self) -> usize {
        self.lock().peerings.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn before(&self, call: &'static str) -> Result<(), Error> {
        match &self.calls {
            Some(calls) => calls(call, false).await,
            None => Ok(()),
        }
    }

    async fn looked<T>(&self, call: &'static str, value: T) -> Result<T, Error> {
        if let Some(looks) = &self.looks {
            looks(call, true).await?;
        }
        Ok(value)
    }

    async fn after<T>(&self, call: &'static str, value: T) -> Result<T, Error> {
        if let Some(calls) = &self.calls {
            calls(call, true).await?;
        }
        Ok(value)
    }

    fn with_resource<T>(
        &self,
        namespace: &str,
        uri: &str,
        f: impl FnOnce(&mut Kept) -> T,
    ) -> Result<T, Error> {
        let mut state = self.lock();
        match state.resources.get_mut(uri) {
            Some(kept) if kept.namespace == namespace => Ok(f(kept)),
            Some(_) => Err(Error::Foreign { namespace: namespace.into(), resource: uri.into() }),
            None => Err(Error::Resource { namespace: namespace.into(), resource: uri.into() }),
        }
    }
}

fn next_host(space: IpNet, used: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    let IpNet::V4(net) = space else { return None };
    let first = u128::from(u32::from(net.network()));
    let last = u128::from(u32::from(net.broadcast()));
    (first + FIRST_HOST..last)
        .map(|address| IpAddr::V4(Ipv4Addr::from(address as u32)))
        .find(|ip| !used.contains(ip))
}

#[async_trait]
impl Cloud for MemoryCloud {
    fn at_once(&self) -> usize {
        AT_ONCE
    }

    async fn used_spaces(&self, deployments: &[Deployment]) -> Result<Vec<Mapping>, Error> {
        let used: Vec<Mapping> = {
            let state = self.lock();
            let mappings = deployments.iter().enumerate().map(|(index, deployment)| {
                let own = state.networks.get(&deployment.namespace).into_iter();
                let foreign = self.foreign.iter().filter(|_| index == 0);
                Mapping {
                    spaces: own.chain(foreign).copied().collect(),
                    cloud: self.name.clone(),
                    namespace: deployment.namespace.clone(),
                    deployment: Some(deployment.id.clone()),
                }
            });
            mappings.filter(|mapping| !mapping.spaces.is_empty()).collect()
        };
        self.looked("GetUsedAddressSpaces", used).await
    }

    async fn used_asns(&self, _: &[Deployment]) -> Result<Vec<u32>, Error> {
        Ok(self.lock().gateways.values().map(|gateway| gateway.asn).collect())
    }

    async fn used_bgp_addresses(&self, _: &[Deployment]) -> Result<Vec<Ipv4Addr>, Error> {
        Ok(self.lock().tunnels.values().flat_map(|(addresses, _)| addresses.clone()).collect())
    }

    async fn create_resource(&self, new: NewResource) -> Result<Created, Error> {
        self.before("CreateResource").await?;
        let namespace = &new.deployment.namespace;
        let known = self.lock().networks.get(namespace).copied();
        let space = match known {
            Some(space) => space,
            None => self.controller.find_spaces(&[0]).await?.into_iter().next().ok_or_else(|| {
                Error::Internal("the orchestrator answered without an address space".into())
            })?,
        };
        let uri = format!("memory/{}/{namespace}/{}", self.name, new.name);
        let created = {
            let mut state = self.lock();
            let space = *state.networks.entry(namespace.clone()).or_insert(space);
            let used: BTreeSet<IpAddr> = state.resources.values().map(|kept| kept.ip).collect();
            let ip = match state.resources.get(&uri) {
                Some(kept) => kept.ip,
                None => next_host(space, &used).ok_or_else(|| Error::Cloud {
                    cloud: self.name.clone(),
                    what: "CreateResource".into(),
                    said: "the network is full".into(),
                })?,
            };
            state.resources.entry(uri.clone()).or_insert_with(|| Kept {
                namespace: namespace.clone(),
                name: new.name.clone(),
                ip,
                space,
                rules: BTreeMap::new(),
            });
            Created { name: new.name, uri, ip: ip.to_string() }
        };
        self.after("CreateResource", created).await
    }

    async fn attach_resource(&self, namespace: &str, uri: &str) -> Result<Created, Error> {
        self.before("AttachResource").await?;
        let taken = self.with_resource(namespace, uri, |kept| Created {
            name: kept.name.clone(),
            uri: uri.into(),
            ip: kept.ip.to_string(),
        })?;
        self.after("AttachResource", taken).await
    }

    async fn permit_list(&self, namespace: &str, uri: &str) -> Result<Vec<Rule>, Error> {
        let rules = self.with_resource(namespace, uri, |kept| kept.rules.values().cloned().collect())?;
        self.looked("GetPermitList", rules).await
    }

    async fn add_rules(&self, namespace: &str, uri: &str, rules: Vec<Rule>) -> Result<(), Error> {
        crate::plan::rule::check_call(&rules).map_err(Error::Invalid)?;
        self.before("AddPermitListRules").await?;
        let space = self.with_resource(namespace, uri, |kept| kept.space)?;
        let own = Owner { cloud: self.name.clone(), namespace: namespace.into(), deployment: None, space };
        let inside = rules.iter().all(|rule| {
            crate::plan::rule::targets(rule)
                .is_ok_and(|targets| targets.iter().all(|net| space.contains(net)))
        });
        if !inside {
            let map = Map::new(&self.controller.used_spaces().await?);
            for need in needs(&rules, &own, &map)? {
                match need {
                    Need::Public => self.lock().public = true,
                    Need::Peering(owner) => {
                        self.lock().peerings.insert((space.min(owner.space), space.max(owner.space)));
                    }
                    Need::Vpn(owner) => {
                        self.controller.connect(ConnectRequest::between(&own, &owner)).await?;
                    }
                }
            }
        }
        self.with_resource(namespace, uri, |kept| {
            kept.rules.extend(rules.into_iter().map(|rule| (rule.name.clone(), rule)));
        })?;
        self.after("AddPermitListRules", ()).await
    }

    async fn delete_rules(&self, namespace: &str, uri: &str, names: Vec<String>) -> Result<(), Error> {
        self.before("DeletePermitListRules").await?;
        self.with_resource(namespace, uri, |kept| kept.rules.retain(|name, _| !names.contains(name)))?;
        self.after("DeletePermitListRules", ()).await
    }

    async fn create_gateway(&self, new: NewGateway) -> Result<Gateway, Error> {
        self.before("CreateVpnGateway").await?;
        let known = self.lock().gateways.get(&new.deployment.namespace).cloned();
        let gateway = if let Some(gateway) = known {
            gateway
        } else {
            let asn = self.controller.find_asn().await?;
            let count = if new.bgp_addresses.is_empty() { TUNNELS_AGREED } else { new.bgp_addresses.len() };
            Gateway { asn, addresses: (1..=count).map(|index| format!("192.0.2.{index}")).collect() }
        };
        let namespace = new.deployment.namespace.clone();
        self.lock().gateways.insert(namespace.clone(), gateway.clone());
        if !new.cloud.is_empty() {
            self.lock().tunnels.entry((namespace, new.cloud)).or_insert((new.bgp_addresses, None));
        }
        self.after("CreateVpnGateway", gateway).await
    }

    async fn create_bgp_sessions(
        &self,
        deployment: &Deployment,
        cloud: &str,
    ) -> Result<Vec<Ipv4Addr>, Error> {
        let addresses = agreed(&self.name, cloud);
        let key = (deployment.namespace.clone(), cloud.to_owned());
        self.lock().tunnels.entry(key).or_default().0.clone_from(&addresses);
        Ok(addresses)
    }

    fn replaces_keys(&self) -> bool {
        true
    }

    async fn create_connections(&self, new: NewConnections) -> Result<(), Error> {
        self.before("CreateVpnConnections").await?;
        let key = (new.deployment.namespace.clone(), new.cloud.clone());
        self.lock().tunnels.entry(key).or_default().1 = Some(new);
        self.after("CreateVpnConnections", ()).await
    }

    async fn network_spaces(&self, deployment: &Deployment, space: IpNet) -> Result<Vec<IpNet>, Error> {
        let own = self.lock().networks.get(&deployment.namespace).copied();
        Ok(own.filter(|own| own.contains(&space)).into_iter().collect())
    }

    async fn set_flags(&self, flags: Flags) -> Result<(), Error> {
        self.lock().flags = flags;
        Ok(())
    }

    async fn list_resources(&self, namespace: &str) -> Result<Vec<Held>, Error> {
        let state = self.lock();
        let held =
            state.resources.iter().filter(|(_, kept)| namespace.is_empty() || kept.namespace == namespace);
        Ok(held
            .map(|(uri, kept)| Held {
                namespace: kept.namespace.clone(),
                name: kept.name.clone(),
                uri: uri.clone(),
                ip: kept.ip.to_string(),
                network: kept.space.to_string(),
            })
            .collect())
    }

    async fn delete_resource(&self, namespace: &str, uri: &str) -> Result<(), Error> {
        self.before("DeleteResource").await?;
        self.with_resource(namespace, uri, |_| ())?;
        {
            let mut state = self.lock();
            state.resources.remove(uri);
            if !state.resources.values().any(|kept| kept.namespace == namespace) {
                state.networks.remove(namespace);
            }
        }
        self.after("DeleteResource", ()).await
    }

    async fn delete_connections(&self, old: OldConnections) -> Result<(), Error> {
        self.before("DeleteVpnConnections").await?;
        {
            let mut state = self.lock();
            let namespace = old.deployment.namespace;
            state.tunnels.remove(&(namespace.clone(), old.cloud));
            if !state.tunnels.keys().any(|(other, _)| *other == namespace) {
                state.gateways.remove(&namespace);
            }
        }
        self.after("DeleteVpnConnections", ()).await
    }

    async fn drift(&self, _: &str, repair: bool) -> Result<Vec<String>, Error> {
        let broken = {
            let mut state = self.lock();
            if repair { std::mem::take(&mut state.broken) } else { state.broken.clone() }
        };
        self.looked("Drift", broken).await
    }

    async fn foreign_networks(&self, deployments: &[Deployment]) -> Result<Vec<ForeignNetwork>, Error> {
        let mut found = self.lock().others.clone();
        found.retain(|network| deployments.iter().any(|asked| asked.id == network.deployment));
        Ok(found)
    }
}
