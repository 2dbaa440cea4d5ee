//! Where kas keeps what in Redis: names of keys and forms of values. Pure.
//!
//! Numbers in names are eight raw little-endian bytes. Values in hashes carry their own expiry, and the
//! hash as a whole expires when nobody refreshes it. The type is the protocol's; nothing here speaks to
//! a server.

use prost::Message;
use sha2::{Digest, Sha256};

use super::prefix::Prefix;
use super::proto::redistool::ExpiringValue;
use super::proto::{agent_tracker, gitlab, plural_agent_tracker};

/// The prefix of keys unless configured.
pub const DEFAULT_KEY_PREFIX: &str = "gitlab-kas";

/// Names of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    prefix: String,
}

impl Default for Layout {
    fn default() -> Self {
        Self::new(DEFAULT_KEY_PREFIX)
    }
}

/// Whose refusals are remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Tokens of agents.
    AgentInfo,
    /// Tokens of CI jobs.
    AllowedAgents,
    /// Tokens and cookies of people.
    ProxyUser,
}

impl Layout {
    /// Keys under this prefix.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into() }
    }

    /// A hash from the private URLs of the gateways that hold an agent to [`expiring`] nothing.
    pub fn kas_by_agent(&self, agent: i64) -> Vec<u8> {
        self.numbered("tunnel_tracker2:kas_by_agent_id", agent)
    }

    /// A hash from decimal pod ids of an agent to [`expiring`] connection infos.
    pub fn connections_by_agent(&self, agent: i64) -> Vec<u8> {
        self.numbered("agent_tracker2:conn_by_agent_id", agent)
    }

    /// The same by project.
    pub fn connections_by_project(&self, project: i64) -> Vec<u8> {
        self.numbered("agent_tracker2:conn_by_project_id", project)
    }

    /// A hash from decimal ids of connected agents to [`expiring`] nothing.
    pub fn connected_agents(&self) -> Vec<u8> {
        format!("{}:agent_tracker2:connected_agents", self.prefix).into_bytes()
    }

    /// The counter of an agent's calls in one minute of the hour.
    pub fn agent_limit(&self, token: &str, minute: u8) -> Vec<u8> {
        // Half of it names the token well enough without being of use to anybody who reads it.
        let half = &token.as_bytes()[..token.len() / 2];
        let mut key = format!("{}:agent_limit:", self.prefix).into_bytes();
        key.extend(Sha256::digest(half));
        key.push(b':');
        key.push(minute);
        key
    }

    /// A refusal by GitLab, see [`client_error`].
    pub fn refusal(&self, refused: Refused, credential: &str) -> Vec<u8> {
        let kind = match refused {
            Refused::AgentInfo => "agent_info_errs",
            Refused::AllowedAgents => "allowed_agents_errs",
            Refused::ProxyUser => "auth_proxy_user_errs",
        };
        let mut key = format!("{}:{kind}:", self.prefix).into_bytes();
        key.extend(Sha256::digest(credential));
        key
    }

    fn numbered(&self, kind: &str, number: i64) -> Vec<u8> {
        let mut key = format!("{}:{kind}:", self.prefix).into_bytes();
        key.extend(number.to_le_bytes());
        key
    }
}

/// A value that expires at a Unix second.
pub fn expiring(expires_at: i64, value: impl Into<bytes::Bytes>) -> Vec<u8> {
    ExpiringValue { expires_at, value: value.into() }.encode_to_vec()
}

/// What a hash holds at a moment: what is still good, and the fields to delete, which have expired or
/// cannot be read.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sorted {
    /// Fields and values that are good.
    pub live: Vec<(Vec<u8>, bytes::Bytes)>,
    /// Fields to delete.
    pub dead: Vec<Vec<u8>>,
}

/// Sorts the fields of a hash.
pub fn sort(fields: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>, now: i64) -> Sorted {
    let mut sorted = Sorted::default();
    for (field, value) in fields {
        match ExpiringValue::decode(&value[..]) {
            Ok(value) if value.expires_at > now => sorted.live.push((field, value.value)),
            _ => sorted.dead.push(field),
        }
    }
    sorted
}

/// One process of an agent, as the tracker keeps it.
#[derive(Debug, Clone, PartialEq)]
pub struct Connection {
    /// What all families agree on. `project_id` has no place in the prefix `plural`.
    pub info: agent_tracker::ConnectedAgentInfo,
    /// The cluster, for the prefix `plural`.
    pub cluster_id: String,
}

impl Connection {
    /// The value for a hash.
    pub fn encode(&self, prefix: Prefix) -> Vec<u8> {
        match prefix {
            Prefix::Gitlab => self.info.encode_to_vec(),
            Prefix::Plural => plural_agent_tracker::ConnectedAgentInfo {
                agent_meta: self.info.agent_meta.clone(),
                connected_at: self.info.connected_at,
                connection_id: self.info.connection_id,
                agent_id: self.info.agent_id,
                cluster_id: self.cluster_id.clone(),
            }
            .encode_to_vec(),
        }
    }

    /// From a hash.
    pub fn decode(prefix: Prefix, value: &[u8]) -> Result<Self, prost::DecodeError> {
        match prefix {
            Prefix::Gitlab => {
                let info = agent_tracker::ConnectedAgentInfo::decode(value)?;
                Ok(Self { info, cluster_id: String::new() })
            }
            Prefix::Plural => {
                let theirs = plural_agent_tracker::ConnectedAgentInfo::decode(value)?;
                let info = agent_tracker::ConnectedAgentInfo {
                    agent_meta: theirs.agent_meta,
                    connected_at: theirs.connected_at,
                    connection_id: theirs.connection_id,
                    agent_id: theirs.agent_id,
                    project_id: 0,
                };
                Ok(Self { info, cluster_id: theirs.cluster_id })
            }
        }
    }
}

/// A refusal by GitLab as replicas share it.
pub fn client_error(prefix: Prefix, status: u16, path: &str, reason: &str) -> Vec<u8> {
    let error = gitlab::ClientError { status_code: status.into(), path: path.into(), reason: reason.into() };
    let any =
        prost_types::Any { type_url: prefix.type_url("gitlab.ClientError"), value: error.encode_to_vec() };
    any.encode_to_vec()
}

/// The refusal again; `None` if it is something else.
pub fn read_client_error(prefix: Prefix, value: &[u8]) -> Option<gitlab::ClientError> {
    let any = prost_types::Any::decode(value).ok()?;
    if !prefix.is_type(&any.type_url, "gitlab.ClientError") {
        return None;
    }
    gitlab::ClientError::decode(&any.value[..]).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_are_those_seen_on_the_wire() {
        let layout = Layout::default();
        assert_eq!(layout.kas_by_agent(1), b"gitlab-kas:tunnel_tracker2:kas_by_agent_id:\x01\0\0\0\0\0\0\0");
        assert_eq!(layout.kas_by_agent(-1)[layout.kas_by_agent(1).len() - 8..], [0xff; 8]);
        assert_eq!(
            Layout::new("x").connections_by_agent(256),
            b"x:agent_tracker2:conn_by_agent_id:\0\x01\0\0\0\0\0\0"
        );
        assert_eq!(
            layout.connections_by_project(2),
            b"gitlab-kas:agent_tracker2:conn_by_project_id:\x02\0\0\0\0\0\0\0"
        );
        assert_eq!(layout.connected_agents(), b"gitlab-kas:agent_tracker2:connected_agents");
        let limit = layout.agent_limit("abcdef", 59);
        assert_eq!(limit.len(), b"gitlab-kas:agent_limit:".len() + 32 + 2);
        assert_eq!(&limit[limit.len() - 2..], b":\x3b");
        assert_eq!(limit, layout.agent_limit("abcxyz", 59));
    }

    #[test]
    fn a_url_takes_six_bytes_and_the_expired_go() {
        let value = expiring(1_700_000_000, "");
        assert_eq!(value.len(), 6);
        let fields = [("live", expiring(11, "v")), ("now", expiring(10, "")), ("bad", vec![0xff])];
        let sorted = sort(fields.map(|(name, value)| (name.as_bytes().to_vec(), value)), 10);
        assert_eq!(sorted.live, [(b"live".to_vec(), bytes::Bytes::from("v"))]);
        assert_eq!(sorted.dead, [b"now".to_vec(), b"bad".to_vec()]);
    }

    #[test]
    fn refusals_and_connections_in_both_families() {
        for prefix in [Prefix::Gitlab, Prefix::Plural] {
            let error = client_error(prefix, 403, "/api", "no");
            assert_eq!(read_client_error(prefix, &error).unwrap().status_code, 403);
            let info =
                agent_tracker::ConnectedAgentInfo { agent_id: 7, connection_id: 9, ..Default::default() };
            let cluster_id = if prefix == Prefix::Plural { "c".to_owned() } else { String::new() };
            let connection = Connection { info, cluster_id };
            assert_eq!(Connection::decode(prefix, &connection.encode(prefix)).unwrap(), connection);
        }
        assert_eq!(read_client_error(Prefix::Plural, &client_error(Prefix::Gitlab, 404, "", "")), None);
        let layout = Layout::default();
        assert_ne!(layout.refusal(Refused::AgentInfo, "t"), layout.refusal(Refused::ProxyUser, "t"));
    }

    proptest! {
        #[test]
        fn any_hash_is_sorted(fields in proptest::collection::vec((any::<Vec<u8>>(), any::<Vec<u8>>()), 0..8), now in any::<i64>()) {
            let count = fields.len();
            let sorted = sort(fields, now);
            prop_assert_eq!(sorted.live.len() + sorted.dead.len(), count);
        }

        #[test]
        fn names_of_different_numbers_differ(a in any::<i64>(), b in any::<i64>()) {
            let layout = Layout::default();
            prop_assert_eq!(a == b, layout.kas_by_agent(a) == layout.kas_by_agent(b));
        }
    }
}
