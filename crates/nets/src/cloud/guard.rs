//! A plugin's own policy: what it does for anybody, whoever the orchestrator is.

use std::net::Ipv4Addr;

use async_trait::async_trait;
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Abilities, Cloud, Held, NewConnections, NewGateway, NewResource, OldConnections};
use crate::error::Error;
use crate::model::{Created, Deployment, Flags, ForeignNetwork, Mapping, Rule};
use crate::plan::connect::Gateway;
use crate::plan::{rule, target};

/// What the plugin may be asked. A list that is not given allows everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Policy {
    /// Deployments it acts in.
    pub deployments: Option<Vec<String>>,
    /// Namespaces it acts for.
    pub namespaces: Option<Vec<String>>,
    /// Prefixes that rules may name as targets, and that routes to other clouds may lead to.
    #[schemars(with = "Option<Vec<String>>")]
    pub targets: Option<Vec<IpNet>>,
    /// Refuses targets and routes that are not private.
    pub no_public_targets: bool,
    /// Clouds it may be connected to.
    pub peers: Option<Vec<String>>,
    /// Prefixes that hold the public addresses of their gateways.
    #[schemars(with = "Option<Vec<String>>")]
    pub gateways: Option<Vec<IpNet>>,
    /// Flags that an orchestrator may switch on; others stay off.
    pub flags: Option<Flags>,
}

impl Policy {
    fn listed(list: Option<&Vec<String>>, what: &str, name: &str) -> Result<(), Error> {
        match list {
            Some(list) if !list.iter().any(|entry| entry == name) => Err(Error::Policy {
                what: format!("{what} `{name}`"),
                why: format!("it is none of {}", list.join(", ")),
            }),
            _ => Ok(()),
        }
    }

    fn namespace(&self, namespace: &str) -> Result<(), Error> {
        Self::listed(self.namespaces.as_ref(), "the namespace", namespace)
    }

    /// A deployment may be spelt in several ways; `spelling` makes one of them.
    fn deployment(&self, id: &str, spelling: impl Fn(&str) -> String) -> Result<(), Error> {
        let named = |list: &Vec<String>| list.iter().any(|entry| spelling(entry) == spelling(id));
        if self.deployments.as_ref().is_none_or(named) {
            return Ok(());
        }
        Self::listed(self.deployments.as_ref(), "the deployment", id)
    }

    fn peer(&self, cloud: &str) -> Result<(), Error> {
        Self::listed(self.peers.as_ref(), "a connection to", cloud)
    }

    /// Whether packets may be let to a prefix, which is called `what`.
    fn target(&self, net: &IpNet, what: impl Fn() -> String) -> Result<(), Error> {
        let refuse = |why: &str| Err(Error::Policy { what: what(), why: why.into() });
        if self.no_public_targets && !target::is_private(net) {
            return refuse("it is not private");
        }
        if self.targets.as_ref().is_some_and(|allowed| !allowed.iter().any(|range| range.contains(net))) {
            return refuse("it is outside of the ranges");
        }
        Ok(())
    }

    fn rules(&self, rules: &[Rule]) -> Result<(), Error> {
        for permission in rules {
            for net in rule::targets(permission)? {
                self.target(&net, || format!("the target {net} of rule `{}`", permission.name))?;
            }
        }
        Ok(())
    }

    /// A route carries whatever rules let pass, and a key is told to whoever has the gateway's address.
    fn connections(&self, new: &NewConnections) -> Result<(), Error> {
        self.peer(&new.cloud)?;
        let read = |field: &str, text: &String| {
            let unreadable =
                || Error::invalid(field, format!("`{}` is no address or prefix", text.escape_debug()));
            target::parse(text).ok_or_else(unreadable)
        };
        for text in &new.remote_spaces {
            let net = read("remote_addresses", text)?;
            self.target(&net, || format!("a route to {net} of `{}`", new.cloud))?;
        }
        let Some(allowed) = &self.gateways else { return Ok(()) };
        for text in &new.gateways {
            let net = read("gateway_ip_addresses", text)?;
            if !allowed.iter().any(|range| range.contains(&net)) {
                let what = format!("the gateway {text} of `{}`", new.cloud);
                return Err(Error::Policy { what, why: "it is outside of the ranges".into() });
            }
        }
        Ok(())
    }

    /// The flags that it lets be on. Those that it does not stay off, and the cloud itself then refuses what they
    /// are for.
    fn flags(&self, flags: Flags) -> Flags {
        let allowed = self.flags.map_or(flags, |allowed| flags.within(allowed));
        for flag in flags.on().filter(|flag| allowed.on().all(|on| on != *flag)) {
            tracing::warn!(flag, "The flag stays off: the plugin's policy does not let it be switched on.");
        }
        allowed
    }
}

/// A cloud behind its policy.
pub struct Guarded<C> {
    policy: Policy,
    cloud: C,
}

impl<C: Cloud> Guarded<C> {
    /// Every call passes the policy first.
    pub fn new(policy: Policy, cloud: C) -> Self {
        Self { policy, cloud }
    }

    fn spelling(&self, id: &str) -> String {
        self.cloud.deployment_of(id).unwrap_or_else(|| id.to_owned())
    }

    fn deployment(&self, deployment: &Deployment) -> Result<(), Error> {
        self.policy.namespace(&deployment.namespace)?;
        self.policy.deployment(&deployment.id, |id| self.spelling(id))
    }

    /// Whether a resource may be touched: its namespace, and the deployment that its URI leads to.
    fn resource(&self, namespace: &str, uri: &str) -> Result<(), Error> {
        self.policy.namespace(namespace)?;
        let within = self.cloud.deployment_of(uri);
        within.map_or(Ok(()), |id| self.policy.deployment(&id, |id| self.spelling(id)))
    }
}

#[async_trait]
impl<C: Cloud> Cloud for Guarded<C> {
    // Reading what is used is what keeps others from overlapping us: only foreign deployments are left out.
    fn at_once(&self) -> usize {
        self.cloud.at_once()
    }

    async fn abilities(&self) -> Result<Abilities, Error> {
        self.cloud.abilities().await
    }

    async fn find_deployment(&self, uri: &str) -> Result<Option<String>, Error> {
        self.cloud.find_deployment(uri).await
    }

    async fn used_spaces(&self, deployments: &[Deployment]) -> Result<Vec<Mapping>, Error> {
        deployments.iter().try_for_each(|deployment| self.deployment(deployment))?;
        self.cloud.used_spaces(deployments).await
    }

    async fn used_asns(&self, deployments: &[Deployment]) -> Result<Vec<u32>, Error> {
        deployments.iter().try_for_each(|deployment| self.deployment(deployment))?;
        self.cloud.used_asns(deployments).await
    }

    async fn used_bgp_addresses(&self, deployments: &[Deployment]) -> Result<Vec<Ipv4Addr>, Error> {
        deployments.iter().try_for_each(|deployment| self.deployment(deployment))?;
        self.cloud.used_bgp_addresses(deployments).await
    }

    async fn create_resource(&self, new: NewResource) -> Result<Created, Error> {
        self.deployment(&new.deployment)?;
        self.cloud.create_resource(new).await
    }

    fn chooses_addresses(&self) -> bool {
        self.cloud.chooses_addresses()
    }

    fn deployment_of(&self, uri: &str) -> Option<String> {
        self.cloud.deployment_of(uri)
    }

    fn place_of(&self, id: &str, description: &str) -> Result<(String, String), Error> {
        self.cloud.place_of(id, description)
    }

    async fn attach_resource(&self, namespace: &str, uri: &str) -> Result<Created, Error> {
        self.resource(namespace, uri)?;
        self.cloud.attach_resource(namespace, uri).await
    }

    async fn permit_list(&self, namespace: &str, uri: &str) -> Result<Vec<Rule>, Error> {
        self.resource(namespace, uri)?;
        self.cloud.permit_list(namespace, uri).await
    }

    async fn add_rules(&self, namespace: &str, uri: &str, rules: Vec<Rule>) -> Result<(), Error> {
        self.resource(namespace, uri)?;
        self.policy.rules(&rules)?;
        self.cloud.add_rules(namespace, uri, rules).await
    }

    async fn delete_rules(&self, namespace: &str, uri: &str, names: Vec<String>) -> Result<(), Error> {
        self.resource(namespace, uri)?;
        self.cloud.delete_rules(namespace, uri, names).await
    }

    async fn create_gateway(&self, new: NewGateway) -> Result<Gateway, Error> {
        self.deployment(&new.deployment)?;
        // The first generation names the peer only later.
        if !new.cloud.is_empty() {
            self.policy.peer(&new.cloud)?;
        }
        self.cloud.create_gateway(new).await
    }

    async fn create_bgp_sessions(
        &self,
        deployment: &Deployment,
        cloud: &str,
    ) -> Result<Vec<Ipv4Addr>, Error> {
        self.deployment(deployment)?;
        self.policy.peer(cloud)?;
        self.cloud.create_bgp_sessions(deployment, cloud).await
    }

    fn replaces_keys(&self) -> bool {
        self.cloud.replaces_keys()
    }

    async fn create_connections(&self, new: NewConnections) -> Result<(), Error> {
        self.deployment(&new.deployment)?;
        self.policy.connections(&new)?;
        self.cloud.create_connections(new).await
    }

    async fn network_spaces(&self, deployment: &Deployment, space: IpNet) -> Result<Vec<IpNet>, Error> {
        self.deployment(deployment)?;
        self.cloud.network_spaces(deployment, space).await
    }

    async fn set_flags(&self, flags: Flags) -> Result<(), Error> {
        self.cloud.set_flags(self.policy.flags(flags)).await
    }

    async fn list_resources(&self, namespace: &str) -> Result<Vec<Held>, Error> {
        if !namespace.is_empty() {
            self.policy.namespace(namespace)?;
        }
        let held = self.cloud.list_resources(namespace).await?;
        let allowed = |held: &Held| self.resource(&held.namespace, &held.uri).is_ok();
        Ok(held.into_iter().filter(allowed).collect())
    }

    async fn delete_resource(&self, namespace: &str, uri: &str) -> Result<(), Error> {
        self.resource(namespace, uri)?;
        self.cloud.delete_resource(namespace, uri).await
    }

    async fn delete_connections(&self, old: OldConnections) -> Result<(), Error> {
        self.deployment(&old.deployment)?;
        self.cloud.delete_connections(old).await
    }

    async fn drift(&self, namespace: &str, repair: bool) -> Result<Vec<String>, Error> {
        if !namespace.is_empty() || repair {
            self.policy.namespace(namespace)?;
        }
        self.cloud.drift(namespace, repair).await
    }

    async fn foreign_networks(&self, deployments: &[Deployment]) -> Result<Vec<ForeignNetwork>, Error> {
        deployments.iter().try_for_each(|deployment| self.deployment(deployment))?;
        self.cloud.foreign_networks(deployments).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_kept() {
        let policy = Policy {
            namespaces: Some(vec!["default".into()]),
            deployments: Some(vec!["d1".into()]),
            targets: Some(vec!["10.0.0.0/8".parse().unwrap()]),
            no_public_targets: true,
            peers: Some(vec!["gcp".into()]),
            ..Policy::default()
        };
        let plain = |id: &str| id.to_owned();
        assert!(policy.deployment("d1", plain).is_ok());
        assert!(policy.deployment("D1", plain).is_err());
        assert!(policy.deployment("D1", str::to_lowercase).is_ok(), "another spelling of the same");
        assert!(policy.deployment("d2", str::to_lowercase).is_err());
        assert!(policy.namespace("default").is_ok());
        assert!(policy.namespace("other").is_err());
        assert!(policy.peer("azure").is_err());
        let rule = |target: &str| Rule { name: "r".into(), targets: vec![target.into()], ..Rule::default() };
        assert!(policy.rules(&[rule("10.1.0.0/16")]).is_ok());
        for refused in ["192.168.0.1", "8.8.8.8", "0.0.0.0/0"] {
            assert!(matches!(policy.rules(&[rule(refused)]), Err(Error::Policy { .. })), "{refused}");
        }
        assert!(Policy::default().rules(&[rule("8.8.8.8")]).is_ok());
    }

    fn memory() -> crate::cloud::MemoryCloud {
        let nobody = std::sync::Arc::new(crate::controller::LateController::default());
        crate::cloud::MemoryCloud::new("azure", nobody)
    }

    #[tokio::test]
    async fn routes_and_gateways_of_other_clouds_are_held_to_the_policy() {
        let connections = |gateway: &str, route: &str| NewConnections {
            deployment: Deployment { id: "d1".into(), namespace: "default".into() },
            cloud: "ibm".into(),
            asn: 64512,
            gateways: vec![gateway.into()],
            bgp_addresses: Vec::new(),
            key: crate::model::SharedKey::from_random([7; 32]),
            remote_spaces: vec![route.into()],
            bgp: false,
            space: None,
        };
        let policy = Policy {
            targets: Some(vec!["10.0.0.0/8".parse().unwrap()]),
            gateways: Some(vec!["192.0.2.0/24".parse().unwrap()]),
            ..Policy::default()
        };
        let guarded = Guarded::new(policy, memory());
        guarded.create_connections(connections("192.0.2.1", "10.1.0.0/16")).await.unwrap();
        assert_eq!(guarded.cloud.tunnels().len(), 1);
        for (gateway, route) in
            [("192.0.2.1", "0.0.0.0/0"), ("192.0.2.1", "172.16.0.0/16"), ("198.51.100.1", "10.1.0.0/16")]
        {
            let refused = guarded.create_connections(connections(gateway, route)).await.unwrap_err();
            assert!(matches!(refused, Error::Policy { .. }), "{gateway} {route}: {refused}");
        }
        let private = Guarded::new(Policy { no_public_targets: true, ..Policy::default() }, memory());
        assert!(private.create_connections(connections("192.0.2.1", "0.0.0.0/0")).await.is_err());
        let free = Guarded::new(Policy::default(), memory());
        free.create_connections(connections("198.51.100.1", "172.16.0.0/16")).await.unwrap();
    }

    #[tokio::test]
    async fn only_flags_of_the_policy_are_switched_on() {
        let all = Flags {
            attach_resource_enabled: true,
            kubernetes_clusters_enabled: true,
            private_endpoints_enabled: true,
        };
        let clusters = Flags { kubernetes_clusters_enabled: true, ..Flags::default() };
        let guarded = Guarded::new(Policy { flags: Some(clusters), ..Policy::default() }, memory());
        guarded.set_flags(all).await.unwrap();
        assert_eq!(guarded.cloud.flags(), clusters);
        let free = Guarded::new(Policy::default(), memory());
        free.set_flags(all).await.unwrap();
        assert_eq!(free.cloud.flags(), all);
    }
}
