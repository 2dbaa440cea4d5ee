//! As whom a request goes to the API server.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use prost::Message;
use prost_types::Any;
use tonic::Status;

use crate::kas::prefix::Prefix;
use crate::kas::proto::{kubernetes_api as gitlab, plural_kubernetes_api as plural};

/// What all headers begin with by which a request asks to be somebody.
const ASKED: &str = "impersonate-";
const EXTRA: &str = "kubernetes_api.rpc.HeaderExtra";

/// What the name of a header may hold as it is; the percent sign begins an escape.
const IN_NAME: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'*')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// As whom a request goes to the API server, instead of as the agent itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Impersonation {
    /// The user.
    pub username: String,
    /// The user's groups.
    pub groups: Vec<String>,
    /// The user's id; may be empty.
    pub uid: String,
    /// More about the user, under keys. Not carried by the prefix `plural`.
    pub extra: Vec<(String, Vec<String>)>,
    /// The user's roles. Only carried by the prefix `plural`.
    pub roles: Vec<String>,
}

impl Impersonation {
    /// Whether it says nothing, so that the request goes as the agent.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// For the `extra` of a request's header. The two families number the fields differently.
    pub fn to_any(&self, prefix: Prefix) -> Any {
        let value = match prefix {
            Prefix::Gitlab => {
                let extra = self
                    .extra
                    .iter()
                    .map(|(key, val)| gitlab::ExtraKeyVal { key: key.clone(), val: val.clone() });
                let config = gitlab::ImpersonationConfig {
                    username: self.username.clone(),
                    groups: self.groups.clone(),
                    uid: self.uid.clone(),
                    extra: extra.collect(),
                };
                gitlab::HeaderExtra { imp_config: Some(config) }.encode_to_vec()
            }
            Prefix::Plural => {
                let config = plural::ImpersonationConfig {
                    username: self.username.clone(),
                    groups: self.groups.clone(),
                    roles: self.roles.clone(),
                    uid: self.uid.clone(),
                };
                plural::HeaderExtra { imp_config: Some(config) }.encode_to_vec()
            }
        };
        Any { type_url: prefix.type_url(EXTRA), value }
    }

    /// From the `extra` of a request's header; `None` if it asks for nobody. Anything it does not
    /// understand is refused, because ignoring it would give the request the agent's own rights.
    pub fn from_any(any: &Any, prefix: Prefix) -> Result<Option<Self>, Status> {
        if !prefix.is_type(&any.type_url, EXTRA) {
            return Err(Status::invalid_argument("HttpRequest: `extra` of an unknown type"));
        }
        let unreadable = |_| Status::invalid_argument("HttpRequest: `extra` cannot be read");
        let read = match prefix {
            Prefix::Gitlab => {
                let extra = gitlab::HeaderExtra::decode(&any.value[..]).map_err(unreadable)?;
                extra.imp_config.map(|config| Self {
                    username: config.username,
                    groups: config.groups,
                    uid: config.uid,
                    extra: config.extra.into_iter().map(|pair| (pair.key, pair.val)).collect(),
                    roles: Vec::new(),
                })
            }
            Prefix::Plural => {
                let extra = plural::HeaderExtra::decode(&any.value[..]).map_err(unreadable)?;
                extra.imp_config.map(|config| Self {
                    username: config.username,
                    groups: config.groups,
                    uid: config.uid,
                    extra: Vec::new(),
                    roles: config.roles,
                })
            }
        };
        match read.filter(|who| !who.is_empty()) {
            Some(who) if who.username.is_empty() => {
                Err(Status::invalid_argument("HttpRequest: impersonation without a user name"))
            }
            other => Ok(other),
        }
    }

    /// Adds the headers that the API server understands. It knows no roles; they go along as extra.
    pub fn apply(&self, headers: &mut HeaderMap) -> Result<(), Status> {
        if asked_for(headers) {
            return Err(Status::unavailable(
                "agent: the request impersonates somebody itself, which cannot be combined with the gateway's impersonation",
            ));
        }
        let mut add = |name: &str, value: &str| {
            let illegal =
                || Status::invalid_argument("HttpRequest: impersonation that makes no legal header");
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| illegal())?;
            headers.append(name, HeaderValue::from_str(value).map_err(|_| illegal())?);
            Ok::<_, Status>(())
        };
        add("impersonate-user", &self.username)?;
        for group in &self.groups {
            add("impersonate-group", group)?;
        }
        if !self.uid.is_empty() {
            add("impersonate-uid", &self.uid)?;
        }
        for (key, values) in &self.extra {
            let name =
                format!("impersonate-extra-{}", utf8_percent_encode(key, IN_NAME)).to_ascii_lowercase();
            for value in values {
                add(&name, value)?;
            }
        }
        for role in &self.roles {
            add("impersonate-extra-roles", role)?;
        }
        Ok(())
    }
}

impl Impersonation {
    /// Takes out of a request's headers what [`apply`](Self::apply) puts there. Whatever does not name
    /// exactly one user, or has a part that is not understood or that the family does not carry, stays as
    /// it is, for the API server to judge.
    pub fn take(headers: &mut HeaderMap, prefix: Prefix) -> Option<Self> {
        let mut who = Self::default();
        let mut extra: Vec<(String, Vec<String>)> = Vec::new();
        for (name, value) in headers.iter().filter(|(name, _)| name.as_str().starts_with(ASKED)) {
            let text = value.to_str().ok()?.to_owned();
            match name.as_str().strip_prefix(ASKED)? {
                "user" if who.username.is_empty() && !text.is_empty() => who.username = text,
                "uid" if who.uid.is_empty() => who.uid = text,
                "group" => who.groups.push(text),
                other => {
                    let key = other.strip_prefix("extra-")?;
                    let key = percent_decode_str(key).decode_utf8().ok()?.into_owned();
                    match extra.iter_mut().find(|(known, _)| *known == key) {
                        Some((_, values)) => values.push(text),
                        None => extra.push((key, vec![text])),
                    }
                }
            }
        }
        if who.username.is_empty() || (prefix == Prefix::Plural && !extra.is_empty()) {
            return None;
        }
        let names: Vec<HeaderName> =
            headers.keys().filter(|name| name.as_str().starts_with(ASKED)).cloned().collect();
        for name in names {
            headers.remove(name);
        }
        Some(Self { extra, ..who })
    }
}

/// Whether a request impersonates anybody by its own headers.
fn asked_for(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().starts_with(ASKED))
}

#[cfg(test)]
mod tests {
    use http::header;
    use proptest::prelude::*;

    use super::*;

    fn somebody() -> Impersonation {
        Impersonation {
            username: "gitlab:user:ada".into(),
            groups: vec!["gitlab:user".into(), "gitlab:project_role:7:developer".into()],
            uid: "u".into(),
            extra: vec![("agent.gitlab.com/id".into(), vec!["1".into(), "2".into()])],
            roles: Vec::new(),
        }
    }

    #[test]
    fn the_two_families_number_differently() {
        let who = Impersonation { extra: Vec::new(), roles: vec!["r".into()], ..somebody() };
        let any = who.to_any(Prefix::Plural);
        assert_eq!(any.type_url, "type.googleapis.com/plural.agent.kubernetes_api.rpc.HeaderExtra");
        assert_eq!(Impersonation::from_any(&any, Prefix::Plural).unwrap(), Some(who.clone()));
        // Field 3 is the uid for one and a role for the other.
        let as_gitlab = Any { type_url: Prefix::Gitlab.type_url(EXTRA), ..any.clone() };
        assert!(
            Impersonation::from_any(&as_gitlab, Prefix::Gitlab)
                .is_err_and(|s| s.code() == tonic::Code::InvalidArgument)
                || Impersonation::from_any(&as_gitlab, Prefix::Gitlab).unwrap().unwrap().uid == "r"
        );
        assert!(Impersonation::from_any(&any, Prefix::Gitlab).is_err());
    }

    #[test]
    fn headers_are_those_of_the_api_server() {
        let mut headers = HeaderMap::new();
        somebody().apply(&mut headers).unwrap();
        assert_eq!(headers["impersonate-user"], "gitlab:user:ada");
        assert_eq!(headers.get_all("impersonate-group").iter().count(), 2);
        assert_eq!(headers.get_all("impersonate-extra-agent.gitlab.com%2fid").iter().count(), 2);
        assert_eq!(somebody().apply(&mut headers).unwrap_err().code(), tonic::Code::Unavailable);
    }

    #[test]
    fn headers_that_are_not_plain_stay() {
        for pairs in [
            &[("impersonate-group", "system:masters")][..],
            &[("impersonate-user", "a"), ("impersonate-user", "b")],
            &[("impersonate-user", "a"), ("impersonate-odd", "b")],
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_static(value));
            }
            let before = headers.clone();
            assert_eq!(Impersonation::take(&mut headers, Prefix::Gitlab), None);
            assert_eq!(headers, before);
        }
        // One family has no place for extras: they go along as they came.
        let mut headers = HeaderMap::new();
        somebody().apply(&mut headers).unwrap();
        let before = headers.clone();
        assert_eq!(Impersonation::take(&mut headers, Prefix::Plural), None);
        assert_eq!(headers, before);
        assert_eq!(Impersonation::take(&mut headers, Prefix::Gitlab), Some(somebody()));
    }

    #[test]
    fn nobody_is_nobody_and_a_group_alone_is_refused() {
        let none = Impersonation::default().to_any(Prefix::Gitlab);
        assert_eq!(Impersonation::from_any(&none, Prefix::Gitlab).unwrap(), None);
        let group = Impersonation { groups: vec!["system:masters".into()], ..Impersonation::default() };
        assert!(Impersonation::from_any(&group.to_any(Prefix::Gitlab), Prefix::Gitlab).is_err());
        let other = Any { type_url: "type.googleapis.com/other".into(), value: Vec::new() };
        assert!(Impersonation::from_any(&other, Prefix::Gitlab).is_err());
    }

    proptest! {
        #[test]
        fn noise_is_read_or_refused(value in proptest::collection::vec(any::<u8>(), 0..60)) {
            for prefix in [Prefix::Gitlab, Prefix::Plural] {
                let any = Any { type_url: prefix.type_url(EXTRA), value: value.clone() };
                if let Ok(Some(who)) = Impersonation::from_any(&any, prefix) {
                    let _ = who.apply(&mut HeaderMap::new());
                }
            }
        }

        #[test]
        fn headers_there_and_back(username in "[a-z:]{1,10}", groups in proptest::collection::vec("[a-z:]{1,8}", 0..3),
                                  uid in "[a-z]{0,4}", key in "[a-z/. ]{1,8}", values in proptest::collection::vec("[a-z]{0,4}", 1..3)) {
            let who = Impersonation { username, groups, uid, extra: vec![(key, values)], roles: Vec::new() };
            let mut headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static("x"))]);
            who.apply(&mut headers).unwrap();
            prop_assert_eq!(Impersonation::take(&mut headers, Prefix::Gitlab), Some(who));
            prop_assert_eq!(headers.len(), 1);
        }

        #[test]
        fn there_and_back(username in "[a-z:]{1,10}", groups in proptest::collection::vec("[a-z:]{1,8}", 0..3), uid in "[a-z]{0,4}") {
            let who = Impersonation { username, groups, uid, ..Impersonation::default() };
            for prefix in [Prefix::Gitlab, Prefix::Plural] {
                prop_assert_eq!(Impersonation::from_any(&who.to_any(prefix), prefix).unwrap(), Some(who.clone()));
            }
        }
    }
}
