//! Asks the plugin for states.

use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::value::RawValue;

use super::{Server, clip, explain, unusable};
use crate::serve::{MAX_BODY, refusal};
use crate::wire::{PodRef, PodStatus, read_items};

/// A plugin's answer to a question for states.
enum Answer {
    Told(Vec<PodStatus>),
    Refused(StatusCode, String),
}

impl Server {
    /// The states of these pods. A plugin of others refuses all for one that it cannot tell of; then each is
    /// asked for alone, one that is not there is left out, and the last state stands for one that cannot be
    /// told. Without such a state the refusal stands: a pod that is left out counts as gone.
    pub(super) async fn ask(
        &self,
        session: &str,
        pods: &[(&RawValue, &PodRef)],
    ) -> Result<Vec<PodStatus>, Response> {
        let all: Vec<&RawValue> = pods.iter().map(|(raw, _)| *raw).collect();
        let (status, words) = match self.question(session, &all).await? {
            Answer::Told(told) => return Ok(told),
            Answer::Refused(status, words) => (status, words),
        };
        if pods.len() == 1 || self.upstream.origin().await.is_ours() {
            return Err(explain(status, &words));
        }
        let (mut told, mut refused) = (Vec::new(), None);
        for (raw, pod) in pods {
            match self.question(session, &[*raw]).await? {
                Answer::Told(one) => told.extend(one),
                Answer::Refused(StatusCode::NOT_FOUND, _) => {}
                Answer::Refused(status, words) => match self.cache.last_aged(&pod.metadata.uid) {
                    Some(state) => told.push(state),
                    None => refused = Some((status, words)),
                },
            }
        }
        match refused {
            None => Ok(told),
            Some((status, words)) => Err(explain(status, &words)),
        }
    }

    async fn question(&self, session: &str, pods: &[&RawValue]) -> Result<Answer, Response> {
        let body = Bytes::from(serde_json::to_vec(pods).unwrap_or_default());
        let answer = self.upstream.send(Method::GET, "/status", session, HeaderMap::new(), body).await;
        let answer = answer.map_err(|problem| refusal(&problem))?;
        let code = answer.status();
        let text = Limited::new(answer.into_body(), MAX_BODY).collect().await;
        let text = text.map_err(|error| unusable(&error.to_string()))?.to_bytes();
        if !code.is_success() {
            return Ok(Answer::Refused(code, clip(&text)));
        }
        let told = read_items::<PodStatus>(&text, "a list of states");
        told.map(|told| Answer::Told(told.items)).map_err(|error| unusable(&error.to_string()))
    }
}
