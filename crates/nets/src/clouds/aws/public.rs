//! The way to public addresses: an internet gateway for the network, and an address for each machine whose
//! rules need one. The security group still decides what passes.

use serde_json::{Value, json};

use super::Aws;
use super::api::{filter, tags};
use super::machine::Machine;
use super::network::{Way, text};
use crate::error::Error;
use crate::model::Rule;
use crate::plan::{rule, target};

const EVERYWHERE: &str = "0.0.0.0/0";

fn gateway_name(namespace: &str, region: &str) -> String {
    format!("para-{namespace}-{region}-igw")
}

/// Whether any of the rules has a public target.
pub(super) fn needs_public(rules: &[Rule]) -> bool {
    let public =
        |rule: &Rule| rule::targets(rule).unwrap_or_default().iter().any(|net| !target::is_private(net));
    rules.iter().any(public)
}

impl Aws {
    /// Gives a machine a way to public addresses, and from there to it.
    pub(super) async fn open_public(&self, namespace: &str, machine: &Machine) -> Result<(), Error> {
        let _turn = self.shape(namespace).await;
        let Machine { region, vpc, id, called, .. } = machine;
        let gateway = self.internet_gateway(region, namespace, vpc).await?;
        self.route(region, vpc, EVERYWHERE, Way::Gateway(&gateway)).await?;
        let parameters =
            json!({ "Domain": "vpc", "TagSpecification": tags("elastic-ip", namespace, called) });
        let look = || self.address(region, namespace, called);
        let address = self.make(region, ("AllocateAddress", ""), &parameters, &[], look).await?;
        if text(&address, "instanceId") == id {
            return Ok(());
        }
        let parameters = json!({ "AllocationId": text(&address, "allocationId"), "InstanceId": id });
        let same = ["Resource.AlreadyAssociated"];
        let made = self.try_call(region, "AssociateAddress", &parameters, &same).await?;
        if made.is_none() && look().await?.is_none_or(|address| text(&address, "instanceId") != id) {
            return Err(self.failed("AssociateAddress", &format!("the address of {called} is another's")));
        }
        Ok(())
    }

    /// The public address of the machine with this group.
    async fn address(&self, region: &str, namespace: &str, called: &str) -> Result<Option<Value>, Error> {
        let filters = [filter("tag:Namespace", &[namespace]), filter("tag:Name", &[called])];
        Ok(self.find(region, "DescribeAddresses", "addressesSet", &filters).await?.into_iter().next())
    }

    /// Takes the public address away from a machine; nothing if it has none.
    pub(super) async fn release(&self, region: &str, namespace: &str, called: &str) -> Result<(), Error> {
        let Some(address) = self.address(region, namespace, called).await? else { return Ok(()) };
        let association = text(&address, "associationId");
        if !association.is_empty() {
            let gone = ["InvalidAssociationID.NotFound"];
            let parameters = json!({ "AssociationId": association });
            self.try_call(region, "DisassociateAddress", &parameters, &gone).await?;
        }
        let parameters = json!({ "AllocationId": text(&address, "allocationId") });
        self.try_call(region, "ReleaseAddress", &parameters, &["InvalidAllocationID.NotFound"])
            .await
            .map(drop)
    }

    async fn internet_gateways(&self, region: &str, namespace: &str) -> Result<Vec<Value>, Error> {
        let filters =
            [filter("tag:Namespace", &[namespace]), filter("tag:Name", &[&gateway_name(namespace, region)])];
        self.find(region, "DescribeInternetGateways", "internetGatewaySet", &filters).await
    }

    async fn internet_gateway(&self, region: &str, namespace: &str, vpc: &str) -> Result<String, Error> {
        let name = gateway_name(namespace, region);
        let parameters = json!({ "TagSpecification": tags("internet-gateway", namespace, &name) });
        let look = || async { Ok(self.internet_gateways(region, namespace).await?.into_iter().next()) };
        let made = ("CreateInternetGateway", "internetGateway");
        let gateway = self.make(region, made, &parameters, &[], look).await?;
        let id = text(&gateway, "internetGatewayId").to_owned();
        if !is_attached(&gateway, vpc) {
            let parameters = json!({ "InternetGatewayId": id, "VpcId": vpc });
            let same = ["Resource.AlreadyAssociated"];
            self.try_call(region, "AttachInternetGateway", &parameters, &same).await?;
        }
        Ok(id)
    }

    /// Takes the gateways of a network away, before the network itself goes.
    pub(super) async fn remove_gateways(
        &self,
        region: &str,
        namespace: &str,
        vpc: &str,
    ) -> Result<(), Error> {
        for gateway in self.internet_gateways(region, namespace).await? {
            let id = text(&gateway, "internetGatewayId");
            self.unroute(region, vpc, EVERYWHERE).await?;
            if is_attached(&gateway, vpc) {
                let parameters = json!({ "InternetGatewayId": id, "VpcId": vpc });
                self.try_call(region, "DetachInternetGateway", &parameters, &["Gateway.NotAttached"]).await?;
            }
            let gone = ["InvalidInternetGatewayID.NotFound"];
            self.try_call(region, "DeleteInternetGateway", &json!({ "InternetGatewayId": id }), &gone)
                .await?;
        }
        Ok(())
    }
}

fn is_attached(gateway: &Value, vpc: &str) -> bool {
    gateway["attachmentSet"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|attachment| text(attachment, "vpcId") == vpc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_targets_need_a_way_out() {
        let rule = |target: &str| Rule { name: "r".into(), targets: vec![target.into()], ..Rule::default() };
        assert!(!needs_public(&[rule("10.0.0.1"), rule("192.168.0.0/16")]));
        assert!(needs_public(&[rule("10.0.0.1"), rule("203.0.113.0/24")]));
        assert!(needs_public(&[rule("0.0.0.0/0")]));
    }
}
