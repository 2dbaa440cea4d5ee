//! Endpoints of Private Service Connect: an address in the network, and a forwarding rule that leads from it to a
//! service that others publish, or to Google's own APIs.
//!
//! The address comes first and the rule goes first, so that either is found again by its name after a stop anywhere.
//! An address for Google's own APIs is in no subnet; it is a space of its own, which nobody else may get.

use http::{Method, StatusCode};
use ipnet::IpNet;
use serde_json::{Value, json};
use uuid::Uuid;

use super::cloud::{Resource, Site};
use super::describe::{GLOBAL, Kind, Named, New, is_endpoints, lead_alike, scope_of};
use super::firewall::{Scope, short_id};
use super::network::network_path;
use super::{Gcp, last, legal, n, project, reason, url};
use crate::cloud::{Held, NewResource};
use crate::clouds::rest::Call;
use crate::error::Error;
use crate::model::Created;
use crate::plan::target;

/// The label that tells whose an address is.
const LABEL: &str = "paraglider_ns";
/// The cloud's own limit for endpoints of Google's APIs, whose names become part of a domain name.
const GLOBAL_NAME_MAX: usize = 20;

/// The name of an endpoint's address.
fn address_name(name: &str) -> Result<String, Error> {
    legal("name", format!("para-{name}-address"))
}

/// The endpoint that an address is for, by its name.
fn endpoint_of(address: &Value) -> Option<&str> {
    address["name"].as_str()?.strip_prefix("para-")?.strip_suffix("-address")
}

/// The address, as a space.
pub(super) fn space(address: &Value) -> Option<IpNet> {
    target::parse(address["address"].as_str()?)
}

/// Whether an address is in a namespace's network, which counts more than its label.
pub(super) fn is_of(address: &Value, namespace: &str) -> bool {
    let name = |field: &str| address[field].as_str().map(last);
    match name("subnetwork") {
        Some(subnet) => {
            let region = place(address);
            subnet == format!("{}-{region}-subnet", n(namespace))
        }
        None => name("network") == Some(&*format!("{}-vpc", n(namespace))),
    }
}

/// The region of an address or a forwarding rule.
fn place(object: &Value) -> &str {
    object["region"].as_str().map_or(GLOBAL, last)
}

impl Gcp {
    /// An endpoint's address as it is now; nothing if there is none.
    async fn endpoint_address(&self, named: &Named<'_>, namespace: &str) -> Result<Option<Value>, Error> {
        let path = address_path(named)?;
        let found = self.get(&path).await?;
        if found.as_ref().is_some_and(|address| !is_of(address, namespace)) {
            return Err(Error::Foreign { namespace: namespace.into(), resource: url(&path) });
        }
        Ok(found)
    }

    /// An endpoint's forwarding rule as it is now; nothing if there is none.
    async fn endpoint_rule(&self, named: &Named<'_>, namespace: &str) -> Result<Option<Value>, Error> {
        let Some(rule) = self.get(&named.path()).await? else { return Ok(None) };
        let in_network = rule["network"].as_str().map(last) == Some(&*format!("{}-vpc", n(namespace)));
        // Load balancers are others'.
        if !in_network || !is_endpoints(&rule) {
            return Err(Error::Foreign { namespace: namespace.into(), resource: named.uri() });
        }
        Ok(Some(rule))
    }

    /// What rules of an endpoint need to know of it.
    pub(super) async fn endpoint_resource(
        &self,
        named: &Named<'_>,
        namespace: &str,
    ) -> Result<Option<Resource>, Error> {
        let Some(rule) = self.endpoint_rule(named, namespace).await? else { return Ok(None) };
        let address = rule["IPAddress"].as_str().and_then(target::parse);
        let address = address.ok_or_else(|| self.strange("an endpoint without an address"))?;
        Ok(Some(Resource {
            project: named.project.into(),
            network: url(&network_path(named.project, namespace)),
            short: self.endpoint_short(&rule)?,
            site: Site::Address(address),
            scope: Scope::Address(address.to_string()),
        }))
    }

    fn endpoint_short(&self, rule: &Value) -> Result<String, Error> {
        short_id(rule).ok_or_else(|| self.strange("a forwarding rule without a number"))
    }

    /// Makes an endpoint, or what is missing of one.
    pub(super) async fn make_endpoint(&self, new: &NewResource, described: &New) -> Result<Created, Error> {
        if !self.flags().private_endpoints_enabled {
            let said = "private endpoints are off: set privateEndpointsEnabled";
            return Err(Error::Unsupported(said.into()));
        }
        let (project, namespace) = (project(&new.deployment.id)?, &*new.deployment.namespace);
        let name = legal("name", new.name.clone())?;
        let named = Named { project, kind: Kind::Endpoint, place: &described.place, name: &name };
        let global = named.place == GLOBAL;
        if global && (name.len() > GLOBAL_NAME_MAX || name.contains('-')) {
            let said =
                format!("an endpoint of Google's APIs has a name of up to {GLOBAL_NAME_MAX} of a-z and 0-9");
            return Err(Error::invalid("name", said));
        }
        address_name(&name)?;
        let network = url(&network_path(project, namespace));
        let subnet = if global {
            let _turn = self.shape.lock().await;
            self.network(project, namespace).await?;
            None
        } else {
            Some(self.subnet(project, namespace, named.place).await?)
        };
        if self.endpoint_address(&named, namespace).await?.is_none() {
            let body = self.new_address(&name, namespace, &network, subnet.as_deref()).await?;
            self.insert(&format!("{}/addresses", scope_of(project, named.place)), body).await?;
        }
        let ip = self.given_address(&named, namespace).await?;
        self.label(&named, namespace).await?;
        if self.endpoint_rule(&named, namespace).await?.is_none() {
            let mut body = json!({
                "name": name, "IPAddress": url(&address_path(&named)?), "network": network,
                "target": described.body,
            });
            if !global {
                body["allowPscGlobalAccess"] = json!(true);
            }
            self.insert(&format!("{}/forwardingRules", scope_of(project, named.place)), body).await?;
        }
        let made = self.endpoint_rule(&named, namespace).await?;
        let made = made.ok_or_else(|| self.strange("an endpoint that was made is not there"))?;
        if !lead_alike(&made, &json!({ "target": described.body })) {
            let field = if global { "description.bundle" } else { "description.url" };
            let said =
                "there is an endpoint of that name which leads elsewhere; remove it, or choose another name";
            return Err(Error::invalid(field, said));
        }
        tracing::warn!(cloud = %self.name, %namespace, endpoint = %name, "Google Cloud filters at machines and not at endpoints: who reaches this one is up to the rules of those who ask.");
        Ok(Created { uri: named.uri(), name, ip })
    }

    /// The request that reserves an address.
    async fn new_address(
        &self,
        name: &str,
        namespace: &str,
        network: &str,
        subnet: Option<&str>,
    ) -> Result<Value, Error> {
        let mut body = json!({
            "name": address_name(name)?, "addressType": "INTERNAL", "labels": { LABEL: namespace },
        });
        if let Some(subnet) = subnet {
            body["subnetwork"] = json!(url(subnet));
            return Ok(body);
        }
        let found = self.controller.find_spaces(&[1]).await?;
        let free = found.first().filter(|space| space.addr().is_ipv4());
        let free = free.ok_or_else(|| Error::Unsupported("Google Cloud needs an IPv4 address".into()))?;
        // What is given may be larger.
        body["address"] = json!(free.network().to_string());
        body["purpose"] = json!("PRIVATE_SERVICE_CONNECT");
        body["network"] = json!(network);
        Ok(body)
    }

    /// The address itself, which the cloud may take a while to choose.
    async fn given_address(&self, named: &Named<'_>, namespace: &str) -> Result<String, Error> {
        let mut waiting = self.rest.waiting(named.name);
        loop {
            let address = self.endpoint_address(named, namespace).await?;
            let address = address.ok_or_else(|| self.strange("an address that was reserved is not there"))?;
            if let Some(ip) = address["address"].as_str().filter(|ip| !ip.is_empty()) {
                return Ok(ip.to_owned());
            }
            waiting.pause(None).await?;
        }
    }

    /// Gives an address its label. By the cloud's own word, labels that come with the request to reserve it do
    /// not count.
    async fn label(&self, named: &Named<'_>, namespace: &str) -> Result<(), Error> {
        let path = address_path(named)?;
        let mut waiting = self.rest.waiting(&path);
        loop {
            let Some(address) = self.endpoint_address(named, namespace).await? else { return Ok(()) };
            if address["labels"][LABEL] == namespace {
                return Ok(());
            }
            let mut labels = address["labels"].as_object().cloned().unwrap_or_default();
            labels.insert(LABEL.into(), json!(namespace));
            let call = Call::new(Method::POST, self.at(&format!("{path}/setLabels"))?)
                .json(json!({ "labels": labels, "labelFingerprint": address["labelFingerprint"] }));
            // Only regions know requests again; elsewhere the fingerprint is what makes two of them one.
            let call = if named.place == GLOBAL {
                call
            } else {
                call.query("requestId", &Uuid::new_v4().to_string())
            };
            let answer = self.rest.call(&call).await?;
            if answer.status.is_success() {
                return self.wait(&path, answer.body).await.map(drop);
            }
            let passing =
                answer.status == StatusCode::PRECONDITION_FAILED || reason(&answer) == "resourceNotReady";
            if !passing {
                return Err(self.rest.refusal(&call, &answer));
            }
            waiting.pause(None).await?;
        }
    }

    /// Removes an endpoint, its rules and its address; they may be gone already.
    pub(super) async fn remove_endpoint(&self, named: &Named<'_>, namespace: &str) -> Result<(), Error> {
        if let Some(rule) = self.endpoint_rule(named, namespace).await? {
            self.remove_rules(named.project, namespace, &self.endpoint_short(&rule)?).await?;
            self.remove(&named.path()).await?;
        }
        match self.endpoint_address(named, namespace).await {
            Ok(Some(_)) => {
                self.remove(&address_path(named)?).await?;
            }
            // One that others have is of another endpoint; this one is gone.
            Ok(None) | Err(Error::Foreign { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// All addresses in a namespace's network, and those that carry its label.
    pub(super) async fn addresses(&self, project: &str, namespace: &str) -> Result<Vec<Value>, Error> {
        let mut found = self.everywhere(project, "addresses").await?;
        found.retain(|one| one["labels"][LABEL] == namespace || is_of(one, namespace));
        Ok(found)
    }

    /// The endpoints of a namespace: what its addresses say they are for, and their forwarding rules.
    async fn endpoints(&self, project: &str, namespace: &str) -> Result<Vec<(Value, Option<Value>)>, Error> {
        let mut addresses = self.addresses(project, namespace).await?;
        addresses.retain(|one| endpoint_of(one).is_some() && is_of(one, namespace));
        if addresses.is_empty() {
            return Ok(Vec::new());
        }
        let rules = self.everywhere(project, "forwardingRules").await?;
        let rule_of = |address: &Value| {
            let of = |rule: &&Value| {
                rule["name"].as_str() == endpoint_of(address) && place(rule) == place(address)
            };
            rules.iter().find(of).filter(|rule| is_endpoints(rule)).cloned()
        };
        Ok(addresses
            .into_iter()
            .map(|address| {
                let rule = rule_of(&address);
                (address, rule)
            })
            .collect())
    }

    pub(super) async fn endpoints_held(&self, project: &str, namespace: &str) -> Result<Vec<Held>, Error> {
        let held = |(address, rule): (Value, Option<Value>)| {
            let name = rule?["name"].as_str()?.to_owned();
            let place = place(&address);
            let network = address["subnetwork"].as_str().or_else(|| address["network"].as_str());
            Some(Held {
                namespace: namespace.into(),
                uri: Named { project, kind: Kind::Endpoint, place, name: &name }.uri(),
                ip: address["address"].as_str().unwrap_or_default().to_owned(),
                network: last(network.unwrap_or_default()).to_owned(),
                name,
            })
        };
        Ok(self.endpoints(project, namespace).await?.into_iter().filter_map(held).collect())
    }

    /// What is not as it should be with endpoints, mended if told to; and the short ids of those there are.
    pub(super) async fn endpoint_differences(
        &self,
        project: &str,
        namespace: &str,
        repair: bool,
    ) -> Result<(Vec<String>, Vec<String>), Error> {
        let (mut said, mut known) = (Vec::new(), Vec::new());
        for (address, rule) in self.endpoints(project, namespace).await? {
            let name = endpoint_of(&address).unwrap_or_default();
            if address["labels"][LABEL] != namespace {
                said.push(format!(
                    "the address of {name} has lost the label {LABEL}: others may take it for free"
                ));
                if repair {
                    let named = Named { project, kind: Kind::Endpoint, place: place(&address), name };
                    self.label(&named, namespace).await?;
                }
            }
            let Some(rule) = rule else {
                said.push(format!(
                    "{name} has an address and no forwarding rule: ask for it again, or remove it"
                ));
                continue;
            };
            known.extend(short_id(&rule));
            let status = rule["pscConnectionStatus"].as_str().unwrap_or("ACCEPTED");
            if status != "ACCEPTED" {
                said.push(format!("{name} leads nowhere: to the service's owner its connection is {status}"));
            }
        }
        Ok((said, known))
    }
}

fn address_path(named: &Named<'_>) -> Result<String, Error> {
    Ok(format!("{}/addresses/{}", scope_of(named.project, named.place), address_name(named.name)?))
}
