//! Reads from the cluster what a pod mentions.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret, ServiceAccount,
};
use kube::api::PostParams;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use tarbet_cluster::{Class, class, describe};

use super::resolve::{self, Contents, TokenNeed, Unresolved, Ways};
use crate::wire::{PodCreate, RetrievedPod};

/// A peer that cannot be told of a new token gets one that lasts; it ends with the pod anyway.
const LASTING: i64 = 30 * 24 * 3600;

/// Why a pod cannot travel yet.
#[derive(Debug, thiserror::Error)]
pub(super) enum GatherError {
    /// Something it needs is not there.
    #[error(transparent)]
    Missing(#[from] Unresolved),
    /// The cluster refused.
    #[error("the cluster does not let the node read {what}: {reason}")]
    Refused { what: String, reason: String },
    /// The cluster does not answer.
    #[error("the cluster does not answer: {0}")]
    Away(String),
}

/// A pod that is ready to travel.
pub(super) struct Gathered {
    pub(super) create: PodCreate,
    pub(super) retrieved: RetrievedPod,
    /// Of everything that was read.
    pub(super) fingerprint: u64,
    /// When to read again, if there is anything that may change.
    pub(super) refresh: Option<Timestamp>,
}

#[derive(Clone)]
struct Token {
    text: String,
    renew: Timestamp,
    ends: Timestamp,
}

pub(super) struct Gather {
    client: Client,
    /// How often contents are read again.
    refresh: Duration,
    /// By UID of the pod; one is asked for again only when its time is nearly over.
    tokens: Mutex<BTreeMap<(String, TokenNeed), Token>>,
}

impl Gather {
    pub(super) fn new(client: Client, refresh: Duration) -> Self {
        Self { client, refresh, tokens: Mutex::default() }
    }

    /// Everything for one pod. `lasting`: the other side cannot be told of changes.
    pub(super) async fn collect(
        &self,
        pod: &Pod,
        ways: Ways<'_>,
        lasting: bool,
        now: Timestamp,
    ) -> Result<Gathered, GatherError> {
        let needs = resolve::needs(pod, ways.no_projected);
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let changeable =
            !(needs.config_maps.is_empty() && needs.secrets.is_empty() && needs.tokens.is_empty());
        let (config_maps, secrets, tokens, claims) = tokio::try_join!(
            self.read::<ConfigMap>(&namespace, needs.config_maps, "the ConfigMap"),
            self.read::<Secret>(&namespace, needs.secrets, "the Secret"),
            try_join_all(needs.tokens.iter().map(|need| self.token(pod, &namespace, need, lasting, now))),
            try_join_all(needs.claims.iter().map(|claim| self.folder(&namespace, claim))),
        )?;
        let mut contents = Contents { config_maps, secrets, ..Default::default() };
        let renew = tokens.iter().map(|token| token.renew).min();
        for (need, token) in needs.tokens.iter().zip(tokens) {
            contents.tokens.insert((need.volume.clone(), need.path.clone()), token.text);
        }
        for (claim, folder) in needs.claims.iter().zip(claims) {
            if folder.is_none() && !ways.origin.is_ours() {
                tracing::warn!(%namespace, claim, "A claim has no folder; it is left to the plugin as it is.");
            }
            contents.claims.extend(folder.map(|folder| (claim.clone(), folder)));
        }
        let create = resolve::assemble(pod, &contents, ways)?;
        let retrieved = resolve::retrieved(&create);
        let periodic = now.checked_add(self.refresh).unwrap_or(now);
        let refresh = changeable.then(|| renew.map_or(periodic, |renew| renew.min(periodic)));
        let fingerprint = fingerprint(&retrieved);
        Ok(Gathered { create, retrieved, fingerprint, refresh })
    }

    /// Forgets the tokens of a pod.
    pub(super) fn forget(&self, uid: &str) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.retain(|(of, _), _| of != uid);
    }

    async fn read<K>(
        &self,
        namespace: &str,
        names: impl IntoIterator<Item = String>,
        kind: &str,
    ) -> Result<BTreeMap<String, K>, GatherError>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
        K::DynamicType: Default,
    {
        let api: &Api<K> = &Api::namespaced(self.client.clone(), namespace);
        let reads = names.into_iter().map(|name| async move {
            let found =
                api.get_opt(&name).await.map_err(|error| failed(format!("{kind} `{name}`"), &error))?;
            Ok(found.map(|mut object| {
                object.meta_mut().managed_fields = None;
                (name, object)
            }))
        });
        let found: Result<Vec<Option<(String, K)>>, GatherError> =
            join_all(reads).await.into_iter().collect();
        Ok(found?.into_iter().flatten().collect())
    }

    async fn token(
        &self,
        pod: &Pod,
        namespace: &str,
        need: &TokenNeed,
        lasting: bool,
        now: Timestamp,
    ) -> Result<Token, GatherError> {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let key = (uid.clone(), need.clone());
        let held = self.tokens.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(token) = held.as_ref().filter(|token| now < token.renew) {
            return Ok(token.clone());
        }
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
        let account = account.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".into());
        let seconds = if lasting { need.seconds.max(LASTING) } else { need.seconds };
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: need.audience.iter().cloned().collect(),
                expiration_seconds: Some(seconds),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: pod.metadata.name.clone(),
                    uid: Some(uid),
                }),
            },
            ..Default::default()
        };
        let api: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let made = api.create_token_request(&account, &PostParams::default(), &request).await;
        let status = match made {
            Ok(made) => made.status,
            // One that still works is better than none while the cluster is away.
            Err(error) => {
                match held.filter(|token| now < token.ends && class(&error) == Class::Unavailable) {
                    Some(token) => return Ok(token),
                    None => {
                        return Err(failed(format!("a token of the service account `{account}`"), &error));
                    }
                }
            }
        };
        let Some(status) = status else {
            return Err(GatherError::Away("a token came without content".into()));
        };
        let ends = status.expiration_timestamp.0;
        let token = Token { text: status.token, renew: renewal(now, ends), ends };
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner).insert(key, token.clone());
        Ok(token)
    }

    /// The folder behind a claim, where the volume is one.
    async fn folder(&self, namespace: &str, claim: &str) -> Result<Option<String>, GatherError> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let what = || format!("the claim `{claim}`");
        let found = claims.get_opt(claim).await.map_err(|error| failed(what(), &error))?;
        let Some(volume) = found.and_then(|claim| claim.spec).and_then(|spec| spec.volume_name) else {
            return Ok(None);
        };
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let found = volumes
            .get_opt(&volume)
            .await
            .map_err(|error| failed(format!("the volume `{volume}`"), &error))?;
        let Some(spec) = found.and_then(|volume| volume.spec) else { return Ok(None) };
        Ok(spec.host_path.map(|path| path.path).or_else(|| spec.local.map(|local| local.path)))
    }
}

/// When a token is asked for anew: at four fifths of its life, and within a day.
pub(super) fn renewal(now: Timestamp, ends: Timestamp) -> Timestamp {
    let life = ends.duration_since(now).max(SignedDuration::ZERO);
    now.checked_add((life / 5 * 4).min(SignedDuration::from_hours(24))).unwrap_or(ends)
}

fn failed(what: String, error: &kube::Error) -> GatherError {
    match class(error) {
        Class::Unavailable => GatherError::Away(describe(error)),
        _ => GatherError::Refused { what, reason: describe(error) },
    }
}

fn fingerprint(retrieved: &RetrievedPod) -> u64 {
    let mut hasher = DefaultHasher::new();
    // Of the contents only: the pod itself has a fingerprint of its own.
    serde_json::to_string(&retrieved.containers).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_renewed_before_they_end() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let after = |seconds: i64| now + SignedDuration::from_secs(seconds);
        // The projected token of every pod lives 3607 seconds.
        assert_eq!(renewal(now, after(3600)), after(2880));
        assert_eq!(renewal(now, after(LASTING)), after(24 * 3600));
        assert_eq!(renewal(now, after(-5)), now, "what has ended is asked for at once");
        for life in 1..2000 {
            assert!(renewal(now, after(life)) < after(life), "{life}");
        }
    }
}
