//! Which remote namespaces are watched, and what is remembered of it.
//!
//! A namespace that is taken off the list still holds what we began: requests that run, that wait,
//! and those that are over and carry our finalizer. It is *seen off*: watched until each of them
//! has its end and can be deleted by whoever made it. The names are kept on the private cluster,
//! since a controller that starts later could not know of them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use serde_json::json;

use crate::crd::{InternalServicesConfigSpec, WatchScope};
use crate::names::{LABEL_REMOTE, label_value, watched_name};
use crate::tenant;

/// What the configuration says of all remotes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scopes {
    watch: WatchScope,
    allowed: Vec<String>,
}

impl Scopes {
    pub(crate) fn of(config: &InternalServicesConfigSpec) -> Self {
        Self { watch: config.watch_scope, allowed: config.allow_list.clone() }
    }

    /// What it says of one.
    pub(crate) fn at(&self, remote: &str) -> Scope {
        match self.watch {
            WatchScope::All => Scope::All,
            WatchScope::Allowed => Scope::Only(
                self.allowed
                    .iter()
                    .filter_map(|entry| tenant::on(entry, remote))
                    .map(str::to_owned)
                    .collect(),
            ),
        }
    }
}

/// Which namespaces of one remote are watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    Only(BTreeSet<String>),
}

impl Scope {
    pub(crate) fn holds(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(allowed) => allowed.contains(namespace),
        }
    }
}

/// Where requests of one remote may be that we began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Past {
    /// In any namespace.
    Everywhere,
    /// In these.
    In(BTreeSet<String>),
}

impl Past {
    fn text(&self) -> String {
        match self {
            Self::Everywhere => "*".to_owned(),
            Self::In(names) => names.iter().map(String::as_str).collect::<Vec<_>>().join("\n"),
        }
    }

    fn read(text: &str) -> Self {
        match text.trim() {
            "*" => Self::Everywhere,
            names => Self::In(names.split_whitespace().map(str::to_owned).collect()),
        }
    }
}

/// The [`Past`] of one remote, in an object of the private cluster.
pub(crate) struct Ledger {
    api: Api<ConfigMap>,
    remote: String,
    written: Option<Past>,
}

impl Ledger {
    pub(crate) fn new(client: Client, namespace: &str, remote: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), remote: remote.to_owned(), written: None }
    }

    /// What an earlier controller wrote.
    pub(crate) async fn read(&mut self) -> kube::Result<Option<Past>> {
        let found = self.api.get_opt(&watched_name(&self.remote)).await?;
        let text = found.and_then(|map| map.data).and_then(|mut data| data.remove("namespaces"));
        self.written = text.as_deref().map(Past::read);
        Ok(self.written.clone())
    }

    /// Writes it down. A failure is told, and made good at the next change: all that hangs on it is
    /// what a later controller knows of namespaces that are no longer allowed.
    pub(crate) async fn write(&mut self, past: Past) {
        if self.written.as_ref() == Some(&past) {
            return;
        }
        let name = watched_name(&self.remote);
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": name, "labels": { LABEL_REMOTE: label_value(&self.remote) } },
            "data": { "namespaces": past.text() },
        });
        match tarbet_cluster::apply(&self.api, &name, "tarbet-jobs", &map).await {
            Ok(_) => self.written = Some(past),
            Err(error) => {
                tracing::warn!(remote = %self.remote, cause = %tarbet_cluster::describe(&error), "The watched namespaces could not be written down.");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_watches_what_is_meant_for_it() {
        let config = |watch_scope| InternalServicesConfigSpec {
            allow_list: ["team-a", "east/team-b", "west/team-c"].map(str::to_owned).to_vec(),
            watch_scope,
            ..InternalServicesConfigSpec::default()
        };
        let only = Scopes::of(&config(WatchScope::Allowed)).at("east");
        assert_eq!(only, Scope::Only(["team-a", "team-b"].map(str::to_owned).into()));
        assert!(only.holds("team-b") && !only.holds("team-c"));
        assert_eq!(Scopes::of(&config(WatchScope::All)).at("east"), Scope::All);
    }

    #[test]
    fn the_past_is_read_as_it_was_written() {
        let some = Past::In(["a", "b-c"].map(str::to_owned).into());
        for past in [Past::Everywhere, some, Past::In(BTreeSet::new())] {
            assert_eq!(Past::read(&past.text()), past);
        }
    }
}
