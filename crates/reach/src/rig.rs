//! Parts for unit tests: real links in memory, and a store that can be taken away.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt;
use jiff::Timestamp;
use tarbet_link::handshake::{AgentInfo, Hello, Purpose, VERSIONS};
use tarbet_link::{
    Accepted, AgentLink, Body, Credential, Denial, Handler, IncomingCall, IncomingStream, Settings, Target,
};
use tarbet_store::backend::{Backend, Memory};
use tarbet_store::{Clock, Commit, Entry, Hints, Key, Page, Prefix, Revision};
use tarbet_telemetry::RequestId;
use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::local::{Held, LinkId};
use crate::names::SiteName;
use crate::story::{Story, Subject};

#[path = "../tests/it/flaky.rs"]
#[expect(dead_code, reason = "the integration tests use all of it")]
mod flaky;

pub(crate) use flaky::Flaky as Unreliable;

pub(crate) fn site(name: &str) -> SiteName {
    name.parse().unwrap()
}

pub(crate) fn story(site_name: &str) -> Story {
    let (principal, wants) = ("ann".to_owned(), "info".to_owned());
    Story::new(Subject { id: RequestId::fresh(), principal, site: site(site_name), wants })
}

/// What is behind the agents of these tests: says its name, or hangs.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) name: String,
    pub(crate) calls: AtomicUsize,
    /// Rung when a request to `/hang` has arrived.
    pub(crate) hanging: Notify,
}

impl World {
    pub(crate) fn named(name: &str) -> Arc<Self> {
        Arc::new(Self { name: name.into(), ..Self::default() })
    }
}

impl Handler for World {
    fn call(&self, call: IncomingCall) -> BoxFuture<'_, Result<Response<Body>, Denial>> {
        async move {
            self.calls.fetch_add(1, SeqCst);
            let path = call.request.uri().path().to_owned();
            if path == "/hang" {
                self.hanging.notify_one();
                std::future::pending::<()>().await;
            }
            let body = call
                .request
                .into_body()
                .collect()
                .await
                .map(http_body_util::Collected::to_bytes)
                .unwrap_or_default();
            Ok(Response::new(Body::from(format!("{}{path}{}", self.name, String::from_utf8_lossy(&body)))))
        }
        .boxed()
    }

    fn stream(&self, incoming: IncomingStream) -> BoxFuture<'_, ()> {
        async move {
            if let Ok(mut stream) = incoming.accept() {
                let _ = stream.write_all(self.name.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        }
        .boxed()
    }
}

/// A link in memory, held by a gateway, with its agent's end and the wire between.
pub(crate) struct Joined {
    pub(crate) held: Arc<Held>,
    pub(crate) agent: AgentLink,
    wire: CancellationToken,
}

impl Joined {
    /// Ends the connection as a dead machine would: without a word.
    pub(crate) fn cut(&self) {
        self.wire.cancel();
    }
}

/// A link of an agent of this site.
pub(crate) async fn join(site_name: &str, world: Arc<World>) -> Joined {
    join_for(site_name, world, Purpose::General).await
}

/// The same, opened for this purpose.
pub(crate) async fn join_for(site_name: &str, world: Arc<World>, purpose: Purpose) -> Joined {
    let (near, a) = tokio::io::duplex(64 * 1024);
    let (b, far) = tokio::io::duplex(64 * 1024);
    let wire = CancellationToken::new();
    let cut = wire.clone();
    tokio::spawn(async move {
        let (mut a, mut b) = (a, b);
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut a, &mut b) => {}
            () = cut.cancelled() => {}
        }
    });
    let hello = Hello {
        versions: VERSIONS,
        credential: Credential::default(),
        agent: AgentInfo {
            name: world.name.clone(),
            version: "0".into(),
            instance: Uuid::nil(),
            connection: Uuid::nil(),
            services: vec!["info".into()],
            purpose,
        },
    };
    let agent = async {
        let (link, driver) = tarbet_link::connect(far, hello, Settings::default(), world).await.unwrap();
        tokio::spawn(driver);
        link
    };
    let gateway = async {
        let accepted = Accepted { link: Uuid::nil(), gateway: "gw".into(), settings: Settings::default() };
        let (link, driver) =
            tarbet_link::accept(near, Duration::from_secs(10), |_| async { Ok(accepted) }).await.unwrap();
        tokio::spawn(driver);
        link
    };
    let (link, agent) = tokio::join!(gateway, agent);
    let held = Held {
        id: LinkId::fresh(),
        site: site(site_name),
        services: vec!["info".into()],
        agent: "test 0".into(),
        key: None,
        token_id: Some("t".into()),
        since: Timestamp::UNIX_EPOCH,
        way: Arc::new(link),
    };
    Joined { held: Arc::new(held), agent, wire }
}

pub(crate) fn request(method: &str, path: &str, body: impl Into<Body>) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(path).body(body.into()).unwrap();
    request.extensions_mut().insert(Target::service("info").unwrap());
    request
}

pub(crate) async fn text(response: Response<Body>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// A store that does not answer, and counts how often it was asked for a list.
#[derive(Clone, Default)]
pub(crate) struct Mute(pub(crate) Arc<AtomicUsize>);

impl Mute {
    async fn give_up<T>(&self, operation: &'static str) -> Result<T, tarbet_store::Error> {
        let waited = Duration::from_secs(3);
        tokio::time::sleep(waited).await;
        let cause = Arc::new(io::Error::from(io::ErrorKind::TimedOut));
        Err(tarbet_store::Error::Unavailable { operation, at: "nowhere".into(), waited, cause })
    }
}

#[async_trait::async_trait]
impl Backend for Mute {
    async fn get(&self, _: &Key) -> Result<Option<Entry>, tarbet_store::Error> {
        self.give_up("read").await
    }

    async fn range(&self, _: &Prefix, _: Option<&Key>, _: usize) -> Result<Page, tarbet_store::Error> {
        self.0.fetch_add(1, SeqCst);
        self.give_up("list").await
    }

    async fn commit(&self, _: Commit) -> Result<Revision, tarbet_store::Error> {
        self.give_up("commit").await
    }

    fn changed(&self, prefix: &Prefix) -> Hints {
        Memory::new(Clock::system()).changed(prefix)
    }
}

/// Peers that nobody can reach.
pub(crate) fn no_peers() -> crate::peers::Peers {
    peers(Arc::new(|_| async { Err(io::Error::from(io::ErrorKind::ConnectionRefused)) }.boxed()))
}

pub(crate) fn peers(connect: crate::peers::Connect) -> crate::peers::Peers {
    crate::peers::Peers::new(connect, Arc::new(|| ("gw".into(), Credential::default())))
}
