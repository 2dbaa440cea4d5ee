//! What a Kubernetes client presents at the gateway's Kubernetes listener. Pure.

use http::{HeaderMap, Uri, header};
use percent_encoding::percent_decode_str;
use tarbet_identity::Secret;
use url::form_urlencoded;
use uuid::Uuid;

use crate::kas::meta::bearer;

const COOKIE: &str = "_gitlab_kas";
const AGENT_HEADER: &str = "gitlab-agent-id";
const AGENT_QUERY: &str = "gitlab-agent-id";
const CSRF_HEADER: &str = "x-csrf-token";
const CSRF_QUERY: &str = "gitlab-csrf-token";

/// A credential, and the agent it is for.
#[derive(Debug, Clone)]
pub enum Credential {
    /// `ci:<agent>:<job token>`.
    CiJob {
        /// The agent.
        agent_id: i64,
        /// The job's token.
        token: Secret,
    },
    /// `pat:<agent>:<token>`.
    PersonalToken {
        /// The agent.
        agent_id: i64,
        /// The person's token.
        token: Secret,
    },
    /// A browser's cookie, with what proves that the page is GitLab's own.
    Cookie {
        /// The agent.
        agent_id: i64,
        /// The session.
        session: Secret,
        /// The token against forged requests.
        csrf: Secret,
    },
    /// `plrl:<cluster>:<token>`.
    Plural {
        /// The agent: the first eight bytes of the cluster's id.
        agent_id: i64,
        /// The cluster.
        cluster: Uuid,
        /// The person's token.
        token: Secret,
    },
}

/// A credential that is one of ours by its form and cannot be one by its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadCredential {
    /// `ci:`, `pat:` or `plrl:` with something missing.
    #[error("the bearer token is not of the form kind:agent:token")]
    Form,
    /// The agent is not a positive number.
    #[error("the agent's id is not a positive number")]
    AgentId,
    /// The cluster is not a UUID.
    #[error("the cluster's id is not a UUID")]
    Cluster,
    /// A cookie without an agent.
    #[error("the cookie comes without a `Gitlab-Agent-Id` header or `gitlab-agent-id` in the query")]
    NoAgent,
    /// A cookie without the token against forged requests.
    #[error("the cookie comes without an `X-Csrf-Token` header or `gitlab-csrf-token` in the query")]
    NoCsrf,
    /// A cookie that is not text.
    #[error("the cookie cannot be read")]
    Cookie,
}

impl Credential {
    /// Reads a request's credential; `None` if it has none of these forms, such as one of our own users'
    /// tokens. A bearer token goes before a cookie.
    pub fn read(headers: &HeaderMap, uri: &Uri) -> Result<Option<Self>, BadCredential> {
        if headers.contains_key(header::AUTHORIZATION) {
            return bearer(headers).map_or(Ok(None), Self::from_bearer);
        }
        let Some(session) = cookie(headers) else { return Ok(None) };
        let session = percent_decode_str(&session.replace('+', " "))
            .decode_utf8()
            .map_err(|_| BadCredential::Cookie)?
            .into_owned();
        let agent = either(headers, AGENT_HEADER, uri, AGENT_QUERY).ok_or(BadCredential::NoAgent)?;
        let csrf = either(headers, CSRF_HEADER, uri, CSRF_QUERY).ok_or(BadCredential::NoCsrf)?;
        Ok(Some(Self::Cookie { agent_id: agent_id(&agent)?, session: session.into(), csrf: csrf.into() }))
    }

    fn from_bearer(token: &str) -> Result<Option<Self>, BadCredential> {
        let Some((kind, rest)) =
            token.split_once(':').filter(|(kind, _)| matches!(*kind, "ci" | "pat" | "plrl"))
        else {
            return Ok(None);
        };
        let (agent, token) =
            rest.split_once(':').filter(|(_, token)| !token.is_empty()).ok_or(BadCredential::Form)?;
        let token = Secret::from(token);
        Ok(Some(match kind {
            "ci" => Self::CiJob { agent_id: agent_id(agent)?, token },
            "pat" => Self::PersonalToken { agent_id: agent_id(agent)?, token },
            _ => {
                let cluster = Uuid::try_parse(agent).map_err(|_| BadCredential::Cluster)?;
                let (high, _) = cluster.as_u64_pair();
                Self::Plural { agent_id: high.cast_signed(), cluster, token }
            }
        }))
    }

    /// The agent it is for.
    pub fn agent_id(&self) -> i64 {
        match self {
            Self::CiJob { agent_id, .. }
            | Self::PersonalToken { agent_id, .. }
            | Self::Cookie { agent_id, .. }
            | Self::Plural { agent_id, .. } => *agent_id,
        }
    }

    /// What GitLab calls the way of access; `None` where it has no name.
    pub fn access_type(&self) -> Option<&'static str> {
        match self {
            Self::PersonalToken { .. } => Some("personal_access_token"),
            Self::Cookie { .. } => Some("session_cookie"),
            Self::CiJob { .. } | Self::Plural { .. } => None,
        }
    }
}

pub(super) fn agent_id_is_valid(id: i64) -> bool {
    id > 0
}

fn agent_id(text: &str) -> Result<i64, BadCredential> {
    // Not every form that Rust reads as a number: `+7` and `007` are not how anybody writes an id.
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|id| plain && agent_id_is_valid(*id)).ok_or(BadCredential::AgentId)
}

fn cookie(headers: &HeaderMap) -> Option<String> {
    // Cookies of others may hold bytes that are no text.
    headers
        .get_all(header::COOKIE)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b';'))
        .filter_map(|pair| std::str::from_utf8(pair).ok()?.trim().split_once('='))
        .find(|(name, _)| *name == COOKIE)
        .map(|(_, value)| value.trim_matches('"').to_owned())
}

fn either(headers: &HeaderMap, header: &str, uri: &Uri, query: &str) -> Option<String> {
    let from_header = headers.get(header).and_then(|value| value.to_str().ok()).map(ToOwned::to_owned);
    from_header
        .or_else(|| {
            let pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
            pairs.into_iter().find(|(key, _)| key == query).map(|(_, value)| value.into_owned())
        })
        .filter(|value| !value.is_empty())
}

/// The URI without what was meant for the gateway.
pub fn strip_credential_query(uri: &Uri) -> Uri {
    let Some(query) = uri.query() else { return uri.clone() };
    let kept: Vec<&str> = query
        .split('&')
        .filter(|pair| {
            let name = form_urlencoded::parse(pair.as_bytes()).next().map(|(name, _)| name.into_owned());
            !matches!(name.as_deref(), Some(AGENT_QUERY | CSRF_QUERY))
        })
        .collect();
    let path =
        if kept.is_empty() { uri.path().to_owned() } else { format!("{}?{}", uri.path(), kept.join("&")) };
    let mut parts = uri.clone().into_parts();
    match path.parse() {
        Ok(path) => {
            parts.path_and_query = Some(path);
            Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
        }
        Err(_) => uri.clone(),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderName;
    use proptest::prelude::*;

    use super::*;

    fn read(pairs: &[(&'static str, &str)], uri: &str) -> Result<Option<Credential>, BadCredential> {
        let headers = pairs.iter().map(|(k, v)| (HeaderName::from_static(k), v.parse().unwrap())).collect();
        Credential::read(&headers, &uri.parse().unwrap())
    }

    fn bearer(token: &str) -> Result<Option<Credential>, BadCredential> {
        read(&[("authorization", &format!("Bearer {token}"))], "/")
    }

    #[test]
    fn bearers_of_each_kind() {
        let Ok(Some(Credential::CiJob { agent_id: 7, token })) = bearer("ci:7:job:with:colons") else {
            panic!()
        };
        assert!(token.matches("job:with:colons"));
        let pat = bearer("pat:12:glpat-x").unwrap().unwrap();
        assert_eq!((pat.agent_id(), pat.access_type()), (12, Some("personal_access_token")));
        let Ok(Some(Credential::Plural { agent_id, .. })) =
            bearer("plrl:01020304-0506-0708-090a-0b0c0d0e0f10:x")
        else {
            panic!()
        };
        assert_eq!(agent_id, 0x0102_0304_0506_0708);
        for other in ["tarbet-user-token", "abc", "unknown:1:x"] {
            assert!(matches!(bearer(other), Ok(None)), "{other}");
        }
    }

    #[test]
    fn what_looks_right_and_is_not() {
        for (token, error) in [
            ("ci:7", BadCredential::Form),
            ("ci:7:", BadCredential::Form),
            ("ci::x", BadCredential::AgentId),
            ("ci:0:x", BadCredential::AgentId),
            ("ci:-1:x", BadCredential::AgentId),
            ("ci:+7:x", BadCredential::AgentId),
            ("pat:9223372036854775808:x", BadCredential::AgentId),
            ("plrl:7:x", BadCredential::Cluster),
        ] {
            assert_eq!(bearer(token).unwrap_err(), error, "{token}");
        }
    }

    #[test]
    fn cookies_need_an_agent_and_a_proof() {
        let cookie = ("cookie", "a=b; _gitlab_kas=x%2By; c=d");
        let full = read(&[cookie, ("gitlab-agent-id", "7"), ("x-csrf-token", "z")], "/").unwrap().unwrap();
        let Credential::Cookie { agent_id: 7, session, csrf } = full else { panic!() };
        assert!(session.matches("x+y") && csrf.matches("z"));
        let query = read(&[cookie], "/?gitlab-agent-id=7&gitlab-csrf-token=z&x=1").unwrap().unwrap();
        assert_eq!(query.access_type(), Some("session_cookie"));
        assert_eq!(read(&[cookie], "/?gitlab-csrf-token=z").unwrap_err(), BadCredential::NoAgent);
        assert_eq!(read(&[cookie], "/?gitlab-agent-id=7").unwrap_err(), BadCredential::NoCsrf);
        assert!(matches!(read(&[("cookie", "other=1")], "/"), Ok(None)));
        let mut headers = HeaderMap::new();
        let odd = http::HeaderValue::from_bytes(b"name=J\xf6rg; _gitlab_kas=x; city=K\xc3\xb6ln").unwrap();
        headers.insert(header::COOKIE, odd);
        let uri = "/?gitlab-agent-id=7&gitlab-csrf-token=z".parse().unwrap();
        let Ok(Some(Credential::Cookie { session, .. })) = Credential::read(&headers, &uri) else { panic!() };
        assert!(session.matches("x"), "beside cookies that are no text");
        // A bearer that is not for GitLab does not fall back to the cookie.
        assert!(matches!(read(&[cookie, ("authorization", "Bearer own")], "/"), Ok(None)));
    }

    #[test]
    fn the_query_is_cleaned() {
        for (before, after) in [
            ("/a?gitlab-agent-id=7&b=1&gitlab-csrf-token=x&b=2", "/a?b=1&b=2"),
            ("/a?gitlab-agent-id=7", "/a"),
            ("/a?b=%20", "/a?b=%20"),
            ("/a", "/a"),
            ("http://h/a?gitlab%2Dagent%2Did=7&x", "http://h/a?x"),
        ] {
            assert_eq!(strip_credential_query(&before.parse().unwrap()), after, "{before}");
        }
    }

    proptest! {
        #[test]
        fn anything_is_read_or_refused(token in "[ -~]{0,40}", cookie in "[ -~]{0,40}") {
            let _ = read(&[("authorization", &format!("Bearer {token}"))], "/");
            let _ = read(&[("cookie", &cookie), ("gitlab-agent-id", &token)], "/?x");
        }

        #[test]
        fn secrets_are_not_printed(token in "[a-z]{12}") {
            let credential = bearer(&format!("pat:7:{token}")).unwrap().unwrap();
            let printed = format!("{credential:?}");
            prop_assert!(!printed.contains(&token));
        }
    }
}
