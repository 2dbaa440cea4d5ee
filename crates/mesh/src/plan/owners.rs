//! Which object owns which, as Kubernetes can say it.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::{Object, Owner};
use crate::crd::{GROUP, VERSION};
use crate::model::Key;

/// The identities of the objects that own others.
#[derive(Debug, Clone, Default)]
pub struct Owners {
    /// Namespace, name and uid of the rules.
    pub rules: Option<(String, String, String)>,
    /// Name and uid of the federation.
    pub federation: Option<(String, String)>,
    /// The uids of ImportedServices by namespace and name.
    pub imported: BTreeMap<Key, String>,
}

impl Owners {
    /// The reference to the owner of an object. An owner of another namespace cannot be named, so
    /// the federation, which has none, stands in: a sweep by label removes the object earlier.
    pub fn of(&self, object: &Object) -> Option<OwnerReference> {
        self.known(object).map(|(kind, name, uid)| OwnerReference {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            ..OwnerReference::default()
        })
    }

    /// The uid of that owner; empty if it is not there yet.
    pub(crate) fn uid<'a>(&'a self, object: &'a Object) -> Option<&'a str> {
        self.known(object).map(|(_, _, uid)| uid)
    }

    /// Kind, name and uid of that owner.
    fn known<'a>(&'a self, object: &'a Object) -> Option<(&'static str, &'a str, &'a str)> {
        match &object.owner {
            Owner::Rules => {
                if let Some((namespace, name, uid)) = &self.rules
                    && *namespace == object.namespace
                {
                    return Some(("FederationServiceRules", name, uid));
                }
            }
            Owner::Imported { namespace, name } if *namespace == object.namespace => {
                let uid = self.imported.get(&(namespace.clone(), name.clone())).map_or("", String::as_str);
                return Some(("ImportedService", name, uid));
            }
            Owner::Imported { .. } | Owner::Federation => {}
        }
        self.federation.as_ref().map(|(name, uid)| ("MeshFederation", name.as_str(), uid.as_str()))
    }
}
