//! The package prefix: the one part of the protocol's names that differs between its two families.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whose package names are on the wire.
///
/// It stands in front of every gRPC path and inside every `Any` type URL, and nowhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Prefix {
    /// `gitlab.agent.…`, as in GitLab's kas and agentk.
    #[default]
    Gitlab,
    /// `plural.agent.…`, as in Plural's fork.
    Plural,
}

impl Prefix {
    /// The word itself.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gitlab => "gitlab",
            Self::Plural => "plural",
        }
    }

    /// The type URL of a message, from the part of its name after the prefix.
    pub fn type_url(self, name: &str) -> String {
        format!("type.googleapis.com/{}.agent.{name}", self.as_str())
    }

    /// Whether a type URL names this message. The host before the slash carries no meaning.
    pub fn is_type(self, url: &str, name: &str) -> bool {
        let full = url.rsplit_once('/').map_or(url, |(_, full)| full);
        full.strip_prefix(self.as_str()).and_then(|rest| rest.strip_prefix(".agent.")) == Some(name)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A prefix that is neither of the two.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a package prefix; use `gitlab` or `plural`")]
pub struct UnknownPrefix(String);

impl FromStr for Prefix {
    type Err = UnknownPrefix;

    fn from_str(text: &str) -> Result<Self, UnknownPrefix> {
        match text {
            "gitlab" => Ok(Self::Gitlab),
            "plural" => Ok(Self::Plural),
            other => Err(UnknownPrefix(other.to_owned())),
        }
    }
}

macro_rules! rpcs {
    ($($(#[$doc:meta])* $name:ident = $service:literal / $method:literal;)*) => {
        /// The methods this product knows by name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Rpc { $($(#[$doc])* $name,)* }

        impl Rpc {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The gRPC path, such as `/gitlab.agent.….Service/Method`.
            pub const fn path(self, prefix: Prefix) -> &'static str {
                match (self, prefix) {
                    $(
                        (Self::$name, Prefix::Gitlab) => concat!("/gitlab.agent.", $service, "/", $method),
                        (Self::$name, Prefix::Plural) => concat!("/plural.agent.", $service, "/", $method),
                    )*
                }
            }

            /// The full name of the service.
            pub const fn service(self, prefix: Prefix) -> &'static str {
                match (self, prefix) {
                    $(
                        (Self::$name, Prefix::Gitlab) => concat!("gitlab.agent.", $service),
                        (Self::$name, Prefix::Plural) => concat!("plural.agent.", $service),
                    )*
                }
            }

            /// The bare name of the method.
            pub const fn method(self) -> &'static str {
                match self { $(Self::$name => $method,)* }
            }
        }
    };
}

rpcs! {
    /// A tunnel: one stream, one call.
    Connect = "reverse_tunnel.rpc.ReverseTunnel" / "Connect";
    /// An agent says that it is there.
    Register = "agent_registrar.rpc.AgentRegistrar" / "Register";
    /// An agent says that it leaves.
    Unregister = "agent_registrar.rpc.AgentRegistrar" / "Unregister";
    /// An agent asks for its configuration.
    GetConfiguration = "agent_configuration.rpc.AgentConfiguration" / "GetConfiguration";
    /// An HTTP request for the Kubernetes API at the agent.
    MakeRequest = "kubernetes_api.rpc.KubernetesApi" / "MakeRequest";
    /// An HTTP request of a module of the agent, for GitLab.
    AskGitlab = "gitlab_access.rpc.GitlabAccess" / "MakeRequest";
    /// Which agents are connected.
    GetConnectedAgents = "agent_tracker.rpc.AgentTracker" / "GetConnectedAgents";
    /// Something was pushed to a repository.
    GitPushEvent = "notifications.rpc.Notifications" / "GitPushEvent";
    /// Which configurations of agents a project has.
    ListAgentConfigFiles = "configuration_project.rpc.ConfigurationProject" / "ListAgentConfigFiles";
}

impl Rpc {
    /// The method behind a path, if it is one of ours.
    pub fn find(prefix: Prefix, path: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rpc| rpc.path(prefix) == path)
    }
}

/// Any method by its path, `/package.Service/Method`. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MethodPath {
    path: std::sync::Arc<str>,
    slash: usize,
}

/// A path that is not of the form `/package.Service/Method`.
#[derive(Debug, thiserror::Error)]
#[error("the method path is not of the form /package.Service/Method")]
pub struct BadMethodPath;

impl MethodPath {
    /// Takes a path apart. Both names must be there, and nothing else.
    pub fn parse(path: &str) -> Result<Self, BadMethodPath> {
        let (service, method) =
            path.strip_prefix('/').and_then(|rest| rest.split_once('/')).ok_or(BadMethodPath)?;
        let plain = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
        if !plain(service) || !plain(method) {
            return Err(BadMethodPath);
        }
        Ok(Self { path: path.into(), slash: service.len() + 1 })
    }

    /// One of the known methods.
    pub fn of(rpc: Rpc, prefix: Prefix) -> Self {
        Self { path: rpc.path(prefix).into(), slash: rpc.service(prefix).len() + 1 }
    }

    /// The whole path.
    pub fn as_str(&self) -> &str {
        &self.path
    }

    /// The full name of the service.
    pub fn service(&self) -> &str {
        &self.path[1..self.slash]
    }

    /// The bare name of the method.
    pub fn method(&self) -> &str {
        &self.path[self.slash + 1..]
    }
}

impl fmt::Display for MethodPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_carry_the_prefix() {
        assert_eq!(
            Rpc::Connect.path(Prefix::Gitlab),
            "/gitlab.agent.reverse_tunnel.rpc.ReverseTunnel/Connect"
        );
        assert_eq!(
            Rpc::MakeRequest.path(Prefix::Plural),
            "/plural.agent.kubernetes_api.rpc.KubernetesApi/MakeRequest"
        );
        for prefix in [Prefix::Gitlab, Prefix::Plural] {
            assert_eq!(prefix.to_string().parse::<Prefix>().unwrap(), prefix);
            for rpc in Rpc::ALL {
                assert_eq!(Rpc::find(prefix, rpc.path(prefix)), Some(*rpc));
                let path = MethodPath::of(*rpc, prefix);
                assert_eq!(path, MethodPath::parse(rpc.path(prefix)).unwrap());
                assert_eq!((path.service(), path.method()), (rpc.service(prefix), rpc.method()));
            }
        }
        assert_eq!(Rpc::find(Prefix::Plural, Rpc::Connect.path(Prefix::Gitlab)), None);
    }

    #[test]
    fn type_urls_carry_the_prefix() {
        let url = Prefix::Gitlab.type_url("kubernetes_api.rpc.HeaderExtra");
        assert_eq!(url, "type.googleapis.com/gitlab.agent.kubernetes_api.rpc.HeaderExtra");
        assert!(Prefix::Gitlab.is_type(&url, "kubernetes_api.rpc.HeaderExtra"));
        assert!(!Prefix::Plural.is_type(&url, "kubernetes_api.rpc.HeaderExtra"));
        assert!(!Prefix::Gitlab.is_type(&url, "rpc.HeaderExtra"));
    }

    #[test]
    fn odd_paths_are_refused() {
        for path in ["", "/", "//", "/a", "/a/", "//b", "a/b", "/a/b/c", "/a b/c", "/a/b\n"] {
            assert!(MethodPath::parse(path).is_err(), "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn parts_make_the_path(path in "\\PC{0,40}") {
            if let Ok(parsed) = MethodPath::parse(&path) {
                prop_assert_eq!(format!("/{}/{}", parsed.service(), parsed.method()), path);
            }
        }
    }
}
