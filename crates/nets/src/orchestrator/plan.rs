//! From a request to the calls it takes. Reads, decides, changes nothing.

use std::collections::BTreeSet;

use super::Inner;
use super::lists::NewTargets;
use super::needed::{Connections, Way};
use super::operation::{Call, digest_of};
use super::request::{self, Request, Target};
use super::rules::RuleSet;
use crate::cloud::{Need, NewResource};
use crate::controller::ConnectRequest;
use crate::error::Error;
use crate::model::{ResourceTag, Rule};
use crate::plan::connect::{Link, Step};
use crate::plan::rule::Mistake;
use crate::plan::tags::{Graph, TagError};
use crate::plan::target::Owner;
use crate::plan::{price, rule, target};

impl Inner {
    /// The calls a request takes. None at all means that everything is so already.
    pub(super) async fn plan(&self, request: &Request) -> Result<Vec<Call>, Error> {
        self.tags.look(&request.tags()).await?;
        if let Some(tag) = request.changes() {
            self.look_above(&tag).await?;
        }
        match request {
            Request::Create { namespace, cloud, name, description } => {
                self.plan_create(namespace, cloud, name, description).await
            }
            Request::Attach { namespace, cloud, uri } => self.plan_attach(namespace, cloud, uri).await,
            Request::DeleteResource { namespace, cloud, name } => {
                let tag =
                    ResourceTag { namespace: namespace.clone(), cloud: cloud.clone(), name: name.clone() };
                let target = match self.resource(namespace, cloud, name) {
                    Err(error @ Error::Resource { .. }) => {
                        if let Some(left) = self.still_going(&tag.to_string()).await? {
                            return self.plan_removal(&tag.to_string(), left).await;
                        }
                        return self.plan_rest(&tag.to_string(), error).await;
                    }
                    outcome => outcome?,
                };
                let subscriber = target.subscriber().to_string();
                let tag = tag.to_string();
                let mut followers = self.affected(&tag);
                followers.remove(&subscriber);
                let after = self.lists_after(&followers, |graph| graph.delete(&tag)).await?;
                let mut calls = vec![
                    Call::DeleteResource {
                        cloud: cloud.clone(),
                        namespace: namespace.clone(),
                        uri: target.uri,
                    },
                    Call::Unregister { tag: tag.clone(), subscriber },
                ];
                calls.extend(propagate(&tag, followers, after.lists));
                Ok(calls)
            }
            Request::AddRules { resource, rules } => self.plan_add(resource, rules).await,
            Request::DeleteRules { resource, names } => self.plan_delete(resource, names).await,
            Request::AddTagRules { tag, rules } => {
                rule::check_request(rules).map_err(Error::Invalid)?;
                let (resolved, mut calls) = (self.resolve(rules)?, Vec::new());
                // One cloud that does not tell its networks keeps the others from nothing: plugins decide then.
                let known = self.spaces.map(&self.places).await.is_ok();
                let mut connected = Connections::default();
                for target in self.resources_of(tag)? {
                    let target = self.located(&target);
                    if known {
                        // Each with the first resource that needs it: it serves the others too.
                        calls.extend(connected.merge(self.connections_for(&target, &resolved).await?));
                    }
                    calls.extend(self.plan_give(&target, resolved.clone()).await?);
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
                let followers = self.affected(&tag.name);
                if !self.tags.would_set(tag)? {
                    return self.plan_behind(&tag.name, followers).await;
                }
                let after = self.lists_after(&followers, |graph| graph.set(tag)).await?;
                let mut calls = after.connections.calls();
                calls.push(Call::SetTag { tag: tag.clone() });
                // Rules that named it while it was deleted.
                let again = self.rules.naming(&tag.name).into_iter();
                let again = again.filter(|subscriber| !self.tags.is_subscribed(&tag.name, subscriber));
                calls.extend(again.map(|subscriber| Call::Subscribe { tag: tag.name.clone(), subscriber }));
                calls.extend(propagate(&tag.name, followers, after.lists));
                Ok(calls)
            }
            Request::DeleteTag(tag) => {
                let followers = self.affected(tag);
                let mut calls = if self.tags.exists(tag) {
                    let after = self.lists_after(&followers, |graph| graph.delete(tag)).await?;
                    let delete = Call::DeleteTag { tag: tag.clone() };
                    [delete].into_iter().chain(propagate(tag, followers, after.lists)).collect()
                } else {
                    self.plan_behind(tag, self.owed.because_of(tag)).await?
                };
                if !self.tags.subscribers(tag).is_empty() {
                    calls.push(Call::ForgetSubscribers { tag: tag.clone() });
                }
                Ok(calls)
            }
            Request::DeleteMembers(parent, members) => {
                let Some(tag) = self.tags.get(parent) else {
                    return self.plan_rest(parent, TagError::Unknown(parent.clone()).into()).await;
                };
                let followers = self.affected(parent);
                let there: BTreeSet<&String> =
                    members.iter().filter(|member| tag.child_tags.contains(member)).collect();
                if there.is_empty() {
                    return self.plan_behind(parent, followers).await;
                }
                let leave = |graph: &Graph| {
                    let each = there.iter().map(|child| graph.delete_member(parent, child));
                    Ok(each.collect::<Result<Vec<_>, _>>()?.concat())
                };
                let after = self.lists_after(&followers, leave).await?;
                let delete =
                    |child: &&String| Call::DeleteMember { parent: parent.clone(), child: (*child).clone() };
                let deletes = there.iter().map(delete);
                Ok(deletes.chain(propagate(parent, followers, after.lists)).collect())
            }
            Request::Connect(request) => {
                let link = self.link(request).await?;
                Ok(if link.next() == Step::Done { Vec::new() } else { vec![Call::Connect(request.clone())] })
            }
            Request::Prune => self.plan_prune().await,
            Request::Rekey(link) => self.plan_rekey(link.as_deref()).await,
            Request::Repair(found) => Ok(found.calls()),
        }
    }

    /// The tag is as wanted; what is left is whoever could not follow it when it changed.
    pub(super) async fn plan_behind(
        &self,
        tag: &str,
        followers: BTreeSet<String>,
    ) -> Result<Vec<Call>, Error> {
        let after = self.lists_after(&followers, |_| Ok(Vec::new())).await?;
        let behind = after.lists.iter().map(|list| list.subscriber.clone()).collect();
        let mut calls = after.connections.calls();
        calls.extend(propagate(tag, behind, after.lists));
        Ok(calls)
    }

    /// The tag is gone already, so that it was asked to go either is a mistake or is asked again.
    async fn plan_rest(&self, tag: &str, mistake: Error) -> Result<Vec<Call>, Error> {
        let rest = self.plan_behind(tag, self.owed.because_of(tag)).await?;
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
                Some(before) if before == digest => self.plan_behind(&tag, self.affected(&tag)).await,
                _ => Err(Error::invalid("name", format!("`{tag}` already exists with another description"))),
            };
        }
        self.is_free(&tag).await?;
        let new = NewResource { deployment, name: name.into(), description: description.into() };
        Ok(vec![
            Call::CreateResource { cloud: cloud.into(), new },
            Call::Register { cloud: cloud.into(), namespace: namespace.into(), description: digest },
        ])
    }

    async fn plan_attach(&self, namespace: &str, cloud: &str, uri: &str) -> Result<Vec<Call>, Error> {
        let deployment = self.places.deployment(namespace, cloud)?;
        let target = Target { namespace: namespace.into(), cloud: cloud.into(), uri: uri.into(), ip: None };
        self.stays(&target).await?;
        // Where clouds take in resources, these are called what their URIs end in; a plugin has the last word.
        let usual = request::tag_of(namespace, cloud, uri);
        if let Some(known) = self.taken_in(&target, &usual).await? {
            return self.plan_behind(&known, self.affected(&known)).await;
        }
        self.is_free(&usual).await?;
        self.may_be_called(&usual, uri)?;
        let plugin = self.places.cloud(cloud)?;
        let (there, here) =
            (plugin.find_deployment(uri).await?, plugin.find_deployment(&deployment.id).await?);
        if let (Some(there), Some(here)) = (there, here)
            && there != here
        {
            let message = format!(
                "the resource is in {there}, and the namespace {namespace} has {here} in {cloud}: networks elsewhere are \
                 not looked at when address spaces are given out"
            );
            return Err(Error::invalid("id", message));
        }
        Ok(vec![
            Call::AttachResource { cloud: cloud.into(), namespace: namespace.into(), uri: uri.into() },
            Call::Register { cloud: cloud.into(), namespace: namespace.into(), description: String::new() },
        ])
    }

    /// The tag by which a resource was taken in or made here. One that somebody only set says nothing of its cloud,
    /// which may never have heard of it.
    async fn taken_in(&self, resource: &Target, usual: &str) -> Result<Option<String>, Error> {
        let Target { namespace, cloud, uri, .. } = resource;
        let found = self.tags.leaf_of(&format!("{namespace}.{cloud}."), uri);
        let usual = self.tags.get(usual).filter(|tag| tag.uri.as_ref() == Some(uri));
        for tag in found.into_iter().chain(usual) {
            if self.made_from(&tag.name).await?.is_some() {
                return Ok(Some(tag.name));
            }
        }
        Ok(None)
    }

    /// Whether a resource may have this tag: it has three parts, and stands for no other resource.
    pub(super) fn may_be_called(&self, tag: &str, uri: &str) -> Result<(), Error> {
        if ResourceTag::parse(tag).is_none() {
            let message =
                format!("`{tag}` is not NAMESPACE.CLOUD.NAME: a name must not be empty nor contain a dot");
            return Err(Error::invalid("name", message));
        }
        match self.tags.get(tag) {
            Some(known) if known.uri.as_deref() != Some(uri) => {
                let stands_for = known.uri.unwrap_or_else(|| "something else".into());
                Err(Error::invalid("name", format!("the tag `{tag}` already stands for {stands_for}")))
            }
            _ => Ok(()),
        }
    }

    async fn plan_add(&self, resource: &Target, rules: &[Rule]) -> Result<Vec<Call>, Error> {
        rule::check_request(rules).map_err(Error::Invalid)?;
        let (resource, resolved) = (self.located(resource), self.resolve(rules)?);
        self.places.cloud(&resource.cloud)?;
        let mut calls = self.connections_for(&resource, &resolved).await?.calls();
        calls.extend(self.plan_give(&resource, resolved).await?);
        Ok(calls)
    }

    /// To give a resource its rules, once it is connected.
    async fn plan_give(&self, resource: &Target, resolved: Vec<Rule>) -> Result<Vec<Call>, Error> {
        self.places.cloud(&resource.cloud)?;
        let mut calls = Vec::new();
        let subscriber = resource.subscriber().to_string();
        let known = self.rules.get(&subscriber).await?;
        let missing =
            |tag: &&String| target::parse(tag).is_none() && !self.tags.is_subscribed(tag, &subscriber);
        let tags: BTreeSet<&String> = resolved.iter().flat_map(|rule| &rule.tags).filter(missing).collect();
        calls.extend(
            tags.into_iter().map(|tag| Call::Subscribe { tag: tag.clone(), subscriber: subscriber.clone() }),
        );
        let stays =
            |rule: &Rule| known.rules.get(&rule.name) == Some(rule) && !known.going.contains(&rule.name);
        let new: Vec<Rule> = resolved.into_iter().filter(|rule| !stays(rule)).collect();
        if !new.is_empty() {
            calls.push(Call::AddRules {
                cloud: resource.cloud.clone(),
                namespace: resource.namespace.clone(),
                uri: resource.uri.clone(),
                ip: resource.ip,
                rules: new,
            });
        }
        Ok(calls)
    }

    async fn plan_delete(&self, resource: &Target, names: &[String]) -> Result<Vec<Call>, Error> {
        let subscriber = resource.subscriber().to_string();
        let mut known = self.rules.of(resource).await?;
        let mut silent = false;
        if names.iter().any(|name| !known.rules.contains_key(name)) {
            match self.add_foreign(resource, &mut known).await {
                // Whatever it has by these names goes once it answers.
                Err(error) if error.may_pass() => silent = true,
                looked => looked?,
            }
        }
        let is_there = |name: &&String| silent || known.rules.contains_key(*name);
        let gone: Vec<String> = names.iter().filter(is_there).cloned().collect();
        if gone.is_empty() {
            return Ok(Vec::new());
        }
        let (gone_too, left): (Vec<&Rule>, Vec<&Rule>) =
            known.staying().partition(|rule| gone.contains(&rule.name));
        let tags = |rules: Vec<&Rule>| -> BTreeSet<String> {
            let named = rules.into_iter().flat_map(|rule| &rule.tags);
            named.filter(|tag| target::parse(tag).is_none()).cloned().collect()
        };
        let (left, before) = (tags(left), tags(gone_too));
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
        let ip = tag.ip.as_deref().and_then(target::first_address);
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
        self.or_as_told(resource, self.rules.of(resource).await?).await
    }

    /// What is remembered of a permit list, or what its cloud tells if that is nothing.
    pub(super) async fn or_as_told(&self, resource: &Target, mut known: RuleSet) -> Result<RuleSet, Error> {
        if known.rules.is_empty() {
            self.add_foreign(resource, &mut known).await?;
        }
        Ok(known)
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

    /// What is left of a connection.
    pub(super) async fn steps_left(&self, request: &ConnectRequest) -> Result<Vec<String>, Error> {
        Ok(told(&self.link(request).await?))
    }

    /// What another key needs.
    async fn steps_of_rekey(&self, name: &str) -> Result<Vec<String>, Error> {
        let Some(mut link) = self.links.get(name).await? else { return Ok(Vec::new()) };
        let networks = link.forget_key();
        for network in networks {
            link.tell(network);
        }
        Ok(told(&link))
    }

    /// A plan as people read it: connections are told step by step.
    pub(super) async fn describe(&self, calls: &[Call], ways: &[Vec<Way>]) -> Result<Vec<String>, Error> {
        let mut lines = Vec::new();
        for (number, call) in calls.iter().enumerate() {
            if let Call::Propagate { lists, .. } = call {
                lines.extend(lists.iter().map(ToString::to_string));
                continue;
            }
            lines.push(call.to_string());
            if let Call::Connect(request) = call {
                lines.extend(self.steps_left(request).await?.into_iter().map(|step| format!("  {step}")));
            }
            lines.extend(ways.get(number).into_iter().flatten().map(|way| format!("  {}", told_way(way))));
            if let Call::Rekey { link } = call {
                lines.extend(self.steps_of_rekey(link).await?.into_iter().map(|step| format!("  {step}")));
            }
        }
        Ok(lines)
    }

    /// What is paid for because of these calls, what no longer, and what although nobody needs it.
    pub(super) async fn prices(
        &self,
        calls: &[Call],
        ways: &[Vec<Way>],
        unneeded: &[String],
    ) -> Result<Vec<String>, Error> {
        let (mut lines, mut going, links) = (Vec::new(), Vec::new(), self.links.list().await?);
        for call in calls {
            match call {
                Call::Connect(request) => lines.extend(price::begins(&self.link(request).await?, &links)),
                Call::Disconnect { link } => going.push(link.clone()),
                _ => {}
            }
        }
        // Links that go together keep no gateway for each other.
        let parted = |names: &[String]| -> (Vec<Link>, Vec<Link>) {
            links.iter().cloned().partition(|link| names.contains(&link.name()))
        };
        let (gone, stay) = parted(&going);
        lines.extend(gone.iter().flat_map(|link| price::ends(link, &stay)));
        lines.extend(ways.iter().flatten().filter_map(|way| match way.need {
            Need::Public => price::way_out(&way.own.cloud),
            _ => price::peering(&way.own.cloud),
        }));
        let mut once = BTreeSet::new();
        lines.retain(|line| once.insert(line.clone()));
        let (idle, needed) = parted(unneeded);
        lines.extend(idle.iter().flat_map(|link| price::goes_on(link, &needed)));
        Ok(lines)
    }
}

/// The steps that a link still needs, as people read them.
fn told(link: &Link) -> Vec<String> {
    let cloud = |side| &link.ends(side).0.cloud;
    let told = |step| match step {
        Step::ChooseAddresses => "choose addresses inside the tunnels".into(),
        Step::AskSpaces(side) => format!("{}: GetNetworkAddressSpaces", cloud(side)),
        Step::MakeGateway(side) => format!("{}: CreateVpnGateway", cloud(side)),
        Step::MakeKey => "make the shared key".into(),
        Step::Connect(side) => format!("{}: CreateVpnConnections", cloud(side)),
        Step::Done => String::new(),
    };
    link.remaining().into_iter().map(told).collect()
}

/// What a plugin does beside giving rules.
fn told_way(Way { own: Owner { cloud, space, .. }, need }: &Way) -> String {
    match need {
        Need::Public => format!("{cloud}: a way from {space} to public addresses, where there is none"),
        Need::Peering(other) | Need::Vpn(other) => {
            format!("{cloud}: a connection of {space} with {}, where there is none", other.space)
        }
    }
}

fn propagate(tag: &str, subscribers: BTreeSet<String>, lists: Vec<NewTargets>) -> Option<Call> {
    let subscribers: Vec<String> = subscribers.into_iter().collect();
    (!subscribers.is_empty()).then(|| Call::Propagate { tag: tag.to_owned(), subscribers, lists })
}
