//! The drill: somebody owns a gateway with all its keys, and asks a site for what it does not permit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use http::Request;
use tarbet_link::{
    Accepted, Address, AgentInfo, Body, ByteStream, Credential, Dialer, Hello, Link, Purpose, Settings,
    Target, Versions,
};
use tarbet_reach::agent::kubernetes::Kubernetes;
use tarbet_reach::agent::policy::Policy;
use tarbet_reach::agent::tcp::Tcp;
use tarbet_reach::agent::{Dispatcher, Door};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use uuid::Uuid;

use super::lab::{ask, target};

/// A server at the site that counts whoever gets to it.
struct Server {
    port: u16,
    met: Arc<AtomicUsize>,
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, met) = (listener.local_addr().unwrap().port(), Arc::<AtomicUsize>::default());
        let counted = Arc::clone(&met);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, SeqCst);
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        let Ok(byte) = stream.read_u8().await else { return };
                        head.push(byte);
                    }
                    let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
                    let _gone = stream.write_all(answer).await;
                });
            }
        });
        Self { port, met }
    }

    fn met(&self) -> usize {
        self.met.load(SeqCst)
    }
}

/// The attacker's end of a link to the site, which does not know that its gateway changed hands.
async fn owned(door: Door) -> Link {
    let (near, far) = tokio::io::duplex(256 * 1024);
    let hello = Hello {
        versions: Versions { lowest: 1, highest: 1 },
        credential: Credential::new("token"),
        agent: AgentInfo {
            name: "agent".into(),
            version: "0".into(),
            instance: Uuid::nil(),
            connection: Uuid::nil(),
            services: door.offered(),
            purpose: Purpose::General,
        },
    };
    let yes = |_| async {
        Ok(Accepted { link: Uuid::nil(), gateway: "gateway".into(), settings: Settings::default() })
    };
    let (link, ()) = tokio::join!(
        async {
            let (link, driver) =
                tarbet_link::accept(ByteStream::new(near), Duration::from_mins(1), yes).await.unwrap();
            tokio::spawn(driver);
            link
        },
        async {
            let (_, driver) =
                tarbet_link::connect(ByteStream::new(far), hello, Settings::default(), Arc::new(door))
                    .await
                    .unwrap();
            tokio::spawn(driver);
        }
    );
    link
}

fn asked(method: &str, path: &str, headers: &[(&str, &str)]) -> Option<Request<Body>> {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(Body::empty()).ok()?;
    request.extensions_mut().insert(target("kubernetes"));
    Some(request)
}

/// What the policy below does not name, said in every way we could think of.
fn hostile() -> Vec<Request<Body>> {
    let mut all = Vec::new();
    let permitted = "/api/v1/namespaces/team-a/pods";
    for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"] {
        for path in [permitted, "/api/v1/namespaces/team-a/pods/web", "/api/v1/namespaces"] {
            all.extend(asked(method, path, &[]));
        }
    }
    let namespaces = ["team-b", "kube-system", "default", "team-a2", "TEAM-A", "team-a%20", "team-a%00", "*"];
    let resources = [
        "pods",
        "secrets",
        "configmaps",
        "serviceaccounts",
        "endpoints",
        "events",
        "pods/x/log",
        "pods/x/attach",
        "serviceaccounts/x/token",
        "pods/x/exec",
        "pods/x/proxy",
        "services/x/proxy",
    ];
    for namespace in namespaces {
        for resource in resources {
            all.extend(asked("GET", &format!("/api/v1/namespaces/{namespace}/{resource}"), &[]));
        }
    }
    for path in [
        "/api/v1/secrets",
        "/api/v1/pods",
        "/api/v1/nodes/n/proxy/pods",
        "/apis/apps/v1/deployments",
        "/metrics",
        "/api/v1/namespaces/team-a/pods/../../team-b/pods",
        "/api/v1/namespaces/team-a/../team-b/pods",
        "/api/v1/namespaces/team-a/pods/..%2f..%2fteam-b%2fpods",
        "/api/v1/namespaces/team-a%2f..%2fteam-b/pods",
        "/api/v1/namespaces/team-a/pods/%2e%2e/%2e%2e/secrets",
        "//api/v1/namespaces/team-a/pods",
        "/api//v1/namespaces/team-a/pods",
        "/api/v1/namespaces/team-a//pods",
        "/api/v1/./namespaces/team-a/pods",
        "/api/v1/namespaces/team-a/pods%2fweb%2fexec",
        "/api/v1/namespaces/team-a/pods/web%252fexec",
        "/api/v1/watch/namespaces/team-b/pods",
        "/api/v1/watch/secrets",
        "/API/v1/namespaces/team-a/pods",
        "/api/v1/namespaces/team-a/Pods",
        "/api/v1/namespaces/team-a/pods;x=1",
        "/api/v1/namespaces/team-a\\..\\team-b/pods",
        "/api/v1/namespaces/team-a/pods/web/exec?command=id",
        "/api/v1/namespaces/team-a/pods/web/attach",
        "/api/v1/namespaces/team-a/pods/web/portforward",
        "/api/v1/namespaces/team-a/pods/web/ephemeralcontainers",
        "/api/v1/namespaces/team-a/pods/web/proxy/admin",
        "/",
        "/apis",
        "/openapi/v2",
        "/debug/pprof/heap",
        "/api/v1/namespaces/team-a/pods?watch=true",
        "/api/v1/namespaces/team-a/pods?watch=1",
        "/api/v1/namespaces/team-a/pods/web?watch=yes",
        "/api/v1/namespaces/team-a",
    ] {
        all.extend(asked("GET", path, &[]));
    }
    // Words of a gateway, and of whoever would be somebody else.
    for (name, value) in [
        ("impersonate-user", "system:admin"),
        ("impersonate-user", "system:masters"),
        ("impersonate-user", "root"),
        ("impersonate-group", "system:masters"),
        ("impersonate-uid", "0"),
        ("impersonate-extra-scopes", "all"),
        ("impersonate-user", "dev"),
        ("impersonate-user", ""),
    ] {
        for also in [
            ("tarbet-caller", "ann"),
            ("tarbet-policy", "{}"),
            ("tarbet-caller-token", "e30.e30.e30"),
            ("x-a", "b"),
        ] {
            all.extend(asked("GET", permitted, &[(name, value), also]));
        }
    }
    for token in ["", "null", "e30.e30.", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.", "Bearer x"] {
        for path in ["/api/v1/namespaces/team-c/pods", "/api/v1/namespaces/team-c/pods/web"] {
            all.extend(asked("GET", path, &[("tarbet-caller-token", token), ("tarbet-caller", "ann")]));
        }
    }
    all
}

#[tokio::test]
async fn a_gateway_with_all_its_keys_gets_nothing_the_site_does_not_permit() {
    let (api, open, closed) = (Server::start().await, Server::start().await, Server::start().await);
    let policy: Policy = serde_json::from_value(serde_json::json!({
        "kubernetes": [
            {"verbs": ["get", "list"], "namespaces": ["team-a"], "resources": ["pods"]},
            {"verbs": ["get", "list"], "namespaces": ["team-c"], "resources": ["pods"], "callers": ["ann"]},
        ],
        "tcp": [{"host": "127.0.0.1", "ports": [open.port]}],
        "impersonate": ["dev:*"],
    }))
    .unwrap();
    let server = format!("http://127.0.0.1:{}", api.port).parse().unwrap();
    let kubernetes = Kubernetes::new(kube::Config::new(server)).unwrap();
    let tcp = Tcp::new(Duration::from_secs(10));
    let dispatcher = Dispatcher::new(vec![Arc::new(kubernetes), Arc::new(tcp)], policy);
    let link = owned(Door::of_links(Arc::new(dispatcher))).await;

    let mut tried = 0;
    for request in hostile() {
        let what = format!("{} {} {:?}", request.method(), request.uri(), request.headers());
        assert!(link_refuses(&link, request).await, "{what} was answered");
        assert_eq!(api.met(), 0, "{what} came through");
        tried += 1;
    }
    let port = closed.port;
    for (host, port) in [
        ("127.0.0.1", port),
        ("localhost", port),
        ("localhost", open.port),
        ("127.0.0.2", port),
        ("0.0.0.0", port),
        ("127.1", port),
        ("2130706433", port),
        ("0x7f000001", port),
        ("::1", port),
        ("::ffff:127.0.0.1", port),
        ("127.0.0.1.", port),
        ("127.0.0.1%25", port),
        ("127.000.000.001", port),
    ] {
        let Ok(address) = Address::new(host, port) else { continue };
        let opened = link.open_with(Target::tcp(address), bytes::Bytes::new()).await;
        assert!(opened.is_err(), "{host}:{port} was opened");
        tried += 1;
    }
    for service in ["exec", "shell", "tcp/..", "kubernetes/../tcp", "admin", "info", "echo"] {
        let Ok(service) = Target::service(service) else { continue };
        assert!(link.open_with(service, bytes::Bytes::new()).await.is_err());
        tried += 1;
    }
    assert_eq!((api.met(), closed.met()), (0, 0));
    assert!(tried >= 200, "only {tried} were tried");

    // What is permitted still is, so that the servers above could have been met.
    ask(&link, asked("GET", "/api/v1/namespaces/team-a/pods", &[]).unwrap()).await.unwrap();
    ask(&link, asked("GET", "/api/v1/namespaces/team-a/pods", &[("impersonate-user", "dev:ann")]).unwrap())
        .await
        .unwrap();
    let permitted = Target::tcp(Address::new("127.0.0.1", open.port).unwrap());
    link.open_with(permitted, bytes::Bytes::new()).await.unwrap();
    assert_eq!(api.met(), 2);
    tarbet_testbed::verified("hostile requests of a gateway with all its keys, none carried out", tried);
}

/// Whether the site says no, in either of the ways it may.
async fn link_refuses(link: &Link, request: Request<Body>) -> bool {
    match tarbet_link::Caller::call(link, request).await {
        Err(_) => true,
        Ok(response) => response.status().is_client_error(),
    }
}
