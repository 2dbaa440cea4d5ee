//! Machines, each with a security group of its own that begins empty.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::api::{filter, tag, tags};
use super::network::{group_name, text};
use super::rules::Permission;
use super::{Aws, check_region, rules};
use crate::clouds::taken;
use crate::error::Error;
use crate::model::{Created, Direction, Rule};

/// States of machines that are there, or will be.
const LIVE: &[&str] = &["pending", "running", "stopping", "stopped"];
/// A description says what the machine is, never where in the network.
const NETWORK_FIELDS: &[&str] = &[
    "NetworkInterfaces",
    "NetworkInterface",
    "SubnetId",
    "SecurityGroups",
    "SecurityGroupIds",
    "SecurityGroupId",
    "SecurityGroup",
    "PrivateIpAddress",
];

/// What is described: the parameters of `RunInstances`, and the region.
pub(super) fn describe(description: &str) -> Result<(String, Map<String, Value>), Error> {
    let wrong = |message: String| Error::invalid("description", message);
    let value: Value =
        serde_json::from_str(description).map_err(|error| wrong(format!("is not JSON: {error}")))?;
    let Value::Object(mut fields) = value else { return Err(wrong("is not a JSON object".into())) };
    for field in NETWORK_FIELDS {
        if fields.contains_key(*field) {
            return Err(Error::invalid(
                format!("description.{field}"),
                "the network is chosen for you; leave it out",
            ));
        }
    }
    for field in ["MinCount", "MaxCount", "ClientToken"] {
        fields.remove(field);
    }
    let zone = fields
        .get("Placement")
        .and_then(|placement| placement["AvailabilityZone"].as_str())
        .map(str::to_owned);
    let region = match fields.remove("Region").or_else(|| fields.remove("region")) {
        Some(Value::String(region)) => Some(region),
        // A zone is its region and a letter.
        _ => zone.map(|zone| zone.trim_end_matches(|c: char| c.is_ascii_lowercase()).to_owned()),
    };
    let region = region
        .ok_or_else(|| Error::invalid("description.Region", "must name the region, such as us-east-1"))?;
    check_region("description.Region", &region)?;
    if !fields.contains_key("ImageId") {
        return Err(Error::invalid("description.ImageId", "must name the image"));
    }
    Ok((region, fields))
}

/// A machine that was found by its URI.
pub(super) struct Machine {
    pub(super) region: String,
    pub(super) id: String,
    pub(super) vpc: String,
    pub(super) ip: String,
    pub(super) group: String,
    /// What its group is called, and its public address.
    pub(super) called: String,
}

/// The region and id in `arn:aws:ec2:REGION:ACCOUNT:instance/ID`.
pub(super) fn parse(uri: &str) -> Option<(&str, &str)> {
    let mut parts = uri.splitn(6, ':');
    let (arn, _, service) = (parts.next()?, parts.next()?, parts.next()?);
    let (region, _, resource) = (parts.next()?, parts.next()?, parts.next()?);
    let id = resource.strip_prefix("instance/")?;
    // An id is looked for with a filter, in which `*` and `?` stand for any other.
    let is_id = id.strip_prefix("i-").is_some_and(|id| id.bytes().all(|b| b.is_ascii_alphanumeric()));
    (arn == "arn" && service == "ec2" && is_id && check_region("uri", region).is_ok()).then_some((region, id))
}

/// The machines of reservations, each with its owner's number.
pub(super) fn owned(reservations: Vec<Value>) -> Vec<Value> {
    let machines = reservations.into_iter().flat_map(|mut reservation| {
        let owner = taken(&mut reservation, "ownerId");
        let Value::Array(machines) = taken(&mut reservation, "instancesSet") else { return Vec::new() };
        let owned = |mut machine: Value| {
            machine.as_object_mut()?.insert("ownerId".into(), owner.clone());
            Some(machine)
        };
        machines.into_iter().filter_map(owned).collect()
    });
    machines.collect()
}

impl Aws {
    /// Machines that are there, with their owner's number.
    pub(super) async fn instances(&self, region: &str, filters: &[Value]) -> Result<Vec<Value>, Error> {
        let all: Vec<Value> = filters.iter().cloned().chain([filter("instance-state-name", LIVE)]).collect();
        let reservations = self.find(region, "DescribeInstances", "reservationSet", &all).await?;
        Ok(owned(reservations))
    }

    pub(super) fn uri(region: &str, machine: &Value) -> String {
        format!("arn:aws:ec2:{region}:{}:instance/{}", text(machine, "ownerId"), text(machine, "instanceId"))
    }

    /// Makes a machine and all it stands on.
    pub(super) async fn make_machine(
        &self,
        namespace: &str,
        name: &str,
        region: &str,
        fields: Map<String, Value>,
    ) -> Result<Created, Error> {
        let own = [filter("tag:Namespace", &[namespace]), filter("tag:Name", &[name])];
        {
            let _turn = self.shape(namespace).await;
            let (vpc, subnet) = self.network_for(region, namespace).await?;
            let group = self.group_for(region, namespace, name, text(&vpc, "vpcId")).await?;
            let mut parameters = Value::Object(fields);
            parameters["MinCount"] = json!(1);
            parameters["MaxCount"] = json!(1);
            parameters["SubnetId"] = json!(subnet);
            parameters["SecurityGroupId"] = json!([group]);
            parameters["TagSpecification"] = tags("instance", namespace, name);
            // The group is new with every life of the machine, and with it the token: asked twice, made once.
            let token = Sha256::digest(format!("{group} {namespace} {name}").as_bytes());
            parameters["ClientToken"] = json!(hex::encode(token));
            let look = || async { Ok(self.instances(region, &own).await?.into_iter().next()) };
            self.make(region, ("RunInstances", ""), &parameters, &[], look).await?;
        }
        let mut wait = self.wait();
        loop {
            let found = self.instances(region, &own).await?.into_iter().next();
            if let Some(machine) =
                found.filter(|machine| text(&machine["instanceState"], "name") == "running")
            {
                let ip = text(&machine, "privateIpAddress").to_owned();
                return Ok(Created { name: name.into(), uri: Self::uri(region, &machine), ip });
            }
            self.pause(&mut wait, "RunInstances").await?;
        }
    }

    /// The empty group of a machine.
    async fn group_for(&self, region: &str, namespace: &str, name: &str, vpc: &str) -> Result<String, Error> {
        let called = group_name(namespace, name);
        let look = || async {
            let filters = [filter("vpc-id", &[vpc]), filter("group-name", &[&called])];
            let groups = self.find(region, "DescribeSecurityGroups", "securityGroupInfo", &filters).await?;
            Ok(groups.into_iter().next())
        };
        let parameters = json!({
            "GroupName": called,
            "GroupDescription": format!("permit list of {namespace} {name}"),
            "VpcId": vpc,
            "TagSpecification": tags("security-group", namespace, &called),
        });
        let there = ["InvalidGroup.Duplicate"];
        let group = self.make(region, ("CreateSecurityGroup", ""), &parameters, &there, look).await?;
        let id = text(&group, "groupId").to_owned();
        // AWS lets everything out of a new group.
        self.reconcile(region, namespace, &id).await?;
        Ok(id)
    }

    /// Finds a machine of a namespace by its URI.
    pub(super) async fn machine(&self, namespace: &str, uri: &str) -> Result<Machine, Error> {
        let unknown = || Error::Resource { namespace: namespace.into(), resource: uri.into() };
        let (region, id) = parse(uri).ok_or_else(unknown)?;
        let found = self.instances(region, &[filter("instance-id", &[id])]).await?;
        let found = found.into_iter().next().ok_or_else(unknown)?;
        if tag(&found, "Namespace") != Some(namespace) {
            return Err(Error::Foreign { namespace: namespace.into(), resource: uri.into() });
        }
        let called = group_name(namespace, tag(&found, "Name").unwrap_or_default());
        let groups = found["groupSet"].as_array().cloned().unwrap_or_default();
        let group = groups.iter().find(|group| text(group, "groupName") == called).ok_or_else(unknown)?;
        Ok(Machine {
            region: region.into(),
            id: id.into(),
            vpc: text(&found, "vpcId").into(),
            ip: text(&found, "privateIpAddress").into(),
            group: text(group, "groupId").into(),
            called,
        })
    }

    /// The rules of a group, as they are kept.
    pub(super) async fn kept(&self, namespace: &str, group: &str) -> Result<Vec<Rule>, Error> {
        match self.controller.get_value(namespace, &self.name, &format!("rules/{group}")).await {
            Ok(text) => serde_json::from_str(&text)
                .map_err(|error| Error::Internal(format!("the rules of {group} are not JSON: {error}"))),
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Keeps the rules of a group, before the group has them.
    pub(super) async fn keep(&self, namespace: &str, group: &str, rules: &[Rule]) -> Result<(), Error> {
        let text = serde_json::to_string(rules).map_err(|error| Error::Internal(error.to_string()))?;
        self.controller.set_value(namespace, &self.name, &format!("rules/{group}"), &text).await
    }

    /// Forgets the rules of a group.
    pub(super) async fn forget(&self, namespace: &str, group: &str) -> Result<(), Error> {
        self.controller.delete_value(namespace, &self.name, &format!("rules/{group}")).await
    }

    /// What a group should permit, and what it does.
    async fn permissions(
        &self,
        region: &str,
        namespace: &str,
        group: &str,
    ) -> Result<(BTreeSet<Permission>, BTreeSet<Permission>), Error> {
        let filters = [filter("group-id", &[group])];
        let found = self.find(region, "DescribeSecurityGroups", "securityGroupInfo", &filters).await?;
        let mut wants = BTreeSet::new();
        for rule in self.kept(namespace, group).await? {
            wants.extend(rules::compile(&rule)?);
        }
        Ok((wants, found.first().map(rules::read).unwrap_or_default()))
    }

    /// How many permissions of a machine's group differ from its rules.
    pub(super) async fn compare(&self, machine: &Machine, namespace: &str) -> Result<usize, Error> {
        let (wants, has) = self.permissions(&machine.region, namespace, &machine.group).await?;
        Ok(wants.symmetric_difference(&has).count())
    }

    /// Brings a group in line with its rules.
    pub(super) async fn reconcile(&self, region: &str, namespace: &str, group: &str) -> Result<(), Error> {
        let (wants, has) = self.permissions(region, namespace, group).await?;
        for (list, verb, same) in [
            (wants.difference(&has).collect::<Vec<_>>(), "Authorize", "InvalidPermission.Duplicate"),
            (has.difference(&wants).collect(), "Revoke", "InvalidPermission.NotFound"),
        ] {
            // One at a time: one that is there already would keep the others back.
            for permission in list {
                let word = if permission.direction == Direction::Inbound { "Ingress" } else { "Egress" };
                let parameters = json!({ "GroupId": group, "IpPermissions": [permission.parameter()] });
                self.try_call(region, &format!("{verb}SecurityGroup{word}"), &parameters, &[same]).await?;
            }
        }
        Ok(())
    }

    /// Removes a machine and what was made for it alone.
    pub(super) async fn remove_machine(&self, namespace: &str, uri: &str) -> Result<(), Error> {
        let unknown = || Error::Resource { namespace: namespace.into(), resource: uri.into() };
        let (region, id) = parse(uri).ok_or_else(unknown)?;
        let found = self.instances(region, &[filter("instance-id", &[id])]).await?;
        if let Some(machine) = found.first() {
            if tag(machine, "Namespace") != Some(namespace) {
                return Err(Error::Foreign { namespace: namespace.into(), resource: uri.into() });
            }
            self.call(region, "TerminateInstances", &json!({ "InstanceId": [id] })).await?;
        }
        let ending = [filter("instance-id", &[id]), filter("instance-state-name", &["shutting-down"])];
        let mut wait = self.wait();
        while !self.find(region, "DescribeInstances", "reservationSet", &ending).await?.is_empty() {
            self.pause(&mut wait, "TerminateInstances").await?;
        }
        self.tidy(region, namespace).await?;
        if found.is_empty() { Err(unknown()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_is_not_the_persons_choice() {
        let (region, fields) =
            describe(r#"{"Placement":{"AvailabilityZone":"us-west-2b"},"ImageId":"ami-1"}"#).unwrap();
        assert_eq!((region.as_str(), fields.len()), ("us-west-2", 2));
        for (bad, field) in [
            ("[]", "description"),
            (r#"{"ImageId":"a"}"#, "description.Region"),
            (r#"{"ImageId":"a","Region":"x.y"}"#, "description.Region"),
            (r#"{"Region":"us-east-1"}"#, "description.ImageId"),
            (r#"{"Region":"us-east-1","SubnetId":"s"}"#, "description.SubnetId"),
        ] {
            let Err(Error::Invalid(mistakes)) = describe(bad) else { panic!("{bad}") };
            assert_eq!(mistakes[0].field, field);
        }
        assert_eq!(parse("arn:aws:ec2:us-east-1:1:instance/i-9"), Some(("us-east-1", "i-9")));
        assert_eq!(parse("arn:aws:s3:us-east-1:1:instance/i-9"), None);
        assert_eq!(parse("arn:aws:ec2:us-east-1:1:instance/i-*"), None);
    }
}
