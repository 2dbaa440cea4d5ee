//! An installation in memory: gateways that share a store, agents that dial them, callers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt;
use jiff::Timestamp;
use tarbet_identity::{Secret, SecretBytes};
use tarbet_link::handshake::Credential;
use tarbet_link::{
    Agent, Body, ByteStream, Caller, Connect, ConnectError, Denial, GatewayUrl, Identity, IncomingStream,
    LinkError, Target,
};
use tarbet_reach::agent::policy::{Policy, ServiceRule, Wanted};
use tarbet_reach::agent::{Dispatcher, Door, Service};
use tarbet_reach::audit::AuditLog;
use tarbet_reach::client::{Client, RemoteSite};
use tarbet_reach::config::GatewayConfig;
use tarbet_reach::directory::{Directory, Principal};
use tarbet_reach::gateway::{Node, Secrets, Sharing};
use tarbet_reach::names::SiteName;
use tarbet_reach::registry::Rhythm;
use tarbet_store::Store;
use tarbet_telemetry::{Health, Metrics};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::flaky::Flaky;
use super::net::Net;

pub(crate) use tarbet_testbed::effort;

pub(crate) const PEER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

/// Longer than anything here takes; nothing waits for it when things go well.
const PATIENCE: std::time::Duration = std::time::Duration::from_mins(2);

/// Looks until it is so; fails, naming what was waited for, when it never is. In paused time the pauses take
/// none.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let looking = async {
        while !condition().await {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    let found = tokio::time::timeout(PATIENCE, looking).await;
    assert!(found.is_ok(), "waited too long for {what}");
}

/// Everything that belongs together.
pub(crate) struct Lab {
    pub(crate) net: Net,
    pub(crate) store: Flaky,
    pub(crate) admin: Secret,
}

/// One gateway that runs.
pub(crate) struct Gateway {
    pub(crate) node: Node,
    pub(crate) name: String,
    pub(crate) metrics: Metrics,
    store: Flaky,
    stop: CancellationToken,
    links: TaskTracker,
}

impl Lab {
    pub(crate) async fn new() -> Self {
        let store = Flaky::default();
        let directory = Directory::new(&Store::new(store.clone())).unwrap();
        let admin = Principal { name: "admin".into(), admin: true, roles: BTreeMap::new() };
        let token = directory.add_principal(&admin, Timestamp::now()).await.unwrap();
        Self { net: Net::default(), store, admin: token.text().clone() }
    }

    pub(crate) fn directory(&self) -> Directory {
        Directory::new(&Store::new(self.store.another())).unwrap()
    }

    /// Starts a gateway, alone or among others.
    pub(crate) fn gateway(&self, name: &str, config: GatewayConfig, audit: AuditLog) -> Gateway {
        let config = GatewayConfig { name: Some(name.to_owned()), ..config };
        let (net, from) = (self.net.clone(), name.to_owned());
        let connect: tarbet_reach::peers::Connect = Arc::new(move |url| {
            let (net, from) = (net.clone(), from.clone());
            async move { net.connect(&from, url.trim_start_matches("grpc://")).await }.boxed()
        });
        let store = self.store.another();
        let sharing = Sharing { url: format!("grpc://{name}:8155"), rhythm: Rhythm::default() };
        let secret = SecretBytes::new(vec![7; 32]);
        let metrics = Metrics::new("gateway", "0");
        let node = Node::new(
            config,
            &Store::new(store.clone()),
            Some(sharing),
            &Secrets::of_gateways(secret),
            connect,
            audit,
            &metrics,
        )
        .unwrap();
        let (stop, links) = (CancellationToken::new(), TaskTracker::new());
        let (serving, tracker) = (node.clone(), links.clone());
        self.net.listen(&format!("{name}:8150"), move |stream| {
            tracker.spawn(serving.clone().agent(stream, PEER));
        });
        let serving = node.clone();
        self.net.listen(&format!("{name}:8153"), move |stream| {
            serving.requests().spawn(serving.clone().caller(stream, PEER));
        });
        let serving = node.clone();
        self.net.listen(&format!("{name}:8155"), move |stream| {
            serving.requests().spawn(serving.clone().gateway(stream, PEER));
        });
        let serving = node.clone();
        self.net.listen(&format!("{name}:8154"), move |stream| {
            serving.requests().spawn(serving.clone().kubernetes(stream, PEER));
        });
        let (ageing, until) = (node.clone(), stop.clone());
        tokio::spawn(async move { ageing.retire(until).await });
        let (keys, until) = (node.clone(), stop.clone());
        tokio::spawn(async move { keys.keep_keys(until).await });
        let (keeping, until) = (node.registry().unwrap(), stop.clone());
        tokio::spawn(async move { keeping.keep(until, Health::default().part("registry")).await });
        let (checking, until) = (node.clone(), stop.clone());
        tokio::spawn(async move { checking.recheck(until).await });
        Gateway { node, name: name.to_owned(), metrics, store, stop, links }
    }

    pub(crate) async fn add_site(&self, name: &str) -> Secret {
        let (_, token) = self.directory().add_site(&site(name), Timestamp::now()).await.unwrap();
        token.text().clone()
    }

    /// Starts an agent on a host of its own that serves through `door`.
    pub(crate) fn agent(
        &self,
        host: &str,
        token: &Secret,
        gateways: &[&str],
        door: Door,
        seed: u64,
    ) -> AgentProcess {
        let services = door.offered();
        let urls: Vec<GatewayUrl> =
            gateways.iter().map(|name| format!("grpc://{name}:8150").parse().unwrap()).collect();
        let config = tarbet_link::AgentConfig::new(urls, seed);
        let dial = Dial { net: self.net.clone(), from: host.to_owned() };
        let (token, name) = (token.clone(), host.to_owned());
        let identity = move || Identity {
            credential: Credential::new(token.expose()),
            name: name.clone(),
            version: "0".into(),
            instance: Uuid::from_u128(u128::from(seed)),
            services: services.clone(),
        };
        let agent = Agent::new(config, Arc::new(dial), Arc::new(door), identity);
        let (stop, status) = (CancellationToken::new(), agent.status());
        let task = tokio::spawn(agent.run(stop.clone()));
        AgentProcess { stop, task, status }
    }

    /// A client at a host of its own.
    pub(crate) fn client(&self, gateway: &str, token: &Secret) -> Client {
        let net = self.net.clone();
        let connect: tarbet_reach::peers::Connect = Arc::new(move |url| {
            let net = net.clone();
            async move { net.connect("client", url.trim_start_matches("https://")).await }.boxed()
        });
        Client::with(&format!("https://{gateway}:8153"), token.clone(), connect)
    }

    pub(crate) fn remote(&self, gateway: &str, name: &str) -> RemoteSite {
        self.client(gateway, &self.admin).site(site(name))
    }
}

impl Gateway {
    /// Ends it without a word: nothing is taken back, nobody is told.
    pub(crate) fn kill(self, net: &Net) {
        self.store.cut_off(true);
        self.stop.cancel();
        net.kill(&self.name);
    }

    /// Ends it in good order.
    pub(crate) async fn leave(self, net: &Net) {
        self.node.leave(self.links.clone()).await;
        self.stop.cancel();
        net.kill(&self.name);
    }
}

pub(crate) struct AgentProcess {
    stop: CancellationToken,
    pub(crate) task: tokio::task::JoinHandle<()>,
    status: tokio::sync::watch::Receiver<Vec<tarbet_link::SlotStatus>>,
}

impl AgentProcess {
    /// Waits until this many links are up.
    pub(crate) async fn up(&mut self, links: usize) {
        let all = |slots: &Vec<tarbet_link::SlotStatus>| {
            slots.iter().filter(|slot| slot.link.is_some()).count() >= links
        };
        self.status.wait_for(all).await.unwrap();
    }

    /// Leaves in good order.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    /// Whether it was told to leave.
    pub(crate) fn is_leaving(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Ends it as a crash would; its host must be killed as well.
    pub(crate) fn abort(self) {
        self.task.abort();
    }
}

struct Dial {
    net: Net,
    from: String,
}

impl Connect for Dial {
    fn connect<'a>(&'a self, gateway: &'a GatewayUrl) -> BoxFuture<'a, Result<ByteStream, ConnectError>> {
        async move {
            let limit = std::time::Duration::from_secs(15);
            let address = gateway.address();
            let opened =
                tokio::time::timeout(limit, self.net.connect(&self.from, &address.to_string())).await;
            match opened {
                Ok(Ok(stream)) => Ok(stream),
                Ok(Err(source)) => Err(ConnectError::Network {
                    target: address.clone(),
                    source: LinkError::Connect { target: address.to_string(), source },
                }),
                Err(_) => Err(ConnectError::TimedOut { gateway: gateway.clone(), limit }),
            }
        }
        .boxed()
    }
}

/// The service behind the agents: says its name and gives back what it was sent.
#[derive(Default)]
pub(crate) struct Echo {
    pub(crate) name: String,
    /// Requests and streams under way now.
    pub(crate) open: AtomicUsize,
    pub(crate) begun: AtomicUsize,
    /// Lets a request to `/gated` read its body.
    pub(crate) gate: tokio::sync::Notify,
}

struct Open<'a>(&'a AtomicUsize);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Echo {
    pub(crate) fn named(name: &str) -> Arc<Self> {
        Arc::new(Self { name: name.into(), ..Self::default() })
    }

    fn enter(&self) -> Open<'_> {
        self.begun.fetch_add(1, SeqCst);
        self.open.fetch_add(1, SeqCst);
        Open(&self.open)
    }
}

/// Lets the service live on outside the dispatcher.
pub(crate) struct Shared(pub(crate) Arc<Echo>);

impl Service for Shared {
    fn name(&self) -> &'static str {
        "echo"
    }

    fn describe(&self, target: &Target, _: Option<&Request<()>>) -> Result<Wanted, Denial> {
        Ok(Wanted::Service(target.name().to_owned()))
    }

    fn call(&self, _: Target, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, Denial>> {
        async move {
            let _open = self.0.enter();
            let (parts, body) = request.into_parts();
            if let Some(pause) = parts.uri.path().strip_prefix("/sleep/") {
                tokio::time::sleep(std::time::Duration::from_millis(pause.parse().unwrap())).await;
            }
            if let Some(length) = parts.uri.path().strip_prefix("/bytes/") {
                return Ok(Response::new(Body::from(vec![b'x'; length.parse().unwrap()])));
            }
            if parts.uri.path() == "/hang" {
                std::future::pending::<()>().await;
            }
            if parts.uri.path() == "/gated" {
                self.0.gate.notified().await;
                let (mut body, mut length) = (body, 0);
                while let Some(Ok(frame)) = body.frame().await {
                    length += frame.into_data().map_or(0, |data| data.len());
                }
                return Ok(Response::new(Body::from(format!("{}:{length}", self.0.name))));
            }
            let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            let mut response =
                Response::new(Body::from(format!("{}:{}", self.0.name, String::from_utf8_lossy(&body))));
            for (name, value) in
                parts.headers.iter().filter(|(name, _)| name.as_str().starts_with("tarbet-caller"))
            {
                response
                    .headers_mut()
                    .insert(format!("seen-{name}").parse::<http::HeaderName>().unwrap(), value.clone());
            }
            Ok(response)
        }
        .boxed()
    }

    fn stream(&self, incoming: IncomingStream) -> BoxFuture<'_, ()> {
        async move {
            let _open = self.0.enter();
            let Ok(mut stream) = incoming.accept() else { return };
            let mut byte = [0; 64];
            let _ = stream.write_all(format!("{}:", self.0.name).as_bytes()).await;
            while let Ok(count @ 1..) = stream.read(&mut byte).await {
                if stream.write_all(&byte[..count]).await.is_err() {
                    return;
                }
            }
            let _ = stream.shutdown().await;
        }
        .boxed()
    }
}

pub(crate) fn echo_policy() -> Policy {
    Policy { services: vec![ServiceRule::Name("echo".into())], ..Policy::default() }
}

/// A door to the service, open to everybody.
pub(crate) fn open_door(echo: &Arc<Echo>) -> Door {
    Door::of_links(Arc::new(Dispatcher::new(vec![Arc::new(Shared(Arc::clone(echo)))], echo_policy())))
}

pub(crate) fn site(name: &str) -> SiteName {
    name.parse().unwrap()
}

pub(crate) fn target(text: &str) -> Target {
    text.parse().unwrap()
}

pub(crate) fn request(method: &str, path: &str, body: &str) -> Request<Body> {
    let body = if body.is_empty() { Body::empty() } else { Body::from(body.to_owned()) };
    let mut request = Request::builder().method(method).uri(path).body(body).unwrap();
    request.extensions_mut().insert(target("echo"));
    request
}

pub(crate) async fn ask(way: &impl Caller, request: Request<Body>) -> Result<String, LinkError> {
    let response = way.call(request).await?;
    let bytes =
        response.into_body().collect().await.map_err(|error| LinkError::Request(error.to_string().into()))?;
    Ok(String::from_utf8(bytes.to_bytes().to_vec()).unwrap())
}

/// The code of a refusal.
pub(crate) fn code(error: &LinkError) -> &str {
    match error {
        LinkError::Denied(denial) => &denial.code,
        other => panic!("{other:?}"),
    }
}
