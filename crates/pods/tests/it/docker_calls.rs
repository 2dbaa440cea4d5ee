//! What the Docker plugin asks of its daemon, counted on the way.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use futures::future::join_all;
use serde_json::json;
use tarbet_pods::docker::Docker;
use tarbet_pods::runner::Runner;
use tarbet_testbed::verified;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

use super::docker::{config, daemon};
use super::pods::{effort, pod, shell, uid_of, until, words};

/// A socket that passes everything on to the daemon and notes the first line of each request.
struct Counted {
    folder: tempfile::TempDir,
    lines: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Counted {
    fn before(daemon: PathBuf) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("docker.sock")).unwrap();
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let noted = Arc::clone(&lines);
        let task = tokio::spawn(async move {
            while let Ok((caller, _)) = listener.accept().await {
                let (daemon, noted) = (daemon.clone(), Arc::clone(&noted));
                tokio::spawn(async move {
                    let daemon = UnixStream::connect(daemon).await.unwrap();
                    let (mut asks, mut hears) = caller.into_split();
                    let (mut answers, mut takes) = daemon.into_split();
                    tokio::spawn(async move { tokio::io::copy(&mut answers, &mut hears).await });
                    let (mut held, mut line) = (vec![0; 64 * 1024], Vec::new());
                    while let Ok(length @ 1..) = asks.read(&mut held).await {
                        for &byte in &held[..length] {
                            line.push(byte);
                            if byte == b'\n' {
                                let text = String::from_utf8_lossy(&line);
                                if let Some(asked) = text.strip_suffix(" HTTP/1.1\r\n") {
                                    noted.lock().unwrap().push(asked.to_owned());
                                }
                                line.clear();
                            }
                        }
                        if takes.write_all(&held[..length]).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { folder, lines, task }
    }

    fn url(&self) -> String {
        format!("unix://{}/docker.sock", self.folder.path().display())
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn the_daemon_is_asked_for_what_happens_and_not_for_each_question() {
    const PODS: usize = 5;
    /// The image, the making, the start, and looks after these and at the event of it.
    const FOR_EACH: usize = 6;
    /// Its version, and one of each that is made once: the stream of events and the first list.
    const FOR_ALL: usize = 4;
    let counted = Counted::before(daemon().await.socket());
    let (root, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
    let docker = Docker::open(config(counted.url(), root.path()), stop.clone()).unwrap();
    let pods: Vec<_> = (0..PODS).map(|_| pod(json!({"containers": [shell("main", "sleep 1000")]}))).collect();
    let uids: Vec<String> = pods.iter().map(uid_of).collect();
    for pod in pods {
        docker.start(pod).await.unwrap();
    }
    for uid in &uids {
        until(&*docker, uid, "the pod to run", |text| text == "main=running").await;
    }
    let asked = effort(200);
    let answers = join_all((0..asked).map(|turn| {
        let (docker, uids) = (&docker, &uids);
        async move { if turn % 2 == 0 { docker.status(uids).await } else { docker.list().await } }
    }));
    for states in answers.await {
        let states = states.unwrap();
        assert_eq!(states.len(), PODS);
        assert!(states.iter().all(|state| words(state) == "main=running"));
    }
    // Everything is listed once in a while, by the clock and not by what is asked.
    let mut calls = counted.lines();
    let lists = calls.iter().filter(|call| call.contains("/containers/json")).count();
    calls.retain(|call| !call.contains("/containers/json"));
    assert!(lists >= 1, "the daemon was asked here: {calls:#?}");
    for step in ["/create?", "/start", "/events?"] {
        assert!(calls.iter().any(|call| call.contains(step)), "{step} of {calls:#?}");
    }
    assert!(calls.len() <= PODS * FOR_EACH + FOR_ALL, "{} calls: {calls:#?}", calls.len());
    verified("questions for the states of pods that asked nothing of the Docker daemon", asked as usize);
    join_all(uids.iter().map(|uid| docker.delete(uid, None))).await;
    stop.cancel();
}
