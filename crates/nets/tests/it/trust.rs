//! Listeners with TLS, certificates and tokens, and what becomes of callers without.

use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::NetsConfig;
use tarbet_nets::cloud::{Cloud as _, MemoryCloud, Remote};
use tarbet_nets::config::ListenConfig;
use tarbet_nets::controller::{Controller as _, RemoteController};
use tarbet_nets::role::Surroundings;
use tarbet_nets::tags::Sharing;
use tarbet_nets::trust::{DialTrust, ListenTrust};
use tarbet_nets::wire::tags::tag_service_client::TagServiceClient;
use tarbet_nets::wire::tags::{GetTagRequest, kv_store_client::KvStoreClient};
use tarbet_telemetry::{Coded, Health, Metrics, Supervisor};
use tarbet_testbed::{Authority, CertificateFiles, Folder, Lease, Subject};
use tonic::transport::Endpoint;

use super::bed;

struct World {
    folder: Folder,
    server: CertificateFiles,
    client: CertificateFiles,
    ports: Lease,
}

impl World {
    fn new() -> Self {
        let folder = Folder::new("nets-trust").unwrap();
        let authority = Authority::new("nets").unwrap();
        let server = authority.issue_files(&Subject::loopback("nets"), folder.path(), "server").unwrap();
        let client = authority.issue_files(&Subject::client("me", None), folder.path(), "client").unwrap();
        Self { folder, server, client, ports: Lease::block(5).unwrap() }
    }

    fn tokens(&self, tokens: &str) -> std::path::PathBuf {
        self.secret("tokens", tokens)
    }

    fn secret(&self, name: &str, text: &str) -> std::path::PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.folder.write(name, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn listening(&self) -> ListenTrust {
        ListenTrust {
            cert_file: Some(self.server.certificate.clone()),
            key_file: Some(self.server.key.clone()),
            ..ListenTrust::default()
        }
    }

    fn config(&self, security: &ListenTrust, trust: &DialTrust) -> NetsConfig {
        let at = |index| json!({ "host": "127.0.0.1", "port": self.ports.port(index) });
        let config = json!({
            "server": { "host": "127.0.0.1", "port": self.ports.port(0), "rpcPort": self.ports.port(1) },
            "tagService": at(2), "kvStore": at(3), "security": security,
            "cloudPlugins": [{ "name": "east", "host": "localhost", "port": self.ports.port(4), "trust": trust }],
            "namespaces": { "default": [{ "name": "east", "deployment": "e" }] },
        });
        serde_json::from_value(config).unwrap()
    }

    /// A remembered cloud behind its own listener, which calls the orchestrator.
    async fn plugin(&self, security: &ListenTrust, trust: &DialTrust, supervisor: &Supervisor) {
        let at = ListenConfig { host: "localhost".into(), port: self.ports.port(1) };
        let controller = RemoteController::trusting(&[at], trust).unwrap();
        let cloud = std::sync::Arc::new(MemoryCloud::new("east", std::sync::Arc::new(controller)));
        let at = ListenConfig { host: "127.0.0.1".into(), port: self.ports.port(4) };
        let around = Surroundings {
            store: bed::memory().await,
            sharing: Sharing::Alone,
            metrics: Metrics::new("cloud", "test"),
            health: Health::default(),
            supervisor: supervisor.clone(),
        };
        tarbet_nets::role::cloud("east", cloud, &at, security, &around).await.unwrap();
    }
}

fn ca(path: &Path) -> reqwest::Certificate {
    reqwest::Certificate::from_pem(&std::fs::read(path).unwrap()).unwrap()
}

async fn create(client: &reqwest::Client, url: &str, token: Option<&str>) -> (u16, Value) {
    let url = format!("{url}/namespaces/default/clouds/east/resources/vm");
    let request = client.request(Method::PUT, url).json(&json!({ "description": "" }));
    let request = if let Some(token) = token { request.bearer_auth(token) } else { request };
    let answer = request.send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap_or_default())
}

#[tokio::test]
async fn with_tokens_every_listener_asks_for_one() {
    let world = World::new();
    let security =
        ListenTrust { tokens_file: Some(world.tokens("first-token\nsecond-token\n")), ..world.listening() };
    let trust = DialTrust {
        ca_file: Some(world.server.authority.clone()),
        token_file: Some(world.secret("mine", "second-token\n")),
        ..DialTrust::default()
    };
    let supervisor = Supervisor::default();
    world.plugin(&security, &trust, &supervisor).await;
    let running = bed::orchestrator(&world.config(&security, &trust), &bed::memory().await).await;

    // REST to the orchestrator, gRPC to the plugin, gRPC back to the orchestrator: all with TLS and a token.
    let client =
        reqwest::Client::builder().add_root_certificate(ca(&world.server.authority)).build().unwrap();
    let (status, refused) = create(&client, &running.rest, None).await;
    assert_eq!((status, refused["code"].as_str()), (401, Some("TB-4207")), "{refused}");
    assert_eq!(create(&client, &running.rest, Some("third-token")).await.0, 401);
    let (status, made) = create(&client, &running.rest, Some("first-token")).await;
    assert_eq!((status, made["ip"].as_str()), (200, Some("10.0.0.4")), "{made}");

    // Plaintext finds nobody, and TLS without a token is told so, on every listener.
    let plain = RemoteController::new("localhost", world.ports.port(1)).unwrap();
    assert_eq!(plain.used_spaces().await.unwrap_err().problem().code, "TB-4204");
    let bare = DialTrust { token_file: None, ..trust.clone() };
    let at = ListenConfig { host: "localhost".into(), port: world.ports.port(1) };
    let stranger = RemoteController::trusting(&[at], &bare).unwrap();
    assert_eq!(stranger.used_spaces().await.unwrap_err().problem().code, "TB-4207");
    let plugin = Remote::trusting("east", "localhost", world.ports.port(4), &bare).unwrap();
    assert_eq!(plugin.permit_list("default", "x").await.unwrap_err().problem().code, "TB-4207");
    for port in [2, 3] {
        let plain = Endpoint::from_shared(format!("http://127.0.0.1:{}", world.ports.port(port))).unwrap();
        let channel = plain.connect_lazy();
        let failed = if port == 2 {
            let get = GetTagRequest { tag_name: "x".into() };
            TagServiceClient::new(channel).get_tag(get).await.map(drop)
        } else {
            KvStoreClient::new(channel).get(tarbet_nets::wire::tags::GetRequest::default()).await.map(drop)
        };
        failed.unwrap_err();
    }

    // A token that is taken out of the file is dead soon.
    world.tokens("second-token\n");
    tarbet_testbed::eventually(std::time::Duration::from_mins(1), "the token dies", || async {
        create(&client, &running.rest, Some("first-token")).await.0 == 401
    })
    .await
    .unwrap();
    supervisor.stop();
}

#[tokio::test]
async fn with_an_authority_of_clients_only_certificates_get_through() {
    let world = World::new();
    let security = ListenTrust { client_ca_file: Some(world.server.authority.clone()), ..world.listening() };
    let trust = DialTrust {
        ca_file: Some(world.server.authority.clone()),
        cert_file: Some(world.client.certificate.clone()),
        key_file: Some(world.client.key.clone()),
        ..DialTrust::default()
    };
    let supervisor = Supervisor::default();
    world.plugin(&security, &trust, &supervisor).await;
    let running = bed::orchestrator(&world.config(&security, &trust), &bed::memory().await).await;
    let builder = || reqwest::Client::builder().add_root_certificate(ca(&world.server.authority));
    let stranger = builder().build().unwrap();
    stranger.get(format!("{}/ping", running.rest)).send().await.unwrap_err();
    let pem =
        [&world.client.certificate, &world.client.key].map(|path| std::fs::read(path).unwrap()).concat();
    let known = builder().identity(reqwest::Identity::from_pem(&pem).unwrap()).build().unwrap();
    let (status, made) = create(&known, &running.rest, None).await;
    assert_eq!((status, made["ip"].as_str()), (200, Some("10.0.0.4")), "{made}");
    let bare = DialTrust { cert_file: None, key_file: None, ..trust };
    let plugin = Remote::trusting("east", "localhost", world.ports.port(4), &bare).unwrap();
    assert_eq!(plugin.permit_list("default", "x").await.unwrap_err().problem().code, "TB-4201");
    supervisor.stop();
}

#[tokio::test]
async fn certificates_that_are_replaced_are_followed_while_calls_go_on() {
    let world = World::new();
    let security = ListenTrust { client_ca_file: Some(world.server.authority.clone()), ..world.listening() };
    let trust = DialTrust {
        ca_file: Some(world.server.authority.clone()),
        cert_file: Some(world.client.certificate.clone()),
        key_file: Some(world.client.key.clone()),
        ..DialTrust::default()
    };
    let supervisor = Supervisor::default();
    world.plugin(&security, &trust, &supervisor).await;
    let running = bed::orchestrator(&world.config(&security, &trust), &bed::memory().await).await;
    // As the files are when it is called.
    let person = || {
        let pem =
            [&world.client.certificate, &world.client.key].map(|path| std::fs::read(path).unwrap()).concat();
        let builder = reqwest::Client::builder().tls_certs_only([ca(&world.server.authority)]);
        builder.identity(reqwest::Identity::from_pem(&pem).unwrap()).build().unwrap()
    };
    let before = person();
    let (status, made) = create(&before, &running.rest, None).await;
    assert_eq!((status, made["ip"].as_str()), (200, Some("10.0.0.4")), "{made}");
    // Those that read their files now, and dial later.
    let plugin = Remote::trusting("east", "localhost", world.ports.port(4), &trust).unwrap();
    let at = ListenConfig { host: "localhost".into(), port: world.ports.port(1) };
    let controller = RemoteController::trusting(&[at], &trust).unwrap();

    // Another authority, with everything that it vouches for.
    let authority = Authority::new("another").unwrap();
    authority.issue_files(&Subject::loopback("nets"), world.folder.path(), "server").unwrap();
    authority.issue_files(&Subject::client("me", None), world.folder.path(), "client").unwrap();
    let after = person();
    tarbet_testbed::eventually(
        std::time::Duration::from_mins(1),
        "the listener shows the new one",
        || async {
            assert_eq!(
                create(&before, &running.rest, None).await,
                (200, made.clone()),
                "who is connected stays"
            );
            let answer = after.get(format!("{}/ping", running.rest)).send().await;
            answer.map(drop).map_err(|error| format!("{error:?}"))
        },
    )
    .await
    .unwrap();
    tarbet_testbed::eventually(
        std::time::Duration::from_mins(1),
        "gRPC does as well, at both ends",
        || async {
            let rules = plugin.permit_list("default", made["uri"].as_str().unwrap()).await;
            rules.map_err(|error| format!("{error:?}"))?;
            controller.used_spaces().await.map(drop).map_err(|error| format!("{error:?}"))
        },
    )
    .await
    .unwrap();
    let stranger = reqwest::Client::builder().tls_certs_only([ca(&world.server.authority)]).build().unwrap();
    stranger.get(format!("{}/ping", running.rest)).send().await.unwrap_err();
    supervisor.stop();
}

#[tokio::test]
async fn beyond_loopback_a_listener_needs_tls_and_something_to_ask() {
    let world = World::new();
    let tokens = Some(world.tokens("a-token\n"));
    let wrong = [
        (ListenTrust::default(), "is not loopback"),
        (ListenTrust { tokens_file: tokens, ..ListenTrust::default() }, "is not loopback"),
        (world.listening(), "would be open to everybody"),
        (ListenTrust { key_file: None, ..world.listening() }, "belong together"),
    ];
    for (security, said) in wrong {
        let mut config = world.config(&security, &DialTrust::default());
        config.server.host = "0.0.0.0".into();
        let around = Surroundings {
            store: bed::memory().await,
            sharing: Sharing::Alone,
            metrics: Metrics::new("nets", "test"),
            health: Health::default(),
            supervisor: Supervisor::default(),
        };
        let refused = tarbet_nets::role::nets(config, &around).await.err().unwrap().problem();
        assert!(refused.message.contains(said), "{said}: {}", refused.message);
        around.supervisor.stop();
    }
}
