//! The kas protocol: our gateway and our agent against each other, and against peers that misbehave.

mod gitlab;
mod life;
mod odd;
mod private;
mod raw;
mod requests;
mod site;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use jiff::Timestamp;
use tarbet_identity::Secret;
use tarbet_identity::authority::{Authority, Leaf, Usage};
use tarbet_identity::tls::{CaSource, ClientTls, CredentialSource, ServerTls};
use tarbet_link::{Backoff, Body, ByteStream, ProxySettings, WebSocketLimits, accept_websocket};
use tarbet_reach::kas::agent::{
    KasAgent, KasAgentConfig, KasAgentStatus, SUBPROTOCOL, Services, connector, kas_address,
};
use tarbet_reach::kas::gitlab::GitlabClient;
use tarbet_reach::kas::kubernetes::{AgentCaller, KubernetesApi, RequestOptions};
use tarbet_reach::kas::proto::{agent_configuration, agentcfg, entity};
use tarbet_reach::kas::server::{AgentHost, Carrier, KasServer, ServerConfig};
use tarbet_reach::kas::{Agent, PoolConfig, PoolEvent, Prefix, TunnelPool};
use tarbet_testbed::effort;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use self::site::Site;

/// Long enough for a busy machine; nothing waits for it when things go well.
const PATIENCE: Duration = Duration::from_mins(1);

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited too long for {what}"))
}

/// Looks until it is so.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    within(what, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Tokens that are good, and what agents said.
#[derive(Default)]
struct Desk {
    tokens: Mutex<HashMap<String, Arc<Agent>>>,
    said: Mutex<Vec<String>>,
    /// Who came and went over which connection.
    seated: Mutex<Vec<String>>,
    /// Held by whoever wants registrations to take their time, and how many have begun.
    store: tokio::sync::Mutex<()>,
    begun: AtomicUsize,
    /// How many more times nobody can say whose a token is.
    speechless: AtomicUsize,
    /// Whom modules of agents may ask.
    gitlab: Mutex<Option<Arc<GitlabClient>>>,
}

impl Desk {
    fn with(tokens: &[(&str, i64)]) -> Arc<Self> {
        let desk = Self::default();
        for (token, id) in tokens {
            let agent = Agent { id: *id, name: format!("site-{id}"), project_id: 5 };
            desk.tokens.lock().unwrap().insert((*token).to_owned(), Arc::new(agent));
        }
        Arc::new(desk)
    }

    fn revoke(&self, token: &str) {
        self.tokens.lock().unwrap().remove(token);
    }

    fn heard(&self, what: &str) -> bool {
        self.said.lock().unwrap().iter().any(|said| said == what)
    }
}

#[async_trait]
impl AgentHost for Desk {
    async fn admit(&self, token: &Secret) -> Result<Arc<Agent>, Status> {
        let left = |count: usize| count.checked_sub(1);
        if self.speechless.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
            return Err(Status::unavailable("gateway → GitLab: no answer (HTTP 502)"));
        }
        let known = self.tokens.lock().unwrap().get(token.expose()).cloned();
        known.ok_or_else(|| Status::unauthenticated("agent → gateway: the token is not known"))
    }

    async fn registered(&self, agent: &Agent, pod: i64, meta: entity::AgentMeta) -> Result<(), Status> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let _turn = self.store.lock().await;
        self.said.lock().unwrap().push(format!("{} registered {pod} {}", agent.id, meta.version));
        Ok(())
    }

    fn registered_over(&self, agent: &Agent, pod: i64, connection: u64) {
        self.seated.lock().unwrap().push(format!("{} sits as {pod} at {connection}", agent.id));
    }

    fn carried_over(&self, agent: &Agent, connection: u64) {
        self.seated.lock().unwrap().push(format!("{} carries at {connection}", agent.id));
    }

    fn disconnected(&self, agent: &Agent, connection: u64, _: bool) {
        self.seated.lock().unwrap().push(format!("{} left {connection}", agent.id));
    }

    async fn unregistered(&self, agent: &Agent, pod: i64) -> Result<(), Status> {
        self.said.lock().unwrap().push(format!("{} unregistered {pod}", agent.id));
        Ok(())
    }

    fn gitlab(&self) -> Option<Arc<GitlabClient>> {
        self.gitlab.lock().unwrap().clone()
    }

    async fn configuration(
        &self,
        agent: &Agent,
    ) -> Result<Option<agent_configuration::ConfigurationResponse>, Status> {
        let configuration = agentcfg::AgentConfiguration { agent_id: agent.id, ..Default::default() };
        let commit_id = "c0ffee".to_owned();
        Ok(Some(agent_configuration::ConfigurationResponse { configuration: Some(configuration), commit_id }))
    }
}

/// A gateway's agent listener on loopback.
struct Gateway {
    address: SocketAddr,
    pool: TunnelPool,
    desk: Arc<Desk>,
    events: mpsc::UnboundedReceiver<PoolEvent>,
    /// Asks the agents of the connections made so far to move.
    moving: Arc<Mutex<CancellationToken>>,
    prefix: Prefix,
    /// Connections accepted so far.
    accepted: Arc<AtomicUsize>,
    authority: Arc<Authority>,
    _stop: tokio_util::sync::DropGuard,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Tcp,
    Tls,
    WebSocket,
    TlsWebSocket,
}

impl Over {
    fn is_tls(self) -> bool {
        matches!(self, Self::Tls | Self::TlsWebSocket)
    }

    fn is_websocket(self) -> bool {
        matches!(self, Self::WebSocket | Self::TlsWebSocket)
    }
}

impl Gateway {
    async fn start(over: Over, prefix: Prefix, desk: Arc<Desk>) -> Self {
        let config = ServerConfig {
            prefix,
            recheck_every: Duration::from_millis(50),
            drain_pause: Duration::from_millis(50),
            ..ServerConfig::default()
        };
        Self::start_with(over, config, desk).await
    }

    async fn start_with(over: Over, config: ServerConfig, desk: Arc<Desk>) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let pool_config = PoolConfig { gone_after: Duration::from_millis(200), ..PoolConfig::default() };
        let pool = TunnelPool::new(pool_config, move |event| sender.send(event).unwrap_or_default());
        let prefix = config.prefix;
        let server = KasServer::new(config, pool.clone(), Arc::clone(&desk) as Arc<dyn AgentHost>);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let authority = Arc::new(Authority::open(folder.path(), Timestamp::now()).unwrap());
        let leaf = Leaf::new(Usage::Server).ip(address.ip());
        let tls = ServerTls::new(CredentialSource::Issued { authority: Arc::clone(&authority), leaf })
            .alpn(["h2", "http/1.1"])
            .build(Timestamp::now())
            .unwrap();
        let stop = CancellationToken::new();
        let moving = Arc::new(Mutex::new(CancellationToken::new()));
        let accepted = Arc::new(AtomicUsize::new(0));
        let accepting = {
            let (stop, moving, accepted) = (stop.clone(), Arc::clone(&moving), Arc::clone(&accepted));
            async move {
                loop {
                    let (stream, _) = tokio::select! {
                        accepted = listener.accept() => accepted.unwrap(),
                        () = stop.cancelled() => return,
                    };
                    stream.set_nodelay(true).unwrap();
                    accepted.fetch_add(1, Ordering::SeqCst);
                    let (server, stop, tls) = (server.clone(), stop.clone(), tls.clone());
                    let moving = moving.lock().unwrap().clone();
                    tokio::spawn(async move {
                        let work = async {
                            let stream = if over.is_tls() {
                                let Ok(stream) = tls.accept(stream).await else { return };
                                // What is spoken inside is agreed upon in the handshake.
                                let expected: &[u8] = if over.is_websocket() { b"http/1.1" } else { b"h2" };
                                assert_eq!(stream.alpn(), Some(expected));
                                ByteStream::new(stream)
                            } else {
                                tarbet_link::tcp(stream)
                            };
                            if over.is_websocket() {
                                let limits = WebSocketLimits::default();
                                let accepted = accept_websocket(stream, &[SUBPROTOCOL], limits).await;
                                let Ok((socket, _, _)) = accepted else { return };
                                server.serve(socket, Carrier::WebSocket, moving).await;
                            } else {
                                server.serve(stream, Carrier::Plain, moving).await;
                            }
                        };
                        tokio::select! {
                            () = work => {}
                            () = stop.cancelled() => {}
                        }
                    });
                }
            }
        };
        tokio::spawn(accepting);
        Self { address, pool, desk, events, moving, prefix, accepted, authority, _stop: stop.drop_guard() }
    }

    fn url(&self, over: Over) -> String {
        match over {
            Over::Tcp => format!("grpc://{}", self.address),
            Over::Tls => format!("grpcs://{}", self.address),
            Over::WebSocket => format!("ws://{}/-/kubernetes-agent/", self.address),
            Over::TlsWebSocket => format!("wss://{}/-/kubernetes-agent/", self.address),
        }
    }

    fn caller(&self, agent: i64) -> AgentCaller {
        let options =
            RequestOptions { prefix: self.prefix, impersonation: None, product: "gitlab-kas/test".into() };
        AgentCaller { pool: self.pool.clone(), agent, max_wait: PATIENCE, options }
    }

    /// Asks everybody connected so far to move; later connections are not asked.
    fn ask_to_move(&self) {
        std::mem::take(&mut *self.moving.lock().unwrap()).cancel();
    }

    async fn event(&mut self) -> PoolEvent {
        within("an event of the pool", self.events.recv()).await.unwrap()
    }

    fn tunnels(&self, agent: i64) -> (usize, usize, usize) {
        let views = self.pool.agents();
        let view = views.iter().find(|view| view.id == agent);
        view.map_or((0, 0, 0), |view| (view.parked, view.busy, view.waiting))
    }
}

/// Our agent, at a gateway and before a site.
struct Running {
    status: watch::Receiver<KasAgentStatus>,
    configuration: watch::Receiver<Option<agentcfg::AgentConfiguration>>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

fn quick() -> Backoff {
    Backoff {
        first: Duration::from_millis(20),
        longest: Duration::from_millis(100),
        stable: Duration::from_secs(1),
    }
}

fn agent_config(gateway: &Gateway, over: Over, token: &str) -> KasAgentConfig {
    let address = kas_address(&gateway.url(over)).unwrap();
    KasAgentConfig {
        prefix: gateway.prefix,
        meta: entity::AgentMeta { version: "v1.2.3".into(), ..Default::default() },
        reconnect: quick(),
        reopen: quick(),
        retry: quick(),
        ..KasAgentConfig::new(address, token.into(), 77)
    }
}

fn run_agent(config: KasAgentConfig, site: &Site) -> Running {
    run_trusting(config, site, ClientTls::new())
}

fn run_trusting(config: KasAgentConfig, site: &Site, tls: ClientTls) -> Running {
    let (proxies, headers, now) = (ProxySettings::default(), HeaderMap::new(), Timestamp::now());
    let connector = connector(&config.address, tls, proxies, &headers, "gitlab-agent/test", now).unwrap();
    let api = KubernetesApi::new(config.prefix, "gitlab-agent/test", Arc::new(site.upstream()));
    let agent = KasAgent::new(config, Arc::new(connector), Services::default().with(api));
    let stop = CancellationToken::new();
    let (status, configuration) = (agent.status(), agent.configuration());
    let task = tokio::spawn(agent.run(stop.clone()));
    Running { status, configuration, stop, task }
}

/// One of each, connected.
async fn connected(over: Over, prefix: Prefix) -> (Gateway, Running, Site) {
    let site = Site::start().await;
    let gateway = Gateway::start(over, prefix, Desk::with(&[("t", 7)])).await;
    let trusted = CaSource::Pem(gateway.authority.certificate_pem().to_owned());
    let agent = run_trusting(agent_config(&gateway, over, "t"), &site, ClientTls::only(trusted));
    until("two idle tunnels", || gateway.tunnels(7).0 == 2).await;
    (gateway, agent, site)
}

fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

async fn text(response: Response<Body>) -> String {
    let bytes = within("a body", response.into_body().collect()).await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs.iter().map(|(k, v)| (http::HeaderName::from_static(k), v.parse().unwrap())).collect()
}
