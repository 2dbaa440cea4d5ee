//! Kubernetes clusters, each with a subnet of its own: its nodes and pods have addresses there.
//!
//! The subnet's packet filter denies what comes in from the beginning. What goes out is denied once the cluster is
//! there: nodes load what they run from elsewhere, and a cluster whose nodes cannot is never made. Names lead to
//! everything, and the filter goes last, so that whoever asks again after a crash finds what is left to do.

use ipnet::{IpNet, Ipv4Net};
use serde_json::{Map, Value, json};

use super::describe::Described;
use super::detach::Guest;
use super::machine::{Machine, filter_of};
use super::names::{self, Group, NAMESPACE_TAG, Names};
use super::network::{self, id, namespace_of};
use super::public::Network;
use super::{Azure, lock, rules};
use crate::clouds::ways::HasWays as _;
use crate::error::Error;
use crate::model::{Created, Direction};

/// The address of a cluster's name service, counted from the first of its Services.
const DNS: u32 = 10;

/// The kind's own part of a URI; Azure's ids have no case.
pub(super) fn is_cluster(uri: &str) -> bool {
    uri.to_ascii_lowercase().contains("/providers/microsoft.containerservice/managedclusters/")
}

/// The space of a cluster's Services.
pub(super) fn services(cluster: &Value) -> Option<IpNet> {
    cluster.pointer("/properties/networkProfile/serviceCidr")?.as_str()?.parse().ok()
}

/// The subnet that all node pools of a cluster are in; nothing if there are several.
pub(super) fn subnet_of(cluster: &Value) -> Option<&str> {
    let mut all = cluster.pointer("/properties/agentPoolProfiles")?.as_array()?.iter().map(|pool| {
        let own = pool["podSubnetID"].is_null();
        pool["vnetSubnetID"].as_str().filter(|_| own)
    });
    let first = all.next()??;
    all.all(|other| other.is_some_and(|other| other.eq_ignore_ascii_case(first))).then_some(first)
}

/// The cluster as Azure wants it: as described, in this subnet, with these addresses for Services.
pub(super) fn cluster_body(described: &Described, namespace: &str, subnet: &str, services: Ipv4Net) -> Value {
    let mut body = Value::Object(described.body.clone());
    let tags = body["tags"].as_object().cloned().unwrap_or_default();
    body["tags"] =
        Value::Object(tags.into_iter().chain([(NAMESPACE_TAG.to_owned(), json!(namespace))]).collect());
    let properties = &mut body["properties"];
    for pool in properties["agentPoolProfiles"].as_array_mut().into_iter().flatten() {
        pool["vnetSubnetID"] = json!(subnet);
    }
    let mut network = properties["networkProfile"].as_object().cloned().unwrap_or_else(Map::new);
    let dns = std::net::Ipv4Addr::from(u32::from(services.network()) + DNS);
    network.insert("networkPlugin".into(), json!("azure"));
    network.insert("serviceCidr".into(), json!(services.to_string()));
    network.insert("dnsServiceIP".into(), json!(dns.to_string()));
    properties["networkProfile"] = Value::Object(network);
    let mut access = properties["apiServerAccessProfile"].as_object().cloned().unwrap_or_else(Map::new);
    access.insert("enablePrivateCluster".into(), json!(true));
    properties["apiServerAccessProfile"] = Value::Object(access);
    body
}

impl Azure {
    /// Whether clusters are switched on at all.
    pub(super) fn allow_clusters(&self) -> Result<(), Error> {
        if lock(&self.flags).kubernetes_clusters_enabled {
            return Ok(());
        }
        Err(Error::Unsupported("clusters are off: set kubernetesClustersEnabled".into()))
    }

    /// Makes a cluster and all it stands on, or what is missing of it.
    pub(super) async fn make_cluster(
        &self,
        group: &Group,
        namespace: &str,
        name: &str,
        described: &Described,
    ) -> Result<Created, Error> {
        self.allow_clusters()?;
        names::check_cluster("name", name)?;
        let uri = group.cluster(name);
        let foreign = || Error::Foreign { namespace: namespace.into(), resource: uri.clone() };
        let found = self.arm.settled(&uri).await?;
        if found.as_ref().is_some_and(|found| namespace_of(found) != Some(namespace)) {
            return Err(foreign());
        }
        let nsg = group.network(&format!("networkSecurityGroups/{}", names::nsg(name)));
        let (subnet, range) = {
            let _turn = self.shape(group, namespace).await;
            let filter = match self.arm.settled(&nsg).await? {
                Some(filter) if namespace_of(&filter) != Some(namespace) => return Err(foreign()),
                Some(filter)
                    if names::location(filter["location"].as_str().unwrap_or_default())
                        != described.location =>
                {
                    let message = "there is a cluster of this name elsewhere; nothing moves it";
                    return Err(Error::invalid("description.location", message));
                }
                Some(filter) => filter,
                None => {
                    let body = json!({
                        "location": described.location,
                        "tags": { NAMESPACE_TAG: namespace },
                        "properties": { "securityRules": [rules::deny(Direction::Inbound)] },
                    });
                    self.arm.put(&nsg, &body).await?
                }
            };
            let vnet = self.vnet_for(group, namespace, &described.location).await?;
            let subnet = self.subnet_for(&vnet, &names::subnet(name), &nsg).await?;
            let range = network::range(&subnet)
                .ok_or_else(|| self.arm.failed(id(&subnet), "the subnet has no range"))?;
            for rule in rules::local(range) {
                self.ensure_rule(&filter, &rule).await?;
            }
            (id(&subnet).to_owned(), range)
        };
        let done =
            found.as_ref().is_some_and(|found| found["properties"]["provisioningState"] == "Succeeded");
        if !done {
            // Services keep the space that they were given first: nobody can change it.
            let services = match found.as_ref().and_then(services) {
                Some(IpNet::V4(services)) => services,
                _ => self.space().await?,
            };
            self.arm.put(&uri, &cluster_body(described, namespace, &subnet, services)).await?;
        }
        let filter = self.arm.settled(&nsg).await?.ok_or_else(|| self.arm.failed(&nsg, "it is gone"))?;
        self.ensure_rule(&filter, &rules::deny(Direction::Outbound)).await?;
        let _turn = self.shape(group, namespace).await;
        let vnet = names::parent(&subnet);
        let vnet = self.arm.settled(vnet).await?.ok_or_else(|| self.arm.failed(vnet, "it is gone"))?;
        self.join_gateway(group, namespace, &vnet).await?;
        self.tell_peers(&vnet).await?;
        Ok(Created { name: name.into(), uri, ip: range.to_string() })
    }

    /// Puts a rule into a packet filter that does not have it so.
    pub(super) async fn ensure_rule(&self, filter: &Value, rule: &Value) -> Result<bool, Error> {
        let all = filter["properties"]["securityRules"].as_array();
        if all.into_iter().flatten().any(|found| found["name"] == rule["name"] && rules::is_as(found, rule)) {
            return Ok(false);
        }
        let at = format!("{}/securityRules/{}", id(filter), rule["name"].as_str().unwrap_or_default());
        self.arm.put(&at, &json!({ "properties": rule["properties"] })).await?;
        Ok(true)
    }

    /// What rules of a cluster need to know of it.
    pub(super) async fn cluster(&self, namespace: &str, uri: &str) -> Result<Machine, Error> {
        let group = Self::group_of(namespace, uri)?;
        let unknown = || Error::Resource { namespace: namespace.into(), resource: uri.into() };
        let cluster = self.arm.get(uri).await?.ok_or_else(unknown)?;
        let subnet_id =
            subnet_of(&cluster).ok_or_else(|| self.arm.failed(uri, "it has no subnet of its own"))?;
        let vnet = names::parent(subnet_id);
        let of = match namespace_of(&cluster) {
            Some(of) => Some(of.to_owned()),
            // One that others made: its network was tagged when it was taken in.
            None => self.arm.get(vnet).await?.as_ref().and_then(namespace_of).map(str::to_owned),
        };
        if of.as_deref() != Some(namespace) {
            return Err(Error::Foreign { namespace: namespace.into(), resource: uri.into() });
        }
        let subnet = self.arm.get(subnet_id).await?;
        let subnet = subnet.ok_or_else(|| self.arm.failed(subnet_id, "it is gone"))?;
        let nsg = subnet["properties"]["networkSecurityGroup"]["id"].as_str();
        let nsg = nsg.ok_or_else(|| self.arm.failed(uri, "its subnet has no packet filter"))?;
        let range = network::range(&subnet).ok_or_else(|| self.arm.failed(subnet_id, "it has no range"))?;
        Ok(Machine {
            group,
            address: range,
            nsg: nsg.into(),
            vnet: vnet.into(),
            subnet: names::last(subnet_id).into(),
            behind: subnet_id.into(),
        })
    }

    /// The clusters in these networks of a namespace. Those who use none need no right to see any.
    pub(super) async fn clusters(
        &self,
        group: &Group,
        namespace: &str,
        vnets: &[Value],
    ) -> Result<Vec<Value>, Error> {
        let enabled = lock(&self.flags).kubernetes_clusters_enabled;
        let of_ours = |vnet: &&Value| network::is_ours(vnet, namespace) && network::has_clusters(vnet);
        if vnets.is_empty() || !(enabled || vnets.iter().any(|vnet| of_ours(&vnet))) {
            return Ok(Vec::new());
        }
        let mut clusters = self.arm.list(&group.clusters()).await?;
        clusters.retain(|cluster| {
            let of = subnet_of(cluster).map(names::parent);
            of.is_some_and(|of| vnets.iter().any(|vnet| id(vnet).eq_ignore_ascii_case(of)))
                && namespace_of(cluster).is_none_or(|of| of == namespace)
        });
        Ok(clusters)
    }

    /// Removes a cluster and what was made for it alone; the network with the last one. One that others made stays,
    /// and what was put into its packet filter goes.
    pub(super) async fn remove_cluster(&self, namespace: &str, uri: &str) -> Result<(), Error> {
        let group = Self::group_of(namespace, uri)?;
        let name = names::last(uri);
        let nsg_id = group.network(&format!("networkSecurityGroups/{}", names::nsg(name)));
        let nsg = self.arm.settled(&nsg_id).await?;
        let cluster = self.arm.settled(uri).await?;
        let foreign = |object: &Option<Value>| {
            object.as_ref().is_some_and(|object| namespace_of(object) != Some(namespace))
        };
        if let Some(cluster) =
            cluster.as_ref().filter(|cluster| nsg.is_none() && namespace_of(cluster).is_none())
        {
            return self.part_with_cluster(&group, namespace, uri, cluster).await;
        }
        if foreign(&nsg) || (nsg.is_some() && foreign(&cluster)) {
            return Err(Error::Foreign { namespace: namespace.into(), resource: uri.into() });
        }
        if let Some(nsg) = &nsg {
            self.arm.delete(uri).await?;
            let location = names::location(nsg["location"].as_str().unwrap_or_default());
            let vnet = group.network(&format!("virtualNetworks/{}", Names(namespace).vnet(&location)));
            self.remove_subnet(&group, namespace, &vnet, &names::subnet(name)).await?;
            self.arm.delete(&nsg_id).await?;
        }
        self.tidy(&group, namespace).await?;
        for vnet in self.vnets(&group, namespace).await? {
            self.take_ways(Some(Network::new(&group, namespace, id(&vnet)))).await?;
        }
        if nsg.is_some() {
            Ok(())
        } else {
            Err(Error::Resource { namespace: namespace.into(), resource: uri.into() })
        }
    }

    async fn part_with_cluster(
        &self,
        group: &Group,
        namespace: &str,
        uri: &str,
        cluster: &Value,
    ) -> Result<(), Error> {
        let unknown = || Error::Resource { namespace: namespace.into(), resource: uri.into() };
        let subnet = self.arm.settled(subnet_of(cluster).ok_or_else(unknown)?).await?.ok_or_else(unknown)?;
        let range = network::range(&subnet).map(|range| range.to_string()).unwrap_or_default();
        let guest = Guest {
            address: &range,
            nsg: filter_of(&subnet).ok_or_else(unknown)?,
            vnet: names::parent(id(&subnet)),
            behind: id(&subnet),
        };
        self.part_with(group, namespace, uri, &guest).await
    }
}

#[cfg(test)]
mod tests {
    use super::super::describe;
    use super::*;

    #[test]
    fn a_cluster_is_private_and_in_its_subnet() {
        let described = describe::read(
            r#"{"location":"westus2","tags":{"a":"b"},"properties":{
                "agentPoolProfiles":[{"name":"a","count":1},{"name":"b"}],
                "networkProfile":{"networkPolicy":"azure"}}}"#,
        )
        .unwrap();
        let body = cluster_body(&described, "default", "/v/subnets/s", "10.3.0.0/16".parse().unwrap());
        assert_eq!(body["tags"], json!({ "a": "b", "paraglider-namespace": "default" }));
        assert_eq!(subnet_of(&body), Some("/v/subnets/s"));
        assert_eq!(services(&body), Some("10.3.0.0/16".parse().unwrap()));
        let network = json!({
            "networkPolicy": "azure", "networkPlugin": "azure",
            "serviceCidr": "10.3.0.0/16", "dnsServiceIP": "10.3.0.10",
        });
        assert_eq!(body["properties"]["networkProfile"], network);
        assert_eq!(body["properties"]["apiServerAccessProfile"], json!({ "enablePrivateCluster": true }));
    }

    #[test]
    fn a_cluster_in_two_subnets_has_none_of_its_own() {
        let of = |pools: Value| {
            subnet_of(&json!({ "properties": { "agentPoolProfiles": pools } })).map(str::to_owned)
        };
        assert_eq!(of(json!([{ "vnetSubnetID": "/A" }, { "vnetSubnetID": "/a" }])).as_deref(), Some("/A"));
        assert_eq!(of(json!([{ "vnetSubnetID": "/a" }, { "vnetSubnetID": "/b" }])), None);
        assert_eq!(of(json!([{ "vnetSubnetID": "/a", "podSubnetID": "/b" }])), None);
        assert_eq!(of(json!([{}])), None);
        assert_eq!(of(json!([])), None);
        assert!(is_cluster(
            "/subscriptions/s/resourcegroups/g/providers/microsoft.containerservice/managedclusters/c"
        ));
    }
}
