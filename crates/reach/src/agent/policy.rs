//! What a site permits: rules in a file beside the agent, judged by a pure function.
//!
//! Without a file an agent offers `kubernetes` and `info`, within the RBAC of its own account. With
//! one, only what a rule names is permitted. Nothing in a request widens that.

mod kube_path;

use std::fmt;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use kube_path::{KubeRequest, NotCanonical};

/// What the keys of extra headers of an impersonation begin with in [`Policy::impersonate`].
pub(super) const EXTRA: &str = "extra:";

/// The rules of a site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// What may be asked of the Kubernetes API. Absent: nothing.
    pub kubernetes: Vec<KubeRule>,
    /// Which TCP hosts may be reached. Absent: none.
    pub tcp: Vec<TcpRule>,
    /// Other services by name, permitted whole.
    pub services: Vec<ServiceRule>,
    /// Users, groups or accounts that requests may impersonate, with `*` at an end as a wildcard;
    /// `extra:KEY` for what else a request may say about the user. `system:` names are never impersonated.
    pub impersonate: Vec<String>,
    /// Whether requests are taken whose encryption ends at the gateway, which can then read and
    /// change them: those of kubectl and other clients that are not ours.
    pub accept_plain: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            kubernetes: Vec::new(),
            tcp: Vec::new(),
            services: Vec::new(),
            impersonate: Vec::new(),
            accept_plain: true,
        }
    }
}

/// Permits some requests to the Kubernetes API. A list that is absent matches everything, with two
/// exceptions: `proxy` subresources must be named.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KubeRule {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verbs: Option<Vec<String>>,
    /// Namespaces, with `*` at an end as a wildcard. With a list, cluster-wide requests are refused.
    pub namespaces: Option<Vec<String>>,
    /// `pods`, `pods/log`, `deployments.apps`, `*`.
    pub resources: Option<Vec<String>>,
    /// Paths that are no resources, such as `/version` or `/openapi/*`.
    pub paths: Option<Vec<String>>,
    /// Who may, with `*` at an end as a wildcard: callers who prove their name by a token of an
    /// issuer that the agent knows. Absent: everybody whom the gateway lets through.
    pub callers: Option<Vec<String>>,
}

/// Permits some TCP hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TcpRule {
    /// A host name or address, with `*` at an end as a wildcard. One that begins like an address, as `10.0.*` does,
    /// permits addresses only: a name such as `10.0.example.org` leads wherever its owner says.
    pub host: String,
    /// Its ports. Absent: all.
    #[serde(default)]
    pub ports: Option<Vec<u16>>,
    /// Who may, as in the rules for Kubernetes.
    #[serde(default)]
    pub callers: Option<Vec<String>>,
}

/// Permits a service: its name alone, or with the callers who may use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ServiceRule {
    /// For everybody whom the gateway lets through.
    Name(String),
    /// For some.
    For(ServiceFor),
}

/// A service for some callers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceFor {
    /// Its name.
    pub name: String,
    /// Who may, as in the rules for Kubernetes.
    #[serde(default)]
    pub callers: Option<Vec<String>>,
}

impl ServiceRule {
    fn name(&self) -> &str {
        match self {
            Self::Name(name) | Self::For(ServiceFor { name, .. }) => name,
        }
    }

    fn callers(&self) -> Option<&[String]> {
        match self {
            Self::Name(_) => None,
            Self::For(rule) => rule.callers.as_deref(),
        }
    }
}

/// What a request wants, as the policy sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// A request to the Kubernetes API, and whom it impersonates.
    Kubernetes(KubeRequest, Vec<String>),
    /// A TCP connection.
    Tcp(String, u16),
    /// Any other service.
    Service(String),
}

/// The judgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Go ahead.
    Permit,
    /// No, and why.
    Refuse(String),
}

/// How a caller is known to the rules that name callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who<'a> {
    Nobody,
    Proven(&'a str),
    /// Somebody of the right name, to find out whether a name is all that is missing.
    Anybody,
}

impl Who<'_> {
    fn is_among(self, callers: Option<&[String]>) -> bool {
        match (callers, self) {
            (None, _) | (Some(_), Self::Anybody) => true,
            (Some(_), Self::Nobody) => false,
            (Some(list), Self::Proven(name)) => list.iter().any(|pattern| matches(pattern, name)),
        }
    }
}

impl Policy {
    /// What holds where no file says otherwise.
    pub fn without_file() -> Self {
        Self {
            kubernetes: vec![KubeRule::default()],
            services: vec![ServiceRule::Name("info".into())],
            ..Self::default()
        }
    }

    /// The same, and requests may go under the names that GitLab gives to jobs and people. What these may do
    /// there is up to the RBAC of the site, which must let the agent's account impersonate them, too.
    #[must_use]
    pub fn as_gitlab_says(mut self) -> Self {
        self.impersonate.extend(["gitlab:*".to_owned(), format!("{EXTRA}agent.gitlab.com/*")]);
        self
    }

    /// The same, and these services for everybody whom the gateway lets through.
    #[must_use]
    pub fn offering<'a>(mut self, names: impl IntoIterator<Item = &'a String>) -> Self {
        self.services.extend(names.into_iter().cloned().map(ServiceRule::Name));
        self
    }

    /// Whether any rule could permit anything of this service.
    pub fn offers(&self, service: &str) -> bool {
        match service {
            "kubernetes" => !self.kubernetes.is_empty(),
            "tcp" => !self.tcp.is_empty(),
            other => self.services.iter().any(|rule| rule.name() == other),
        }
    }

    /// Whether any rule is for some callers only.
    pub fn names_callers(&self) -> bool {
        self.kubernetes.iter().any(|rule| rule.callers.is_some())
            || self.tcp.iter().any(|rule| rule.callers.is_some())
            || self.services.iter().any(|rule| rule.callers().is_some())
    }

    /// Judges one request of a caller who has proven this name, or none.
    pub fn judge(&self, wanted: &Wanted, caller: Option<&str>) -> Verdict {
        if let Wanted::Kubernetes(_, impersonated) = wanted
            && let Some(name) = impersonated.iter().find(|name| !self.may_impersonate(name))
        {
            return Verdict::Refuse(format!("nobody may impersonate `{name}`"));
        }
        if self.permits(wanted, caller.map_or(Who::Nobody, Who::Proven)) {
            return Verdict::Permit;
        }
        Verdict::Refuse(match (self.permits(wanted, Who::Anybody), caller) {
            (true, None) => format!("{wanted} is for callers who prove their name, and none was proven"),
            (true, Some(caller)) => format!("{wanted} is not for `{caller}`"),
            (false, _) => format!("no rule matches {wanted}"),
        })
    }

    fn permits(&self, wanted: &Wanted, who: Who<'_>) -> bool {
        match wanted {
            Wanted::Kubernetes(request, _) => {
                let mut rules = self.kubernetes.iter().filter(|rule| who.is_among(rule.callers.as_deref()));
                rules.any(|rule| rule.permits(request))
            }
            Wanted::Tcp(host, port) => {
                let mut rules = self.tcp.iter().filter(|rule| who.is_among(rule.callers.as_deref()));
                rules.any(|rule| rule.permits(host, *port))
            }
            Wanted::Service(name) => {
                let mut rules = self.services.iter().filter(|rule| who.is_among(rule.callers()));
                rules.any(|rule| rule.name() == name)
            }
        }
    }

    fn may_impersonate(&self, name: &str) -> bool {
        !name.starts_with("system:") && self.impersonate.iter().any(|pattern| matches(pattern, name))
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubernetes(request, names) if names.is_empty() => write!(f, "kubernetes {request}"),
            Self::Kubernetes(request, names) => write!(f, "kubernetes {request} as {}", names.join(", ")),
            Self::Tcp(host, port) => write!(f, "tcp {host}:{port}"),
            Self::Service(name) => write!(f, "the service `{name}`"),
        }
    }
}

impl KubeRule {
    fn permits(&self, request: &KubeRequest) -> bool {
        let named = |list: &Option<Vec<String>>, name: &str| {
            list.as_ref().is_none_or(|list| list.iter().any(|pattern| matches(pattern, name)))
        };
        match request {
            KubeRequest::Path { verb, path } => {
                // A rule about resources or namespaces says nothing about other paths, unless it names them.
                let about_paths =
                    self.paths.is_some() || (self.resources.is_none() && self.namespaces.is_none());
                about_paths && named(&self.verbs, verb) && named(&self.paths, path)
            }
            KubeRequest::Resource { verb, namespace, subresource, .. } => {
                let full = request.resource_name();
                let about_resources = self.resources.is_some() || self.paths.is_none();
                let in_namespace = match (&self.namespaces, namespace) {
                    (None, _) => true,
                    (Some(_), None) => false,
                    (Some(list), Some(namespace)) => list.iter().any(|pattern| matches(pattern, namespace)),
                };
                let resource = match (&self.resources, subresource.as_deref()) {
                    (Some(list), Some("proxy")) => list.contains(&full),
                    (None, Some("proxy")) => false,
                    (None, _) => true,
                    (Some(list), _) => list.iter().any(|pattern| pattern == "*" || *pattern == full),
                };
                about_resources && named(&self.verbs, verb) && in_namespace && resource
            }
        }
    }
}

impl TcpRule {
    fn permits(&self, host: &str, port: u16) -> bool {
        let host = host.to_ascii_lowercase();
        matches(&self.host, &host)
            && (!begins_an_address(&self.host) || host.parse::<IpAddr>().is_ok())
            && self.ports.as_ref().is_none_or(|ports| ports.contains(&port))
    }
}

/// Whether what stands before the wildcard of a pattern is the beginning of an address and not of a name.
fn begins_an_address(pattern: &str) -> bool {
    let Some(begin) = pattern.strip_suffix('*').filter(|begin| !begin.is_empty()) else { return false };
    begin.contains(':') || begin.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// Equality, with `*` at the beginning or the end standing for anything.
fn matches(pattern: &str, text: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        _ if pattern == "*" => true,
        (_, Some(prefix)) => text.starts_with(prefix),
        (Some(suffix), _) => text.ends_with(suffix),
        _ => pattern == text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(method: &str, path: &str) -> Wanted {
        Wanted::Kubernetes(KubeRequest::parse(method, path, None).unwrap(), vec![])
    }

    fn permits(policy: &Policy, method: &str, path: &str) -> bool {
        policy.judge(&wanted(method, path), None) == Verdict::Permit
    }

    #[test]
    fn without_a_file_the_kubernetes_api_is_open_within_rbac_and_nothing_else() {
        let policy = Policy::without_file();
        assert!(permits(&policy, "GET", "/api/v1/pods"));
        assert!(permits(&policy, "DELETE", "/apis/apps/v1/namespaces/a/deployments/b"));
        assert!(permits(&policy, "GET", "/version"));
        assert!(
            !permits(&policy, "GET", "/api/v1/namespaces/a/services/b/proxy/secret"),
            "proxy must be named"
        );
        assert_ne!(policy.judge(&Wanted::Tcp("db".into(), 5432), None), Verdict::Permit);
        assert!(!policy.offers("tcp") && policy.offers("info"));
    }

    #[test]
    fn a_rule_permits_what_it_names_and_no_more() {
        let policy: Policy = serde_saphyr::from_str(
            "kubernetes:\n  - verbs: [get, list]\n    namespaces: ['team-*']\n    resources: [pods, pods/log]\n  - paths: [/version, /openapi/*]\n",
        )
        .unwrap();
        assert!(permits(&policy, "GET", "/api/v1/namespaces/team-a/pods/x/log"));
        assert!(permits(&policy, "GET", "/openapi/v3"));
        for (method, path) in [
            ("GET", "/api/v1/pods"),
            ("GET", "/api/v1/namespaces/other/pods"),
            ("POST", "/api/v1/namespaces/team-a/pods"),
            ("GET", "/api/v1/namespaces/team-a/pods?watch=true"),
            ("GET", "/api/v1/namespaces/team-a/secrets"),
            ("GET", "/api/v1/namespaces/team-a/pods/x/exec"),
            ("GET", "/apis/metrics.k8s.io/v1beta1/namespaces/team-a/pods"),
            ("GET", "/api/v1/namespaces/team-a"),
            ("GET", "/healthz"),
        ] {
            assert!(!permits(&policy, method, path), "{method} {path}");
        }
    }

    #[test]
    fn system_names_are_never_impersonated() {
        let policy = Policy { impersonate: vec!["*".into()], ..Policy::without_file() };
        let ask = |name: &str| {
            let version = KubeRequest::parse("GET", "/version", None).unwrap();
            policy.judge(&Wanted::Kubernetes(version, vec![name.into()]), None)
        };
        assert_eq!(ask("alice"), Verdict::Permit);
        assert_ne!(ask("system:masters"), Verdict::Permit);
        // Names that GitLab gives, where a kas is joined.
        let joined = Policy::without_file().as_gitlab_says();
        let ask = |names: &[&str]| {
            let version = KubeRequest::parse("GET", "/version", None).unwrap();
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            joined.judge(&Wanted::Kubernetes(version, names), None)
        };
        let job = ["gitlab:ci_job:41", "gitlab:project:3", "extra:agent.gitlab.com/ci_job_id"];
        assert_eq!(ask(&job), Verdict::Permit);
        for other in ["alice", "41", "system:masters", "extra:scopes", "agent.gitlab.com/id"] {
            assert_ne!(ask(&[other]), Verdict::Permit, "{other}");
            assert_ne!(ask(&["gitlab:user:ada", other]), Verdict::Permit, "{other}");
        }
        let none = Policy::without_file();
        assert_ne!(
            none.judge(
                &Wanted::Kubernetes(
                    KubeRequest::parse("GET", "/version", None).unwrap(),
                    vec!["gitlab:user:ada".into()]
                ),
                None
            ),
            Verdict::Permit
        );
        let alice =
            Wanted::Kubernetes(KubeRequest::parse("GET", "/version", None).unwrap(), vec!["alice".into()]);
        assert_ne!(none.judge(&alice, None), Verdict::Permit);
    }

    #[test]
    fn hosts_and_ports_are_matched_together() {
        let policy = Policy {
            tcp: vec![
                TcpRule { host: "*.lan".into(), ports: Some(vec![22]), callers: None },
                TcpRule { host: "10.0.0.7".into(), ports: None, callers: None },
                TcpRule { host: "10.1.*".into(), ports: None, callers: None },
                TcpRule { host: "fd00:*".into(), ports: None, callers: None },
            ],
            ..Policy::default()
        };
        let may = |host: &str, port| policy.judge(&Wanted::Tcp(host.into(), port), None) == Verdict::Permit;
        assert!(may("a.lan", 22) && may("A.LAN", 22) && may("10.0.0.7", 1));
        assert!(may("10.1.2.3", 1) && may("fd00::1", 1));
        assert!(!may("10.1.evil.example", 1) && !may("10.1.2.3.evil.example", 1) && !may("10.10.0.1", 1));
        assert!(!may("a.lan", 23) && !may("lan", 22) && !may("10.0.0.70", 1) && !may("a.lan.evil", 22));
    }

    #[test]
    fn a_rule_that_names_callers_is_for_them_alone() {
        let policy: Policy = serde_saphyr::from_str(
            "kubernetes:\n  - {verbs: [get], resources: [pods]}\n  - {verbs: [delete], resources: [pods], callers: [ann, 'ops-*']}\n\
             tcp:\n  - {host: db, callers: [ann]}\nservices: [info, {name: printer, callers: [bob]}]\n",
        )
        .unwrap();
        assert!(policy.names_callers() && policy.accept_plain);
        let may = |wanted: &Wanted, caller| policy.judge(wanted, caller) == Verdict::Permit;
        let (get, delete) =
            (wanted("GET", "/api/v1/namespaces/a/pods/x"), wanted("DELETE", "/api/v1/namespaces/a/pods/x"));
        let (db, info) = (Wanted::Tcp("db".into(), 1), Wanted::Service("info".into()));
        let printer = Wanted::Service("printer".into());
        for caller in [None, Some("ann"), Some("bob"), Some("ops-7"), Some("")] {
            assert!(may(&get, caller) && may(&info, caller));
            assert_eq!(may(&delete, caller), matches!(caller, Some("ann" | "ops-7")), "{caller:?}");
            assert_eq!(may(&db, caller), caller == Some("ann"));
            assert_eq!(may(&printer, caller), caller == Some("bob"));
        }
        let said = |caller| match policy.judge(&delete, caller) {
            Verdict::Refuse(why) => why,
            Verdict::Permit => String::new(),
        };
        assert!(said(None).contains("none was proven"), "{}", said(None));
        assert!(said(Some("bob")).contains("not for `bob`"), "{}", said(Some("bob")));
        assert!(serde_saphyr::from_str::<Policy>("services: [{name: x, caller: y}]").is_err());
    }
}
