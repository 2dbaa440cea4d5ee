//! The hierarchy of tags: leaves stand for resources, groups for other tags and addresses.
//!
//! A change is decided first, as a list of [`Write`]s, and applied after those are safe in the store.
//! What is loaded from the store is applied the same way, so there is one meaning of each write.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::plan::{rule, target};

/// Why a tag cannot be changed so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TagError {
    /// The name itself.
    #[error("tag: {0}")]
    Name(String),
    /// Members and an address of its own at once, or neither.
    #[error("tag `{0}` needs either child_tags, or a uri or ip of its own")]
    Shape(String),
    /// The address is none.
    #[error("ip of tag `{tag}`: `{ip}` is neither an address nor a prefix")]
    Address {
        /// The tag.
        tag: String,
        /// What was given.
        ip: String,
    },
    /// A leaf would become a group, or the other way round.
    #[error("tag `{0}` is already {1}; delete it first")]
    Kind(String, &'static str),
    /// The hierarchy would contain itself.
    #[error("child_tags: `{child}` already contains `{parent}`, so it cannot become one of its members")]
    Cycle {
        /// The group.
        parent: String,
        /// The member that closes the circle.
        child: String,
    },
    /// Nothing has this name.
    #[error("there is no tag `{0}`")]
    Unknown(String),
}

/// A tag as it is spoken about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Spelling")]
pub struct Mapping {
    /// Its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Members of a group: tags, addresses or prefixes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub child_tags: Vec<String>,
    /// What the cloud calls the resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// Its address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
}

/// A tag as either generation writes it: the first says `tag_name`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Spelling {
    name: String,
    tag_name: String,
    child_tags: Option<Vec<String>>,
    uri: Option<String>,
    ip: Option<String>,
}

impl From<Spelling> for Mapping {
    fn from(spelling: Spelling) -> Self {
        let Spelling { name, tag_name, child_tags, uri, ip } = spelling;
        let name = if name.is_empty() { tag_name } else { name };
        Self { name, child_tags: child_tags.unwrap_or_default(), uri, ip }
    }
}

impl Mapping {
    /// With both halves if it is the tag of a resource: on the wire the original always sets both and reads
    /// both unasked. An address that stands for itself has no name and keeps its one half.
    #[must_use]
    pub fn with_both_halves(mut self) -> Self {
        if !self.name.is_empty() && (self.uri.is_some() || self.ip.is_some()) {
            self.uri.get_or_insert_default();
            self.ip.get_or_insert_default();
        }
        self
    }

    /// Without halves that are empty.
    #[must_use]
    pub fn without_empty_halves(mut self) -> Self {
        self.uri.take_if(|uri| uri.is_empty());
        self.ip.take_if(|ip| ip.is_empty());
        self
    }
}

/// One change to what is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Write {
    /// This is a leaf now.
    Leaf {
        /// The tag.
        tag: String,
        /// Its resource.
        uri: Option<String>,
        /// Its address.
        ip: Option<String>,
    },
    /// This is a group now.
    Group(String),
    /// This is no tag any more.
    Remove(String),
    /// The group has this member.
    Join(String, String),
    /// The group no longer has this member.
    Leave(String, String),
    /// The subscriber follows the tag.
    Subscribe(String, String),
    /// The subscriber no longer follows the tag.
    Unsubscribe(String, String),
    /// The tag is deleted: that the subscriber followed it is known only for a while longer.
    Retire(String, String),
}

impl Write {
    /// How much text it names.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Leaf { tag, uri, ip } => {
                tag.len() + [uri, ip].into_iter().flatten().map(String::len).sum::<usize>()
            }
            Self::Group(tag) | Self::Remove(tag) => tag.len(),
            Self::Join(one, other)
            | Self::Leave(one, other)
            | Self::Subscribe(one, other)
            | Self::Unsubscribe(one, other)
            | Self::Retire(one, other) => one.len() + other.len(),
        }
    }
}

#[derive(Debug, Default)]
struct Node {
    leaf: Option<Box<Leaf>>,
    members: Option<BTreeSet<Arc<str>>>,
    parents: Vec<Arc<str>>,
    subscribers: Option<BTreeSet<Arc<str>>>,
}

#[derive(Debug)]
struct Leaf {
    uri: Option<Box<str>>,
    ip: Option<Box<str>>,
}

impl Node {
    fn is_needless(&self) -> bool {
        self.leaf.is_none() && self.members.is_none() && self.parents.is_empty() && self.subscribers.is_none()
    }

    fn exists(&self) -> bool {
        self.leaf.is_some() || self.members.is_some()
    }

    fn members(&self) -> impl Iterator<Item = &Arc<str>> {
        self.members.iter().flat_map(|members| members.iter())
    }
}

/// All tags. Cheap to ask, whatever their number.
#[derive(Debug, Default)]
pub struct Graph {
    nodes: HashMap<Arc<str>, Node>,
    tags: usize,
}

impl Graph {
    /// How many tags there are.
    pub fn len(&self) -> usize {
        self.tags
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tags == 0
    }

    /// Whether the tag exists.
    pub fn exists(&self, tag: &str) -> bool {
        self.nodes.get(tag).is_some_and(Node::exists)
    }

    /// The tag with its members or its address.
    pub fn get(&self, tag: &str) -> Option<Mapping> {
        let node = self.nodes.get(tag).filter(|node| node.exists())?;
        Some(mapping(tag, node))
    }

    /// All tags by name.
    pub fn list(&self) -> Vec<Mapping> {
        let mut tags: Vec<Mapping> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.exists())
            .map(|(name, node)| mapping(name, node))
            .collect();
        tags.sort_by(|a, b| a.name.cmp(&b.name));
        tags
    }

    /// The leaves and addresses a tag stands for, each once.
    pub fn resolve(&self, tag: &str) -> Vec<Mapping> {
        what_if::resolve(tag, |name| self.nodes.get(name))
    }

    /// The addresses and prefixes a tag stands for.
    pub fn addresses(&self, tag: &str) -> Vec<String> {
        self.resolve(tag).into_iter().filter_map(|leaf| leaf.ip).collect()
    }

    /// The leaf of a resource, by what its cloud calls it. Looks at all tags.
    pub fn leaf_of(&self, prefix: &str, uri: &str) -> Option<Mapping> {
        let is_it = |node: &Node| node.leaf.as_ref().is_some_and(|leaf| leaf.uri.as_deref() == Some(uri));
        let found = self.nodes.iter().find(|(name, node)| is_it(node) && name.starts_with(prefix));
        found.map(|(name, node)| mapping(name, node))
    }

    /// Who follows exactly this tag.
    pub fn subscribers(&self, tag: &str) -> Vec<String> {
        let subscribers = self.nodes.get(tag).and_then(|node| node.subscribers.as_ref());
        subscribers.into_iter().flatten().map(ToString::to_string).collect()
    }

    /// Who follows this tag or any tag that contains it: all whose permit lists a change may touch.
    pub fn affected(&self, tag: &str) -> BTreeSet<String> {
        let mut affected = BTreeSet::new();
        for name in self.with_ancestors(tag) {
            affected.extend(self.subscribers(name));
        }
        affected
    }

    /// The tag and all that contain it.
    pub fn names_above(&self, tag: &str) -> Vec<String> {
        self.with_ancestors(tag).into_iter().map(str::to_owned).collect()
    }

    fn with_ancestors<'a>(&'a self, tag: &'a str) -> HashSet<&'a str> {
        let mut seen = HashSet::from([tag]);
        let mut open = vec![tag];
        while let Some(name) = open.pop() {
            let parents = self.nodes.get(name).map(|node| node.parents.as_slice()).unwrap_or_default();
            open.extend(parents.iter().map(|parent| &**parent).filter(|parent| seen.insert(parent)));
        }
        seen
    }

    /// Makes or changes a tag: members are added to a group, a leaf takes a new address.
    /// No writes mean that all is so already.
    pub fn set(&self, tag: &Mapping) -> Result<Vec<Write>, TagError> {
        let name = &tag.name;
        rule::tag_name(name).map_err(TagError::Name)?;
        if target::parse(name).is_some() {
            return Err(TagError::Name(format!("`{name}` is an address and stands for itself")));
        }
        let (uri, ip) =
            (tag.uri.as_ref().filter(|uri| !uri.is_empty()), tag.ip.as_ref().filter(|ip| !ip.is_empty()));
        let is_leaf = uri.is_some() || ip.is_some();
        if is_leaf != tag.child_tags.is_empty() {
            return Err(TagError::Shape(name.clone()));
        }
        let node = self.nodes.get(name.as_str());
        if is_leaf {
            Self::set_leaf(node, name, uri, ip)
        } else {
            self.set_group(node, name, &tag.child_tags)
        }
    }

    fn set_leaf(
        node: Option<&Node>,
        name: &str,
        uri: Option<&String>,
        ip: Option<&String>,
    ) -> Result<Vec<Write>, TagError> {
        if node.is_some_and(|node| node.members.is_some()) {
            return Err(TagError::Kind(name.into(), "a group of other tags"));
        }
        if let Some(ip) = ip.filter(|ip| target::parse(ip).is_none()) {
            return Err(TagError::Address { tag: name.into(), ip: ip.clone() });
        }
        let same = node.and_then(|node| node.leaf.as_ref()).is_some_and(|leaf| {
            leaf.uri.as_deref() == uri.map(String::as_str) && leaf.ip.as_deref() == ip.map(String::as_str)
        });
        let write = Write::Leaf { tag: name.into(), uri: uri.cloned(), ip: ip.cloned() };
        Ok(if same { vec![] } else { vec![write] })
    }

    fn set_group(
        &self,
        node: Option<&Node>,
        name: &str,
        children: &[String],
    ) -> Result<Vec<Write>, TagError> {
        if node.is_some_and(|node| node.leaf.is_some()) {
            return Err(TagError::Kind(name.into(), "the tag of a resource"));
        }
        let above = self.with_ancestors(name);
        let mut writes = Vec::new();
        if node.is_none_or(|node| node.members.is_none()) {
            writes.push(Write::Group(name.into()));
        }
        let mut new = BTreeSet::new();
        for child in children {
            rule::tag_name(child).map_err(TagError::Name)?;
            if above.contains(child.as_str()) {
                return Err(TagError::Cycle { parent: name.into(), child: child.clone() });
            }
            let known = node.is_some_and(|node| {
                node.members.as_ref().is_some_and(|members| members.contains(child.as_str()))
            });
            if !known && new.insert(child.as_str()) {
                writes.push(Write::Join(name.into(), child.clone()));
            }
        }
        Ok(writes)
    }

    /// Takes a member out of a group; nothing happens if it is not in it.
    pub fn delete_member(&self, parent: &str, child: &str) -> Result<Vec<Write>, TagError> {
        let node = self
            .nodes
            .get(parent)
            .filter(|node| node.exists())
            .ok_or_else(|| TagError::Unknown(parent.into()))?;
        if !node.members.as_ref().is_some_and(|members| members.contains(child)) {
            return Ok(Vec::new());
        }
        Ok(vec![Write::Leave(parent.into(), child.into())])
    }

    /// Removes a tag and its memberships both ways. The tag itself goes last, so that a removal cut into several
    /// commits can be begun again. Who followed it stays noted for a while: the original's orchestrator asks for
    /// them only afterwards.
    pub fn delete(&self, tag: &str) -> Result<Vec<Write>, TagError> {
        // What is not there is as wanted.
        let Some(node) = self.nodes.get(tag).filter(|node| node.exists()) else { return Ok(Vec::new()) };
        let mut writes: Vec<Write> = Vec::new();
        writes.extend(node.parents.iter().map(|parent| Write::Leave(parent.to_string(), tag.into())));
        writes.extend(node.members().map(|member| Write::Leave(tag.into(), member.to_string())));
        writes.extend(self.subscribers(tag).into_iter().map(|who| Write::Retire(tag.into(), who)));
        writes.push(Write::Remove(tag.into()));
        Ok(writes)
    }

    /// Notes who wants to hear of changes. The tag need not exist yet.
    pub fn subscribe(&self, tag: &str, subscriber: &str) -> Result<Vec<Write>, TagError> {
        rule::tag_name(tag).map_err(TagError::Name)?;
        if subscriber.is_empty() {
            return Err(TagError::Name("the subscriber must not be empty".into()));
        }
        let known = self.is_subscribed(tag, subscriber);
        Ok(if known { vec![] } else { vec![Write::Subscribe(tag.into(), subscriber.into())] })
    }

    /// Forgets a subscriber; nothing happens if it is not known.
    pub fn unsubscribe(&self, tag: &str, subscriber: &str) -> Vec<Write> {
        let known = self.is_subscribed(tag, subscriber);
        if known { vec![Write::Unsubscribe(tag.into(), subscriber.into())] } else { vec![] }
    }

    /// Whether the subscriber follows exactly this tag.
    pub fn is_subscribed(&self, tag: &str, subscriber: &str) -> bool {
        let subscribers = self.nodes.get(tag).and_then(|node| node.subscribers.as_ref());
        subscribers.is_some_and(|subscribers| subscribers.contains(subscriber))
    }

    /// Makes a write true here. Every write may be applied twice.
    pub fn apply(&mut self, write: &Write) {
        match write {
            Write::Leaf { tag, uri, ip } => {
                let boxed = |text: &Option<String>| text.as_deref().map(Box::from);
                self.change(tag, |node| node.leaf = Some(Box::new(Leaf { uri: boxed(uri), ip: boxed(ip) })));
            }
            Write::Group(tag) => self.change(tag, |node| {
                node.members.get_or_insert_default();
            }),
            Write::Remove(tag) => self.change(tag, |node| {
                node.leaf = None;
                node.members = None;
            }),
            Write::Join(parent, child) => {
                let (parent_name, child_name) = (self.intern(parent), self.intern(child));
                self.change(parent, |node| {
                    node.members.get_or_insert_default().insert(child_name);
                });
                // Addresses stand for themselves and have no entry of their own.
                if target::parse(child).is_none() {
                    self.change(child, |node| {
                        if !node.parents.contains(&parent_name) {
                            node.parents.push(parent_name);
                        }
                    });
                }
            }
            Write::Leave(parent, child) => {
                self.change(parent, |node| {
                    if let Some(members) = &mut node.members {
                        members.remove(child.as_str());
                    }
                });
                self.change(child, |node| node.parents.retain(|name| **name != **parent));
            }
            Write::Subscribe(tag, subscriber) => self.change(tag, |node| {
                node.subscribers.get_or_insert_default().insert(subscriber.as_str().into());
            }),
            Write::Unsubscribe(tag, subscriber) => self.change(tag, |node| {
                if let Some(subscribers) = &mut node.subscribers {
                    subscribers.remove(subscriber.as_str());
                }
                node.subscribers.take_if(|subscribers| subscribers.is_empty());
            }),
            // When its time is over it is unsubscribed.
            Write::Retire(..) => {}
        }
    }

    fn intern(&self, name: &str) -> Arc<str> {
        self.nodes.get_key_value(name).map_or_else(|| name.into(), |(known, _)| Arc::clone(known))
    }

    fn change(&mut self, tag: &str, change: impl FnOnce(&mut Node)) {
        let key = self.intern(tag);
        let node = self.nodes.entry(key).or_default();
        let before = node.exists();
        change(node);
        let (after, needless) = (node.exists(), node.is_needless());
        self.tags = self.tags + usize::from(after) - usize::from(before);
        if needless {
            self.nodes.remove(tag);
        }
    }
}

fn mapping(name: &str, node: &Node) -> Mapping {
    let text = |text: &Option<Box<str>>| text.as_deref().map(str::to_owned);
    Mapping {
        name: name.to_owned(),
        child_tags: node.members().map(ToString::to_string).collect(),
        uri: node.leaf.as_ref().and_then(|leaf| text(&leaf.uri)),
        ip: node.leaf.as_ref().and_then(|leaf| text(&leaf.ip)),
    }
}

#[cfg(test)]
mod tests;
mod what_if;

pub use what_if::{WhatIf, touched};
