//! Creates and deletes at the plugin, in the form it takes.

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::{ground, pods};

use super::retrieve::propose_folders;
use super::{MAX_WORDS, Server, explain, json, read_words, relay};
use crate::wire::{CreateReply, Items, PodRef, RetrievedPod, read};

impl Server {
    /// Sends a pod in the form the plugin takes; both are tried once if it is not known. `plain`: the caller
    /// is of 2023 and takes any words for an answer.
    pub(super) async fn create_one(
        &self,
        session: &str,
        mut pod: RetrievedPod,
        plain: bool,
    ) -> Result<Response, Problem> {
        let internal = |error: serde_json::Error| {
            Problem::new(&ground::INTERNAL, "The pod cannot be written.").because(error.to_string())
        };
        let uid = pod.pod.metadata.uid.clone().unwrap_or_default();
        let lists = self.form.is_list();
        let mut refused = None;
        for as_list in [lists, !lists] {
            let body = if as_list {
                if self.export {
                    propose_folders(&mut pod, &self.root);
                }
                serde_json::to_vec(&[&pod])
            } else {
                serde_json::to_vec(&pod)
            };
            let body = Bytes::from(body.map_err(internal)?);
            let answer = self.upstream.send(Method::POST, "/create", session, HeaderMap::new(), body).await?;
            let status = answer.status();
            if status.is_success() {
                self.form.took(as_list);
                let words = Limited::new(answer.into_body(), MAX_WORDS * 4).collect().await;
                let words = words.map(http_body_util::Collected::to_bytes).unwrap_or_default();
                return taken(&uid, words, plain);
            }
            let words = read_words(answer).await;
            let unread = self.form.unread(status, &words);
            // What could read the pod says more than what could not.
            if refused.is_none() || !unread {
                refused = Some((status, words));
            }
            if !unread {
                break;
            }
        }
        match refused {
            Some((status, words)) => Ok(explain(status, &words)),
            None => Err(Problem::new(&pods::PLUGIN_ANSWER, "The plugin takes the pod in neither form.")),
        }
    }

    /// Sends pods to be removed as they came; plugins of others that fail get them in the other form, as
    /// generations differ in it. A delete may be repeated.
    pub(super) async fn delete_at(
        &self,
        session: &str,
        body: Bytes,
        pods: &Items<PodRef>,
    ) -> Result<Response, Problem> {
        let send = |body| self.upstream.send(Method::POST, "/delete", session, HeaderMap::new(), body);
        let answer = send(body.clone()).await?;
        let status = answer.status();
        let unread = status.is_server_error() || status == StatusCode::UNPROCESSABLE_ENTITY;
        if !unread || pods.items.len() != 1 || self.upstream.origin().await.is_ours() {
            return Ok(relay(answer).await);
        }
        let words = read_words(answer).await;
        if let Some(body) = turned(&body, pods.list)
            && let Ok(answer) = send(body).await
            && answer.status().is_success()
        {
            return Ok(relay(answer).await);
        }
        Ok(explain(status, &words))
    }
}

/// The same pod as a list of one, or out of it.
fn turned(body: &[u8], list: bool) -> Option<Bytes> {
    let raw: &serde_json::value::RawValue = if list {
        let mut items: Vec<&serde_json::value::RawValue> = serde_json::from_slice(body).ok()?;
        items.pop()?
    } else {
        serde_json::from_slice(body).ok()?
    };
    let turned = if list { serde_json::to_vec(raw) } else { serde_json::to_vec(&[raw]) };
    turned.ok().map(Bytes::from)
}

/// The plugin's answer to a create that worked. Plugins before 0.3 say a sentence, which nodes of today
/// cannot read; the original's for Slurm says nothing when it could not write its script.
fn taken(uid: &str, words: Bytes, plain: bool) -> Result<Response, Problem> {
    if words.trim_ascii().is_empty() {
        return Err(Problem::new(&pods::PLUGIN_ANSWER, "The plugin did not say what became of the pod.")
            .because("it answered 200 without a word"));
    }
    let object = words.trim_ascii_start().starts_with(b"{");
    let reply = read::<CreateReply>(&words, "an answer to a create").ok().filter(|_| object);
    match reply {
        Some(_) => Ok(([(header::CONTENT_TYPE, "application/json")], words).into_response()),
        None if plain => Ok(words.into_response()),
        None => Ok(json(&CreateReply { pod_uid: uid.to_owned(), pod_jid: uid.to_owned() })),
    }
}
