//! From a request to the calls it takes. Reads, decides, changes nothing.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::Inner;
use super::operation::{Call, digest_of};
use super::rules::RuleSet;
use crate::cloud::{Need, NewResource, needs};
use crate::controller::ConnectRequest;
use crate::error::Error;
use crate::model::{ResourceTag, Rule, Subscriber};
use crate::plan::connect::{Side, Step};
use crate::plan::rule::Mistake;
use crate::plan::tags::{Mapping, TagError};
use crate::plan::target::Place;
use crate::plan::{rule, target};

/// A request that changes something.
#[derive(Debug, Clone)]
pub enum Request {
    /// Make a resource.
    Create {
        /// In this namespace.
        namespace: String,
        /// In this cloud.
        cloud: String,
        /// With this short name.
        name: String,
        /// As the cloud wants to be told.
        description: String,
    },
    /// Take in a resource that others made.
    Attach {
        /// Into this namespace.
        namespace: String,
        /// In this cloud.
        cloud: String,
        /// Its URI.
        uri: String,
    },
    /// Remove a resource.
    DeleteResource {
        /// Of this namespace.
        namespace: String,
        /// In this cloud.
        cloud: String,
        /// Its short name.
        name: String,
    },
    /// Add rules, or replace those of the same name.
    AddRules {
        /// The resource.
        resource: Target,
        /// The rules as a person wrote them.
        rules: Vec<Rule>,
    },
    /// Remove rules.
    DeleteRules {
        /// The resource.
        resource: Target,
        /// Their names.
        names: Vec<String>,
    },
    /// Add rules to every resource under a tag.
    AddTagRules {
        /// The tag.
        tag: String,
        /// The rules.
        rules: Vec<Rule>,
    },
    /// Remove rules from every resource under a tag.
    DeleteTagRules {
        /// The tag.
        tag: String,
        /// Their names.
        names: Vec<String>,
    },
    /// Make or change a tag.
    SetTag(Mapping),
    /// Remove a tag.
    DeleteTag(String),
    /// Take a member out of a tag.
    DeleteMember(String, String),
    /// Connect two clouds.
    Connect(ConnectRequest),
    /// Take down every link that no rule needs any more.
    Prune,
}

/// A resource as a request names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its namespace.
    pub namespace: String,
    /// Its cloud.
    pub cloud: String,
    /// Its URI.
    pub uri: String,
    /// Its address, where known.
    pub ip: Option<IpAddr>,
}

impl Target {
    /// How it subscribes to tags.
    pub fn subscriber(&self) -> Subscriber {
        Subscriber { namespace: self.namespace.clone(), cloud: self.cloud.clone(), uri: self.uri.clone() }
    }
}

impl From<Subscriber> for Target {
    fn from(Subscriber { namespace, cloud, uri }: Subscriber) -> Self {
        Self { namespace, cloud, uri, ip: None }
    }
}

impl Request {
    /// The tags it is about, which are looked at before anything is decided.
    fn tags(&self) -> Vec<String> {
        let of = |rules: &[Rule]| rules.iter().flat_map(|rule| rule.tags.clone()).collect::<Vec<_>>();
        match self {
            Self::Create { namespace, cloud, name, .. } | Self::DeleteResource { namespace, cloud, name } => {
                vec![format!("{namespace}.{cloud}.{name}")]
            }
            Self::AddRules { rules, .. } => of(rules),
            Self::AddTagRules { tag, rules } => [of(rules), vec![tag.clone()]].concat(),
            Self::DeleteTagRules { tag, .. } | Self::DeleteTag(tag) | Self::DeleteMember(tag, _) => {
                vec![tag.clone()]
            }
            Self::SetTag(tag) => vec![tag.name.clone()],
            Self::Attach { .. } | Self::DeleteRules { .. } | Self::Connect(_) | Self::Prune => Vec::new(),
        }
    }

    /// The tag it changes, if it does: whoever follows one above it is touched too.
    fn changes(&self) -> Option<String> {
        match self {
            Self::DeleteResource { namespace, cloud, name } => Some(format!("{namespace}.{cloud}.{name}")),
            Self::SetTag(tag) => Some(tag.name.clone()),
            Self::DeleteTag(tag) | Self::DeleteMember(tag, _) => Some(tag.clone()),
            _ => None,
        }
    }

    /// A few words for lists.
    pub fn title(&self) -> String {
        match self {
            Self::Create { namespace, cloud, name, .. } => format!("create {namespace}.{cloud}.{name}"),
            Self::Attach { cloud, uri, .. } => format!("attach {uri} of {cloud}"),
            Self::DeleteResource { namespace, cloud, name } => format!("delete {namespace}.{cloud}.{name}"),
            Self::AddRules { resource, rules } => format!("add {} rules to {}", rules.len(), resource.uri),
            Self::DeleteRules { resource, names } => {
                format!("delete {} rules from {}", names.len(), resource.uri)
            }
            Self::AddTagRules { tag, rules } => format!("add {} rules to all of tag {tag}", rules.len()),
            Self::DeleteTagRules { tag, names } => {
                format!("delete {} rules from all of tag {tag}", names.len())
            }
            Self::SetTag(tag) => format!("set tag {}", tag.name),
            Self::DeleteTag(tag) => format!("delete tag {tag}"),
            Self::DeleteMember(parent, child) => format!("take {child} out of tag {parent}"),
            Self::Connect(request) => format!("connect {} with {}", request.cloud_a, request.cloud_b),
            Self::Prune => "remove connections that no rule needs".into(),
        }
    }
}

impl Inner {
    /// The calls a request takes. None at all means that everything is so already.
    pub(super) async fn plan(&self, request: &Request) -> Result<Vec<Call>, Error> {
        self.tags.look(&request.tags()).await?;
        if let Some(tag) = request.changes() {
            self.tags.look_above(&tag).await?;
        }
        match request {
            Request::Create { namespace, cloud, name, description } => {
                self.plan_create(namespace, cloud, name, description).await
            }
            Request::Attach { namespace, cloud, uri } => {
                self.places.deployment(namespace, cloud)?;
                let (cloud, namespace) = (cloud.clone(), namespace.clone());
                Ok(vec![
                    Call::AttachResource {
                        cloud: cloud.clone(),
                        namespace: namespace.clone(),
                        uri: uri.clone(),
                    },
                    Call::Register { cloud, namespace, description: String::new() },
                ])
            }
            Request::DeleteResource { namespace, cloud, name } => {
                let tag =
                    ResourceTag { namespace: namespace.clone(), cloud: cloud.clone(), name: name.clone() };
                let target = match self.resource(namespace, cloud, name) {
                    Err(error @ Error::Resource { .. }) => {
                        return self.plan_rest(&tag.to_string(), error).await;
                    }
                    outcome => outcome?,
                };
                let subscriber = target.subscriber().to_string();
                let mut followers = self.tags.affected(&tag.to_string());
                followers.remove(&subscriber);
                let mut calls = vec![
                    Call::DeleteResource {
                        cloud: cloud.clone(),
                        namespace: namespace.clone(),
                        uri: target.uri,
                    },
                    Call::Unregister { tag: tag.to_string(), subscriber },
                ];
                calls.extend(propagate(&tag.to_string(), followers));
                Ok(calls)
            }
            Request::AddRules { resource, rules } => self.plan_add(resource, rules).await,
            Request::DeleteRules { resource, names } => self.plan_delete(resource, names).await,
            Request::AddTagRules { tag, rules } => {
                rule::check_request(rules).map_err(Error::Invalid)?;
                let (resolved, mut calls) = (self.resolve(rules)?, Vec::new());
                for target in self.resources_of(tag)? {
                    calls.extend(self.plan_add_resolved(&target, resolved.clone()).await?);
                }
                Ok(calls)
            }
            Request::DeleteTagRules { tag, names } => {
                let mut calls = Vec::new();
                for target in self.resources_of(tag)? {
                    calls.extend(self.plan_delete(&target, names).await?);
                }
                Ok(calls)
            }
            Request::SetTag(tag) => {
                let followers = self.tags.affected(&tag.name);
                if self.tags.would_set(tag)? {
                    let set = Call::SetTag { tag: tag.clone() };
                    return Ok([set].into_iter().chain(propagate(&tag.name, followers)).collect());
                }
                Ok(self.plan_behind(&tag.name, followers).await)
            }
            Request::DeleteTag(tag) => {
                if !self.tags.exists(tag) {
                    return self.plan_rest(tag, TagError::Unknown(tag.clone()).into()).await;
                }
                let (delete, followers) = (Call::DeleteTag { tag: tag.clone() }, self.tags.affected(tag));
                Ok([delete].into_iter().chain(propagate(tag, followers)).collect())
            }
            Request::DeleteMember(parent, child) => {
                let Some(tag) = self.tags.get(parent) else {
                    return self.plan_rest(parent, TagError::Unknown(parent.clone()).into()).await;
                };
                let followers = self.tags.affected(parent);
                if !tag.child_tags.contains(child) {
                    return Ok(self.plan_behind(parent, followers).await);
                }
                let delete = Call::DeleteMember { parent: parent.clone(), child: child.clone() };
                Ok([delete].into_iter().chain(propagate(parent, followers)).collect())
            }
            Request::Connect(request) => {
                let link = self.link(request).await?;
                Ok(if link.next() == Step::Done { Vec::new() } else { vec![Call::Connect(request.clone())] })
            }
            Request::Prune => self.plan_prune().await,
        }
    }

    /// The tag is as wanted; what is left is whoever could not follow it when it changed.
    async fn plan_behind(&self, tag: &str, followers: BTreeSet<String>) -> Vec<Call> {
        let behind = self.behind(followers).await;
        propagate(tag, behind.into_iter().collect()).into_iter().collect()
    }

    /// The tag is gone already, so that it was asked to go either is a mistake or is asked again.
    async fn plan_rest(&self, tag: &str, mistake: Error) -> Result<Vec<Call>, Error> {
        let rest = self.plan_behind(tag, self.owed.because_of(tag)).await;
        if rest.is_empty() { Err(mistake) } else { Ok(rest) }
    }

    async fn plan_create(
        &self,
        namespace: &str,
        cloud: &str,
        name: &str,
        description: &str,
    ) -> Result<Vec<Call>, Error> {
        let deployment = self.places.deployment(namespace, cloud)?;
        rule::name(name).map_err(|message| Error::invalid("name", message))?;
        if name.contains('.') {
            return Err(Error::invalid(
                "name",
                "must not contain a dot: it is one part of the resource's tag",
            ));
        }
        let tag = format!("{namespace}.{cloud}.{name}");
        let digest = digest_of(description);
        if self.tags.exists(&tag) {
            // The same request again is no request; another one under the same name is a mistake.
            return match self.made_from(&tag).await? {
                Some(before) if before == digest => {
                    Ok(self.plan_behind(&tag, self.tags.affected(&tag)).await)
                }
                _ => Err(Error::invalid("name", format!("`{tag}` already exists with another description"))),
            };
        }
        let new = NewResource { deployment, name: name.into(), description: description.into() };
        Ok(vec![
            Call::CreateResource { cloud: cloud.into(), new },
            Call::Register { cloud: cloud.into(), namespace: namespace.into(), description: digest },
        ])
    }

    async fn plan_add(&self, resource: &Target, rules: &[Rule]) -> Result<Vec<Call>, Error> {
        rule::check_request(rules).map_err(Error::Invalid)?;
        self.plan_add_resolved(resource, self.resolve(rules)?).await
    }

    async fn plan_add_resolved(&self, resource: &Target, resolved: Vec<Rule>) -> Result<Vec<Call>, Error> {
        self.places.cloud(&resource.cloud)?;
        let mut calls = self.connections_for(resource, &resolved).await?;
        let subscriber = resource.subscriber().to_string();
        let known = self.rules.get(&subscriber).await?;
        let missing =
            |tag: &&String| target::parse(tag).is_none() && !self.tags.is_subscribed(tag, &subscriber);
        let tags: BTreeSet<&String> = resolved.iter().flat_map(|rule| &rule.tags).filter(missing).collect();
        calls.extend(
            tags.into_iter().map(|tag| Call::Subscribe { tag: tag.clone(), subscriber: subscriber.clone() }),
        );
        let new: Vec<Rule> =
            resolved.into_iter().filter(|rule| known.rules.get(&rule.name) != Some(rule)).collect();
        if !new.is_empty() {
            calls.push(Call::AddRules {
                cloud: resource.cloud.clone(),
                namespace: resource.namespace.clone(),
                uri: resource.uri.clone(),
                rules: new,
            });
        }
        Ok(calls)
    }

    /// What must be connected first. A resource whose address is not known is left to its plugin.
    async fn connections_for(&self, resource: &Target, rules: &[Rule]) -> Result<Vec<Call>, Error> {
        let Some(own_address) = resource.ip else { return Ok(Vec::new()) };
        if rules.iter().all(|rule| rule.targets.is_empty()) {
            return Ok(Vec::new());
        }
        let map = self.spaces.map(&self.places).await?;
        let Place::Known(owners) = map.place(&IpNet::from(own_address)) else { return Ok(Vec::new()) };
        let Some(own) = owners.into_iter().find(|owner| owner.cloud == resource.cloud) else {
            return Ok(Vec::new());
        };
        let mut calls = Vec::new();
        for need in needs(rules, &own, &map)? {
            if let Need::Vpn(owner) = need {
                let request = ConnectRequest::between(&own, &owner);
                let link = self.link(&request).await?;
                let done = link.next() == Step::Done;
                // One link carries all networks at its ends where they learn of each other by themselves.
                let same = |call: &Call| {
                    matches!(call, Call::Connect(other) if if link.pair.bgp {
                        other.cloud_b == request.cloud_b && other.namespace_b == request.namespace_b
                    } else {
                        *other == request
                    })
                };
                if !done && !calls.iter().any(same) {
                    calls.push(Call::Connect(request));
                }
            }
        }
        Ok(calls)
    }

    async fn plan_delete(&self, resource: &Target, names: &[String]) -> Result<Vec<Call>, Error> {
        let subscriber = resource.subscriber().to_string();
        let mut known = self.permit_list(resource).await?;
        if names.iter().any(|name| !known.rules.contains_key(name)) {
            self.add_foreign(resource, &mut known).await?;
        }
        let gone: Vec<String> =
            names.iter().filter(|name| known.rules.contains_key(*name)).cloned().collect();
        if gone.is_empty() {
            return Ok(Vec::new());
        }
        let tags = |keep: bool| -> BTreeSet<String> {
            let rules = known.rules.values().filter(|rule| gone.contains(&rule.name) != keep);
            rules.flat_map(|rule| rule.tags.clone()).filter(|tag| target::parse(tag).is_none()).collect()
        };
        let (left, before) = (tags(true), tags(false));
        let mut calls = vec![Call::DeleteRules {
            cloud: resource.cloud.clone(),
            namespace: resource.namespace.clone(),
            uri: resource.uri.clone(),
            names: gone,
        }];
        calls.extend(
            before
                .difference(&left)
                .map(|tag| Call::Unsubscribe { tag: tag.clone(), subscriber: subscriber.clone() }),
        );
        Ok(calls)
    }

    /// Links that no remembered rule needs.
    async fn plan_prune(&self) -> Result<Vec<Call>, Error> {
        let map = self.spaces.map(&self.places).await?;
        let mut needed = BTreeSet::new();
        for set in self.rules.list().await? {
            for target in set.rules.values().filter_map(|rule| rule::targets(rule).ok()).flatten() {
                if let Place::Known(owners) = map.place(&target) {
                    for owner in owners.into_iter().filter(|owner| owner.cloud != set.cloud) {
                        needed.insert((
                            set.cloud.clone(),
                            set.namespace.clone(),
                            owner.cloud.clone(),
                            owner.namespace.clone(),
                        ));
                        needed.insert((
                            owner.cloud,
                            owner.namespace,
                            set.cloud.clone(),
                            set.namespace.clone(),
                        ));
                    }
                }
            }
        }
        let unused = self.links.list().await?.into_iter().filter(|link| {
            let (a, b) = link.ends(Side::A);
            !needed.contains(&(a.cloud.clone(), a.namespace.clone(), b.cloud.clone(), b.namespace.clone()))
        });
        Ok(unused.map(|link| Call::Disconnect { link: link.name() }).collect())
    }

    /// Fills in the targets. What the person wrote there is dropped; unknown tags are refused.
    pub(super) fn resolve(&self, rules: &[Rule]) -> Result<Vec<Rule>, Error> {
        let mut mistakes = Vec::new();
        let mut resolved = Vec::with_capacity(rules.len());
        for (index, rule) in rules.iter().enumerate() {
            let mut targets = BTreeSet::new();
            for tag in &rule.tags {
                if target::parse(tag).is_none() && !self.tags.exists(tag) {
                    let field = format!("rules[{index}].tags");
                    mistakes.push(Mistake { field, message: format!("there is no tag `{tag}`") });
                }
                targets.extend(self.tags.addresses(tag));
            }
            resolved.push(Rule { targets: targets.into_iter().collect(), ..rule.clone() });
        }
        if mistakes.is_empty() { Ok(resolved) } else { Err(Error::Invalid(mistakes)) }
    }

    /// The resource with this short name: its tag says what the cloud calls it.
    pub(super) fn resource(&self, namespace: &str, cloud: &str, name: &str) -> Result<Target, Error> {
        self.places.deployment(namespace, cloud)?;
        let unknown = || Error::Resource { namespace: namespace.into(), resource: format!("{cloud}/{name}") };
        let tag = self.tags.get(&format!("{namespace}.{cloud}.{name}")).ok_or_else(unknown)?;
        let uri = tag.uri.ok_or_else(unknown)?;
        let ip = tag.ip.and_then(|ip| ip.parse().ok());
        Ok(Target { namespace: namespace.into(), cloud: cloud.into(), uri, ip })
    }

    /// Every resource under a tag.
    pub(super) fn resources_of(&self, tag: &str) -> Result<Vec<Target>, Error> {
        if !self.tags.exists(tag) {
            return Err(TagError::Unknown(tag.into()).into());
        }
        let leaves = self.tags.resolve(tag).into_iter().filter(|leaf| leaf.uri.is_some());
        leaves
            .map(|leaf| {
                let parts = ResourceTag::parse(&leaf.name).ok_or_else(|| {
                    Error::invalid("tag", format!("`{}` is not NAMESPACE.CLOUD.NAME", leaf.name))
                })?;
                self.resource(&parts.namespace, &parts.cloud, &parts.name)
            })
            .collect()
    }

    /// The rules of a resource: as remembered, or as its cloud tells where we never set any.
    pub(super) async fn permit_list(&self, resource: &Target) -> Result<RuleSet, Error> {
        let subscriber = resource.subscriber().to_string();
        let known = self.rules.get(&subscriber).await?;
        if !known.rules.is_empty() {
            return Ok(known);
        }
        let mut found = RuleSet::new(resource, Vec::new());
        self.add_foreign(resource, &mut found).await?;
        Ok(found)
    }

    /// Adds the rules that the resource's cloud has and that are not known here: others put them there.
    pub(super) async fn add_foreign(&self, resource: &Target, known: &mut RuleSet) -> Result<(), Error> {
        let rules =
            self.places.cloud(&resource.cloud)?.permit_list(&resource.namespace, &resource.uri).await?;
        for rule in rules {
            known.rules.entry(rule.name.clone()).or_insert(rule);
        }
        Ok(())
    }

    /// A plan as people read it: connections are told step by step.
    pub(super) async fn describe(&self, calls: &[Call]) -> Result<Vec<String>, Error> {
        let mut lines = Vec::new();
        for call in calls {
            lines.push(call.to_string());
            if let Call::Connect(request) = call {
                let link = self.link(request).await?;
                let cloud = |side| &link.ends(side).0.cloud;
                lines.extend(link.remaining().into_iter().map(|step| match step {
                    Step::ChooseAddresses => "  choose addresses inside the tunnels".into(),
                    Step::AskSpaces(side) => format!("  {}: GetNetworkAddressSpaces", cloud(side)),
                    Step::MakeGateway(side) => format!("  {}: CreateVpnGateway", cloud(side)),
                    Step::MakeKey => "  make the shared key".into(),
                    Step::Connect(side) => format!("  {}: CreateVpnConnections", cloud(side)),
                    Step::Done => String::new(),
                }));
            }
        }
        Ok(lines)
    }
}

fn propagate(tag: &str, subscribers: BTreeSet<String>) -> Option<Call> {
    let subscribers: Vec<String> = subscribers.into_iter().collect();
    (!subscribers.is_empty()).then(|| Call::Propagate { tag: tag.to_owned(), subscribers })
}
