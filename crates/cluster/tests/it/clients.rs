//! Clients follow a rotated kubeconfig, and work over any stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::Api;
use kube::api::ListParams;
use serde_json::json;
use tarbet_cluster::{
    Class, Connect, Events, Severity, Source, apply, class, connect, connect_through, describe, finalizer,
};
use tarbet_testbed::{eventually, shared_pair};

const SOON: Duration = Duration::from_mins(1);

#[tokio::test]
async fn a_rotated_kubeconfig_is_taken_up_and_a_broken_one_is_not() {
    let pair = shared_pair().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let install = |from: &std::path::Path| {
        // As a mounted secret does it: the new file appears whole, under the old name.
        let next = folder.path().join("next");
        std::fs::copy(from, &next).unwrap();
        std::fs::rename(&next, &file).unwrap();
    };
    install(&pair.private.kubeconfig());
    let client = connect(&Source::file(&file)).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.get("default").await.unwrap();

    let nobody = pair.private.kubeconfig_for("nobody", &[]).unwrap();
    install(&nobody);
    let refused = || async {
        match namespaces.get("default").await {
            Err(error) if class(&error) == Class::Refused => Ok(()),
            other => Err(format!("{other:?}")),
        }
    };
    eventually(SOON, "the new user", refused).await.unwrap();

    std::fs::write(&file, "clusters: [broken").unwrap();
    // The look happens within a second; the old client must still be there after it.
    eventually(SOON, "the old user still", || async {
        std::fs::write(folder.path().join("probe"), "").map_err(|error| error.to_string())?;
        refused().await
    })
    .await
    .unwrap();

    install(&pair.public.kubeconfig());
    let public = pair.public.unique_namespace("rotated").await.unwrap();
    eventually(SOON, "the other cluster", || namespaces.get(&public)).await.unwrap();
}

#[tokio::test]
async fn a_missing_kubeconfig_says_which() {
    let error = connect(&Source::file("/nowhere/kubeconfig")).await.err().unwrap();
    let problem = tarbet_telemetry::Coded::problem(&error);
    assert!(problem.message.contains("/nowhere/kubeconfig"), "{problem:?}");
    assert_eq!((problem.code.as_str(), problem.exit_code()), ("TB-0951", 2));
}

#[tokio::test]
async fn a_client_works_through_any_stream() {
    let pair = shared_pair().await.unwrap();
    let opened = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&opened);
    let through = Connect::new(move |uri: http::Uri| {
        count.fetch_add(1, Ordering::Relaxed);
        let address = format!("{}:{}", uri.host().unwrap(), uri.port_u16().unwrap());
        // A pipe in the middle, as a link is.
        async move {
            let (near, mut far) = tokio::io::duplex(4096);
            let mut server = tokio::net::TcpStream::connect(address).await?;
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut far, &mut server).await });
            Ok(near)
        }
    });
    let client = connect_through(&Source::file(pair.public.kubeconfig()), through).await.unwrap();
    let listed = Api::<Namespace>::all(client).list(&ListParams::default()).await.unwrap();
    assert!(listed.items.len() >= 4);
    assert!(opened.load(Ordering::Relaxed) >= 1);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_nobody_uses_is_closed() {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": "http://cluster.test"}}],
        "users": [{"name": "x", "user": {}}],
    });
    std::fs::write(&file, config.to_string()).unwrap();
    let (ended, mut ends) = tokio::sync::mpsc::unbounded_channel();
    let through = Connect::new(move |_| {
        let ended = ended.clone();
        async move {
            let (near, far) = tokio::io::duplex(4096);
            tokio::spawn(async move {
                let (mut far, mut line) = (BufReader::new(far), String::new());
                while far.read_line(&mut line).await.unwrap() > 0 {
                    if std::mem::take(&mut line) == "\r\n" {
                        let body = r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"default"}}"#;
                        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length";
                        far.write_all(format!("{head}: {}\r\n\r\n{body}", body.len()).as_bytes())
                            .await
                            .unwrap();
                    }
                }
                ended.send(()).unwrap();
            });
            Ok(near)
        }
    });
    let client = connect_through(&Source::file(&file), through).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(client);
    for _ in 0..2 {
        namespaces.get("default").await.unwrap();
        tokio::time::timeout(Duration::from_mins(10), ends.recv()).await.expect("it stays open").unwrap();
    }
}

/// A proxy that connects those who know the password, and counts them.
async fn proxy(known: &'static str, served: Arc<AtomicUsize>) -> u16 {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_bidirectional};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let served = Arc::clone(&served);
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let (mut head, mut line) = (String::new(), String::new());
                while stream.read_line(&mut line).await? > 2 {
                    head += &std::mem::take(&mut line);
                }
                if !head.contains(&format!("Proxy-Authorization: Basic {known}\r\n")) {
                    return stream.write_all(b"HTTP/1.1 407 Who are you\r\n\r\n").await;
                }
                let target = head.split(' ').nth(1).unwrap_or_default();
                let mut server = tokio::net::TcpStream::connect(target).await?;
                stream.write_all(b"HTTP/1.1 200 Connected\r\nVia: test\r\n\r\n").await?;
                served.fetch_add(1, Ordering::Relaxed);
                copy_bidirectional(&mut stream, &mut server).await.map(drop)
            });
        }
    });
    port
}

#[tokio::test]
async fn a_cluster_is_reached_through_the_proxy_of_its_kubeconfig() {
    let pair = shared_pair().await.unwrap();
    let served = Arc::new(AtomicUsize::new(0));
    // ann:secret
    let port = proxy("YW5uOnNlY3JldA==", Arc::clone(&served)).await;
    let folder = tempfile::tempdir().unwrap();
    let list = async |proxy: String| {
        let text = std::fs::read_to_string(pair.public.kubeconfig()).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config["clusters"][0]["cluster"]["proxy-url"] = json!(proxy);
        let file = folder.path().join("kubeconfig");
        std::fs::write(&file, config.to_string()).unwrap();
        let client = connect(&Source::file(&file)).await.unwrap();
        Api::<Namespace>::all(client).list(&ListParams::default()).await
    };
    let listed = list(format!("http://ann:secret@127.0.0.1:{port}")).await.unwrap();
    assert!(listed.items.len() >= 4 && served.load(Ordering::Relaxed) >= 1);
    let refused = list(format!("http://ann:wrong@127.0.0.1:{port}")).await.unwrap_err();
    let said = describe(&refused);
    assert!(said.contains("407 Who are you") && !said.contains("wrong"), "{said}");
    let other = describe(&list(format!("socks5://127.0.0.1:{port}")).await.unwrap_err());
    assert!(other.contains("only http proxies"), "{other}");
}

#[tokio::test]
async fn applied_fields_are_ours_and_those_of_others_stay() {
    let pair = shared_pair().await.unwrap();
    let namespace = pair.private.unique_namespace("apply").await.unwrap();
    let client = connect(&Source::file(pair.private.kubeconfig())).await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
    let map = |data: serde_json::Value| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "shared" }, "data": data });
    apply(&api, "shared", "one", &map(json!({ "a": "1", "b": "1" }))).await.unwrap();
    apply(&api, "shared", "two", &map(json!({ "c": "2" }))).await.unwrap();
    let shared = apply(&api, "shared", "one", &map(json!({ "a": "3" }))).await.unwrap();
    let data = shared.data.clone().unwrap();
    assert_eq!(data.into_iter().collect::<Vec<_>>(), [("a".into(), "3".into()), ("c".into(), "2".into())]);

    let patch = finalizer::adding(&shared.metadata, "tarbet.dev/test").unwrap();
    let held = finalizer::write(&api, "shared", &patch).await.unwrap();
    let stale = finalizer::write(&api, "shared", &patch).await.unwrap_err();
    assert_eq!(class(&stale), Class::Conflict, "a patch made for an older version is refused");
    api.delete("shared", &kube::api::DeleteParams::default()).await.unwrap();
    let held = api.get(&held.metadata.name.unwrap()).await.unwrap();
    let patch = finalizer::removing(&held.metadata, "tarbet.dev/test").unwrap();
    finalizer::write(&api, "shared", &patch).await.unwrap();
    eventually(SOON, "the end of it", || async {
        api.get_opt("shared").await.is_ok_and(|found| found.is_none())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn events_are_told_and_a_cluster_that_refuses_them_harms_nothing() {
    let pair = shared_pair().await.unwrap();
    let namespace = pair.private.unique_namespace("events").await.unwrap();
    let client = connect(&Source::file(pair.private.kubeconfig())).await.unwrap();
    let about = k8s_openapi::api::core::v1::ObjectReference {
        kind: Some("ConfigMap".into()),
        name: Some("x".into()),
        namespace: Some(namespace.clone()),
        ..Default::default()
    };
    let events = Events::new(client, "tarbet-test");
    events.tell(&about, Severity::Warning, "Test", "Tested", &"long ".repeat(1000)).await;
    let listed =
        pair.private.kubectl().json(&["get", "events.events.k8s.io", "-n", &namespace]).await.unwrap();
    assert_eq!(listed["items"][0]["reason"], "Tested");
    let nobody = connect(&Source::file(pair.private.kubeconfig_for("nobody", &[]).unwrap())).await.unwrap();
    Events::new(nobody, "tarbet-test").tell(&about, Severity::Normal, "Test", "Tested", "").await;
}
