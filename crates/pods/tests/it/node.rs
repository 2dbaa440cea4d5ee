//! A virtual node of a real control plane, with pods on a real Docker daemon.

mod bed;
mod chain;
mod escapes;
mod outage;
mod points;
mod websocket;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tarbet_pods::node::NodeConfig;
use tarbet_testbed::{Kubectl, eventually, shared_pair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::pods::PATIENCE;
use bed::endpoint;
pub(crate) use bed::{Bed, shell};

fn with(mut container: Value, more: Value) -> Value {
    container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    container
}

#[tokio::test]
async fn a_pod_runs_to_its_end_with_all_that_it_mentions() -> Result<()> {
    let bed = Bed::new().await?;
    bed.apply("ConfigMap", "settings", json!({"data": {"colour": "green", "deep": "sea"}})).await?;
    bed.apply("Secret", "hidden", json!({"stringData": {"word": "a$(colour)$$b"}})).await?;
    let mounts = json!([
        {"name": "settings", "mountPath": "/settings"},
        {"name": "hidden", "mountPath": "/hidden"},
        {"name": "all", "mountPath": "/all"},
        {"name": "work", "mountPath": "/work"},
    ]);
    let line = "cat /settings/colour /work/made /hidden/word /all/deep/one /all/name; echo; \
                echo $WORD/$MIXED/$CM_deep/$NODE; test -s /var/run/secrets/kubernetes.io/serviceaccount/token && echo token; \
                grep -c CERTIFICATE /var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
    bed.pod(
        "whole",
        json!({
            "initContainers": [
                with(shell("first", "echo -n first > /work/made"), json!({"volumeMounts": [{"name": "work", "mountPath": "/work"}]})),
            ],
            "containers": [with(shell("main", line), json!({
                "volumeMounts": mounts,
                "envFrom": [{"prefix": "CM_", "configMapRef": {"name": "settings"}}],
                "env": [
                    {"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "word"}}},
                    {"name": "MIXED", "value": "<$(CM_colour)>"},
                    {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                ],
            }))],
            "volumes": [
                {"name": "settings", "configMap": {"name": "settings"}},
                {"name": "hidden", "secret": {"secretName": "hidden"}},
                {"name": "work", "emptyDir": {}},
                {"name": "all", "projected": {"sources": [
                    {"configMap": {"name": "settings", "items": [{"key": "deep", "path": "deep/one"}]}},
                    {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                ]}},
            ],
        }),
    )
    .await?;
    let pod = bed.phase("whole", "Succeeded").await?;
    let log = bed.run(&["logs", "whole"]).await?;
    let want = format!("greenfirsta$(colour)$$bseawhole\na$(colour)$$b/<green>/sea/{}\ntoken\n", bed.node);
    ensure!(log.starts_with(&want), "{log}");
    let status = &pod["status"];
    ensure!(status["containerStatuses"][0]["state"]["terminated"]["reason"] == "Completed", "{status}");
    ensure!(status["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0, "{status}");
    ensure!(pod["metadata"]["annotations"]["JobID"].as_str().is_some_and(|id| !id.is_empty()), "{pod}");
    // Finished pods stay, and are readable.
    ensure!(bed.run(&["logs", "whole", "--tail=1", "--timestamps"]).await?.contains('Z'));

    bed.pod("bad", json!({"containers": [shell("main", "echo over >&2; exit 7")]})).await?;
    let pod = bed.phase("bad", "Failed").await?;
    let end = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    ensure!(end["exitCode"] == 7 && end["reason"] == "Error", "{end}");
    ensure!(bed.run(&["logs", "bad"]).await? == "over");
    Ok(())
}

#[tokio::test]
async fn the_node_is_registered_as_interlinks_are() -> Result<()> {
    let bed = Bed::new().await?;
    let node = eventually(PATIENCE, "the node to be ready", || async {
        let node = bed.kubectl().json(&["get", "node", &bed.node]).await?;
        let ready = node["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
        if ready { Ok(node) } else { bail!("{}", node["status"]) }
    })
    .await?;
    ensure!(node["metadata"]["labels"]["virtual-node.interlink/type"] == "virtual-kubelet");
    let taints = node["spec"]["taints"].as_array().unwrap();
    ensure!(taints.iter().any(|taint| taint["key"] == "virtual-node.interlink/no-schedule"), "{taints:?}");
    ensure!(
        node["status"]["allocatable"]["cpu"] == "100"
            && node["status"]["addresses"][0]["address"] == "127.0.0.1"
    );
    ensure!(node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == bed.kubelet.port());
    let lease = bed.kubectl().json(&["--namespace", "kube-node-lease", "get", "lease", &bed.node]).await?;
    ensure!(
        lease["spec"]["holderIdentity"] == bed.node.as_str() && lease["spec"]["leaseDurationSeconds"] == 40
    );
    // The kubelet API answers the cluster and nobody else.
    let server = format!("--server=https://{}", bed.kubelet);
    let ask = async |kubectl: Kubectl, path: &str| kubectl.run(&[&server, "get", "--raw", path]).await;
    ensure!(ask(bed.kubectl(), "/pods").await?.contains("PodList"));
    ensure!(ask(bed.kubectl(), "/stats/summary").await?.contains(&bed.node));
    ensure!(ask(bed.kubectl(), "/metrics/resource").await?.contains("scrape_error 0"));
    let stranger = bed.plane.kubectl_as("stranger", &[])?;
    let refused = ask(stranger.clone(), "/pods").await.unwrap_err().to_string();
    ensure!(refused.to_lowercase().contains("forbidden"), "{refused}");
    ensure!(ask(stranger, "/healthz").await? == "ok");
    let token = bed.plane.service_account_token(&bed.namespace, "default").await?;
    let by_token = bed.plane.kubectl_with(bed.plane.kubeconfig_with_token(&token)?);
    ensure!(ask(by_token.clone(), "/pods").await.is_err());
    let account = format!("--serviceaccount={}:default", bed.namespace);
    let role = format!("kubelet-{}", bed.node);
    bed.run(&["create", "clusterrole", &role, "--verb=get", "--resource=nodes/metrics"]).await?;
    bed.run(&["create", "clusterrolebinding", &role, &format!("--clusterrole={role}"), &account]).await?;
    eventually(PATIENCE, "the permission", || ask(by_token.clone(), "/metrics")).await?;
    ensure!(ask(by_token, "/pods").await.is_err(), "one permission is not another");
    Ok(())
}

#[tokio::test]
async fn logs_are_followed_and_commands_run_in_containers() -> Result<()> {
    let bed = Bed::new().await?;
    let line = "echo one; until [ -e /tmp/go ]; do sleep 0.1; done; echo two; until [ -e /tmp/end ]; do sleep 0.1; done; echo three";
    bed.pod("talker", json!({"containers": [shell("main", line)]})).await?;
    bed.phase("talker", "Running").await?;
    let follow = async { bed.run(&["logs", "-f", "talker"]).await };
    let act = async {
        let said =
            bed.run(&["exec", "talker", "--", "sh", "-c", "echo out; echo err >&2; touch /tmp/go"]).await?;
        ensure!(said == "out", "{said}");
        let failed =
            bed.run(&["exec", "talker", "--", "sh", "-c", "echo oops >&2; exit 42"]).await.unwrap_err();
        ensure!(
            failed.to_string().contains("exit code 42") && failed.to_string().contains("oops"),
            "{failed}"
        );
        let words = ["--namespace", &bed.namespace, "exec", "-i", "talker", "--", "sh", "-c", "tr a-z A-Z"];
        let text = "x".repeat(200_000);
        let heard = bed.kubectl().run_with_input(&words, &text).await?;
        ensure!(heard == text.to_uppercase(), "{} of {} bytes came back", heard.len(), text.len());
        bed.run(&["exec", "talker", "--", "touch", "/tmp/end"]).await
    };
    let (log, acted) = tokio::join!(follow, act);
    acted?;
    ensure!(log? == "one\ntwo\nthree");
    bed.phase("talker", "Succeeded").await?;
    Ok(())
}

#[tokio::test]
async fn attaching_reaches_the_container_itself() -> Result<()> {
    let bed = Bed::new().await?;
    let line = "read line; echo heard $line; read line; exit 5";
    bed.pod("listener", json!({"containers": [with(shell("main", line), json!({"stdin": true}))]})).await?;
    bed.phase("listener", "Running").await?;
    let words = ["--namespace", &bed.namespace, "attach", "-i", "listener"];
    let heard = bed.kubectl().run_with_input(&words, "hello\nend\n").await;
    // kubectl tells the end of the container, or leaves with its input.
    let heard = heard.unwrap_or_else(|error| error.to_string());
    let end = bed.phase("listener", "Failed").await?;
    ensure!(end["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 5, "{heard} {end}");
    ensure!(bed.run(&["logs", "listener"]).await? == "heard hello", "{heard}");
    Ok(())
}

#[tokio::test]
async fn files_are_copied_and_ports_forwarded() -> Result<()> {
    let bed = Bed::new().await?;
    let line = "while true; do nc -l -p 8080 -e sh -c 'read line; echo heard $line'; done";
    bed.pod("server", json!({"containers": [shell("main", line)]})).await?;
    bed.phase("server", "Running").await?;
    let local = bed.root.path().join("file");
    let content = "a line of a file that is larger than any frame\n".repeat(10_000);
    std::fs::write(&local, &content)?;
    bed.run(&["cp", local.to_str().unwrap(), "server:/tmp/file"]).await?;
    let back: PathBuf = bed.root.path().join("back");
    bed.run(&["cp", "server:/tmp/file", back.to_str().unwrap()]).await?;
    ensure!(std::fs::read_to_string(&back)? == content);

    let lease = tarbet_testbed::Lease::block(1)?;
    let port = lease.port(0);
    let ports = format!("{port}:8080");
    let words = ["port-forward", "server", &ports];
    let forwarding = bed.run(&words);
    let talk = eventually(PATIENCE, "an answer through the forward", || async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(b"hello\n").await?;
        let mut heard = String::new();
        stream.read_to_string(&mut heard).await?;
        if heard == "heard hello\n" { Ok(()) } else { bail!("heard {heard:?}") }
    });
    tokio::select! {
        ended = forwarding => bail!("kubectl port-forward ended: {ended:?}"),
        talked = talk => talked?,
    }
    Ok(())
}

#[tokio::test]
async fn deleted_pods_end_in_their_grace_and_go() -> Result<()> {
    let bed = Bed::new().await?;
    let line = "trap 'echo bye; exit 0' TERM; while true; do sleep 0.1; done";
    bed.pod("brief", json!({"containers": [shell("main", line)], "terminationGracePeriodSeconds": 20}))
        .await?;
    let uid = bed.phase("brief", "Running").await?["metadata"]["uid"].as_str().unwrap().to_owned();
    ensure!(!bed.containers(&uid).await?.is_empty());
    bed.run(&["delete", "pod", "brief", "--wait=true", "--timeout=60s"]).await?;
    ensure!(bed.containers(&uid).await?.is_empty(), "its containers are gone before the pod is");
    // One that is gone from the cluster without a word is removed as well.
    bed.pod("forced", json!({"containers": [shell("main", "sleep 1000")]})).await?;
    let uid = bed.phase("forced", "Running").await?["metadata"]["uid"].as_str().unwrap().to_owned();
    bed.run(&["delete", "pod", "forced", "--force", "--grace-period=0"]).await?;
    eventually(PATIENCE, "its containers to go", || async {
        bed.containers(&uid).await.is_ok_and(|list| list.is_empty())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_node_that_starts_again_takes_up_what_runs() -> Result<()> {
    let mut bed = Bed::new().await?;
    let line = "until [ -e /tmp/end ]; do sleep 0.1; done; exit 3";
    bed.pod("lasting", json!({"containers": [shell("main", line)]})).await?;
    let before = bed.phase("lasting", "Running").await?;
    let uid = before["metadata"]["uid"].as_str().unwrap().to_owned();
    let containers = bed.containers(&uid).await?;
    bed.stop_node().await;
    bed.pod("meanwhile", json!({"nodeName": bed.node, "containers": [shell("main", "echo new")]})).await?;
    bed.start_node().await?;
    bed.phase("meanwhile", "Succeeded").await?;
    ensure!(bed.containers(&uid).await? == containers, "nothing was made a second time");
    bed.run(&["exec", "lasting", "--", "touch", "/tmp/end"]).await?;
    let after = bed.phase("lasting", "Failed").await?;
    let end = &after["status"]["containerStatuses"][0];
    ensure!(end["state"]["terminated"]["exitCode"] == 3 && end["restartCount"] == 0, "{end}");
    Ok(())
}

#[tokio::test]
async fn a_changed_annotation_reaches_the_file_of_a_running_pod() -> Result<()> {
    let bed = Bed::new().await?;
    let volume = json!({"name": "down", "downwardAPI": {"items": [
        {"path": "ready", "fieldRef": {"fieldPath": "metadata.annotations['tekton.dev/ready']"}}]}});
    let line = "until grep -q READY /down/ready; do sleep 0.1; done; cat /down/ready";
    let container =
        with(shell("main", line), json!({"volumeMounts": [{"name": "down", "mountPath": "/down"}]}));
    bed.pod("waits", json!({"containers": [container], "volumes": [volume]})).await?;
    bed.phase("waits", "Running").await?;
    bed.run(&["annotate", "pod", "waits", "tekton.dev/ready=READY"]).await?;
    bed.phase("waits", "Succeeded").await?;
    ensure!(bed.run(&["logs", "waits"]).await? == "READY");
    Ok(())
}

#[tokio::test]
async fn changed_contents_reach_the_files_of_a_running_pod() -> Result<()> {
    let bed = Bed::new().await?;
    bed.apply("ConfigMap", "settings", json!({"data": {"colour": "green"}})).await?;
    bed.apply("Secret", "hidden", json!({"stringData": {"word": "old"}})).await?;
    let line =
        "until grep -q blue /settings/colour && grep -q new /all/word; do sleep 0.1; done; cat /all/word";
    let mounts =
        json!([{"name": "settings", "mountPath": "/settings"}, {"name": "all", "mountPath": "/all"}]);
    let container = with(shell("main", line), json!({"volumeMounts": mounts}));
    let volumes = json!([
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "all", "projected": {"sources": [{"secret": {"name": "hidden"}}]}},
    ]);
    bed.pod("waits", json!({"containers": [container], "volumes": volumes})).await?;
    bed.phase("waits", "Running").await?;
    bed.apply("ConfigMap", "settings", json!({"data": {"colour": "blue"}})).await?;
    bed.apply("Secret", "hidden", json!({"stringData": {"word": "new"}})).await?;
    bed.phase("waits", "Succeeded").await?;
    ensure!(bed.run(&["logs", "waits"]).await? == "new");
    Ok(())
}

#[tokio::test]
async fn nothing_ends_while_interlink_is_away_and_a_deadline_does() -> Result<()> {
    let mut bed = Bed::new().await?;
    bed.pod("stays", json!({"containers": [shell("main", "sleep 1000")]})).await?;
    let uid = bed.phase("stays", "Running").await?["metadata"]["uid"].as_str().unwrap().to_owned();
    bed.endpoint_stop.cancel();
    eventually(PATIENCE, "the node to say so", || async {
        let node = bed.kubectl().json(&["get", "node", &bed.node]).await?;
        let said =
            node["status"]["conditions"].as_array().into_iter().flatten().any(|condition| {
                condition["type"] == "InterlinkConnectivity" && condition["status"] == "False"
            });
        if said { Ok(()) } else { bail!("{}", node["status"]["conditions"]) }
    })
    .await?;
    bed.pod(
        "later",
        json!({"nodeName": bed.node, "containers": [shell("main", "echo now")], "tolerations": []}),
    )
    .await?;
    let seen = bed.phase("later", "Pending").await?;
    ensure!(bed.get("stays").await?["status"]["phase"] == "Running", "{seen}");
    ensure!(!bed.containers(&uid).await?.is_empty());
    eventually(PATIENCE, "the pod to be held against eviction", || async {
        let pod = bed.get("stays").await?;
        let tolerations = pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
        let endless = tolerations.iter().all(|toleration| toleration["tolerationSeconds"].is_null());
        if endless && tolerations.len() > 2 { Ok(()) } else { bail!("{tolerations:?}") }
    })
    .await?;
    bed.endpoint_stop = CancellationToken::new();
    endpoint(Arc::clone(&bed.runner), bed.root.path(), bed.endpoint, bed.endpoint_stop.clone()).await?;
    bed.phase("later", "Succeeded").await?;
    bed.pod("late", json!({"containers": [shell("main", "sleep 1000")], "activeDeadlineSeconds": 2})).await?;
    let pod = bed.phase("late", "Failed").await?;
    ensure!(pod["status"]["reason"] == "DeadlineExceeded", "{}", pod["status"]);
    Ok(())
}

#[tokio::test]
async fn a_pod_waits_for_what_is_missing_and_is_refused_with_a_reason() -> Result<()> {
    let bed = Bed::new().await?;
    let env = json!({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "k"}}}]});
    bed.pod("waiting", json!({"containers": [with(shell("main", "echo $A"), env)]})).await?;
    eventually(PATIENCE, "the reason", || async {
        let pod = bed.get("waiting").await?;
        let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
        let text = waiting["message"].as_str().unwrap_or_default();
        if waiting["reason"] == "CreateContainerConfigError" && text.contains("late") {
            Ok(())
        } else {
            bail!("{pod}")
        }
    })
    .await?;
    bed.apply("ConfigMap", "late", json!({"data": {"k": "there"}})).await?;
    bed.phase("waiting", "Succeeded").await?;
    ensure!(bed.run(&["logs", "waiting"]).await? == "there");
    let spec = json!({"containers": [with(shell("main", "true"), json!({"securityContext": {"privileged": true}}))]});
    bed.pod("mighty", spec).await?;
    let pod = bed.phase("mighty", "Failed").await?;
    let message = pod["status"]["message"].as_str().context("no message")?;
    ensure!(pod["status"]["reason"] == "ProviderFailed" && message.contains("privileged"), "{message}");
    Ok(())
}

#[tokio::test]
async fn the_kustomization_gives_the_node_all_it_needs() -> Result<()> {
    let plane = &shared_pair().await?.public;
    let kubectl = plane.kubectl();
    kubectl.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "vk"}})).await?;
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kustomizations");
    kubectl.run(&["apply", "-k", folder]).await?;
    let settings = Path::new(folder).join("InterLinkConfig.yaml");
    let resources = Path::new(folder).join("vk-cfg.json").display().to_string();
    let environment = [("NODENAME", "tarbet-node"), ("VK_CONFIG_PATH", &resources)];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let config = tarbet_pods::node::config::load(NodeConfig::default(), Some(&settings), &environment)?;
    ensure!(config.mistakes().is_empty() && config.resources.cpu == "64", "{:?}", config.mistakes());

    let token = plane.service_account_token("vk", "tarbet-node").await?;
    let bed = Bed::with(plane.kubeconfig_with_token(&token)?).await?;
    bed.apply("ConfigMap", "settings", json!({"data": {"colour": "green"}})).await?;
    let container = with(
        shell("main", "cat /settings/colour; echo; sleep 1000"),
        json!({
        "volumeMounts": [{"name": "settings", "mountPath": "/settings"}]}),
    );
    let volumes = json!([{"name": "settings", "configMap": {"name": "settings"}}]);
    bed.pod("small", json!({"containers": [container], "volumes": volumes})).await?;
    bed.phase("small", "Running").await?;
    eventually(PATIENCE, "the log", || async {
        let log = bed.run(&["logs", "small"]).await?;
        if log == "green" { Ok(()) } else { bail!("{log:?}") }
    })
    .await?;
    ensure!(bed.run(&["exec", "small", "--", "echo", "in"]).await? == "in");
    bed.run(&["delete", "pod", "small", "--timeout=60s"]).await?;
    let events =
        bed.run(&["auth", "can-i", "list", "secrets", "--as=system:serviceaccount:vk:tarbet-node"]).await;
    ensure!(events.is_err(), "it may read the secrets that pods name, and list none");
    let reader = "--as=system:serviceaccount:vk:tarbet-node-reader";
    for what in ["pods", "configmaps", "secrets"] {
        kubectl.run(&["auth", "can-i", "get", what, "-n", "vk", reader]).await?;
        ensure!(
            bed.run(&["auth", "can-i", "get", what, reader]).await.is_err(),
            "{what} of another namespace"
        );
    }
    ensure!(kubectl.run(&["auth", "can-i", "list", "secrets", "-n", "vk", reader]).await.is_err());
    Ok(())
}

/// A node that is killed at any moment neither loses nor doubles a pod.
#[test]
fn killed_at_random_moments_the_node_makes_every_pod_once() -> Result<()> {
    let rounds = super::pods::effort(5);
    let outer = tokio::runtime::Runtime::new()?;
    let (mut bed, uids) = outer.block_on(async {
        let mut bed = Bed::new().await?;
        bed.stop_node().await;
        for n in 0..6 {
            let line = "echo ran >> /work/log; until [ -e /work/end ]; do sleep 0.2; done";
            let container =
                with(shell("main", line), json!({"volumeMounts": [{"name": "work", "mountPath": "/work"}]}));
            let volumes = json!([{"name": "work", "emptyDir": {}}]);
            let spec = json!({"nodeName": bed.node, "containers": [container], "volumes": volumes});
            bed.pod(&format!("pod-{n}"), spec).await?;
        }
        let uids = bed.run(&["get", "pods", "-o", "jsonpath={.items[*].metadata.uid}"]).await?;
        anyhow::Ok((bed, uids))
    })?;
    for round in 0..rounds {
        // A runtime of its own: dropping it ends every task wherever it is, as a kill would.
        let inner = tokio::runtime::Runtime::new()?;
        inner.block_on(bed.start_node())?;
        let pause = Duration::from_millis(rand::random_range(0..1500));
        inner
            .block_on(async { tokio::time::timeout(pause, std::future::pending::<()>()).await.unwrap_err() });
        bed.running = None;
        bed.kubelet.set_port(0);
        inner.shutdown_background();
        eprintln!("round {round}: killed after {pause:?}");
    }
    outer.block_on(async {
        bed.start_node().await?;
        for n in 0..6 {
            bed.phase(&format!("pod-{n}"), "Running").await?;
            // It is called running before its shell has written anything.
            let pod = format!("pod-{n}");
            let read = || async {
                let log = bed.run(&["exec", &pod, "--", "cat", "/work/log"]).await?;
                ensure!(!log.is_empty(), "nothing yet");
                anyhow::Ok(log)
            };
            let log = eventually(PATIENCE, "its log", read).await?;
            ensure!(log == "ran", "pod-{n} ran more than once: {log:?}");
        }
        for uid in uids.split_whitespace() {
            // Its own: what runs alone and once holds its network itself.
            ensure!(bed.containers(uid).await?.lines().count() == 1, "{uid}");
        }
        anyhow::Ok(())
    })?;
    tarbet_testbed::verified("a virtual node ends wherever it is: every pod is made once", rounds as usize);
    Ok(())
}

#[tokio::test]
async fn the_cluster_signs_the_certificate_of_a_node_without_one() -> Result<()> {
    let mut bed = Bed::new().await?;
    bed.stop_node().await;
    bed.own_certificate = false;
    bed.start_node().await?;
    let name = eventually(PATIENCE, "the request", || async {
        let found = bed.run(&["get", "csr", "-o", "name"]).await?;
        let wanted = format!("/vk-{}-", bed.node);
        found.lines().find(|name| name.contains(&wanted)).map(str::to_owned).context(found.clone())
    })
    .await?;
    bed.pod("small", json!({"containers": [shell("main", "echo here; sleep 1000")]})).await?;
    bed.phase("small", "Running").await?;
    let untrusted = bed.run(&["logs", "small"]).await.unwrap_err().to_string();
    ensure!(untrusted.contains("certificate"), "{untrusted}");
    bed.run(&["certificate", "approve", &name]).await?;
    eventually(PATIENCE, "the certificate", || bed.run(&["logs", "small"])).await?;
    Ok(())
}
