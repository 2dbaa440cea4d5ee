//! Agents and gateways of different releases: they meet in a version both speak, or say with a code that they cannot.

use std::time::Duration;

use serde_json::Value;
use tarbet_link::handshake::{Message, Progress, decode, encode};
use tarbet_link::{AgentInfo, Credential, Hello, Purpose, Refusal, RefusalCode, Versions};
use tarbet_testbed::{Folder, Lease, Process, Program, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SOON: Duration = Duration::from_mins(1);

/// A gateway that agents dial without TLS, so that the handshake is the first thing on the wire.
struct Gateway {
    _process: Process,
    ports: Lease,
    folder: Folder,
}

impl Gateway {
    async fn start() -> Self {
        let (folder, ports) = (Folder::new("skew").unwrap(), Lease::block(5).unwrap());
        let listen = |index: u16| format!("{{listen: '127.0.0.1:{}'}}", ports.port(index));
        let config = format!(
            "store: {{kind: memory}}\nobservability: {}\ngateway:\n  admin_token_file: {}\n  agents: {}\n  api: {}\n  kubernetes: {}\n  private: {}\n",
            listen(0),
            folder.path().join("admin.token").display(),
            listen(1),
            listen(2),
            listen(3),
            listen(4),
        );
        let config = folder.write("gateway.yaml", &config).unwrap();
        let program = Program::new(env!("CARGO_BIN_EXE_tarbet")).args(["gateway", "--config"]).arg(config);
        let mut process = Process::start(&folder, "gateway", program).unwrap();
        let ready = format!("http://127.0.0.1:{}/readyz", ports.port(0));
        let probe = || async { reqwest::get(&ready).await.and_then(reqwest::Response::error_for_status) };
        process.ready(SOON, probe).await.unwrap();
        Self { _process: process, ports, folder }
    }

    async fn add_site(&self, name: &str) -> String {
        let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_tarbet"))
            .args(["site", "add", name, "-o", "json"])
            .env("TARBET_SERVER", format!("http://127.0.0.1:{}", self.ports.port(2)))
            .env("TARBET_TOKEN_FILE", self.folder.path().join("admin.token"))
            .output()
            .await
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let site: Value = serde_json::from_slice(&output.stdout).unwrap();
        site["token"]["token"].as_str().unwrap().to_owned()
    }

    /// What it answers to an agent that speaks these versions, and the connection.
    async fn greet(&self, token: &str, versions: Versions) -> (Message, TcpStream) {
        let agent = AgentInfo {
            name: "other-release".into(),
            version: "9.9.9".into(),
            instance: uuid::Uuid::now_v7(),
            connection: uuid::Uuid::now_v7(),
            services: vec!["tcp".into()],
            purpose: Purpose::General,
        };
        let hello = Hello { versions, credential: Credential::new(token.as_bytes()), agent };
        let mut stream = TcpStream::connect(("127.0.0.1", self.ports.port(1))).await.unwrap();
        stream.write_all(&encode(&Message::Hello(hello)).unwrap()).await.unwrap();
        (read(&mut stream).await, stream)
    }
}

async fn read(stream: &mut TcpStream) -> Message {
    let mut bytes = Vec::new();
    loop {
        match decode(&bytes).unwrap() {
            Progress::Done(message) => return message,
            Progress::Need(_) => bytes.push(stream.read_u8().await.unwrap()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_meets_older_and_newer_agents_or_says_why_not() {
    let gateway = Gateway::start().await;
    let token = gateway.add_site("lab").await;
    // Releases too far away, in either direction.
    for (lowest, highest) in [(2, 3), (9, 9), (0, 0)] {
        let (said, _) = gateway.greet(&token, Versions { lowest, highest }).await;
        let Message::Refusal(refusal) = said else { panic!("versions {lowest} to {highest}: {said:?}") };
        assert_eq!(
            (refusal.code, refusal.versions),
            (RefusalCode::Version, Some(Versions { lowest: 1, highest: 1 }))
        );
        assert!(
            refusal.text.starts_with("TB-1501: ") && refusal.text.contains("upgrade the older side"),
            "{refusal}"
        );
    }
    // It is counted, once the refusal is sent.
    let metrics = format!("http://127.0.0.1:{}/metrics", gateway.ports.port(0));
    eventually(SOON, "three refusals", || async {
        let page = reqwest::get(&metrics).await?.text().await?;
        anyhow::ensure!(page.contains("tarbet_links_refused_total 3\n"), "{page}");
        Ok(())
    })
    .await
    .unwrap();
    // Releases before and after this one that share its version are served as ever.
    let mut open = Vec::new();
    for (lowest, highest) in [(0, 1), (1, 1), (1, 2), (1, 9)] {
        let (said, stream) = gateway.greet(&token, Versions { lowest, highest }).await;
        let Message::Welcome(welcome) = said else { panic!("versions {lowest} to {highest}: {said:?}") };
        assert_eq!(welcome.version, 1);
        open.push(stream);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_too_old_says_so_and_tries_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (folder, ports) = (Folder::new("skew").unwrap(), Lease::block(1).unwrap());
    let token = folder.write("lab.token", "tba_0123456789abcdef0123456789abcdef0123456789abcdef").unwrap();
    let (gateway, observe) =
        (format!("grpc://{}", listener.local_addr().unwrap()), format!("127.0.0.1:{}", ports.port(0)));
    let program = Program::new(env!("CARGO_BIN_EXE_tarbet"))
        .args(["agent", "--gateway", &gateway, "--observability-listen", &observe, "--token-file"])
        .arg(token);
    let agent = Process::start(&folder, "agent", program).unwrap();
    // A gateway of the future, which has dropped the version that this agent speaks.
    let future = tokio::spawn(async move {
        let mut hellos = 0;
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let Message::Hello(hello) = read(&mut stream).await else { panic!("no hello") };
            assert_eq!(hello.versions, Versions { lowest: 1, highest: 1 });
            let versions = Some(Versions { lowest: 2, highest: 4 });
            let text = "TB-1501: The agent speaks link versions 1 to 1, this gateway 2 to 4: upgrade the older side.";
            let refusal = Refusal { versions, ..Refusal::new(RefusalCode::Version, text) };
            stream.write_all(&encode(&Message::Refusal(refusal)).unwrap()).await.unwrap();
            hellos += 1;
            if hellos == 3 {
                return;
            }
        }
    });
    // It does not give up: the gateway may be replaced by one that it understands.
    tokio::time::timeout(SOON, future).await.unwrap().unwrap();
    eventually(SOON, "the agent to say why it has no link", || async {
        let page =
            reqwest::get(format!("http://{observe}/readyz")).await.map_err(|error| error.to_string())?;
        let (status, text) = (page.status(), page.text().await.unwrap_or_default());
        if status == 503 && text.contains("TB-1501") && text.contains("upgrade the older side") {
            Ok(())
        } else {
            Err(text)
        }
    })
    .await
    .unwrap();
    assert!(agent.is_running());
}
