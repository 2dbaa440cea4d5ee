//! Every reply of the daemon read as a plugin reads it, for fuzzing: any bytes, no panic.

use bollard::query_parameters::{EventsOptions, LogsOptions};
use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker as Api};
use futures::StreamExt;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::broadcast;

use super::engine::{failed, status};
use super::observe::Observed;
use super::status::{Facts, container_status};
use super::{exec, image, usage};
use crate::plan::{Container, Policy, Pull, plan};
use crate::runner::Turn;
use crate::wire::{ExecRequest, Frame, RetrievedPod};

/// As much as one end of a pipe takes; a longer reply waits for its reader.
const PIPE: usize = 1 << 16;
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";
const SWITCHED: &str = "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n";

/// Asks what the first byte says, and reads the rest as the answer.
pub(crate) async fn read_any(data: &[u8]) {
    let Some((&question, reply)) = data.split_first() else { return };
    match question {
        b'l' => {
            let Some(api) = saying(&[OK.as_bytes(), reply].concat()) else { return };
            drop(observed().list(&api).await);
        }
        b'e' => {
            let Some(api) = saying(&[OK.as_bytes(), reply].concat()) else { return };
            let mut events = api.events(None::<EventsOptions>);
            while let Some(Ok(event)) = events.next().await {
                drop(event.actor.and_then(|actor| actor.id));
            }
        }
        b's' => {
            let Some(api) = saying(&[OK.as_bytes(), reply].concat()) else { return };
            let pods = vec![("uid".into(), vec![("main".into(), "pod-main".into())])];
            drop(usage::read(&api, pods).await);
            let _none = usage::address(&api, "pod-main").await;
        }
        b'i' => {
            let Some(api) = saying(&[OK.as_bytes(), reply].concat()) else { return };
            for container in containers() {
                drop(image::ensure(&api, &container, Pull::Always).await);
            }
        }
        b'g' => {
            let Some(api) = saying(&[OK.as_bytes(), reply].concat()) else { return };
            let mut log = api.logs("pod-main", None::<LogsOptions>);
            while let Some(Ok(piece)) = log.next().await {
                drop(piece.into_bytes());
            }
        }
        b'x' => {
            let Some(api) = saying(&[SWITCHED.as_bytes(), reply].concat()) else { return };
            let Ok(mut session) = exec::exec(api, "pod-main", ExecRequest::default()).await else { return };
            while let Some(frame) = session.output.recv().await {
                if matches!(frame, Frame::Exit(_) | Frame::Failed(_)) {
                    return;
                }
            }
        }
        // A whole answer, head and all.
        b'h' => {
            let Some(api) = saying(reply) else { return };
            if let Err(error) = api.version().await {
                let _code = status(&error);
                drop(failed("say its version")(error));
            }
        }
        _ => {
            let Some(api) = saying(&[OK.as_bytes(), reply].concat()) else { return };
            let Ok(Some(seen)) = observed().look(&api, "pod-main").await else { return };
            for container in &containers() {
                let (seen, message) = (Some(&seen), None);
                container_status(Facts {
                    container,
                    seen,
                    lost: false,
                    turn: Turn::Now,
                    waiting: None,
                    message,
                    replaced: 1,
                });
            }
        }
    }
}

fn observed() -> Observed {
    Observed::new("fuzz".into(), broadcast::channel(1).0)
}

/// A daemon that says this to every question, and hangs up.
fn saying(reply: &[u8]) -> Option<Api> {
    let reply = reply.to_vec();
    let answer = move |request: BollardRequest| {
        let (near, mut far) = tokio::io::duplex(PIPE);
        let reply = reply.clone();
        tokio::spawn(async move {
            // An answer that comes before its question is none. Who asks may leave before all is said.
            let _asked = far.read(&mut [0; 4096]).await;
            let _gone = far.write_all(&reply).await;
        });
        async move {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await?;
            tokio::spawn(connection.with_upgrades());
            Ok(sender.send_request(request).await?)
        }
    };
    Api::connect_with_custom_transport(answer, Some("http://docker"), 10, API_DEFAULT_VERSION).ok()
}

/// A pod's container, for what is asked of one.
fn containers() -> Vec<Container> {
    let pod = r#"{"pod": {"metadata": {"name": "pod", "namespace": "tests", "uid": "0b6d4f0e-9c1f-4a7e-8f43-0a5f5b1c2d3e"},
        "spec": {"containers": [{"name": "main", "image": "busybox", "securityContext": {"runAsNonRoot": true}}]}}}"#;
    let pod = serde_json::from_str::<RetrievedPod>(pod).ok();
    pod.and_then(|pod| plan(&pod, &Policy::default()).ok()).map(|plan| plan.containers).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kept reply, without the byte that says what was asked.
    fn kept(name: &str) -> Vec<u8> {
        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/docker");
        std::fs::read(corpus.join(name)).unwrap()[1..].to_vec()
    }

    /// Were a reply lost on its way, every target would pass without having read anything.
    #[tokio::test]
    async fn kept_replies_arrive_and_are_understood() {
        let version = saying(&kept("version")).unwrap().version().await.unwrap();
        assert!(version.api_version.is_some_and(|version| !version.is_empty()));
        let api = saying(&[OK.as_bytes(), &kept("container")].concat()).unwrap();
        assert!(observed().look(&api, "pod-main").await.unwrap().is_some());
        let api = saying(&[OK.as_bytes(), &kept("events")].concat()).unwrap();
        assert!(api.events(None::<EventsOptions>).next().await.unwrap().unwrap().actor.is_some());
    }
}
