//! Callers who are not in the directory: an identity provider or a certificate vouches for them.
//!
//! Such a caller has a name and perhaps groups; what it may do is granted by rules of this gateway.
//! Nothing that the token or the certificate itself says about roles counts.

mod oidc;

pub use oidc::OidcConfig;
pub(crate) use oidc::{Oidc, looks_like_jwt};

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tarbet_identity::tls::PeerIdentity;

use crate::directory::{Principal, Role};

/// Longer names are nobody's.
const MAX_NAME: usize = 200;

/// What those whom a rule names may do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Grant {
    /// Only who has this name; a `*` at the end stands for anything. Absent: everybody.
    pub name: Option<String>,
    /// Only who is in this group; a `*` at the end stands for anything. Absent: everybody.
    pub group: Option<String>,
    /// May change everything: sites, users, tokens.
    pub admin: bool,
    /// Roles (`viewer`, `user`, `operator`) by site; `*` stands for every site.
    #[schemars(with = "BTreeMap<String, String>")]
    pub roles: BTreeMap<String, Role>,
}

impl Grant {
    fn names(&self, name: &str, groups: &[String]) -> bool {
        let named = self.name.as_ref().is_none_or(|pattern| fits(pattern, name));
        let grouped =
            self.group.as_ref().is_none_or(|pattern| groups.iter().any(|group| fits(pattern, group)));
        named && grouped
    }
}

fn fits(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => text.starts_with(beginning),
        None => pattern == text,
    }
}

/// The caller of this name and these groups, with everything that the grants give it.
///
/// The prefix keeps it apart from those in the directory, whatever it calls itself. A name that
/// would not survive a log line or a header is nobody's.
fn principal(prefix: &str, name: &str, groups: &[String], grants: &[Grant]) -> Option<Principal> {
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    let mut principal = Principal { name: format!("{prefix}{name}"), admin: false, roles: BTreeMap::new() };
    for grant in grants.iter().filter(|grant| grant.names(name, groups)) {
        principal.admin |= grant.admin;
        for (site, role) in &grant.roles {
            let held = principal.roles.entry(site.clone()).or_insert(*role);
            *held = (*held).max(*role);
        }
    }
    Some(principal)
}

/// Who the holders of client certificates are. Which certificates are taken at all is said by
/// `client_ca_file` of a listener's `tls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CertificateConfig {
    /// Put in front of the common name, so that nobody is taken for a user of another kind.
    pub prefix: String,
    /// What they may do. The name is the common name, groups are the organisations.
    pub grants: Vec<Grant>,
}

impl Default for CertificateConfig {
    fn default() -> Self {
        Self { prefix: "cert:".into(), grants: Vec::new() }
    }
}

/// A caller for whom something vouches, and until when.
#[derive(Debug, Clone)]
pub(crate) struct Vouched {
    principal: Arc<Principal>,
    expires: Timestamp,
}

impl Vouched {
    /// The caller, while that holds: a connection may outlive the certificate it began with.
    pub(crate) fn at(&self, now: Timestamp) -> Option<Arc<Principal>> {
        (now < self.expires).then(|| Arc::clone(&self.principal))
    }
}

/// Who holds a certificate that the listener's authority has signed.
pub(crate) fn certified(config: &CertificateConfig, peer: &PeerIdentity) -> Option<Vouched> {
    let name = peer.common_name.as_deref()?;
    let principal = principal(&config.prefix, name, &peer.organizations, &config.grants)?;
    Some(Vouched { principal: Arc::new(principal), expires: peer.expires })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grants() -> Vec<Grant> {
        let roles = |site: &str, role| BTreeMap::from([(site.to_owned(), role)]);
        vec![
            Grant { roles: roles("lab", Role::Viewer), ..Grant::default() },
            Grant { group: Some("ops".into()), roles: roles("lab", Role::Operator), ..Grant::default() },
            Grant { name: Some("ann*".into()), roles: roles("*", Role::User), ..Grant::default() },
            Grant { name: Some("root".into()), group: Some("ops".into()), admin: true, ..Grant::default() },
        ]
    }

    #[test]
    fn grants_add_up_and_the_highest_role_counts() {
        let of = |name: &str, groups: &[&str]| {
            let groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
            principal("oidc:", name, &groups, &grants()).unwrap()
        };
        let ann = of("ann@example.org", &["ops", "dev"]);
        assert_eq!(ann.name, "oidc:ann@example.org");
        assert_eq!(ann.roles, [("*".into(), Role::User), ("lab".into(), Role::Operator)].into());
        assert_eq!(of("bob", &[]).roles, [("lab".into(), Role::Viewer)].into());
        assert!(of("root", &["ops"]).admin && !of("root", &[]).admin && !ann.admin);
    }

    proptest! {
        #[test]
        fn no_name_passes_for_one_of_another_kind(name in ".{0,300}") {
            if let Some(found) = principal("oidc:", &name, &[], &grants()) {
                prop_assert_eq!(found.name.strip_prefix("oidc:"), Some(name.as_str()));
                prop_assert!(http::HeaderValue::from_str(&found.name).is_ok());
                prop_assert!(!found.admin);
            }
        }
    }
}
