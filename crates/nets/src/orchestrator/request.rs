//! What can be asked for.

use std::net::IpAddr;

use super::drift::Compared;
use crate::controller::ConnectRequest;
use crate::model::{Rule, Subscriber};
use crate::plan::tags::Mapping;

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
    /// Take members out of a tag.
    DeleteMembers(String, Vec<String>),
    /// Connect two clouds.
    Connect(ConnectRequest),
    /// Take down every link that no rule needs any more.
    Prune,
    /// Make another key for a link, or for each.
    Rekey(Option<String>),
    /// Mend what differs from what should be, as a comparison found it.
    Repair(Compared),
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
    pub(super) fn tags(&self) -> Vec<String> {
        let of = |rules: &[Rule]| rules.iter().flat_map(|rule| rule.tags.clone()).collect::<Vec<_>>();
        match self {
            Self::Create { namespace, cloud, name, .. } | Self::DeleteResource { namespace, cloud, name } => {
                vec![format!("{namespace}.{cloud}.{name}")]
            }
            Self::AddRules { rules, .. } => of(rules),
            Self::AddTagRules { tag, rules } => [of(rules), vec![tag.clone()]].concat(),
            Self::DeleteTagRules { tag, .. } | Self::DeleteTag(tag) | Self::DeleteMembers(tag, _) => {
                vec![tag.clone()]
            }
            Self::SetTag(tag) => vec![tag.name.clone()],
            Self::Attach { namespace, cloud, uri } => vec![tag_of(namespace, cloud, uri)],
            Self::DeleteRules { .. } | Self::Connect(_) | Self::Prune | Self::Rekey(_) | Self::Repair(_) => {
                Vec::new()
            }
        }
    }

    /// The tag it changes, if it does: whoever follows one above it is touched too.
    pub(super) fn changes(&self) -> Option<String> {
        match self {
            Self::DeleteResource { namespace, cloud, name } => Some(format!("{namespace}.{cloud}.{name}")),
            Self::SetTag(tag) => Some(tag.name.clone()),
            Self::DeleteTag(tag) | Self::DeleteMembers(tag, _) => Some(tag.clone()),
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
            Self::DeleteMembers(parent, members) => {
                format!("take {} out of tag {parent}", members.join(", "))
            }
            Self::Connect(request) => format!("connect {} with {}", request.cloud_a, request.cloud_b),
            Self::Prune => "remove connections that no rule needs".into(),
            Self::Repair(_) => "mend what differs".into(),
            Self::Rekey(None) => "replace the key of every connection".into(),
            Self::Rekey(Some(link)) => format!("replace the key of {link}"),
        }
    }
}

/// The tag that a resource of this URI is given when it is taken in, as far as that can be told beforehand.
pub(super) fn tag_of(namespace: &str, cloud: &str, uri: &str) -> String {
    let name = uri.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    format!("{namespace}.{cloud}.{name}")
}
