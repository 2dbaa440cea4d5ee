//! What a request to the Kubernetes API is about, read from its path as the API server reads it.
//!
//! Only paths that can be read in one way are accepted: what the policy judges is byte for byte
//! what is sent on.

use std::fmt;

/// A request to the Kubernetes API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KubeRequest {
    /// About a resource.
    Resource {
        /// As RBAC knows it: `get`, `list`, `watch`, `create`, …
        verb: String,
        /// Empty for the core group.
        group: String,
        /// The plural name.
        resource: String,
        /// Absent for cluster-wide requests.
        namespace: Option<String>,
        /// The object, if one is named.
        name: Option<String>,
        /// What of it, such as `log`.
        subresource: Option<String>,
    },
    /// About something else, such as `/version`.
    Path {
        /// The method in lower case.
        verb: String,
        /// The path.
        path: String,
    },
}

/// The path could be read in more than one way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the path is not in its canonical form: {0}")]
pub struct NotCanonical(&'static str);

impl KubeRequest {
    /// Reads method, path and query. Without `query` the path may carry it.
    pub fn parse(method: &str, path: &str, query: Option<&str>) -> Result<Self, NotCanonical> {
        let (path, query) = match (path.split_once('?'), query) {
            (Some((path, query)), None) => (path, Some(query)),
            _ => (path, query),
        };
        let segments = canonical(path)?;
        let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
        let (group, rest) = match parts.as_slice() {
            ["api", _version, rest @ ..] if !rest.is_empty() => ("", rest),
            ["apis", group, _version, rest @ ..] if !rest.is_empty() => (*group, rest),
            _ => return Ok(Self::Path { verb: method.to_ascii_lowercase(), path: path.to_owned() }),
        };
        // An old way to watch: the word stands before the resource.
        let (watching, rest) = match rest {
            ["watch", rest @ ..] if !rest.is_empty() => (true, rest),
            ["proxy", ..] => return Err(NotCanonical("the old proxy verb is not carried")),
            rest => (watch_asked(query), rest),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() && !is_part_of_namespace(rest) => {
                (Some(*namespace), rest)
            }
            // A namespace is itself in the namespace of its name, as RBAC has it.
            ["namespaces", namespace, ..] => (Some(*namespace), rest),
            rest => (None, rest),
        };
        let (resource, name, subresource) = match rest {
            [resource] => (*resource, None, None),
            [resource, name] => (*resource, Some(*name), None),
            [resource, name, subresource, ..] => (*resource, Some(*name), Some(*subresource)),
            [] => return Err(NotCanonical("it names no resource")),
        };
        let verb = verb(method, name.is_some(), watching);
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Ok(Self::Resource {
            verb: verb.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            namespace: owned(namespace),
            name: owned(name),
            subresource: owned(subresource),
        })
    }

    /// `pods`, `pods/log`, `deployments.apps`, `deployments.apps/scale`.
    pub fn resource_name(&self) -> String {
        match self {
            Self::Path { path, .. } => path.clone(),
            Self::Resource { group, resource, subresource, .. } => {
                let group = if group.is_empty() { String::new() } else { format!(".{group}") };
                let sub = subresource.as_ref().map(|sub| format!("/{sub}")).unwrap_or_default();
                format!("{resource}{group}{sub}")
            }
        }
    }
}

impl fmt::Display for KubeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path { verb, path } => write!(f, "{verb} {path}"),
            Self::Resource { verb, namespace, .. } => {
                write!(f, "{verb} {}", self.resource_name())?;
                match namespace {
                    Some(namespace) => write!(f, " in the namespace {namespace}"),
                    None => f.write_str(" in the whole cluster"),
                }
            }
        }
    }
}

fn is_part_of_namespace(rest: &[&str]) -> bool {
    matches!(rest, ["finalize" | "status"])
}

fn verb(method: &str, named: bool, watching: bool) -> &'static str {
    match (method, named) {
        ("GET" | "HEAD", _) if watching => "watch",
        ("GET" | "HEAD", true) => "get",
        ("GET" | "HEAD", false) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        _ => "unknown",
    }
}

fn watch_asked(query: Option<&str>) -> bool {
    let values = query.unwrap_or_default().split('&').filter_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(name).as_deref() == Some("watch")).then(|| decode(value).unwrap_or_default())
    });
    // Whatever the server might take for true counts as true.
    values.into_iter().any(|value| !matches!(value.as_str(), "false" | "0"))
}

/// The segments of a path, decoded. Refuses whatever another reader could split differently.
fn canonical(path: &str) -> Result<Vec<String>, NotCanonical> {
    let rest = path.strip_prefix('/').ok_or(NotCanonical("it does not begin with `/`"))?;
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.is_empty() {
        return Ok(Vec::new());
    }
    rest.split('/')
        .map(|segment| {
            let decoded = decode(segment).ok_or(NotCanonical("its percent-encoding is broken"))?;
            match decoded.as_str() {
                "" => Err(NotCanonical("it has an empty segment")),
                "." | ".." => Err(NotCanonical("it has a `.` or `..` segment")),
                text if text.contains(['/', '\\', '%']) => Err(NotCanonical("it hides a separator")),
                text if text.chars().any(char::is_control) => Err(NotCanonical("it has control characters")),
                _ => Ok(decoded),
            }
        })
        .collect()
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))?);
            rest = &tail[2..];
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(method: &str, path: &str) -> String {
        KubeRequest::parse(method, path, None).unwrap().to_string()
    }

    #[test]
    fn reads_paths_as_the_api_server_does() {
        for (method, path, meaning) in [
            ("GET", "/api/v1/pods", "list pods in the whole cluster"),
            ("GET", "/api/v1/pods?watch=1", "watch pods in the whole cluster"),
            ("GET", "/api/v1/watch/namespaces/a/pods", "watch pods in the namespace a"),
            ("GET", "/api/v1/namespaces/a/pods/p", "get pods in the namespace a"),
            ("GET", "/api/v1/namespaces/a/pods/p/log?follow=true", "get pods/log in the namespace a"),
            ("POST", "/api/v1/namespaces/a/pods/p/exec", "create pods/exec in the namespace a"),
            (
                "DELETE",
                "/apis/apps/v1/namespaces/a/deployments",
                "deletecollection deployments.apps in the namespace a",
            ),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/a/deployments/d/scale",
                "patch deployments.apps/scale in the namespace a",
            ),
            ("GET", "/api/v1/namespaces/a", "get namespaces in the namespace a"),
            ("PUT", "/api/v1/namespaces/a/finalize", "update namespaces/finalize in the namespace a"),
            ("GET", "/api/v1/namespaces", "list namespaces in the whole cluster"),
            ("GET", "/version", "get /version"),
            ("GET", "/apis/apps/v1", "get /apis/apps/v1"),
            ("GET", "/api/v1/nodes/n/proxy/logs/", "get nodes/proxy in the whole cluster"),
        ] {
            assert_eq!(read(method, path), meaning, "{method} {path}");
        }
    }

    #[test]
    fn ambiguous_paths_are_refused() {
        for path in [
            "api/v1/pods",
            "//api/v1/pods",
            "/api/v1//pods",
            "/api/v1/namespaces/a/../b/pods",
            "/api/v1/namespaces/a/%2e%2e/b/pods",
            "/api/v1/namespaces/a%2Fpods/x",
            "/api/v1/namespaces/a%5Cb/pods",
            "/api/v1/namespaces/a%252Fb/pods",
            "/api/v1/%00/pods",
            "/api/v1/%zz/pods",
            "/api/v1/%+1/pods",
            "/api/v1/%ff/pods",
            "/api/v1/./pods",
            "/api/v1/proxy/namespaces/a/pods/b",
        ] {
            assert!(KubeRequest::parse("GET", path, None).is_err(), "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_path_is_read_or_refused_without_panic(path in "\\PC*", query in proptest::option::of("\\PC*")) {
            let _ = KubeRequest::parse("GET", &path, query.as_deref());
        }

        #[test]
        fn a_namespace_is_found_wherever_the_path_names_one(ns in "[a-z]{1,8}", verb in "(GET|POST|PUT|PATCH|DELETE)", tail in "(pods|pods/x|pods/x/log|services/s/status)") {
            let path = format!("/api/v1/namespaces/{ns}/{tail}");
            let KubeRequest::Resource { namespace, .. } = KubeRequest::parse(&verb, &path, None).unwrap() else { panic!() };
            prop_assert_eq!(namespace, Some(ns));
        }
    }
}
