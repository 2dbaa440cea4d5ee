//! AWS: networks, security groups, machines, peerings and VPNs through EC2's query API.
//!
//! Everything is found by its tags `Name` and `Namespace`, which are given in the call that makes it.

mod api;
mod cloud;
mod foreign;
mod machine;
mod network;
mod public;
mod rules;
pub mod sigv4;
mod vpn;
mod xml;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::sigv4::Environment;
use self::sigv4::Signer;
use super::pace::Clock;
use super::rest::Rest;
use super::taken;
use crate::cloud::Policy;
use crate::controller::Controller;
use crate::error::Error;
use crate::turns::Turns;

/// Reads an answer of EC2, as fuzzing does.
pub(crate) fn read_answer(text: &str) {
    let Some(mut answer) = xml::read(text) else { return };
    for set in ["reservationSet", "vpcSet", "securityGroupInfo", "vpnConnectionSet"] {
        let Value::Array(found) = taken(&mut answer, set) else { continue };
        for object in &found {
            drop((rules::read(object), network::space(object), vpn::outside(object)));
            drop(foreign::told(object, "us-east-1", "deployment", &[], &[]));
        }
        for machine in machine::owned(found) {
            drop(Aws::uri("us-east-1", &machine));
        }
    }
}

/// Reads what is said of a machine to be made, as fuzzing does.
pub(crate) fn read_description(text: &str) {
    drop(machine::describe(text));
}

/// Settings of AWS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AwsConfig {
    /// EC2's address; each region has its own if this is not given.
    pub endpoint: Option<String>,
    /// The regions to look in; the environment's if none is given.
    pub regions: Vec<String>,
    /// What this cloud does for anybody.
    pub policy: Policy,
}

/// AWS as a cloud.
pub struct Aws {
    name: String,
    config: AwsConfig,
    environment: Environment,
    controller: Arc<dyn Controller>,
    clock: Arc<dyn Clock>,
    clients: Mutex<BTreeMap<String, Rest>>,
    turns: Turns,
}

impl Aws {
    /// A client of AWS. Nothing is asked of it yet.
    pub fn open(
        name: &str,
        config: &AwsConfig,
        environment: Environment,
        controller: Arc<dyn Controller>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let mut config = config.clone();
        if config.regions.is_empty() {
            config.regions.extend(environment.region.clone());
        }
        if config.regions.is_empty() {
            return Err(Error::setting("aws.regions", "name the regions, or set AWS_REGION"));
        }
        config.regions.iter().try_for_each(|region| check_region("aws.regions", region))?;
        if let Some(endpoint) = &config.endpoint {
            super::rest::endpoint("aws.endpoint", endpoint)?;
        }
        Ok(Self {
            name: name.into(),
            config,
            environment,
            controller,
            clock,
            clients: Mutex::default(),
            turns: Turns::default(),
        })
    }

    /// The client of a region.
    fn client(&self, region: &str) -> Result<Rest, Error> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(region) {
            return Ok(client.clone());
        }
        let signer = Signer::new(self.environment.clone(), region, "ec2", self.clock.clone());
        let client = Rest::new(&self.name, Arc::new(signer), self.clock.clone())?;
        clients.insert(region.into(), client.clone());
        Ok(client)
    }
}

/// Regions become part of a host's name.
fn check_region(field: &str, region: &str) -> Result<(), Error> {
    let legal = !region.is_empty()
        && region.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if legal {
        Ok(())
    } else {
        Err(Error::invalid(field, format!("`{}` is not a region", region.escape_debug())))
    }
}
