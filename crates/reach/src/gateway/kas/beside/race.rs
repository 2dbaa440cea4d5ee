//! A call through whichever replica first has a tunnel for the agent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use http::{HeaderMap, Request, Response};
use tarbet_link::handshake::Refusal;
use tarbet_link::{Body, ByteStream, Caller, Dialer, LinkError, Target};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::Inner;
use crate::gateway::kas::PRODUCT;
use crate::gateway::kas::way::{called, draining, lost, not_offered, take_apart};
use crate::kas::call::Call;
use crate::kas::grpc;
use crate::kas::kubernetes::{RequestOptions, denied, send_on, trace};
use crate::kas::prefix::{MethodPath, Rpc};
use crate::kas::private::Knock;
use crate::local::Way;
use crate::names::SiteName;
use crate::route::Until;

/// How long the original waits for a tunnel, and so does a request that says nothing of it.
const LONGEST: Duration = Duration::from_secs(20);
/// The next replica is asked when the one before has not answered for so long.
const NEXT: Duration = Duration::from_millis(10);
/// How often the list of replicas is looked at while none of them has a tunnel.
const LOOK: Duration = Duration::from_millis(50);
/// One that failed is asked again after this, and after twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The way to one agent through the other replicas.
pub(super) struct Through {
    inner: Arc<Inner>,
    agent: i64,
    site: SiteName,
}

/// What is known of one replica during one race.
struct Runner {
    /// Being asked now.
    asked: bool,
    pause: Duration,
    not_before: Instant,
    /// It said that its agent does not offer the method.
    lacks: bool,
}

impl Through {
    pub(super) fn new(inner: Arc<Inner>, agent: i64, site: SiteName) -> Self {
        Self { inner, agent, site }
    }

    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, LinkError> {
        let until = Until::of(&request, LONGEST).at;
        if let Some(method) = called(&request)? {
            let (metadata, requests) = match take_apart(request) {
                Ok(parts) => parts,
                Err(answer) => return Ok(*answer),
            };
            let call = self.open(&method, &metadata, until).await?;
            return Ok(grpc::carry(call, requests).await);
        }
        let (prefix, product) = (self.inner.prefix, PRODUCT.to_owned());
        let method = MethodPath::of(Rpc::MakeRequest, prefix);
        let call = self.open(&method, &trace(request.headers()), until).await?;
        let options = RequestOptions { prefix, impersonation: None, product };
        send_on(call, request, &options).await
    }

    /// Asks one replica after the other, all of them at once in the end, and takes the first tunnel; those
    /// that others offered go back unharmed. An agent that comes to one of our own gateways meanwhile is
    /// looked for there.
    async fn open(
        &self,
        method: &MethodPath,
        metadata: &HeaderMap,
        deadline: Instant,
    ) -> Result<Call, LinkError> {
        let (inner, site) = (&self.inner, &self.site);
        let waiting = inner.local.wait_for(site);
        let mut runners: HashMap<String, Runner> = HashMap::new();
        let mut knocks = FuturesUnordered::new();
        loop {
            let ring = waiting.ring();
            let now = Instant::now();
            for url in inner.book.holders(self.agent).await {
                runners.entry(url).or_insert(Runner {
                    asked: false,
                    pause: FIRST_PAUSE,
                    not_before: now,
                    lacks: false,
                });
            }
            let mut ready =
                runners.iter_mut().filter(|(_, runner)| !runner.asked && runner.not_before <= now);
            if let Some((url, runner)) = ready.next() {
                runner.asked = true;
                let url = url.clone();
                knocks.push(async move {
                    let knocked = inner.doors.knock_at(&url, method, self.agent, metadata).await;
                    (url, knocked)
                });
            }
            let pause = if ready.next().is_some() { NEXT } else { LOOK };
            tokio::select! {
                Some((url, knocked)) = knocks.next() => match knocked.and_then(Knock::start) {
                    Ok(call) => return Ok(call),
                    Err(status) => {
                        tracing::debug!(%site, url, cause = status.message(), "A replica has no tunnel for us.");
                        if let Some(runner) = runners.get_mut(&url) {
                            runner.lacks = status.code() == Code::Unimplemented;
                            runner.asked = false;
                            runner.not_before = Instant::now() + runner.pause;
                            runner.pause = (runner.pause * 2).min(LONGEST_PAUSE);
                        }
                        if runners.values().all(|runner| runner.lacks) {
                            return Err(denied(&status));
                        }
                    }
                },
                () = ring => if inner.local.count_of(site) > 0 {
                    return Err(lost());
                },
                () = tokio::time::sleep(pause) => {}
                () = inner.leaving.cancelled() => return Err(draining()),
                () = tokio::time::sleep_until(deadline) => {
                    let text = "Agent connection not found. Is agent up to date and connected?";
                    return Err(denied(&Status::deadline_exceeded(text)));
                }
            }
        }
    }
}

impl Caller for Through {
    fn call(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, LinkError>> {
        self.send(request).boxed()
    }
}

impl Dialer for Through {
    fn open_with(&self, target: Target, _: Bytes) -> BoxFuture<'_, Result<ByteStream, LinkError>> {
        let error = not_offered(target.name());
        async move { Err(error) }.boxed()
    }
}

impl Way for Through {
    // The tunnels are not ours to end.
    fn drain(&self) {}

    fn dismiss(&self, _: Refusal) {}
}
