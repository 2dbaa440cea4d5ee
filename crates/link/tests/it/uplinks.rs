//! The agent's loop against gateways on a network in memory, with time that jumps.

use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use tarbet_link::{
    Accepted, Agent, AgentConfig, ByteStream, Credential, Dialer, Handler, Hello, Identity, Link, LinkError,
    NetConnector, Refusal, RefusalCode, Settings, SlotStatus, Target,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::rig::*;
use super::world::World;

/// Streets with gateways in them.
#[derive(Default)]
struct Streets {
    doors: Mutex<HashMap<String, mpsc::UnboundedSender<ByteStream>>>,
    knocks: Mutex<Vec<(String, Instant)>>,
}

impl Dialer for Streets {
    fn open_with(&self, target: Target, _: Bytes) -> BoxFuture<'_, Result<ByteStream, LinkError>> {
        async move {
            let host = target.address().unwrap().host().to_owned();
            self.knocks.lock().unwrap().push((host.clone(), Instant::now()));
            let (near, far) = tokio::io::duplex(64 * 1024);
            let door = self.doors.lock().unwrap().get(&host).cloned();
            if door.is_some_and(|door| door.send(ByteStream::new(far)).is_ok()) {
                return Ok(ByteStream::new(near));
            }
            Err(LinkError::Connect { target: host, source: std::io::ErrorKind::ConnectionRefused.into() })
        }
        .boxed()
    }
}

impl Streets {
    fn knocks(&self, host: &str) -> Vec<Instant> {
        self.knocks.lock().unwrap().iter().filter(|(at, _)| at == host).map(|(_, when)| *when).collect()
    }
}

/// A gateway that is up while it lives.
struct Gateway {
    links: Arc<Mutex<Vec<Link>>>,
    task: tokio::task::JoinHandle<()>,
    name: &'static str,
    streets: Arc<Streets>,
}

impl Gateway {
    fn start(streets: &Arc<Streets>, name: &'static str) -> Self {
        Self::start_with(streets, name, None)
    }

    fn start_with(streets: &Arc<Streets>, name: &'static str, refusal: Option<Refusal>) -> Self {
        let (door, mut callers) = mpsc::unbounded_channel();
        streets.doors.lock().unwrap().insert(name.into(), door);
        let links = Arc::new(Mutex::new(Vec::new()));
        let known = links.clone();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Some(stream) = callers.recv().await {
                let (known, refusal) = (known.clone(), refusal.clone());
                connections.spawn(async move {
                    let decide = |_: Hello| async {
                        refusal.map_or(
                            Ok(Accepted {
                                link: Uuid::nil(),
                                gateway: name.into(),
                                settings: Settings::default(),
                            }),
                            Err,
                        )
                    };
                    if let Ok((link, driver)) =
                        tarbet_link::accept(stream, Duration::from_secs(5), decide).await
                    {
                        known.lock().unwrap().push(link);
                        driver.await;
                    }
                });
            }
        });
        Self { links, task, name, streets: streets.clone() }
    }

    fn open(&self) -> Vec<Link> {
        let takes = |link: &&Link| link.phase().takes_requests();
        self.links.lock().unwrap().iter().filter(takes).cloned().collect()
    }

    fn kill(self) {
        self.streets.doors.lock().unwrap().remove(self.name);
        self.task.abort();
    }
}

struct Site {
    agent: Arc<Agent>,
    world: Arc<World>,
    stop: CancellationToken,
    running: tokio::task::JoinHandle<()>,
}

fn config(gateways: &[&str]) -> AgentConfig {
    AgentConfig::new(gateways.iter().map(|name| format!("grpc://{name}").parse().unwrap()).collect(), 42)
}

fn site(streets: &Arc<Streets>, config: AgentConfig) -> Site {
    let world = Arc::new(World::default());
    let handler: Arc<dyn Handler> = world.clone();
    let connector = Arc::new(NetConnector::new(streets.clone()));
    let agent = Agent::new(config, connector, handler, || Identity {
        credential: Credential::new("t"),
        name: "lab".into(),
        version: "1".into(),
        instance: Uuid::from_u128(5),
        services: vec![],
    });
    let stop = CancellationToken::new();
    let running = tokio::spawn(agent.clone().run(stop.clone()));
    Site { agent, world, stop, running }
}

impl Site {
    fn gateways(&self) -> Vec<String> {
        let slots: Vec<SlotStatus> = self.agent.status().borrow().clone();
        slots
            .iter()
            .filter_map(|slot| slot.link.as_ref())
            .map(|link| link.welcome().gateway.clone())
            .collect()
    }

    async fn has(&self, expected: &[&str]) {
        eventually(&format!("links to {expected:?}"), || {
            let mut now = self.gateways();
            now.sort();
            now == expected
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn two_links_to_two_gateways() {
    let streets = Arc::new(Streets::default());
    let (one, two) = (Gateway::start(&streets, "one"), Gateway::start(&streets, "two"));
    let site = site(&streets, config(&["one", "two"]));
    site.has(&["one", "two"]).await;
    for gateway in [&one, &two] {
        let link = gateway.open().pop().unwrap();
        assert_eq!(text(link.call(post("/echo", "hi")).await.unwrap()).await, "hi");
    }
    let ids: Vec<_> = [&one, &two].iter().map(|g| g.open()[0].info().agent.connection).collect();
    assert_ne!(ids[0], ids[1], "each connection has its own id");
}

#[tokio::test(start_paused = true)]
async fn one_dead_gateway_does_not_stop_the_others() {
    let streets = Arc::new(Streets::default());
    let one = Gateway::start(&streets, "one");
    let site = site(&streets, config(&["one", "two"]));
    site.has(&["one"]).await;
    eventually("it keeps trying", || streets.knocks("two").len() >= 8).await;
    assert_eq!(streets.knocks("one").len(), 1, "the living one is left alone");
    let slot = site.agent.status().borrow()[1].clone();
    assert!(slot.failures >= 7 && slot.error.is_some(), "{slot:?}");
    let waits: Vec<_> = streets.knocks("two").windows(2).map(|pair| pair[1] - pair[0]).collect();
    for wait in &waits {
        assert!(*wait >= Duration::from_millis(250) && *wait <= Duration::from_secs(16), "{waits:?}");
    }
    assert!(waits[6] > waits[0] * 4, "{waits:?}");
    let two = Gateway::start(&streets, "two");
    site.has(&["one", "two"]).await;
    drop((one, two));
}

#[tokio::test(start_paused = true)]
async fn a_killed_gateway_is_found_again_and_the_count_starts_anew() {
    let streets = Arc::new(Streets::default());
    let one = Gateway::start(&streets, "one");
    let mut config = config(&["one"]);
    config.links = 1;
    let site = site(&streets, config);
    site.has(&["one"]).await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    one.kill();
    site.has(&[]).await;
    let lost = Instant::now();
    eventually("it tries again", || streets.knocks("one").len() >= 2).await;
    let wait = streets.knocks("one")[1] - lost;
    assert!(wait <= Duration::from_secs(1), "a stable link is redialled soon: {wait:?}");
    let one = Gateway::start(&streets, "one");
    site.has(&["one"]).await;
    one.kill();
}

#[tokio::test(start_paused = true)]
async fn a_draining_gateway_is_left_only_after_another_was_found() {
    let streets = Arc::new(Streets::default());
    let (one, two) = (Gateway::start(&streets, "one"), Gateway::start(&streets, "two"));
    let site = site(&streets, config(&["one", "two", "three"]));
    site.has(&["one", "two"]).await;
    let old = one.open().pop().unwrap();
    let (sender, receiver) = futures::channel::mpsc::unbounded();
    let body = tarbet_link::Body::new(http_body_util::StreamBody::new(receiver));
    let running = old.call(post("/echo", body)).await.unwrap();
    // No third gateway yet: the old link must go on.
    old.drain();
    eventually("it looks elsewhere", || streets.knocks("three").len() >= 3).await;
    assert!(old.phase().takes_requests());
    assert_eq!(text(old.call(post("/echo", "still")).await.unwrap()).await, "still");
    let three = Gateway::start(&streets, "three");
    site.has(&["three", "two"]).await;
    eventually("the old one is left", || !old.phase().takes_requests()).await;
    sender.unbounded_send(Ok::<_, std::io::Error>(http_body::Frame::data("whole".into()))).unwrap();
    drop(sender);
    assert_eq!(text(running).await, "whole", "what was under way finished");
    assert_eq!(old.closed().await, tarbet_link::CloseReason::Drained);
    drop((one, two, three));
}

#[tokio::test(start_paused = true)]
async fn links_spread_out_again_after_a_restart() {
    let streets = Arc::new(Streets::default());
    let (one, two) = (Gateway::start(&streets, "one"), Gateway::start(&streets, "two"));
    let site = site(&streets, config(&["one", "two"]));
    site.has(&["one", "two"]).await;
    one.open()[0].drain();
    site.has(&["two", "two"]).await;
    // The gateway comes back, and gets its link back without a gap.
    site.has(&["one", "two"]).await;
    assert_eq!(two.open().len() + one.open().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn one_address_gets_all_links() {
    let streets = Arc::new(Streets::default());
    let one = Gateway::start(&streets, "one");
    let mut config = config(&["one"]);
    config.bulk_links = 1;
    let site = site(&streets, config);
    site.has(&["one", "one", "one"]).await;
    let bulk =
        one.open().iter().filter(|link| link.info().agent.purpose == tarbet_link::Purpose::Bulk).count();
    assert_eq!(bulk, 1);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_heeded() {
    let streets = Arc::new(Streets::default());
    let mut refusal = Refusal::new(RefusalCode::Quota, "Too many links.");
    refusal.retry_after = Some(Duration::from_secs(40));
    let one = Gateway::start_with(&streets, "one", Some(refusal));
    let mut config = config(&["one"]);
    config.links = 1;
    let site = site(&streets, config);
    eventually("it comes again", || streets.knocks("one").len() >= 2).await;
    let knocks = streets.knocks("one");
    assert!(knocks[1] - knocks[0] >= Duration::from_secs(40));
    let error = site.agent.status().borrow()[0].error.clone().unwrap();
    assert_eq!(error.refusal().unwrap().code, RefusalCode::Quota);
    drop(one);
}

#[tokio::test(start_paused = true)]
async fn stopping_lets_running_requests_finish() {
    let streets = Arc::new(Streets::default());
    let one = Gateway::start(&streets, "one");
    let site = site(&streets, config(&["one", "gone"]));
    site.has(&["one"]).await;
    let link = one.open().pop().unwrap();
    let (sender, receiver) = futures::channel::mpsc::unbounded();
    let body = tarbet_link::Body::new(http_body_util::StreamBody::new(receiver));
    let running = link.call(post("/echo", body)).await.unwrap();
    site.stop.cancel();
    eventually("the gateway hears of it", || !link.phase().takes_requests()).await;
    assert!(!site.running.is_finished());
    sender.unbounded_send(Ok::<_, std::io::Error>(http_body::Frame::data("whole".into()))).unwrap();
    drop(sender);
    assert_eq!(text(running).await, "whole");
    site.running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn stopping_does_not_wait_for_ever() {
    let streets = Arc::new(Streets::default());
    let one = Gateway::start(&streets, "one");
    let mut config = config(&["one"]);
    config.links = 1;
    let site = site(&streets, config);
    site.has(&["one"]).await;
    let link = one.open().pop().unwrap();
    let hanging = tokio::spawn(async move { link.call(get("/hang")).await });
    eventually("it hangs", || site.world.hanging.load(SeqCst) == 1).await;
    site.stop.cancel();
    site.running.await.unwrap();
    assert!(hanging.await.unwrap().is_err());
}
