//! What decisions need of the cluster, kept up to date change by change: to look again costs what has changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::backing::Backing;
use crate::model::{Key, Labels, Service};
use crate::still::Still;

/// What is known.
#[derive(Debug, Default)]
pub(super) struct View {
    pub(super) services: Still<BTreeMap<Key, Arc<Service>>>,
    pub(super) namespaces: Still<BTreeMap<String, Arc<Labels>>>,
    pub(super) service_exports: Still<BTreeSet<Key>>,
    pub(super) backing: Backing,
    /// The hosts of each ServiceEntry that somebody else made.
    foreign: BTreeMap<Key, Vec<String>>,
    /// All of these hosts, if none of them changed since.
    hosts: Option<Still<BTreeSet<String>>>,
}

impl View {
    pub(super) fn service(&mut self, key: Key, service: Option<Arc<Service>>) {
        match service {
            Some(service) => self.services.insert(key, service),
            None => self.services.remove(&key),
        };
    }

    pub(super) fn namespace(&mut self, name: String, labels: Option<Arc<Labels>>) {
        match labels {
            Some(labels) => self.namespaces.insert(name, labels),
            None => self.namespaces.remove(&name),
        };
    }

    pub(super) fn service_export(&mut self, key: Key, is_there: bool) {
        // Most changes are of what was said about it.
        if is_there == self.service_exports.contains(&key) {
            return;
        }
        if is_there {
            self.service_exports.insert(key);
        } else {
            self.service_exports.remove(&key);
        }
    }

    /// A ServiceEntry; nothing if it is gone or our own.
    pub(super) fn entry(&mut self, key: Key, hosts: Option<Vec<String>>) {
        let changed = match hosts {
            Some(hosts) => {
                let before = self.foreign.insert(key.clone(), hosts);
                before.as_ref() != self.foreign.get(&key)
            }
            None => self.foreign.remove(&key).is_some(),
        };
        if changed {
            self.hosts = None;
        }
    }

    pub(super) fn foreign_hosts(&mut self) -> Still<BTreeSet<String>> {
        let foreign = &self.foreign;
        self.hosts.get_or_insert_with(|| foreign.values().flatten().cloned().collect()).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("ns".to_owned(), name.to_owned())
    }

    #[test]
    fn what_did_not_change_is_the_very_same() {
        let mut view = View::default();
        view.service(key("a"), Some(Arc::default()));
        view.service_export(key("a"), true);
        view.entry(key("e"), Some(vec!["x.y".into(), "z.y".into()]));
        let (services, exports, hosts) =
            (view.services.mark(), view.service_exports.mark(), view.foreign_hosts().mark());
        view.namespace("ns".into(), Some(Arc::default()));
        view.service_export(key("a"), true);
        view.entry(key("e"), Some(vec!["x.y".into(), "z.y".into()]));
        view.entry(key("ours"), None);
        assert!(view.services.is(&services) && view.service_exports.is(&exports));
        assert!(view.foreign_hosts().is(&hosts));
        view.service(key("a"), None);
        view.service_export(key("a"), false);
        view.namespace("ns".into(), None);
        view.entry(key("f"), Some(vec!["x.y".into()]));
        view.entry(key("e"), None);
        assert!(view.services.is_empty() && view.service_exports.is_empty() && view.namespaces.is_empty());
        assert_eq!(view.foreign_hosts().iter().collect::<Vec<_>>(), ["x.y"]);
    }
}
