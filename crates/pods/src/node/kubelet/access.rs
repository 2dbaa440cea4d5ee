//! Who may call: authentication by certificate or token, permission by the cluster.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest, Sha256};
use tarbet_cluster::describe;
use tokio::time::Instant;

use super::{Caller, Kubelet, Refusal};

/// How long the cluster's yes counts, and its no; as kubelets have it.
const YES: Duration = Duration::from_mins(2);
const NO: Duration = Duration::from_secs(30);
/// Answers that are kept.
const KEPT: usize = 4096;

/// A person or program the cluster knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct User {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Wish {
    verb: &'static str,
    subresource: &'static str,
}

type Kept<K, V> = Mutex<HashMap<K, (Instant, V)>>;

pub(super) struct Access {
    client: Client,
    node: String,
    /// By a digest: tokens themselves are not kept.
    users: Kept<[u8; 32], Option<User>>,
    permissions: Kept<(User, Wish), bool>,
}

impl Access {
    pub(super) fn new(client: Client, node: String) -> Self {
        Self { client, node, users: Mutex::default(), permissions: Mutex::default() }
    }

    async fn check(&self, caller: &Caller, token: Option<&str>, wish: Wish) -> Result<(), Refusal> {
        let user = match (by_certificate(caller), token) {
            (Some(user), _) => Some(user),
            (None, Some(token)) => self.by_token(token).await?,
            (None, None) => None,
        };
        let Some(user) = user else { return Err(Refusal::new(StatusCode::UNAUTHORIZED, "Unauthorized")) };
        let Wish { verb, subresource } = wish.clone();
        let name = user.name.clone();
        if self.allowed(user, wish).await? {
            return Ok(());
        }
        let text = format!("Forbidden (user={name}, verb={verb}, resource=nodes, subresource={subresource})");
        Err(Refusal::new(StatusCode::FORBIDDEN, text))
    }

    async fn by_token(&self, token: &str) -> Result<Option<User>, Refusal> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        if let Some(user) = kept(&self.users, &digest) {
            return Ok(user);
        }
        let spec = TokenReviewSpec { token: Some(token.to_owned()), ..Default::default() };
        let review = TokenReview { spec, ..Default::default() };
        let answer =
            Api::<TokenReview>::all(self.client.clone()).create(&PostParams::default(), &review).await;
        let status = answer.map_err(|error| unavailable(&error))?.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).map(|user| User {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        });
        keep(&self.users, digest, user.clone(), if user.is_some() { YES } else { NO });
        Ok(user)
    }

    async fn allowed(&self, user: User, wish: Wish) -> Result<bool, Refusal> {
        let key = (user, wish);
        if let Some(allowed) = kept(&self.permissions, &key) {
            return Ok(allowed);
        }
        let (user, wish) = &key;
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: Some(user.uid.clone()),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(wish.verb.into()),
                    resource: Some("nodes".into()),
                    subresource: Some(wish.subresource.into()),
                    name: Some(self.node.clone()),
                    version: Some("v1".into()),
                    ..Default::default()
                }),
                ..Default::default()
            },
            ..Default::default()
        };
        let answer = Api::<SubjectAccessReview>::all(self.client.clone())
            .create(&PostParams::default(), &review)
            .await;
        let allowed =
            answer.map_err(|error| unavailable(&error))?.status.is_some_and(|status| status.allowed);
        keep(&self.permissions, key, allowed, if allowed { YES } else { NO });
        Ok(allowed)
    }
}

fn by_certificate(caller: &Caller) -> Option<User> {
    let peer = caller.0.as_ref()?;
    let mut groups = peer.organizations.clone();
    groups.push("system:authenticated".into());
    Some(User { name: peer.common_name.clone()?, uid: String::new(), groups, extra: BTreeMap::new() })
}

fn unavailable(error: &kube::Error) -> Refusal {
    let cause = describe(error);
    tracing::warn!(cause, "The cluster could not be asked about a caller.");
    Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        format!("the cluster cannot be asked about the caller: {cause}"),
    )
}

fn kept<K: std::hash::Hash + Eq, V: Clone>(kept: &Kept<K, V>, key: &K) -> Option<V> {
    let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    kept.get(key).filter(|(until, _)| Instant::now() < *until).map(|(_, value)| value.clone())
}

fn keep<K: std::hash::Hash + Eq, V>(kept: &Kept<K, V>, key: K, value: V, time: Duration) {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    if kept.len() >= KEPT {
        kept.retain(|_, (until, _)| now < *until);
    }
    if kept.len() < KEPT {
        kept.insert(key, (now + time, value));
    }
}

/// What a call needs permission for, by its method and path.
fn wish(method: &Method, path: &str) -> Wish {
    let below =
        |prefix: &str| path == prefix || path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
    // WebSockets are asked for with GET: who may only look must not run commands that way.
    let acts = ["/exec", "/attach", "/portForward", "/run"].into_iter().any(below);
    let verb = match *method {
        _ if acts => "create",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    };
    let subresource = if below("/stats") {
        "stats"
    } else if below("/metrics") {
        "metrics"
    } else if below("/logs") {
        "log"
    } else {
        "proxy"
    };
    Wish { verb, subresource }
}

/// Lets through who may.
pub(super) async fn guard(State(kubelet): State<Arc<Kubelet>>, request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>().cloned().unwrap_or(Caller(None));
    let token = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token =
        token.and_then(|value| value.split_once(' ')).filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
    let token = token.map(|(_, token)| token.trim().to_owned());
    let wish = wish(request.method(), request.uri().path());
    match kubelet.access.check(&caller, token.as_deref(), wish).await {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_need_what_a_kubelet_asks_for() {
        let named = |method: Method, path: &str| {
            let wish = wish(&method, path);
            (wish.verb, wish.subresource)
        };
        assert_eq!(named(Method::GET, "/containerLogs/a/b/c"), ("get", "proxy"));
        assert_eq!(named(Method::POST, "/exec/a/b/c"), ("create", "proxy"));
        assert_eq!(named(Method::GET, "/exec/a/b/c"), ("create", "proxy"), "however it is asked for");
        assert_eq!(named(Method::GET, "/portForward/a/b"), ("create", "proxy"));
        assert_eq!(named(Method::GET, "/runningpods/"), ("get", "proxy"));
        assert_eq!(named(Method::GET, "/stats/summary"), ("get", "stats"));
        assert_eq!(named(Method::GET, "/metrics/resource"), ("get", "metrics"));
        assert_eq!(named(Method::GET, "/metricsx"), ("get", "proxy"));
        assert_eq!(named(Method::GET, "/logs/x"), ("get", "log"));
    }
}
