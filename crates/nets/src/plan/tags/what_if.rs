//! What tags would stand for after a change that is not made yet.

use std::collections::HashSet;

use super::{Graph, Mapping, Node, Write, mapping};
use crate::plan::target;

/// All tags with some writes applied, of which the tags themselves know nothing.
pub struct WhatIf<'a> {
    now: &'a Graph,
    /// Copies of what the writes touch, with the writes applied.
    then: Graph,
    touched: HashSet<String>,
}

impl Graph {
    /// Looks at what writes would come to. Only what they touch is copied.
    pub fn what_if(&self, writes: &[Write]) -> WhatIf<'_> {
        let touched: HashSet<String> = writes.iter().filter_map(touched).map(str::to_owned).collect();
        let mut then = Graph::default();
        for tag in &touched {
            let Some(Mapping { name, child_tags, uri, ip }) = self.get(tag) else { continue };
            if uri.is_some() || ip.is_some() {
                then.apply(&Write::Leaf { tag: name, uri, ip });
                continue;
            }
            then.apply(&Write::Group(name.clone()));
            for child in child_tags {
                then.apply(&Write::Join(name.clone(), child));
            }
        }
        for write in writes {
            then.apply(write);
        }
        WhatIf { now: self, then, touched }
    }
}

impl WhatIf<'_> {
    /// The addresses and prefixes a tag would stand for.
    pub fn addresses(&self, tag: &str) -> Vec<String> {
        let node = |name: &str| {
            let graph = if self.touched.contains(name) { &self.then } else { self.now };
            graph.nodes.get(name)
        };
        resolve(tag, node).into_iter().filter_map(|leaf| leaf.ip).collect()
    }
}

/// The tag that stands for something else after a write.
pub fn touched(write: &Write) -> Option<&str> {
    match write {
        Write::Leaf { tag, .. } | Write::Group(tag) | Write::Remove(tag) => Some(tag),
        Write::Join(parent, _) | Write::Leave(parent, _) => Some(parent),
        Write::Subscribe(..) | Write::Unsubscribe(..) | Write::Retire(..) => None,
    }
}

/// The leaves and addresses a tag stands for, each once.
pub(super) fn resolve<'a>(tag: &'a str, node: impl Fn(&str) -> Option<&'a Node>) -> Vec<Mapping> {
    let mut seen: HashSet<&str> = HashSet::new();
    let mut leaves = Vec::new();
    let mut open = vec![tag];
    while let Some(name) = open.pop() {
        if target::parse(name).is_some() {
            leaves.push(Mapping { ip: Some(name.to_owned()), ..Mapping::default() });
            continue;
        }
        let Some(node) = node(name) else { continue };
        if node.leaf.is_some() {
            leaves.push(mapping(name, node));
        }
        // From behind, so that members come out in the order of their names.
        let mut members: Vec<&str> = node.members().map(|name| &**name).collect();
        members.reverse();
        open.extend(members.into_iter().filter(|member| seen.insert(member)));
    }
    leaves
}
