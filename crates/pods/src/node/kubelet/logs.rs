//! A container's log.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, stream};
use http::{StatusCode, header};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::{Kubelet, Refusal};
use crate::wire::{LogOptions, LogRequest};

type Pairs = Vec<(String, String)>;

pub(super) async fn logs(
    State(kubelet): State<Arc<Kubelet>>,
    Path((namespace, name, container)): Path<(String, String, String)>,
    Query(query): Query<Pairs>,
) -> Result<Response, Refusal> {
    let entry = kubelet.pod(&namespace, &name)?;
    has_container(&entry.pod, &container)?;
    let Wanted { options, limit, nothing } = wanted(&query, Timestamp::now())?;
    if nothing {
        return Ok(StatusCode::OK.into_response());
    }
    let pod_uid = entry.uid().to_owned();
    let request =
        LogRequest { namespace, pod_uid, pod_name: name.clone(), container_name: container.clone(), options };
    let log = match kubelet.node.interlink.logs(&request).await {
        Ok(log) => log,
        Err(error) => {
            // Better than the other side's words: what the container waits for.
            if let Some(reason) = waits_for(&entry.pod, &container) {
                let text =
                    format!("container \"{container}\" in pod \"{name}\" is waiting to start: {reason}");
                return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
            }
            return Err(error.into());
        }
    };
    let mut left = limit;
    let cut = log.scan((), move |(), piece| {
        let piece = piece.map(|mut piece| {
            if let Some(left) = &mut left {
                piece.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= piece.len() as u64;
            }
            piece
        });
        // An empty piece ends the log once the limit is reached.
        let over = matches!(&piece, Ok(piece) if piece.is_empty() && left == Some(0));
        std::future::ready((!over).then_some(piece))
    });
    let stopped = kubelet.stop.clone();
    let body = Body::from_stream(cut.take_until(stopped.cancelled_owned()).chain(stream::empty()));
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], body).into_response())
}

/// Refuses names that the pod does not have.
pub(super) fn has_container(pod: &Pod, container: &str) -> Result<(), Refusal> {
    let spec = pod.spec.as_ref();
    let mut names = spec
        .into_iter()
        .flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers))
        .map(|container| container.name.as_str());
    if names.any(|name| name == container) {
        return Ok(());
    }
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    Err(Refusal::new(StatusCode::NOT_FOUND, format!("container \"{container}\" is not in pod \"{name}\"")))
}

fn waits_for(pod: &Pod, container: &str) -> Option<String> {
    let status = pod.status.as_ref()?;
    let mut all =
        status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    let found: &ContainerStatus = all.find(|status| status.name == container)?;
    let waiting = found.state.as_ref()?.waiting.as_ref()?;
    Some(waiting.reason.clone().unwrap_or_else(|| "ContainerCreating".into()))
}

#[derive(Debug, PartialEq)]
struct Wanted {
    options: LogOptions,
    /// What is cut here, whatever the other side makes of it.
    limit: Option<u64>,
    /// The last zero lines of a log that is not followed.
    nothing: bool,
}

fn wanted(query: &Pairs, now: Timestamp) -> Result<Wanted, Refusal> {
    let get = |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let bad =
        |name: &str| Refusal::new(StatusCode::BAD_REQUEST, format!("{name} is not of the form it should be"));
    let number = |name: &str| {
        get(name)
            .filter(|text| !text.is_empty())
            .map(|text| text.parse::<u64>().map_err(|_| bad(name)))
            .transpose()
    };
    let flag = |name: &str| matches!(get(name), Some("true" | "1"));
    let (tail, limit, mut since_seconds) =
        (number("tailLines")?, number("limitBytes")?, number("sinceSeconds")?);
    let since_time = get("sinceTime").filter(|text| !text.is_empty());
    let mut since_time =
        since_time.map(|text| text.parse::<Timestamp>().map_err(|_| bad("sinceTime"))).transpose()?;
    let follow = flag("follow");
    if tail == Some(0) {
        // interLink's zero stands for all lines.
        (since_seconds, since_time) = (None, Some(now));
    } else if since_time.is_some() {
        since_seconds = None;
    }
    let options = LogOptions {
        tail: tail.unwrap_or_default(),
        // The other side takes one limit only.
        bytes: if tail.is_some() { 0 } else { limit.unwrap_or_default() },
        timestamps: flag("timestamps"),
        follow,
        previous: flag("previous"),
        since_seconds: since_seconds.unwrap_or_default(),
        since_time,
    };
    Ok(Wanted { options, limit, nothing: (tail == Some(0) && !follow) || limit == Some(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &[(&str, &str)]) -> Result<Wanted, Refusal> {
        let pairs = query.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        wanted(&pairs, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn options_become_interlinks() {
        let asked =
            parse(&[("tailLines", "5"), ("limitBytes", "10"), ("follow", "true"), ("timestamps", "true")]);
        let asked = asked.unwrap();
        assert_eq!((asked.options.tail, asked.options.bytes, asked.limit), (5, 0, Some(10)));
        assert!(asked.options.follow && asked.options.timestamps && !asked.nothing);
        assert!(parse(&[("tailLines", "0")]).unwrap().nothing);
        let from_now = parse(&[("tailLines", "0"), ("follow", "1")]).unwrap();
        assert_eq!((from_now.options.since_time, from_now.nothing), (Some(Timestamp::UNIX_EPOCH), false));
        assert!(parse(&[("tailLines", "x")]).is_err());
        assert!(parse(&[("sinceTime", "yesterday")]).is_err());
        assert_eq!(parse(&[("sinceTime", "2026-01-02T03:04:05Z")]).unwrap().options.since_seconds, 0);
    }
}
