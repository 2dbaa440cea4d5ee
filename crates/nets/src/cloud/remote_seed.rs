//! A cloud whose plugin is another process, on the first generation's wire.
//!
//! That wire has no words for numbers and addresses in use, for flags or for removal: who asks is told that it
//! is not supported, as with any plugin that leaves out what it may.

use std::net::Ipv4Addr;

use async_trait::async_trait;
use ipnet::IpNet;
use serde_json::{Value, json};
use tarbet_telemetry::codes::nets;
use tonic::Status;

use super::{Cloud, NewConnections, NewGateway, NewResource, convert};
use crate::error::Error;
use crate::grpc;
use crate::model::{Created, Deployment, Flags, Mapping, Rule};
use crate::plan::connect::Gateway;
use crate::trust::{DialTrust, Line};
use crate::wire::invisinets::{self as seed, cloud_plugin_client::CloudPluginClient};

/// A cloud over that wire.
#[derive(Clone, Debug)]
pub struct RemoteSeed {
    name: String,
    plugin: CloudPluginClient<Line>,
}

impl RemoteSeed {
    /// The plugin of the cloud `name` at this address. It need not be up yet.
    pub fn trusting(name: &str, host: &str, port: u16, trust: &DialTrust) -> Result<Self, Error> {
        Ok(Self { name: name.into(), plugin: CloudPluginClient::new(trust.line(host, port)?) })
    }

    fn told(&self, status: &Status) -> Error {
        grpc::told(status, &format!("orchestrator → plugin of {}", self.name), &nets::PLUGIN_UNREACHABLE)
    }

    /// A refusal may come as an answer.
    fn done(&self, what: &str, answer: seed::BasicResponse) -> Result<(), Error> {
        if answer.success {
            return Ok(());
        }
        Err(Error::Cloud { cloud: self.name.clone(), what: what.into(), said: answer.message })
    }
}

fn unsupported(what: &str) -> Error {
    Error::Unsupported(format!("plugins of the first generation do not tell {what}"))
}

fn place(deployment: &Deployment) -> seed::InvisinetsDeployment {
    seed::InvisinetsDeployment { id: deployment.id.clone(), namespace: deployment.namespace.clone() }
}

/// The id and the description of a new resource, as users of each cloud wrote them in that generation: what the
/// cloud's own request has a place for is in there too.
fn described(cloud: &str, new: &NewResource) -> (String, String) {
    let (place, name) = (&new.deployment.id, &new.name);
    let plain = || (format!("{place}/{name}"), new.description.clone());
    let Ok(mut description) = serde_json::from_str::<Value>(&new.description) else { return plain() };
    match cloud {
        "azure" => {
            let kind = if description.pointer("/properties/agentPoolProfiles").is_some() {
                "Microsoft.ContainerService/managedClusters"
            } else {
                "Microsoft.Compute/virtualMachines"
            };
            (format!("{place}/providers/{kind}/{name}"), new.description.clone())
        }
        "gcp" if description["instance_resource"].is_object() => {
            let zone = description["zone"].as_str().unwrap_or_default();
            let id = format!("{place}/zones/{zone}/instances/{name}");
            description["project"] = json!(place.strip_prefix("projects/").unwrap_or(place));
            description["instance_resource"]["name"] = json!(name);
            (id, description.to_string())
        }
        "ibm" if description["InstancePrototype"].is_object() => {
            description["InstancePrototype"]["name"] = json!(name);
            (format!("{place}/instance/{name}"), description.to_string())
        }
        _ => plain(),
    }
}

#[async_trait]
impl Cloud for RemoteSeed {
    async fn used_spaces(&self, given: &[Deployment]) -> Result<Vec<Mapping>, Error> {
        let mut mappings = Vec::new();
        for deployment in given {
            let answer = self.plugin.clone().get_used_address_spaces(place(deployment)).await;
            let used = answer.map_err(|status| self.told(&status))?.into_inner().address_spaces;
            let spaces: Vec<IpNet> =
                used.iter().map(|text| convert::space("address_spaces", text)).collect::<Result<_, _>>()?;
            mappings.push(Mapping {
                spaces,
                cloud: self.name.clone(),
                namespace: deployment.namespace.clone(),
                deployment: Some(deployment.id.clone()),
            });
        }
        Ok(mappings)
    }

    async fn used_asns(&self, _: &[Deployment]) -> Result<Vec<u32>, Error> {
        Err(unsupported("numbers in use"))
    }

    async fn used_bgp_addresses(&self, _: &[Deployment]) -> Result<Vec<Ipv4Addr>, Error> {
        Err(unsupported("addresses in use inside tunnels"))
    }

    async fn create_resource(&self, new: NewResource) -> Result<Created, Error> {
        let (id, description) = described(&self.name, &new);
        let request = seed::ResourceDescription {
            id,
            description: description.into_bytes(),
            namespace: new.deployment.namespace,
        };
        let answer = self.plugin.clone().create_resource(request).await;
        let seed::CreateResourceResponse { name, uri, ip } =
            answer.map_err(|status| self.told(&status))?.into_inner();
        Ok(Created { name, uri, ip })
    }

    async fn permit_list(&self, namespace: &str, uri: &str) -> Result<Vec<Rule>, Error> {
        let request = seed::ResourceId { id: uri.into(), namespace: namespace.into() };
        let answer = self.plugin.clone().get_permit_list(request).await;
        let list = answer.map_err(|status| self.told(&status))?.into_inner();
        Ok(list.rules.into_iter().map(Into::into).collect())
    }

    async fn add_rules(&self, namespace: &str, uri: &str, rules: Vec<Rule>) -> Result<(), Error> {
        let request = seed::PermitList {
            associated_resource: uri.into(),
            rules: rules.into_iter().map(Into::into).collect(),
            namespace: namespace.into(),
        };
        let answer = self.plugin.clone().add_permit_list_rules(request).await;
        self.done("AddPermitListRules", answer.map_err(|status| self.told(&status))?.into_inner())
    }

    /// Some of these plugins know a rule by its contents, so the rules are sent as they are there.
    async fn delete_rules(&self, namespace: &str, uri: &str, names: Vec<String>) -> Result<(), Error> {
        let mut rules = self.permit_list(namespace, uri).await?;
        rules.retain(|rule| names.contains(&rule.name));
        if rules.is_empty() {
            return Ok(());
        }
        let request = seed::PermitList {
            associated_resource: uri.into(),
            rules: rules.into_iter().map(Into::into).collect(),
            namespace: namespace.into(),
        };
        let answer = self.plugin.clone().delete_permit_list_rules(request).await;
        self.done("DeletePermitListRules", answer.map_err(|status| self.told(&status))?.into_inner())
    }

    /// The plugin is not told for whom, and chooses its addresses inside the tunnels later.
    async fn create_gateway(&self, new: NewGateway) -> Result<Gateway, Error> {
        let answer = self.plugin.clone().create_vpn_gateway(place(&new.deployment)).await;
        let made = answer.map_err(|status| self.told(&status))?.into_inner();
        let wrong = |_| Error::invalid("asn", format!("{} is no number of a system", made.asn));
        Ok(Gateway { asn: made.asn.try_into().map_err(wrong)?, addresses: made.gateway_ip_addresses })
    }

    fn chooses_addresses(&self) -> bool {
        true
    }

    async fn create_bgp_sessions(
        &self,
        deployment: &Deployment,
        cloud: &str,
    ) -> Result<Vec<Ipv4Addr>, Error> {
        let request =
            seed::CreateVpnBgpSessionsRequest { deployment: Some(place(deployment)), cloud: cloud.into() };
        let answer = self.plugin.clone().create_vpn_bgp_sessions(request).await;
        let made = answer.map_err(|status| self.told(&status))?.into_inner();
        convert::addresses("bgp_ip_addresses", &made.bgp_ip_addresses)
    }

    async fn create_connections(&self, new: NewConnections) -> Result<(), Error> {
        let request = seed::CreateVpnConnectionsRequest {
            deployment: Some(place(&new.deployment)),
            cloud: new.cloud,
            asn: new.asn.into(),
            address_space: new.remote_spaces.into_iter().next().unwrap_or_default(),
            gateway_ip_addresses: new.gateways,
            bgp_ip_addresses: new.bgp_addresses.iter().map(ToString::to_string).collect(),
            shared_key: new.key.expose().to_owned(),
        };
        let answer = self.plugin.clone().create_vpn_connections(request).await;
        self.done("CreateVpnConnections", answer.map_err(|status| self.told(&status))?.into_inner())
    }

    async fn network_spaces(&self, _: &Deployment, _: IpNet) -> Result<Vec<IpNet>, Error> {
        Err(unsupported("all spaces of a network"))
    }

    async fn set_flags(&self, _: Flags) -> Result<(), Error> {
        Err(Error::Unsupported("plugins of the first generation have no flags".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_resources_are_described_as_that_generations_users_did() {
        let of = |cloud: &str, place: &str, description: Value| {
            let deployment = Deployment { id: place.into(), namespace: "default".into() };
            let new = NewResource { deployment, name: "vm".into(), description: description.to_string() };
            let (id, description) = described(cloud, &new);
            (id, serde_json::from_str::<Value>(&description).unwrap())
        };
        let (id, description) = of(
            "gcp",
            "projects/p",
            json!({ "zone": "us-west1-a", "instance_resource": { "machine_type": "m" } }),
        );
        assert_eq!(id, "projects/p/zones/us-west1-a/instances/vm");
        assert_eq!(description["project"], "p");
        assert_eq!(description["instance_resource"], json!({ "machine_type": "m", "name": "vm" }));
        let group = "/subscriptions/s/resourceGroups/rg";
        let machine = json!({ "properties": { "hardwareProfile": {} } });
        let (id, description) = of("azure", group, machine.clone());
        assert_eq!(id, format!("{group}/providers/Microsoft.Compute/virtualMachines/vm"));
        assert_eq!(description, machine);
        let (id, description) =
            of("ibm", "/resourcegroup/rg/zone/z-1", json!({ "InstancePrototype": { "profile": {} } }));
        assert_eq!(id, "/resourcegroup/rg/zone/z-1/instance/vm");
        assert_eq!(description["InstancePrototype"]["name"], "vm");
        assert_eq!(of("east", "e", json!({})).0, "e/vm");
    }
}
