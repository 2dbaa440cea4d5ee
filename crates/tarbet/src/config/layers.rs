//! Settings from several places laid over one another, each remembering where it came from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;

/// Where a setting was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A file and the line in it, counted from one.
    File(PathBuf, u64),
    /// An environment variable.
    Variable(String),
    /// A command-line flag.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => write!(f, "environment variable {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// A tree of settings.
#[derive(Debug, Clone)]
pub struct Node {
    origin: Origin,
    content: Content,
}

#[derive(Debug, Clone)]
enum Content {
    Scalar(Value),
    List(Vec<Node>),
    Map(BTreeMap<String, Node>),
}

impl Node {
    /// Reads a whole YAML file.
    pub fn from_yaml(text: &str, path: &Path) -> Result<Option<Self>, serde_saphyr::Error> {
        let raw: Option<Spanned<Raw>> = serde_saphyr::from_str(text)?;
        Ok(raw
            .map(|raw| raw.value.located(&|line| Origin::File(path.to_owned(), line), raw.referenced.line())))
    }

    /// One setting from the environment or a flag; the value may be any YAML, such as `[a, b]`.
    pub fn single(dotted: &str, value: &str, origin: &Origin) -> Result<Self, serde_saphyr::Error> {
        let raw: Option<Raw> = serde_saphyr::from_str(value)?;
        let leaf = raw.unwrap_or(Raw::Scalar(Value::Null)).located(&|_| origin.clone(), 0);
        Ok(dotted.rsplit('.').fold(leaf, |inner, key| Self {
            origin: origin.clone(),
            content: Content::Map(BTreeMap::from([(key.to_owned(), inner)])),
        }))
    }

    /// Lays `over` on top: maps are joined key by key, anything else is replaced.
    pub fn overlay(&mut self, over: Self) {
        match (&mut self.content, over.content) {
            (Content::Map(under), Content::Map(over)) => {
                for (key, node) in over {
                    match under.get_mut(&key) {
                        Some(existing) => existing.overlay(node),
                        None => {
                            under.insert(key, node);
                        }
                    }
                }
            }
            (under, content) => {
                *under = content;
                self.origin = over.origin;
            }
        }
    }

    /// The settings without their origins.
    pub fn value(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::List(items) => items.iter().map(Self::value).collect(),
            Content::Map(entries) => entries.iter().map(|(key, node)| (key.clone(), node.value())).collect(),
        }
    }

    /// Where the setting at `path` was written, or the nearest one around it.
    pub fn origin(&self, path: &[String]) -> &Origin {
        match path.split_first().and_then(|(step, rest)| Some((self.child(step)?, rest))) {
            Some((child, rest)) => child.origin(rest),
            None => &self.origin,
        }
    }

    /// Takes the setting at `path` out. False if it is not there.
    pub fn prune(&mut self, path: &[String]) -> bool {
        match (path, &mut self.content) {
            ([key], Content::Map(entries)) => entries.remove(key).is_some(),
            ([step, rest @ ..], content) if !rest.is_empty() => {
                let child = match content {
                    Content::Map(entries) => entries.get_mut(step),
                    Content::List(items) => step.parse::<usize>().ok().and_then(|index| items.get_mut(index)),
                    Content::Scalar(_) => None,
                };
                child.is_some_and(|child| child.prune(rest))
            }
            _ => false,
        }
    }

    fn child(&self, step: &str) -> Option<&Self> {
        match &self.content {
            Content::Map(entries) => entries.get(step),
            Content::List(items) => items.get(step.parse::<usize>().ok()?),
            Content::Scalar(_) => None,
        }
    }
}

/// YAML as it stands in the text, with the line of each value.
enum Raw {
    Scalar(Value),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Raw)>),
}

impl Raw {
    fn located(self, origin: &dyn Fn(u64) -> Origin, line: u64) -> Node {
        let content = match self {
            Self::Scalar(value) => Content::Scalar(value),
            Self::List(items) => Content::List(
                items.into_iter().map(|item| item.value.located(origin, item.referenced.line())).collect(),
            ),
            // A setting is found by the line of its key: the value may be pages away.
            Self::Map(entries) => Content::Map(
                entries
                    .into_iter()
                    .map(|(key, value)| (key.value, value.located(origin, key.referenced.line())))
                    .collect(),
            ),
        };
        Node { origin: origin(line), content }
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Scalar(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
        Raw::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut entries: Vec<(Spanned<String>, Raw)> = Vec::new();
        while let Some((key, value)) = access.next_entry::<Spanned<String>, Raw>()? {
            if entries.iter().any(|(other, _)| other.value == key.value) {
                return Err(A::Error::custom(format!("the key `{}` is given twice", key.value)));
            }
            entries.push((key, value));
        }
        Ok(Raw::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(dotted: &str) -> Vec<String> {
        dotted.split('.').map(str::to_owned).collect()
    }

    fn file(text: &str) -> Node {
        Node::from_yaml(text, Path::new("t.yaml")).unwrap().unwrap()
    }

    #[test]
    fn each_setting_knows_its_line() {
        let node = file("store:\n  kind: redb\nlist:\n  - a\n  - b: 1\n    c: 2\n");
        assert_eq!(node.origin(&path("store.kind")).to_string(), "t.yaml:2");
        assert_eq!(node.origin(&path("list.1.c")).to_string(), "t.yaml:6");
        assert_eq!(node.origin(&path("store.absent.deep")).to_string(), "t.yaml:1");
    }

    #[test]
    fn later_layers_win_key_by_key() {
        let mut node = file("store:\n  kind: redb\n  path: a.redb\n");
        let variable = Origin::Variable("TARBET__STORE__PATH".into());
        node.overlay(Node::single("store.path", "b.redb", &variable).unwrap());
        node.overlay(Node::single("store.tags", "[x, 2, true]", &Origin::Flag("--set".into())).unwrap());
        assert_eq!(
            node.value(),
            serde_json::json!({"store": {"kind": "redb", "path": "b.redb", "tags": ["x", 2, true]}})
        );
        assert_eq!(node.origin(&path("store.path")), &variable);
        assert_eq!(node.origin(&path("store.kind")).to_string(), "t.yaml:2");
    }

    #[test]
    fn pruning_takes_one_setting_out() {
        let mut node = file("a:\n  b: 1\n  c: 2\n");
        assert!(node.prune(&path("a.b")));
        assert!(!node.prune(&path("a.b")));
        assert!(!node.prune(&path("x.y")));
        assert_eq!(node.value(), serde_json::json!({"a": {"c": 2}}));
    }

    #[test]
    fn a_key_given_twice_is_refused() {
        assert!(Node::from_yaml("a: 1\na: 2\n", Path::new("t.yaml")).is_err());
    }
}
