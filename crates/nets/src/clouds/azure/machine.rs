//! Virtual machines, each with one network interface and a packet filter of its own.

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::describe::Described;
use super::detach::is_shared;
use super::names::{self, Group, NAMESPACE_TAG, SUBNET};
use super::network::{id, namespace_of};
use super::public::Network;
use super::{Azure, rules};
use crate::clouds::ways::HasWays as _;
use crate::error::Error;
use crate::model::Created;

/// A resource whose permit list can be asked for.
#[derive(Debug)]
pub(super) struct Machine {
    /// Its resource group.
    pub(super) group: Group,
    /// Its address; a cluster's range.
    pub(super) address: IpNet,
    /// Its packet filter's id.
    pub(super) nsg: String,
    /// Its network's id.
    pub(super) vnet: String,
    /// The name of the subnet that is opened to the public for it.
    pub(super) subnet: String,
    /// The network interface or subnet that is behind its packet filter.
    pub(super) behind: String,
}

impl Machine {
    /// Whether a permission in its packet filter is its own. All are, unless others are behind the filter, too.
    pub(super) fn owns(&self, filter: &Value, found: &Value) -> bool {
        !is_shared(filter, &self.behind) || rules::near(found) == Some(self.address)
    }
}

/// The machine as Azure wants it: as described, at this network interface.
pub(super) fn machine_body(described: &Described, namespace: &str, nic: &str) -> Value {
    let mut body = Value::Object(described.body.clone());
    let tags = body["tags"].as_object().cloned().unwrap_or_default();
    body["tags"] =
        Value::Object(tags.into_iter().chain([(NAMESPACE_TAG.to_owned(), json!(namespace))]).collect());
    body["properties"]["networkProfile"] =
        json!({ "networkInterfaces": [{ "id": nic, "properties": { "primary": true } }] });
    // A disk made with the machine goes with it, unless the person says otherwise.
    let storage = &mut body["properties"]["storageProfile"];
    if storage.get("imageReference").is_some() {
        let disk = storage["osDisk"].as_object().cloned().unwrap_or_else(Map::new);
        let mut usual = Map::from_iter([
            ("createOption".to_owned(), json!("FromImage")),
            ("deleteOption".to_owned(), json!("Delete")),
        ]);
        usual.extend(disk);
        storage["osDisk"] = Value::Object(usual);
    }
    if body["properties"]["storageProfile"].is_null()
        && let Some(properties) = body["properties"].as_object_mut()
    {
        properties.remove("storageProfile");
    }
    body
}

/// The address of a network interface.
pub(super) fn address(nic: &Value) -> Option<&str> {
    nic.pointer("/properties/ipConfigurations/0/properties/privateIPAddress")?.as_str()
}

/// The subnet that a network interface is in.
pub(super) fn subnet_of_nic(nic: &Value) -> Option<&str> {
    nic.pointer("/properties/ipConfigurations/0/properties/subnet/id")?.as_str()
}

/// The network that a network interface is in.
pub(super) fn network(nic: &Value) -> Option<&str> {
    subnet_of_nic(nic).map(names::parent)
}

/// The packet filter that a network interface or a subnet is behind.
pub(super) fn filter_of(object: &Value) -> Option<&str> {
    object["properties"]["networkSecurityGroup"]["id"].as_str()
}

impl Azure {
    /// Makes a machine and all it stands on.
    pub(super) async fn make_machine(
        &self,
        group: &Group,
        namespace: &str,
        name: &str,
        described: &Described,
    ) -> Result<Created, Error> {
        let machine = group.machine(name);
        let found = self.arm.settled(&machine).await?;
        if found.as_ref().is_some_and(|found| namespace_of(found) != Some(namespace)) {
            return Err(Error::Foreign { namespace: namespace.into(), resource: machine });
        }
        let nic_name = names::nic(&machine);
        let nic_id = group.network(&format!("networkInterfaces/{nic_name}"));
        let (vnet, nic) = {
            let _turn = self.shape(group, namespace).await;
            let vnet = self.vnet_for(group, namespace, &described.location).await?;
            let nsg = group.network(&format!("networkSecurityGroups/{}", names::nsg(&nic_name)));
            // One that is there already may hold rules.
            if self.arm.settled(&nsg).await?.is_none() {
                let body = json!({
                    "location": described.location,
                    "tags": { NAMESPACE_TAG: namespace },
                    "properties": { "securityRules": rules::deny_all() },
                });
                self.arm.put(&nsg, &body).await?;
            }
            let body =
                nic_body(&described.location, namespace, &format!("{}/subnets/{SUBNET}", id(&vnet)), &nsg);
            (vnet, self.arm.ensure(&nic_id, &body).await?)
        };
        let done = found.is_some_and(|found| found["properties"]["provisioningState"] == "Succeeded");
        if !done {
            self.arm.put(&machine, &machine_body(described, namespace, &nic_id)).await?;
        }
        let ip =
            address(&nic).ok_or_else(|| self.arm.failed(&nic_id, "the network interface has no address"))?;
        let _turn = self.shape(group, namespace).await;
        self.join_gateway(group, namespace, &vnet).await?;
        Ok(Created { name: name.into(), uri: machine, ip: ip.into() })
    }

    /// Finds a machine of a namespace by its URI.
    pub(super) async fn machine(&self, namespace: &str, uri: &str) -> Result<Machine, Error> {
        let group = Self::group_of(namespace, uri)?;
        let unknown = || Error::Resource { namespace: namespace.into(), resource: uri.into() };
        let foreign = || Error::Foreign { namespace: namespace.into(), resource: uri.into() };
        let own = group.network(&format!("networkInterfaces/{}", names::nic(uri)));
        let nic = if let Some(nic) = self.arm.get(&own).await? {
            if namespace_of(&nic) != Some(namespace) {
                return Err(foreign());
            }
            nic
        } else {
            // One that others made: its network was tagged when it was taken in.
            let (_, nic) = self.foreign_machine(uri).await?.ok_or_else(unknown)?;
            let vnet = self.arm.get(network(&nic).unwrap_or_default()).await?;
            if vnet.as_ref().and_then(namespace_of) != Some(namespace) {
                return Err(foreign());
            }
            nic
        };
        let part = |value: Option<&str>, what: &str| {
            value
                .map(str::to_owned)
                .ok_or_else(|| self.arm.failed(uri, &format!("its network interface has no {what}")))
        };
        let ip = part(address(&nic), "address")?;
        Ok(Machine {
            address: rules::host(&ip)
                .ok_or_else(|| self.arm.failed(uri, &format!("`{ip}` is not an address")))?,
            subnet: part(subnet_of_nic(&nic).map(names::last), "subnet")?,
            nsg: part(filter_of(&nic), "packet filter")?,
            vnet: part(network(&nic), "network")?,
            behind: id(&nic).to_owned(),
            group,
        })
    }

    /// A machine that others made, and its first network interface.
    pub(super) async fn foreign_machine(&self, uri: &str) -> Result<Option<(Value, Value)>, Error> {
        if !uri.to_ascii_lowercase().contains("/providers/microsoft.compute/virtualmachines/") {
            return Ok(None);
        }
        let Some(machine) = self.arm.get(uri).await? else { return Ok(None) };
        let nic =
            machine.pointer("/properties/networkProfile/networkInterfaces/0/id").and_then(Value::as_str);
        let Some(nic) = nic else { return Ok(None) };
        Ok(self.arm.get(nic).await?.map(|nic| (machine, nic)))
    }

    /// Removes a machine and what was made for it alone; the network with the last one. One that others made stays,
    /// and what was put into its packet filter goes.
    pub(super) async fn remove_machine(&self, namespace: &str, uri: &str) -> Result<(), Error> {
        let group = Self::group_of(namespace, uri)?;
        let mut nic_id = group.network(&format!("networkInterfaces/{}", names::nic(uri)));
        let mut nsg_id = group.network(&format!("networkSecurityGroups/{}", names::nsg(&names::nic(uri))));
        let mut nic = self.arm.settled(&nic_id).await?;
        let mut nsg = self.arm.settled(&nsg_id).await?;
        if nic.is_none()
            && nsg.is_none()
            && let Some((_, theirs)) = self.foreign_machine(uri).await?
        {
            if namespace_of(&theirs).is_none() {
                return self.part_with_machine(&group, namespace, uri, &theirs).await;
            }
            // The original gives interfaces names by chance.
            id(&theirs).clone_into(&mut nic_id);
            if let Some(filter) = filter_of(&theirs) {
                filter.clone_into(&mut nsg_id);
                nsg = self.arm.settled(&nsg_id).await?;
            }
            nic = Some(theirs);
        }
        let foreign = |object: &Option<Value>| {
            object.as_ref().is_some_and(|object| namespace_of(object) != Some(namespace))
        };
        if foreign(&nic) || foreign(&nsg) {
            return Err(Error::Foreign { namespace: namespace.into(), resource: uri.into() });
        }
        if nsg.is_some() {
            // The filter goes last: while it is there, so may be the rest.
            self.arm.delete(uri).await?;
            self.arm.delete(&nic_id).await?;
            self.arm.delete(&nsg_id).await?;
        }
        self.tidy(&group, namespace).await?;
        match nic.as_ref().and_then(network) {
            Some(vnet) => self.take_ways(Some(Network::new(&group, namespace, vnet))).await?,
            // Cut off before: which network it was is not known any more.
            None => {
                for vnet in self.vnets(&group, namespace).await? {
                    self.take_ways(Some(Network::new(&group, namespace, id(&vnet)))).await?;
                }
            }
        }
        if nsg.is_some() {
            Ok(())
        } else {
            Err(Error::Resource { namespace: namespace.into(), resource: uri.into() })
        }
    }
}

/// A network interface in a subnet, behind a packet filter.
pub(super) fn nic_body(location: &str, namespace: &str, subnet: &str, nsg: &str) -> Value {
    json!({
        "location": location,
        "tags": { NAMESPACE_TAG: namespace },
        "properties": {
            "ipConfigurations": [{
                "name": "ipconfig1",
                "properties": { "privateIPAllocationMethod": "Dynamic", "subnet": { "id": subnet } },
            }],
            "networkSecurityGroup": { "id": nsg },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::describe;
    use super::*;

    #[test]
    fn behind_a_filter_of_several_each_has_its_own_permissions() {
        let group = Group::parse("deployment", "/subscriptions/s/resourceGroups/g").unwrap();
        let text = String::new;
        let address = "10.0.0.4/32".parse().unwrap();
        let machine =
            Machine { group, address, nsg: text(), vnet: text(), subnet: text(), behind: "/a".into() };
        let rule =
            |at: &str| json!({ "properties": { "direction": "Inbound", "destinationAddressPrefix": at } });
        let alone = json!({ "properties": { "networkInterfaces": [{ "id": "/A" }] } });
        let shared = json!({ "properties": { "networkInterfaces": [{ "id": "/A" }, { "id": "/b" }] } });
        let owned = |filter: &Value| ["10.0.0.4", "10.0.0.5", "*"].map(|at| machine.owns(filter, &rule(at)));
        assert_eq!((owned(&alone), owned(&shared)), ([true, true, true], [true, false, false]));
    }

    #[test]
    fn a_disk_of_the_machine_goes_with_it() {
        let described = describe::read(
            r#"{"location":"westus2","tags":{"a":"b"},"properties":{"hardwareProfile":{},
                "storageProfile":{"imageReference":{"sku":"x"},"osDisk":{"name":"d"}}}}"#,
        )
        .unwrap();
        let body = machine_body(&described, "default", "/nic");
        let disk = json!({ "name": "d", "createOption": "FromImage", "deleteOption": "Delete" });
        assert_eq!(body["properties"]["storageProfile"]["osDisk"], disk);
        assert_eq!(body["tags"], json!({ "a": "b", "paraglider-namespace": "default" }));
        let bare = describe::read(r#"{"location":"westus2","properties":{"hardwareProfile":{}}}"#).unwrap();
        let body = machine_body(&bare, "default", "/nic");
        assert!(body["properties"].get("storageProfile").is_none(), "{body}");
    }
}
