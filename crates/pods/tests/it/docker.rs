//! Pods on a real Docker daemon.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use tarbet_pods::docker::{Docker, DockerConfig};
use tarbet_pods::plan::Policy;
use tarbet_pods::runner::Runner;
use tarbet_pods::wire::{ExecRequest, Frame, RetrievedPod};
use tarbet_testbed::{Dockerd, eventually};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::pods::{PATIENCE, ended, log, pod, shell, uid_of, until, with, word};

/// One daemon for all tests of this file.
pub(crate) async fn daemon() -> &'static Dockerd {
    static DAEMON: OnceCell<Dockerd> = OnceCell::const_new();
    let start = || async {
        let dockerd = Dockerd::start().await.unwrap();
        dockerd.shell_image("shell:1").await.unwrap();
        dockerd
    };
    DAEMON.get_or_init(start).await
}

pub(crate) fn config(host: String, root: &Path) -> DockerConfig {
    DockerConfig {
        host,
        root: root.to_owned(),
        policy: Policy::default(),
        network: "none".into(),
        dns: vec![],
        pull: None,
    }
}

struct Bed {
    docker: Arc<Docker>,
    root: tempfile::TempDir,
    stop: CancellationToken,
}

impl Bed {
    async fn new() -> Self {
        let (root, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
        let docker = Docker::open(config(daemon().await.url(), root.path()), stop.clone()).unwrap();
        Self { docker, root, stop }
    }

    async fn start(&self, pod: &RetrievedPod) -> String {
        self.docker.start(pod.clone()).await.unwrap();
        uid_of(pod)
    }

    /// Ends the plugin and starts another on the same folder.
    async fn reopen(&mut self) {
        self.stop.cancel();
        self.stop = CancellationToken::new();
        self.docker =
            Docker::open(config(daemon().await.url(), self.root.path()), self.stop.clone()).unwrap();
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn containers_of(uid: &str) -> usize {
    let filter = format!("label=dev.tarbet.pod.uid={uid}");
    daemon().await.docker(&["ps", "-aq", "--filter", &filter]).await.unwrap().lines().count()
}

#[tokio::test]
async fn init_containers_run_in_order_and_share_folders_with_the_others() {
    let bed = Bed::new().await;
    let mount = json!([{"name": "work", "mountPath": "/tekton/run/0"}]);
    let read_only = json!([{"name": "work", "mountPath": "/tekton/run/0", "readOnly": true}]);
    let with_mount = |mut container: serde_json::Value, mounts: &serde_json::Value| {
        container["volumeMounts"] = mounts.clone();
        container
    };
    let spec = json!({
        "volumes": [{"name": "work", "emptyDir": {}}],
        "initContainers": [
            with_mount(shell("one", "echo one >> /tekton/run/0/log"), &mount),
            with_mount(shell("two", "echo two >> /tekton/run/0/log; chmod 0311 /tekton/run/0/log"), &mount),
        ],
        "containers": [
            with_mount(shell("a", "cat /tekton/run/0/log; touch /tekton/run/0/a; hostname; nc -l -p 7001 -e echo served"), &mount),
            with_mount(shell("b", "exec 2>&1; until [ -e /tekton/run/0/a ]; do sleep 0.1; done; touch /tekton/run/0/x && exit 9; until nc 127.0.0.1 7001 | grep served; do sleep 0.1; done; exit 7"), &read_only),
        ],
    });
    let pod = pod(spec);
    let uid = bed.start(&pod).await;
    let state = ended(&*bed.docker, &uid).await;
    assert_eq!(super::pods::words(&state), "one=exit:0 two=exit:0 a=exit:0 b=exit:7");
    assert_eq!(log(&*bed.docker, &uid, "a", json!({})).await, "one\ntwo\npod\n");
    // One stream: Docker may swap lines of two.
    assert!(log(&*bed.docker, &uid, "b", json!({})).await.ends_with("served\n"));
    let b = &state.containers[1];
    assert!(b.container_id.as_ref().unwrap().starts_with("docker://"));
    assert!(b.image_id.contains("sha256:"));
    let end = b.state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(end.reason.as_deref(), Some("Error"));
    assert!(end.started_at.is_some() && end.finished_at.is_some());
    bed.docker.delete(&uid, None).await.unwrap();
    assert_eq!(containers_of(&uid).await, 0);
    assert_eq!(std::fs::read_dir(bed.root.path()).unwrap().count(), 1, "only the marks of deletions stay");
}

#[tokio::test]
async fn a_failing_init_container_keeps_the_others_from_running() {
    let bed = Bed::new().await;
    let pod = pod(json!({"initContainers": [shell("bad", "exit 3")], "containers": [shell("main", "true")]}));
    let uid = bed.start(&pod).await;
    let state = until(&*bed.docker, &uid, "the failure", |text| text.contains("bad=exit:3")).await;
    assert_eq!(word(&state.containers[0]), "exit:125");
    assert_eq!(containers_of(&uid).await, 2, "pause and the failed one");
    bed.docker.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn contents_variables_users_and_messages_arrive() {
    let bed = Bed::new().await;
    let script = "cat /cfg/key1 /sec/pw /info/name; ls /cfg; id -u; pwd; echo \"$GREETING\"; \
                  cat /sub; [ -w /cfg/key1 ] && exit 1; stat -L -c %a /sec/pw; printf 'the result' > /tekton/termination";
    let mut main = shell("main", script);
    main["command"] = json!(["sh", "-c"]);
    main["args"] = json!([script]);
    main["env"] = json!([{"name": "WHO", "value": "tutti"}, {"name": "GREETING", "value": "ciao a $(WHO) $$(WHO)"},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]);
    main["workingDir"] = json!("/not/there/yet");
    main["terminationMessagePath"] = json!("/tekton/termination");
    main["securityContext"] =
        json!({"runAsUser": 1000, "runAsGroup": 1000, "allowPrivilegeEscalation": false});
    main["resources"] = json!({"limits": {"cpu": "500m", "memory": "64Mi"}});
    main["volumeMounts"] = json!([
        {"name": "cfg", "mountPath": "/cfg"}, {"name": "sec", "mountPath": "/sec", "readOnly": true},
        {"name": "info", "mountPath": "/info"}, {"name": "cfg", "mountPath": "/sub", "subPath": "key1"},
    ]);
    let spec = json!({
        "volumes": [
            {"name": "cfg", "configMap": {"name": "settings"}},
            {"name": "sec", "secret": {"secretName": "mysecret", "defaultMode": 0o444}},
            {"name": "info", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ],
        "containers": [main],
    });
    let data = json!([{"name": "main",
        "configMaps": [{"metadata": {"name": "settings"}, "data": {"key1": "value1\n", "other": ""}}],
        "secrets": [{"metadata": {"name": "mysecret"}, "data": {"pw": "czNjcjN0Cg=="}}]}]);
    let pod = with(spec, data, json!({}));
    let uid = bed.start(&pod).await;
    let state = ended(&*bed.docker, &uid).await;
    let text = log(&*bed.docker, &uid, "", json!({})).await;
    let expected = "value1\ns3cr3t\npodkey1\nother\n1000\n/not/there/yet\nciao a tutti $(WHO)\nvalue1\n444\n";
    assert_eq!(text, expected);
    let end = state.containers[0].state.as_ref().unwrap().terminated.clone().unwrap();
    assert_eq!((end.exit_code, end.message.as_deref()), (0, Some("the result")));
    let laid = bed.root.path().join(format!("tests-{uid}/configMaps/settings/key1"));
    assert_eq!(std::fs::read_to_string(laid).unwrap(), "value1\n");
    bed.docker.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn downward_files_change_in_a_running_pod_and_images_are_replaced_once() {
    let bed = Bed::new().await;
    let mut wait = shell("step", "until [ \"$(cat /down/ready)\" = READY ]; do sleep 0.1; done; echo ready");
    wait["volumeMounts"] = json!([{"name": "down", "mountPath": "/down", "readOnly": true}]);
    let side = shell("sidecar", "sleep 1000");
    let field = "metadata.annotations['tekton.dev/ready']";
    let spec = json!({
        "volumes": [{"name": "down", "downwardAPI": {"items": [{"path": "ready", "fieldRef": {"fieldPath": field}}]}}],
        "containers": [wait, side],
    });
    let mut pod = with(spec, json!([]), json!({}));
    let uid = bed.start(&pod).await;
    until(&*bed.docker, &uid, "both to run", |text| text == "step=running sidecar=running").await;
    pod.pod.metadata.annotations = Some([("tekton.dev/ready".to_owned(), "READY".to_owned())].into());
    bed.docker.update(pod.clone()).await.unwrap();
    until(&*bed.docker, &uid, "the step to end", |text| text.starts_with("step=exit:0")).await;
    // The image changes while the pod runs: the container is replaced, and only that one.
    daemon().await.docker(&["tag", "shell:1", "nop:1"]).await.unwrap();
    let spec = pod.pod.spec.as_mut().unwrap();
    spec.containers[1].image = Some("nop:1".into());
    bed.docker.update(pod.clone()).await.unwrap();
    let state = until(&*bed.docker, &uid, "the new one", |text| text.ends_with("sidecar=running")).await;
    assert_eq!((state.containers[1].restart_count, state.containers[1].image.as_str()), (1, "nop:1"));
    assert_eq!(word(&state.containers[0]), "exit:0");
    bed.docker.delete(&uid, None).await.unwrap();
    assert_eq!(containers_of(&uid).await, 0);
}

#[tokio::test]
async fn a_second_create_starts_nothing_and_a_late_one_is_refused() {
    let bed = Bed::new().await;
    let pod = pod(json!({"containers": [shell("main", "echo once; sleep 1000")]}));
    let uid = uid_of(&pod);
    let starts = (0..8).map(|_| bed.docker.start(pod.clone()));
    for reply in futures::future::join_all(starts).await {
        assert_eq!(reply.unwrap().pod_jid, format!("tarbet-{uid}"));
    }
    until(&*bed.docker, &uid, "it to run", |text| text == "main=running").await;
    assert_eq!(containers_of(&uid).await, 1);
    bed.docker.delete(&uid, None).await.unwrap();
    let late = bed.docker.start(pod).await.unwrap_err();
    assert!(late.to_string().contains("deleted"), "{late}");
    bed.docker.delete(&uid, None).await.unwrap();
    assert_eq!(containers_of(&uid).await, 0);
}

#[tokio::test]
async fn one_container_that_runs_once_has_the_network_to_itself() {
    let bed = Bed::new().await;
    let pods = [("Never", 1, vec!["main"]), ("Always", 2, vec!["main"]), ("Never", 3, vec!["main", "other"])];
    let pods = pods.map(|(restart, made, names)| {
        let line = "hostname; grep -o 'far-away' /etc/hosts; sleep 1000";
        let containers: Vec<_> = names.iter().map(|name| shell(name, line)).collect();
        let aliases = json!([{"ip": "192.0.2.1", "hostnames": ["far-away"]}]);
        let spec = json!({"containers": containers, "restartPolicy": restart, "hostAliases": aliases});
        let running = names.iter().map(|name| format!("{name}=running")).collect::<Vec<_>>().join(" ");
        (pod(spec), made, running)
    });
    for (pod, made, running) in pods {
        let uid = bed.start(&pod).await;
        until(&*bed.docker, &uid, "it to run", |text| text == running).await;
        assert_eq!(containers_of(&uid).await, made, "{running}");
        eventually(PATIENCE, "the log", || async {
            let text = log(&*bed.docker, &uid, "main", json!({})).await;
            anyhow::ensure!(text == "pod\nfar-away\n", "{text}");
            Ok(())
        })
        .await
        .unwrap();
        bed.docker.delete(&uid, None).await.unwrap();
        assert_eq!(containers_of(&uid).await, 0);
    }
}

#[tokio::test]
async fn images_that_cannot_be_had_are_named_with_the_reason() {
    let bed = Bed::new().await;
    let container = |image: &str, policy: &str| {
        pod(
            json!({"containers": [{"name": "main", "image": image, "imagePullPolicy": policy, "command": ["true"]}]}),
        )
    };
    for (image, policy, reason) in [
        ("nowhere.invalid/none:1", "Never", "waiting:ErrImageNeverPull"),
        ("127.0.0.1:1/none:1", "IfNotPresent", "ImagePull"),
        ("UPPER/CASE", "IfNotPresent", "waiting:InvalidImageName"),
    ] {
        let uid = bed.start(&container(image, policy)).await;
        let state = until(&*bed.docker, &uid, reason, |text| text.contains(reason)).await;
        let waiting = state.containers[0].state.clone().unwrap().waiting.unwrap();
        assert!(waiting.message.unwrap().contains(image));
        bed.docker.delete(&uid, None).await.unwrap();
    }
    // A command that is not in the image is the container's own end, not a loop.
    let spec = json!({"containers": [{"name": "main", "image": "shell:1", "imagePullPolicy": "Never", "command": ["/none"]}]});
    let pod = pod(spec);
    let uid = bed.start(&pod).await;
    let state = until(&*bed.docker, &uid, "the end", |text| text.contains("=exit:")).await;
    let end = state.containers[0].state.clone().unwrap().terminated.unwrap();
    assert_eq!(end.reason.as_deref(), Some("StartError"));
    bed.docker.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn what_the_host_does_not_allow_is_refused_before_anything_is_made() {
    let bed = Bed::new().await;
    let mut privileged = shell("main", "true");
    privileged["securityContext"] = json!({"privileged": true});
    let mut capable = shell("main", "true");
    capable["securityContext"] = json!({"capabilities": {"add": ["SYS_ADMIN"]}});
    let mut host = shell("main", "true");
    host["volumeMounts"] = json!([{"name": "host", "mountPath": "/host"}]);
    let root = json!([{"name": "host", "hostPath": {"path": "/"}}]);
    for spec in [
        json!({"containers": [privileged]}),
        json!({"containers": [capable]}),
        json!({"containers": [host], "volumes": root}),
        json!({"containers": [shell("main", "true")], "hostNetwork": true}),
    ] {
        let error = bed.docker.start(pod(spec)).await.unwrap_err();
        assert!(error.to_string().contains("does not allow"), "{error}");
    }
    assert_eq!(std::fs::read_dir(bed.root.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn logs_can_be_followed_cut_and_timed() {
    let bed = Bed::new().await;
    let pod = pod(
        json!({"containers": [shell("main", "for i in 1 2 3; do echo tick $i; sleep 0.2; done; echo bad >&2")]}),
    );
    let uid = bed.start(&pod).await;
    until(&*bed.docker, &uid, "it to begin", |text| !text.contains("waiting")).await;
    let whole = log(&*bed.docker, &uid, "main", json!({"Follow": true})).await;
    assert_eq!(whole, "tick 1\ntick 2\ntick 3\nbad\n");
    assert_eq!(log(&*bed.docker, &uid, "main", json!({"Tail": 2})).await, "tick 3\nbad\n");
    assert_eq!(log(&*bed.docker, &uid, "main", json!({"Bytes": 9})).await, "tick 1\nti");
    let timed = log(&*bed.docker, &uid, "main", json!({"Timestamps": true, "Tail": 1})).await;
    let (time, rest) = timed.split_once(' ').unwrap();
    assert!(time.parse::<jiff::Timestamp>().is_ok() && rest == "bad\n", "{timed}");
    let later = json!({"SinceTime": jiff::Timestamp::now().checked_add(jiff::SignedDuration::from_hours(1)).unwrap()});
    assert_eq!(log(&*bed.docker, &uid, "main", later).await, "");
    bed.docker.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn commands_run_in_a_container_with_their_streams_and_code() {
    let bed = Bed::new().await;
    let pod = pod(json!({"containers": [shell("main", "sleep 1000")]}));
    let uid = bed.start(&pod).await;
    until(&*bed.docker, &uid, "it to run", |text| text == "main=running").await;
    let request = ExecRequest {
        pod_uid: uid.clone(),
        command: ["sh", "-c", "cat; echo err >&2; exit 5"].map(str::to_owned).to_vec(),
        stdin: true,
        ..Default::default()
    };
    let mut session = bed.docker.exec(request).await.unwrap();
    session.input.send(Frame::Stdin(Bytes::from_static(b"typed"))).await.unwrap();
    session.input.send(Frame::Stdin(Bytes::new())).await.unwrap();
    let (mut out, mut err, mut code) = (Vec::new(), Vec::new(), None);
    while let Some(frame) = session.output.recv().await {
        match frame {
            Frame::Stdout(bytes) => out.extend_from_slice(&bytes),
            Frame::Stderr(bytes) => err.extend_from_slice(&bytes),
            Frame::Exit(exit) => code = Some(exit),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((out.as_slice(), err.as_slice(), code), (&b"typed"[..], &b"err\n"[..], Some(5)));
    bed.docker.delete(&uid, None).await.unwrap();
}

#[tokio::test]
async fn pods_are_taken_up_again_after_a_restart_of_the_plugin() {
    let mut bed = Bed::new().await;
    let long = pod(json!({"containers": [shell("main", "echo begun; sleep 1000")]}));
    let slow =
        pod(json!({"initContainers": [shell("init", "sleep 1")], "containers": [shell("main", "exit 4")]}));
    let (long, slow) = (bed.start(&long).await, bed.start(&slow).await);
    until(&*bed.docker, &long, "it to run", |text| text == "main=running").await;
    let before = bed.docker.status(std::slice::from_ref(&long)).await.unwrap();
    bed.reopen().await;
    let state = until(&*bed.docker, &long, "it to be known", |text| text == "main=running").await;
    assert_eq!(state.containers[0].container_id, before[0].containers[0].container_id);
    assert_eq!(log(&*bed.docker, &long, "", json!({})).await, "begun\n");
    // Its turn came after the restart.
    assert_eq!(word(&ended(&*bed.docker, &slow).await.containers[0]), "exit:4");
    for uid in [long, slow] {
        bed.docker.delete(&uid, None).await.unwrap();
    }
}

#[tokio::test]
async fn what_somebody_else_removes_is_neither_started_again_nor_forgotten() {
    let mut bed = Bed::new().await;
    let (long, done, live) = (
        pod(json!({"containers": [shell("main", "sleep 1000")]})),
        pod(json!({"containers": [shell("main", "exit 4")]})),
        pod(json!({"containers": [shell("main", "sleep 1000")]})),
    );
    let (long, done, live) = (bed.start(&long).await, bed.start(&done).await, bed.start(&live).await);
    for uid in [&long, &live] {
        until(&*bed.docker, uid, "it to run", |text| text == "main=running").await;
    }
    let note = bed.root.path().join(format!("tests-{done}/ended/main-0"));
    eventually(PATIENCE, "the note of its end", || async { note.exists() }).await.unwrap();
    let remove = async |uid: &str| {
        daemon().await.docker(&["rm", "-f", &format!("tarbet-{uid}-main-0")]).await.unwrap();
    };
    // While the plugin looks it may see the kill before the removal: the end is the same.
    remove(&live).await;
    until(&*bed.docker, &live, "the loss", |text| text == "main=exit:137").await;
    // While it is away only the absence can be seen.
    bed.stop.cancel();
    remove(&long).await;
    remove(&done).await;
    bed.reopen().await;
    let lost = until(&*bed.docker, &long, "the loss", |text| text == "main=exit:137").await;
    let end = lost.containers[0].state.clone().unwrap().terminated.unwrap();
    assert!(end.message.unwrap().contains("removed"), "nobody knows how it ended");
    until(&*bed.docker, &done, "the end it had", |text| text == "main=exit:4").await;
    for uid in [long, done, live] {
        assert_eq!(containers_of(&uid).await, 0, "it held its own network, and nothing was started again");
        bed.docker.delete(&uid, None).await.unwrap();
    }
}

#[tokio::test]
async fn a_daemon_that_goes_away_is_said_and_comes_back() {
    let mut dockerd = Dockerd::start().await.unwrap();
    dockerd.shell_image("shell:1").await.unwrap();
    let (root, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
    let docker = Docker::open(config(dockerd.url(), root.path()), stop.clone()).unwrap();
    let pod = pod(json!({"containers": [shell("main", "sleep 1000")]}));
    let uid = uid_of(&pod);
    docker.start(pod.clone()).await.unwrap();
    until(&*docker, &uid, "it to run", |text| text == "main=running").await;
    dockerd.kill9().unwrap();
    eventually(PATIENCE, "the word that it is away", || async {
        docker.ping().await.status.starts_with("away")
    })
    .await
    .unwrap();
    let state = &docker.status(std::slice::from_ref(&uid)).await.unwrap()[0];
    assert!(state.stale_seconds > 0);
    assert_eq!(word(&state.containers[0]), "running", "nothing is known to have failed");
    assert!(docker.start(super::pods::pod(json!({"containers": [shell("x", "true")]}))).await.is_err());
    dockerd.restart().await.unwrap();
    eventually(PATIENCE, "it to be back", || async { docker.ping().await.status == "ok" }).await.unwrap();
    until(&*docker, &uid, "the end by the crash", |text| text.starts_with("main=exit:")).await;
    docker.delete(&uid, None).await.unwrap();
    stop.cancel();
}
