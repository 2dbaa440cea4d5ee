//! A tag service in another process, on either wire.
//!
//! The hierarchy here is then only what was last looked up there: [`Tags::look`](super::Tags::look) reads
//! the tags that a decision is about just before it is made, and changes are made there first.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tarbet_telemetry::codes::nets;
use tonic::Status;

use crate::error::Error;
use crate::grpc;
use crate::plan::tags::{Graph, Mapping, Write};
use crate::plan::target;
use crate::trust::{DialTrust, Line};
use crate::wire::seed_tags::{self, tag_service_client::TagServiceClient as SeedClient};
use crate::wire::tags::{self as today, tag_service_client::TagServiceClient as TodayClient};

/// A long list of tags is one message.
const MESSAGE_MAX: usize = 512 * 1024 * 1024;

/// Whose messages another process speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TagWire {
    /// Paraglider's.
    #[default]
    Today,
    /// Invisinets'.
    Seed,
}

/// A tag service elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RemoteTags {
    /// Its host.
    pub host: String,
    /// Its port.
    #[serde(deserialize_with = "crate::config::port")]
    pub port: u16,
    /// Whose messages it speaks.
    #[serde(default)]
    pub wire: TagWire,
    /// How to call it.
    #[serde(default)]
    pub trust: DialTrust,
}

/// A connection to it.
#[derive(Debug, Clone)]
pub(super) enum Far {
    Today(TodayClient<Line>),
    Seed(SeedClient<Line>),
}

#[expect(clippy::needless_pass_by_value, reason = "the form map_err wants")]
fn told(status: Status) -> Error {
    grpc::told(&status, "orchestrator → tag service", &nets::TAGS_UNREACHABLE)
}

/// What the first generation answers in place of a status.
fn done(answer: seed_tags::BasicResponse) -> Result<(), Error> {
    if answer.success {
        return Ok(());
    }
    Err(Error::Cloud { cloud: "tag service".into(), what: "a change".into(), said: answer.message })
}

impl Far {
    pub(super) fn new(config: &RemoteTags) -> Result<Self, Error> {
        let line = config.trust.line(&config.host, config.port)?;
        Ok(match config.wire {
            TagWire::Today => Self::Today(TodayClient::new(line).max_decoding_message_size(MESSAGE_MAX)),
            TagWire::Seed => Self::Seed(SeedClient::new(line).max_decoding_message_size(MESSAGE_MAX)),
        })
    }

    /// The tag; an empty group if there is none, as both wires have it.
    async fn get(&self, name: &str) -> Result<Mapping, Error> {
        let mapping = match self.clone() {
            Self::Today(mut client) => {
                let request = today::GetTagRequest { tag_name: name.into() };
                let tag = client.get_tag(request).await.map_err(told)?.into_inner().tag;
                tag.map(Mapping::from).unwrap_or_default()
            }
            Self::Seed(mut client) => {
                let request = seed_tags::Tag { tag_name: name.into() };
                client.get_tag(request).await.map_err(told)?.into_inner().into()
            }
        };
        Ok(Mapping { name: name.into(), ..mapping })
    }

    /// All tags, where the wire can list them.
    pub(super) async fn list(&self) -> Result<Option<Vec<Mapping>>, Error> {
        match self.clone() {
            Self::Today(mut client) => {
                let answer = client.list_tags(today::ListTagsRequest {}).await.map_err(told)?;
                Ok(Some(answer.into_inner().tags.into_iter().map(Into::into).collect()))
            }
            Self::Seed(_) => Ok(None),
        }
    }

    async fn subscribers(&self, name: &str) -> Result<Vec<String>, Error> {
        Ok(match self.clone() {
            Self::Today(mut client) => {
                let request = today::GetSubscribersRequest { tag_name: name.into() };
                client.get_subscribers(request).await.map_err(told)?.into_inner().subscribers
            }
            Self::Seed(mut client) => {
                let request = seed_tags::Tag { tag_name: name.into() };
                client.get_subscribers(request).await.map_err(told)?.into_inner().subscribers
            }
        })
    }

    /// Makes a change there.
    pub(super) async fn make(&self, change: &FarChange<'_>) -> Result<(), Error> {
        if let FarChange::Forget(tag, all) = *change {
            for who in all {
                self.make_one(&FarChange::Unsubscribe(tag, who)).await?;
            }
            return Ok(());
        }
        self.make_one(change).await
    }

    async fn make_one(&self, change: &FarChange<'_>) -> Result<(), Error> {
        match self.clone() {
            Self::Today(client) => make_today(client, change).await,
            Self::Seed(client) => make_seed(client, change).await,
        }
    }

    /// What makes `graph` agree with the far side about these tags, all below them, and who follows them.
    pub(super) async fn below(
        &self,
        names: &[&str],
        graph: impl Fn(&Mapping) -> Vec<Write>,
    ) -> Result<Vec<Write>, Error> {
        let mut writes = Vec::new();
        let mut seen: BTreeSet<String> = BTreeSet::new();
        let mut level: Vec<String> = names.iter().map(ToString::to_string).collect();
        while !level.is_empty() {
            level.retain(|name| target::parse(name).is_none() && seen.insert(name.clone()));
            let found = try_join_all(level.iter().map(|name| self.get(name))).await?;
            level = found.iter().flat_map(|mapping| mapping.child_tags.clone()).collect();
            writes.extend(found.iter().flat_map(&graph));
        }
        Ok(writes)
    }

    /// Who follows each of these tags.
    pub(super) async fn followers(&self, names: &[String]) -> Result<Vec<(String, Vec<String>)>, Error> {
        let ask = |name: &String| {
            let name = name.clone();
            async move { self.subscribers(&name).await.map(|followers| (name, followers)) }
        };
        try_join_all(names.iter().map(ask)).await
    }
}

/// A change to be made there.
pub(super) enum FarChange<'a> {
    Set(&'a Mapping),
    DeleteMember(&'a str, &'a str),
    Delete(&'a str),
    Subscribe(&'a str, &'a str),
    Unsubscribe(&'a str, &'a str),
    /// All of these leave the tag.
    Forget(&'a str, &'a [String]),
}

async fn make_today(mut client: TodayClient<Line>, change: &FarChange<'_>) -> Result<(), Error> {
    let subscription = |tag: &str, subscriber: &str| {
        Some(today::Subscription { tag_name: tag.into(), subscriber: subscriber.into() })
    };
    match *change {
        FarChange::Set(tag) => {
            let request = today::SetTagRequest { tag: Some(tag.clone().into()) };
            client.set_tag(request).await.map(drop).map_err(told)
        }
        FarChange::DeleteMember(parent, child) => {
            let request =
                today::DeleteTagMemberRequest { parent_tag: parent.into(), child_tag: child.into() };
            client.delete_tag_member(request).await.map(drop).map_err(told)
        }
        FarChange::Delete(tag) => {
            let request = today::DeleteTagRequest { tag_name: tag.into() };
            client.delete_tag(request).await.map(drop).map_err(told)
        }
        FarChange::Subscribe(tag, who) => {
            let request = today::SubscribeRequest { subscription: subscription(tag, who) };
            client.subscribe(request).await.map(drop).map_err(told)
        }
        FarChange::Unsubscribe(tag, who) => {
            let request = today::UnsubscribeRequest { subscription: subscription(tag, who) };
            client.unsubscribe(request).await.map(drop).map_err(told)
        }
        FarChange::Forget(..) => Ok(()),
    }
}

async fn make_seed(mut client: SeedClient<Line>, change: &FarChange<'_>) -> Result<(), Error> {
    let subscription = |tag: &str, subscriber: &str| seed_tags::Subscription {
        tag_name: tag.into(),
        subscriber: subscriber.into(),
    };
    let answer = match *change {
        FarChange::Set(tag) => client.set_tag(seed_tags::TagMapping::from(tag.clone())).await,
        FarChange::DeleteMember(parent, child) => {
            let member =
                Mapping { name: parent.into(), child_tags: vec![child.into()], ..Mapping::default() };
            client.delete_tag_member(seed_tags::TagMapping::from(member)).await
        }
        FarChange::Delete(tag) => client.delete_tag(seed_tags::Tag { tag_name: tag.into() }).await,
        FarChange::Subscribe(tag, who) => client.subscribe(subscription(tag, who)).await,
        FarChange::Unsubscribe(tag, who) => client.unsubscribe(subscription(tag, who)).await,
        FarChange::Forget(..) => return Ok(()),
    };
    done(answer.map_err(told)?.into_inner())
}

/// What makes the graph agree with a tag as the far side tells it.
pub(super) fn agree(graph: &Graph, told: &Mapping) -> Vec<Write> {
    let Mapping { name, child_tags, uri, ip } = told;
    let known = graph.get(name);
    if child_tags.is_empty() && uri.is_none() && ip.is_none() {
        // Nothing is an empty group on these wires.
        let members = known.into_iter().flat_map(|known| known.child_tags);
        let leave = members.map(|member| Write::Leave(name.clone(), member));
        return leave.chain([Write::Remove(name.clone())]).collect();
    }
    let mut writes = Vec::new();
    if uri.is_some() || ip.is_some() {
        writes.push(Write::Leaf { tag: name.clone(), uri: uri.clone(), ip: ip.clone() });
        return writes;
    }
    let before: BTreeSet<String> = known.into_iter().flat_map(|known| known.child_tags).collect();
    let now: BTreeSet<String> = child_tags.iter().cloned().collect();
    writes.push(Write::Group(name.clone()));
    writes.extend(before.difference(&now).map(|member| Write::Leave(name.clone(), member.clone())));
    writes.extend(now.difference(&before).map(|member| Write::Join(name.clone(), member.clone())));
    writes
}
