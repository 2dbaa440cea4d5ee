//! A gateway with its real listeners: certificates as credentials, ports, limits that change.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tarbet_identity::Subject;
use tarbet_identity::authority::{Authority, Issued, Leaf, Usage};
use tarbet_link::handshake::{AgentInfo, Credential, Hello, Purpose, VERSIONS};
use tarbet_link::{ByteStream, Settings};
use tarbet_reach::agent::policy::{Policy, TcpRule};
use tarbet_reach::agent::tcp::Tcp;
use tarbet_reach::agent::{Dispatcher, Door};
use tarbet_reach::config::{GatewayConfig, ListenerConfig, TlsFiles};
use tarbet_reach::directory::Directory;
use tarbet_reach::gateway::{Addresses, Gateway, Node};
use tarbet_reach::listen::{Listener, Place};
use tarbet_reach::quota::{QuotaConfig, SiteLimits};
use tarbet_store::{Clock, Store, StoreConfig};
use tarbet_telemetry::{Health, Metrics, Supervisor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

use super::lab::{PEER, site};

/// Everything on loopback, at ports that the system chooses.
fn config(folder: &Path, clients: Option<&Path>) -> GatewayConfig {
    let tls = TlsFiles {
        authority_folder: Some(folder.join("authority")),
        client_ca_file: clients.map(Path::to_owned),
        ..TlsFiles::default()
    };
    let plain = || ListenerConfig::at(Ipv4Addr::LOCALHOST, 0);
    let secured = || ListenerConfig { tls: Some(tls.clone()), ..plain() };
    let mut config =
        GatewayConfig { agents: plain(), api: secured(), kubernetes: secured(), ..GatewayConfig::default() };
    config.private.listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    config
}

struct Running {
    node: Node,
    addresses: Addresses,
    ports: Vec<SocketAddr>,
    store: Store,
    supervisor: Supervisor,
}

async fn start(config: GatewayConfig) -> Running {
    let store = tarbet_store::open(&StoreConfig::Memory {}, Clock::system()).await.unwrap();
    let gateway = Gateway::bind(config, &store, false, &Metrics::new("gateway", "0")).await.unwrap();
    let (node, addresses, ports) = (gateway.node(), gateway.addresses(), gateway.ports());
    let supervisor = Supervisor::default();
    gateway.start(&supervisor, &Health::default());
    Running { node, addresses, ports, store, supervisor }
}

fn client(folder: &Path, certificate: Option<&Issued>) -> reqwest::Client {
    let authority = std::fs::read(folder.join("authority/ca.crt")).unwrap();
    let authority = reqwest::Certificate::from_pem(&authority).unwrap();
    let mut client = reqwest::Client::builder().tls_certs_only([authority]);
    if let Some(issued) = certificate {
        let pair = format!("{}{}", issued.certificate_pem, issued.key_pem.expose());
        client = client.identity(reqwest::Identity::from_pem(pair.as_bytes()).unwrap());
    }
    client.build().unwrap()
}

#[tokio::test]
async fn a_certificate_is_a_credential_and_grants_say_for_what() {
    let folder = tempfile::tempdir().unwrap();
    let authority = |name: &str| Authority::open(folder.path().join(name), Timestamp::now()).unwrap();
    let (people, strangers) = (authority("people"), authority("strangers"));
    let trusted = folder.path().join("people.pem");
    std::fs::write(&trusted, people.certificate_pem()).unwrap();
    let mut config = config(folder.path(), Some(&trusted));
    let grants = json!([{"name": "bob*", "admin": true}, {"roles": {"lab": "viewer"}}]);
    config.certificates.grants = serde_json::from_value(grants).unwrap();
    let running = start(config).await;
    let directory = Directory::new(&running.store).unwrap();
    directory.add_site(&site("lab"), Timestamp::now()).await.unwrap();

    let leaf = Leaf::new(Usage::Client).subject(&Subject::site("ann").unwrap());
    let issue = |authority: &Authority| authority.issue(&leaf, Timestamp::now()).unwrap();
    let ann = client(folder.path(), Some(&issue(&people)));
    let api = format!("https://localhost:{}", running.addresses.api.port());
    let told: Value = ann.get(format!("{api}/v1/whoami")).send().await.unwrap().json().await.unwrap();
    assert!(told["name"].as_str().unwrap().starts_with("cert:"), "{told}");
    assert_eq!((&told["admin"], &told["roles"]["lab"]), (&false.into(), &"viewer".into()), "{told}");
    let sites: Value = ann.get(format!("{api}/v1/sites")).send().await.unwrap().json().await.unwrap();
    assert_eq!(sites[0]["name"], "lab", "a viewer sees it");
    let asked = async |client: &reqwest::Client| {
        let url =
            format!("https://localhost:{}/sites/lab/version", running.addresses.kubernetes.unwrap().port());
        let response = client.get(url).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    let (status, text) = asked(&ann).await;
    assert!(status == 403 && text.contains("TB-1101"), "a viewer sends no requests: {status} {text}");
    // Without a certificate there is nobody, and of another authority none is taken at all.
    let (status, text) = asked(&client(folder.path(), None)).await;
    assert!(status == 401, "{status} {text}");
    let stranger = client(folder.path(), Some(&issue(&strangers)));
    assert!(stranger.get(format!("{api}/v1/whoami")).send().await.is_err());
    running.supervisor.stop();
}

/// Answers five letters with capitals.
async fn shouting() -> SocketAddr {
    let backend = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = backend.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = backend.accept().await {
            tokio::spawn(async move {
                let mut word = [0; 5];
                while stream.read_exact(&mut word).await.is_ok() {
                    if stream.write_all(&word.map(|byte| byte.to_ascii_uppercase())).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

async fn shout(port: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(port).await?;
    stream.write_all(b"hello").await?;
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test]
async fn a_port_leads_to_the_host_it_names_as_far_as_the_site_permits() {
    let folder = tempfile::tempdir().unwrap();
    let backend = shouting().await;
    let mut config = config(folder.path(), None);
    let port = json!({"listen": "127.0.0.1:0", "site": "db", "target": backend.to_string()});
    config.ports = vec![serde_json::from_value(port).unwrap()];
    let limited = GatewayConfig {
        quotas: QuotaConfig {
            site: SiteLimits { streams: Some(1), ..SiteLimits::default() },
            ..QuotaConfig::default()
        },
        ..config.clone()
    };
    let running = start(config.clone()).await;
    let directory = Directory::new(&running.store).unwrap();
    let (_, token) = directory.add_site(&site("db"), Timestamp::now()).await.unwrap();

    let rule = |port: u16| TcpRule { host: "127.0.0.1".into(), ports: Some(vec![port]), callers: None };
    let permits = |port: u16| Policy { tcp: vec![rule(port)], ..Policy::default() };
    let tcp = Arc::new(Tcp::new(Duration::from_secs(5)));
    let dispatcher = Arc::new(Dispatcher::new(vec![tcp], permits(1)));
    let (near, far) = tokio::io::duplex(64 * 1024);
    tokio::spawn(running.node.clone().agent(ByteStream::new(near), PEER));
    let hello = Hello {
        versions: VERSIONS,
        credential: Credential::new(token.text().expose()),
        agent: AgentInfo {
            name: "db".into(),
            version: "0".into(),
            instance: Uuid::new_v4(),
            connection: Uuid::new_v4(),
            services: vec!["tcp".into()],
            purpose: Purpose::Bulk,
        },
    };
    let door = Arc::new(Door::of_links(Arc::clone(&dispatcher)));
    let (_link, driver) = tarbet_link::connect(far, hello, Settings::bulk(), door).await.unwrap();
    tokio::spawn(driver);

    let port = running.ports[0];
    assert!(shout(port).await.is_err(), "the site does not permit it");
    assert!(dispatcher.govern(permits(backend.port())) && !dispatcher.govern(permits(backend.port())));
    assert_eq!(shout(port).await.unwrap(), "HELLO", "the new policy counts at once");

    // A limit that comes while it runs counts from the next connection on, and goes again.
    running.node.reload(&limited);
    let mut held = TcpStream::connect(port).await.unwrap();
    held.write_all(b"first").await.unwrap();
    let mut answer = [0; 5];
    held.read_exact(&mut answer).await.unwrap();
    assert!(shout(port).await.is_err(), "one at once");
    running.node.reload(&config);
    assert_eq!(shout(port).await.unwrap(), "HELLO");
    running.supervisor.stop();
}

/// As the original: whoever is in front may need a while to notice that the gateway leaves.
#[tokio::test]
async fn a_gateway_that_is_told_to_stop_goes_on_accepting_for_a_while() {
    let folder = tempfile::tempdir().unwrap();
    for grace in [Duration::from_hours(1), Duration::ZERO] {
        let kubernetes = ListenerConfig::at(Ipv4Addr::LOCALHOST, 0);
        let config = GatewayConfig { kubernetes, listen_grace: grace, ..config(folder.path(), None) };
        let Running { addresses, supervisor, .. } = start(config).await;
        let at = addresses.kubernetes.unwrap();
        let stopping = supervisor.stopping(tarbet_telemetry::Stage::Intake);
        let ending = supervisor.clone();
        let ended = tokio::spawn(async move {
            ending.run(Duration::from_mins(1), std::future::pending).await.map_err(|problem| problem.code)
        });
        supervisor.stop();
        stopping.cancelled().await;
        if grace.is_zero() {
            ended.await.unwrap().unwrap();
            assert!(TcpStream::connect(at).await.is_err());
        } else {
            let answer = reqwest::get(format!("http://{at}/version")).await.unwrap();
            assert_eq!(answer.status(), 401);
            ended.abort();
        }
    }
}

#[tokio::test]
async fn a_listener_has_so_many_places_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path(), None);
    config.api.max_connections = 1;
    let running = start(config).await;
    let ask = async |client: &reqwest::Client| {
        let url = format!("https://localhost:{}/v1/whoami", running.addresses.api.port());
        client.get(url).send().await.map(|answer| answer.status().as_u16())
    };
    // The one who is in keeps the connection, unless this machine stalls for so long that it is ended.
    let mut crowded = None;
    for _ in 0..100 {
        let (first, second) = (client(folder.path(), None), client(folder.path(), None));
        if ask(&first).await.is_ok() && ask(&second).await.is_err() {
            crowded = Some((first, second));
            break;
        }
    }
    let (first, second) = crowded.expect("the second is never sent away");
    drop(first);
    let again = async {
        while ask(&second).await.ok() != Some(401) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), again).await.expect("a place that is free is given away");
    running.supervisor.stop();
}

#[tokio::test]
async fn a_listener_may_be_a_socket_in_the_file_system() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("api.sock");
    // Left behind by a process that was killed.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    let mut config = config(folder.path(), None);
    config.api =
        ListenerConfig { socket: Some(socket.clone()), ..ListenerConfig::at(Ipv4Addr::LOCALHOST, 0) };
    let running = start(config.clone()).await;
    let mut stream = tokio::net::UnixStream::connect(&socket).await.unwrap();
    stream.write_all(b"GET /v1/sites HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    // One that is in use belongs to whoever listens there, and a file to whoever wrote it.
    let file = folder.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    for taken in [&socket, &file] {
        config.api.socket = Some(taken.clone());
        let store = tarbet_store::open(&StoreConfig::Memory {}, Clock::system()).await.unwrap();
        let refused = Gateway::bind(config.clone(), &store, false, &Metrics::new("gateway", "0")).await;
        assert_eq!(refused.err().unwrap().code, tarbet_telemetry::codes::ground::ADDRESS_IN_USE.id);
        assert!(taken.exists());
    }
    running.supervisor.stop();
    // Whoever stops takes it away.
    let other = folder.path().join("other.sock");
    let listener = Listener::bind("api", Place::Socket(&other), None, &[]).await.unwrap();
    assert!(listener.is_socket() && other.exists());
    drop(listener);
    assert!(!other.exists());
}
