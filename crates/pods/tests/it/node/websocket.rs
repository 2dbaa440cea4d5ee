//! Commands and forwards by WebSocket: straight to the node, and through the cluster's API server.

use anyhow::{Context, Result, bail, ensure};
use futures::{SinkExt, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::AttachParams;
use serde_json::{Value, json};
use tarbet_cluster::{Source, connect};
use tarbet_identity::tls::{CaSource, ClientTls, CredentialSource, TlsStream};
use tarbet_testbed::{Subject, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::{Bed, shell};
use crate::it::pods::PATIENCE;

type Socket = WebSocketStream<TlsStream<TcpStream>>;

/// Opens a WebSocket as a user of the cluster. Gives the protocol that was chosen too.
async fn dial(bed: &Bed, user: (&str, Option<&str>), url: &str, protocols: &str) -> Result<(Socket, String)> {
    let subject = Subject::client(user.0, user.1);
    let files = bed.plane.authority().issue_files(&subject, bed.root.path(), user.0)?;
    let tls = ClientTls::only(CaSource::Pem(bed.plane.authority().pem().to_owned()))
        .credential(CredentialSource::Files { certificate: files.certificate, key: files.key })
        .alpn(["http/1.1"])
        .build(Timestamp::now())?;
    let mut request = url.into_client_request()?;
    if !protocols.is_empty() {
        request.headers_mut().insert("sec-websocket-protocol", protocols.parse()?);
    }
    let address = request.uri().authority().context("no address")?.to_string();
    let stream = tls.connect("127.0.0.1", TcpStream::connect(address).await?).await?;
    let (socket, answer) = tokio_tungstenite::client_async(request, stream).await?;
    let chosen = answer.headers().get("sec-websocket-protocol");
    Ok((socket, chosen.map(|name| name.to_str().map(str::to_owned)).transpose()?.unwrap_or_default()))
}

const ADMIN: (&str, Option<&str>) = ("admin", Some("system:masters"));

/// What came on each channel until the other side closed.
#[derive(Default, Debug)]
struct Heard([Vec<u8>; 5]);

impl Heard {
    fn text(&self, channel: usize) -> String {
        String::from_utf8_lossy(&self.0[channel]).into_owned()
    }

    fn status(&self) -> Value {
        serde_json::from_slice(&self.0[3]).unwrap_or_default()
    }
}

async fn hear(socket: &mut Socket) -> Result<Heard> {
    let mut heard = Heard::default();
    loop {
        let message = tokio::time::timeout(PATIENCE, socket.next()).await.context("nothing comes")?;
        match message {
            Some(Ok(Message::Binary(piece))) => {
                let (channel, content) = piece.split_first().context("a message without a channel")?;
                heard.0[usize::from(*channel)].extend_from_slice(content);
            }
            Some(Ok(Message::Close(_)) | Err(Error::ConnectionClosed)) | None => return Ok(heard),
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.into()),
        }
    }
}

fn exec(bed: &Bed, words: &[&str], rest: &str) -> String {
    let escaped =
        |word: &&str| format!("command={}", word.replace(' ', "%20").replace('>', "%3E").replace('&', "%26"));
    let words: Vec<_> = words.iter().map(escaped).collect();
    format!("wss://{}/exec/{}/talker/main?{}&{rest}", bed.kubelet, bed.namespace, words.join("&"))
}

#[tokio::test]
async fn commands_run_over_websockets() -> Result<()> {
    let bed = Bed::new().await?;
    bed.pod("talker", json!({"containers": [shell("main", "sleep 1000")]})).await?;
    bed.phase("talker", "Running").await?;
    let streams = "output=1&error=1";

    // The fifth protocol can end the input of a command that reads it all.
    let url = exec(&bed, &["sh", "-c", "tr a-z A-Z; echo done >&2"], "input=1&output=1&error=1");
    let (mut socket, chosen) = dial(&bed, ADMIN, &url, "v5.channel.k8s.io,v4.channel.k8s.io").await?;
    ensure!(chosen == "v5.channel.k8s.io", "{chosen}");
    let text = "x".repeat(100_000);
    let message = [&[0], text.as_bytes()].concat();
    socket.send(Message::binary(message)).await?;
    socket.send(Message::binary(vec![255, 0])).await?;
    let heard = hear(&mut socket).await?;
    ensure!(heard.text(1) == text.to_uppercase(), "{} bytes came back", heard.0[1].len());
    ensure!(heard.text(2) == "done\n" && heard.status()["status"] == "Success", "{:?}", heard.status());

    // The fourth tells the code; the first, text; and so does a caller that names none.
    let url = exec(&bed, &["sh", "-c", "echo out; echo err >&2; exit 7"], streams);
    let (mut socket, _) = dial(&bed, ADMIN, &url, "v4.channel.k8s.io").await?;
    let heard = hear(&mut socket).await?;
    ensure!(heard.text(1) == "out\n" && heard.text(2) == "err\n", "{heard:?}");
    ensure!(heard.status()["details"]["causes"][0]["message"] == "7", "{}", heard.status());
    for protocols in ["channel.k8s.io", ""] {
        let (mut socket, chosen) = dial(&bed, ADMIN, &url, protocols).await?;
        ensure!(chosen == protocols, "{chosen}");
        let heard = hear(&mut socket).await?;
        ensure!(heard.text(3).contains("non-zero exit code: 7"), "{:?}", heard.text(3));
    }

    // As text.
    let (mut socket, _) = dial(&bed, ADMIN, &url, "v4.base64.channel.k8s.io").await?;
    let mut lines = Vec::new();
    while let Some(message) = socket.next().await {
        match message? {
            Message::Text(text) => lines.push(text.to_string()),
            Message::Close(_) => break,
            other => bail!("{other:?}"),
        }
    }
    ensure!(lines.contains(&"1b3V0Cg==".to_owned()) && lines.contains(&"2ZXJyCg==".to_owned()), "{lines:?}");

    // Through the API server, which hands protocols before the fifth on as they are.
    let path = "exec?container=main&command=echo&command=through&stdout=1&stderr=1";
    let server = bed.plane.server().replace("https://", "wss://");
    let url = format!("{server}/api/v1/namespaces/{}/pods/talker/{path}", bed.namespace);
    for protocol in ["v4.channel.k8s.io", "v5.channel.k8s.io"] {
        let (mut socket, chosen) = dial(&bed, ADMIN, &url, protocol).await?;
        ensure!(chosen == protocol, "{chosen}");
        let heard = hear(&mut socket).await?;
        ensure!(heard.text(1) == "through\n" && heard.status()["status"] == "Success", "{heard:?}");
    }

    // Nobody else, however it is asked for, and nothing that is unknown.
    let url = exec(&bed, &["true"], streams);
    let refused = |result: Result<(Socket, String)>| match result.map(drop).unwrap_err().downcast::<Error>() {
        Ok(Error::Http(answer)) => Ok(answer.status().as_u16()),
        other => bail!("{other:?}"),
    };

    // By its UID, and by no other's: another pod may have had the name.
    let uid = bed.get("talker").await?["metadata"]["uid"].as_str().context("no uid")?.to_owned();
    let by = |uid: &str| url.replace("/talker/main", &format!("/talker/{uid}/main"));
    let (mut socket, _) = dial(&bed, ADMIN, &by(&uid), "v4.channel.k8s.io").await?;
    ensure!(hear(&mut socket).await?.status()["status"] == "Success");
    let another = crate::it::pods::uid();
    for uid in [uid.to_uppercase(), another.clone(), "..".into(), "%2e%2e".into(), "talker".into()] {
        for url in [by(&uid), by(&uid).replace("/exec/", "/attach/")] {
            ensure!(refused(dial(&bed, ADMIN, &url, "v4.channel.k8s.io").await)? == 404, "{url}");
        }
    }
    let forward = format!("wss://{}/portForward/{}/talker/{another}?port=1", bed.kubelet, bed.namespace);
    ensure!(refused(dial(&bed, ADMIN, &forward, "v4.channel.k8s.io").await)? == 404);
    ensure!(refused(dial(&bed, ("stranger", None), &url, "v4.channel.k8s.io").await)? == 403);
    let role = format!("looks-{}", bed.node);
    bed.run(&["create", "clusterrole", &role, "--verb=get", "--resource=nodes/proxy"]).await?;
    bed.run(&["create", "clusterrolebinding", &role, &format!("--clusterrole={role}"), "--user=looker"])
        .await?;
    let server = format!("--server=https://{}", bed.kubelet);
    let looker = bed.plane.kubectl_as("looker", &[])?;
    let question = [server.as_str(), "get", "--raw", "/pods"];
    eventually(PATIENCE, "the permission", || looker.run(&question)).await?;
    ensure!(
        refused(dial(&bed, ("looker", None), &url, "v4.channel.k8s.io").await)? == 403,
        "who may look may not run commands"
    );
    ensure!(refused(dial(&bed, ADMIN, &url, "v9.channel.k8s.io").await)? == 403);
    Ok(())
}

#[tokio::test]
async fn attaching_and_forwarding_work_over_websockets() -> Result<()> {
    let bed = Bed::new().await?;
    let line = "read line; echo heard $line; exit 5";
    let mut listener = shell("main", line);
    listener["stdin"] = json!(true);
    bed.pod("listener", json!({"containers": [listener]})).await?;
    let line = "while true; do nc -l -p 8080 -e sh -c 'read line; echo heard $line'; done";
    bed.pod("server", json!({"containers": [shell("main", line)]})).await?;
    bed.phase("listener", "Running").await?;
    bed.phase("server", "Running").await?;

    let url =
        format!("wss://{}/attach/{}/listener/main?input=1&output=1&error=1", bed.kubelet, bed.namespace);
    let (mut socket, _) = dial(&bed, ADMIN, &url, "v5.channel.k8s.io").await?;
    socket.send(Message::binary(b"\0hello\n".to_vec())).await?;
    let heard = hear(&mut socket).await?;
    ensure!(heard.text(1) == "heard hello\n", "{heard:?}");

    // Each channel begins with its port; a second port of the pod has nobody behind it.
    let url = format!("wss://{}/portForward/{}/server?port=8080,8099", bed.kubelet, bed.namespace);
    let said = eventually(PATIENCE, "an answer through the forward", || async {
        let (mut socket, _) = dial(&bed, ADMIN, &url, "v4.channel.k8s.io").await?;
        socket.send(Message::binary(b"\0hello\n".to_vec())).await?;
        let heard = hear(&mut socket).await?;
        ensure!(heard.text(0).contains("heard hello"), "{heard:?}");
        anyhow::Ok(heard)
    })
    .await?;
    ensure!(
        said.0[0].starts_with(&8080_u16.to_le_bytes()) && said.0[1] == 8080_u16.to_le_bytes(),
        "{said:?}"
    );
    ensure!(said.text(3).contains("error forwarding port 8099"), "{said:?}");

    // A client of its own making: kube's, by way of the API server.
    let client = connect(&Source::file(bed.plane.kubeconfig())).await?;
    let pods: Api<Pod> = Api::namespaced(client, &bed.namespace);
    eventually(PATIENCE, "an answer through kube's forward", || async {
        let mut forward = pods.portforward("server", &[8080]).await?;
        let mut stream = forward.take_stream(8080).context("no stream")?;
        stream.write_all(b"kube\n").await?;
        let mut heard = [0; 11];
        stream.read_exact(&mut heard).await?;
        ensure!(&heard == b"heard kube\n", "{heard:?}");
        anyhow::Ok(())
    })
    .await?;
    let mut ran = pods.exec("server", ["echo", "by kube"], &AttachParams::default().stderr(false)).await?;
    let mut heard = String::new();
    ran.stdout().context("no output")?.read_to_string(&mut heard).await?;
    ensure!(heard == "by kube\n", "{heard:?}");
    Ok(())
}
