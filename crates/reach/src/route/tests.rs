use super::*;
use crate::registry::Rhythm;
use crate::rig::{self, Joined, Unreliable, World};
use jiff::Timestamp;
use std::sync::atomic::Ordering::SeqCst;
use tarbet_store::Store;
use tarbet_telemetry::codes;

const WAIT: Duration = Duration::from_secs(20);

fn alone() -> (LocalLinks, Router) {
    let local = LocalLinks::default();
    let router = Router::new(local.clone(), None, rig::no_peers(), CancellationToken::new());
    (local, router)
}

async fn add(local: &LocalLinks, world: &Arc<World>) -> Joined {
    let joined = rig::join("lab", Arc::clone(world)).await;
    local.add(Arc::clone(&joined.held));
    joined
}

async fn call(router: &Router, request: Request<Body>) -> Result<String, RouteError> {
    let deadline = Instant::now() + WAIT;
    let response = router.call(&rig::site("lab"), request, deadline, &rig::story("lab")).await?;
    Ok(rig::text(response).await)
}

#[test]
fn an_instruction_survives_the_way_to_another_gateway() {
    let link = LinkId::fresh();
    for text in ["kubernetes", "tcp db.local:5432", "gitlab.agent.x.Y/Z"] {
        let target: Target = text.parse().unwrap();
        assert_eq!(instructed(&through(link, &target)), Some((link, target)));
    }
    for text in ["kubernetes", "via/x/kubernetes", "via/kubernetes"] {
        assert_eq!(instructed(&text.parse().unwrap()), None, "{text}");
    }
}

#[test]
fn only_requests_that_change_nothing_are_harmless() {
    let head = |method: &str, upgrade: bool| {
        let mut request = Request::builder().method(method).uri("/");
        if upgrade {
            request = request.header("upgrade", "SPDY/3.1");
        }
        request.body(()).unwrap().into_parts().0
    };
    for method in ["GET", "HEAD", "OPTIONS"] {
        assert!(is_harmless(&head(method, false), true));
        assert!(!is_harmless(&head(method, false), false), "with a body");
        assert!(!is_harmless(&head(method, true), true), "exec is a GET");
    }
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        assert!(!is_harmless(&head(method, false), true));
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_there_means_waiting_until_the_deadline() {
    let (local, router) = alone();
    let begun = Instant::now();
    let error = call(&router, rig::request("GET", "/x", "")).await.unwrap_err();
    assert_eq!(error.problem().code, codes::reach::SITE_NOT_CONNECTED.id);
    assert_eq!(begun.elapsed(), WAIT);
    assert!(local.awaited().is_empty());
}

#[tokio::test(start_paused = true)]
async fn all_who_wait_are_served_when_somebody_comes() {
    let (local, router) = alone();
    let waiting: Vec<_> = (0..200)
        .map(|i| {
            let router = router.clone();
            tokio::spawn(async move { call(&router, rig::request("POST", &format!("/{i}"), "!")).await })
        })
        .collect();
    while local.awaited().iter().map(|(_, count)| count).sum::<usize>() < 200 {
        tokio::task::yield_now().await;
    }
    let world = World::named("lab");
    let _joined = add(&local, &world).await;
    for (i, answer) in waiting.into_iter().enumerate() {
        assert_eq!(answer.await.unwrap().unwrap(), format!("lab/{i}!"));
    }
    assert!(local.awaited().is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_who_leaves_no_longer_waits() {
    let (local, router) = alone();
    let waiting = tokio::spawn({
        let router = router.clone();
        async move { call(&router, rig::request("GET", "/", "")).await }
    });
    while local.awaited().is_empty() {
        tokio::task::yield_now().await;
    }
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    assert!(local.awaited().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_link_that_drains_is_passed_over() {
    let (local, router) = alone();
    let (old, new) = (World::named("old"), World::named("new"));
    let (leaving, _staying) = (add(&local, &old).await, add(&local, &new).await);
    leaving.agent.drain();
    while leaving.held.way.takes_requests() {
        tokio::task::yield_now().await;
    }
    for _ in 0..10 {
        assert_eq!(call(&router, rig::request("POST", "/", "body")).await.unwrap(), "new/body");
    }
    assert_eq!(old.calls.load(SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn links_that_broke_all_at_once_and_are_still_listed_cost_no_attempt() {
    let (local, router) = alone();
    let (old, new) = (World::named("old"), World::named("new"));
    let mut broken = Vec::new();
    for _ in 0..4 * ATTEMPTS {
        broken.push(add(&local, &old).await);
    }
    for joined in &broken {
        joined.cut();
    }
    while broken.iter().any(|joined| joined.held.way.takes_requests()) {
        tokio::task::yield_now().await;
    }
    let waiting = tokio::spawn({
        let router = router.clone();
        async move { call(&router, rig::request("POST", "/", "body")).await }
    });
    while local.awaited().is_empty() {
        assert!(!waiting.is_finished(), "it did not wait");
        tokio::task::yield_now().await;
    }
    let _joined = add(&local, &new).await;
    assert_eq!(waiting.await.unwrap().unwrap(), "new/body");
    assert_eq!(old.calls.load(SeqCst), 0);
}

/// Sends a request that hangs, cuts its link under way, and tells what became of it.
async fn cut_under_way(
    method: &str,
    body: &'static str,
    links: usize,
) -> (Result<String, RouteError>, usize) {
    let (local, router) = alone();
    let first = World::named("first");
    let joined = add(&local, &first).await;
    let request = rig::request(method, "/hang", body);
    let asked = tokio::spawn(async move { call(&router, request).await });
    first.hanging.notified().await;
    // The others answer; their handler knows no /hang because nobody asks twice at the first.
    let mut others = Vec::new();
    for i in 0..links {
        let world = World::named(&format!("other{i}"));
        others.push((add(&local, &world).await, world));
    }
    joined.cut();
    let mut reached = 0;
    for (other, world) in &others {
        let hung = tokio::time::timeout(Duration::from_secs(5), world.hanging.notified()).await.is_ok();
        reached += usize::from(hung);
        other.cut();
    }
    (asked.await.unwrap(), reached)
}

#[tokio::test(start_paused = true)]
async fn a_harmless_request_goes_on_over_another_link_and_others_never_do() {
    for method in ["GET", "HEAD", "OPTIONS"] {
        let (_, reached) = cut_under_way(method, "", 1).await;
        assert_eq!(reached, 1, "{method}");
    }
    for (method, body) in [("POST", ""), ("DELETE", ""), ("PUT", "x"), ("GET", "x")] {
        let (answer, reached) = cut_under_way(method, body, 1).await;
        assert_eq!(reached, 0, "{method} {body}");
        assert_eq!(answer.unwrap_err().problem().code, codes::reach::LINK_LOST.id);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_breaks_every_link_is_given_up() {
    let (local, router) = alone();
    let worlds: Vec<_> = (0..6).map(|i| World::named(&format!("w{i}"))).collect();
    let mut joined = Vec::new();
    for world in &worlds {
        joined.push(add(&local, world).await);
    }
    let asked = tokio::spawn(async move { call(&router, rig::request("GET", "/hang", "")).await });
    let mut broken = 0;
    while !asked.is_finished() {
        for (world, joined) in worlds.iter().zip(&joined) {
            if tokio::time::timeout(Duration::from_millis(10), world.hanging.notified()).await.is_ok() {
                joined.cut();
                broken += 1;
            }
        }
    }
    assert!(asked.await.unwrap().is_err());
    assert_eq!(broken, 1 + UNCERTAIN);
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_leaves_sends_those_who_wait_elsewhere() {
    let leaving = CancellationToken::new();
    let router = Router::new(LocalLinks::default(), None, rig::no_peers(), leaving.clone());
    let asked = tokio::spawn(async move { call(&router, rig::request("GET", "/", "")).await });
    tokio::task::yield_now().await;
    leaving.cancel();
    assert_eq!(asked.await.unwrap().unwrap_err().problem().code, codes::reach::DRAINING.id);
}

#[tokio::test(start_paused = true)]
async fn without_the_registry_own_links_work_and_others_are_named() {
    let backend = Unreliable::default();
    let (local, store) = (LocalLinks::default(), Store::new(backend.clone()));
    let registry =
        Registry::new(&store, "gw", "grpc://gw", local.clone(), Rhythm::default(), Timestamp::now()).unwrap();
    let router = Router::new(local.clone(), Some(registry), rig::no_peers(), CancellationToken::new());
    let _joined = add(&local, &World::named("lab")).await;
    backend.set_down(true);
    assert_eq!(call(&router, rig::request("GET", "/", "")).await.unwrap(), "lab/");
    let story = rig::story("far");
    let deadline = Instant::now() + WAIT;
    let failed = router.call(&rig::site("far"), rig::request("GET", "/", ""), deadline, &story).await;
    assert_eq!(failed.unwrap_err().problem().code, codes::reach::REGISTRY_UNAVAILABLE.id);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_asked_once() {
    let (local, store) = (LocalLinks::default(), rig::Mute::default());
    let asked = Arc::clone(&store.0);
    let registry = Registry::new(
        &Store::new(store),
        "gw",
        "grpc://gw",
        local.clone(),
        Rhythm::default(),
        Timestamp::now(),
    );
    let router = Router::new(local, Some(registry.unwrap()), rig::no_peers(), CancellationToken::new());
    let requests = (0..20).map(|_| call(&router, rig::request("GET", "/", "")));
    for failed in futures::future::join_all(requests).await {
        assert_eq!(failed.unwrap_err().problem().code, codes::reach::REGISTRY_UNAVAILABLE.id);
    }
    assert_eq!(asked.load(SeqCst), 1);
}

/// A gateway, and another that is listed as holding the site and refuses every connection.
struct Silent {
    near: LocalLinks,
    router: Router,
    other: Registry,
    joined: Joined,
    asked: Arc<std::sync::atomic::AtomicUsize>,
}

impl Silent {
    async fn new() -> Self {
        let store = Store::new(Unreliable::default());
        let (near, far) = (LocalLinks::default(), LocalLinks::default());
        let make = |name: &str, local: &LocalLinks| {
            let url = format!("grpc://{name}");
            Registry::new(&store, name, &url, local.clone(), Rhythm::default(), Timestamp::now()).unwrap()
        };
        let (registry, other) = (make("near", &near), make("far", &far));
        let joined = add(&far, &World::named("lab")).await;
        other.announce(&joined.held).await;
        let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counting = Arc::clone(&asked);
        let connect: crate::peers::Connect = Arc::new(move |_| {
            counting.fetch_add(1, SeqCst);
            futures::FutureExt::boxed(async {
                Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
            })
        });
        let router = Router::new(near.clone(), Some(registry), rig::peers(connect), CancellationToken::new());
        Self { near, router, other, joined, asked }
    }

    /// Lets time pass; the other gateway is alive as far as the registry knows.
    async fn pass(&self) {
        tokio::time::sleep(LOOK_AGAIN).await;
        self.other.announce(&self.joined.held).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_listed_gateway_that_does_not_answer_is_tried_again_until_it_does() {
    let silent = Silent::new().await;
    let router = silent.router.clone();
    let waiting = tokio::spawn(async move { call(&router, rig::request("GET", "/", "")).await });
    while silent.asked.load(SeqCst) < 4 {
        silent.pass().await;
    }
    silent.near.add(Arc::clone(&silent.joined.held));
    assert_eq!(waiting.await.unwrap().unwrap(), "lab/");
}

#[tokio::test(start_paused = true)]
async fn a_listed_gateway_that_never_answers_is_named() {
    let silent = Silent::new().await;
    let router = silent.router.clone();
    let waiting = tokio::spawn(async move { call(&router, rig::request("GET", "/", "")).await });
    while !waiting.is_finished() {
        silent.pass().await;
    }
    let problem = waiting.await.unwrap().unwrap_err().problem();
    assert_eq!(problem.code, codes::reach::GATEWAY_UNREACHABLE.id);
    assert!(problem.to_string().contains("entry gateway → grpc://far"), "{problem}");
    assert!(problem.cause.contains("the connection could not be made"), "{}", problem.cause);
}

/// A way that tells what it was asked, and until when it may wait.
struct Asked {
    until: std::sync::Mutex<Option<Instant>>,
    answer: fn() -> Result<Response<Body>, LinkError>,
}

impl Asked {
    fn new(answer: fn() -> Result<Response<Body>, LinkError>) -> Arc<Self> {
        Arc::new(Self { until: std::sync::Mutex::default(), answer })
    }

    fn held(self: &Arc<Self>) -> Arc<Held> {
        Arc::new(Held {
            id: LinkId::fresh(),
            site: rig::site("lab"),
            services: Vec::new(),
            agent: "test".into(),
            key: None,
            token_id: None,
            since: Timestamp::UNIX_EPOCH,
            way: Arc::clone(self) as Arc<dyn Way>,
        })
    }
}

impl Caller for Asked {
    fn call(&self, request: Request<Body>) -> BoxFuture<'_, Result<Response<Body>, LinkError>> {
        let until = request.extensions().get::<Until>().map(|until| until.at);
        *self.until.lock().unwrap() = until;
        let answer = (self.answer)();
        Box::pin(async move {
            if let (Some(until), Err(error)) = (until, &answer)
                && is_busy(error)
            {
                tokio::time::sleep_until(until).await;
            }
            answer
        })
    }
}

impl Dialer for Asked {
    fn open_with(&self, _: Target, _: Bytes) -> BoxFuture<'_, Result<ByteStream, LinkError>> {
        Box::pin(async { Err(LinkError::Draining) })
    }
}

impl Way for Asked {
    fn drain(&self) {}

    fn dismiss(&self, _: tarbet_link::handshake::Refusal) {}
}

fn lacks() -> Result<Response<Body>, LinkError> {
    let id = codes::reach::SERVICE_NOT_OFFERED.id;
    let denial = tarbet_link::Denial::new(http::StatusCode::NOT_FOUND, id, "It is not offered.");
    Err(LinkError::Denied(Box::new(denial.untouched())))
}

#[tokio::test(start_paused = true)]
async fn a_way_is_told_until_when_the_request_waits() {
    let (local, router) = alone();
    let deadline = Instant::now() + WAIT;
    let waiting = tokio::spawn({
        let router = router.clone();
        async move {
            router
                .call(&rig::site("lab"), rig::request("POST", "/", ""), deadline, &rig::story("lab"))
                .await
                .map(drop)
        }
    });
    while local.awaited().is_empty() {
        tokio::task::yield_now().await;
    }
    // Half of its time is over when an agent comes; only the other half is left.
    tokio::time::advance(WAIT / 2).await;
    let way = Asked::new(|| Ok(Response::new(Body::empty())));
    local.add(way.held());
    waiting.await.unwrap().unwrap();
    assert_eq!(*way.until.lock().unwrap(), Some(deadline));
}

#[tokio::test(start_paused = true)]
async fn what_one_agent_lacks_another_may_have_and_nobody_waits_for_a_third() {
    let (local, router) = alone();
    local.add(Asked::new(lacks).held());
    let begun = Instant::now();
    let error = call(&router, rig::request("POST", "/", "x")).await.unwrap_err();
    assert_eq!(error.problem().code, codes::reach::SERVICE_NOT_OFFERED.id);
    assert_eq!(begun.elapsed(), Duration::ZERO);
    let world = World::named("newer");
    let _joined = add(&local, &world).await;
    for _ in 0..4 {
        assert_eq!(call(&router, rig::request("POST", "/", "x")).await.unwrap(), "newer/x");
    }
}

/// Gateways of another make that have the site.
struct Others(Arc<Asked>);

impl Beside for Others {
    fn way<'a>(&'a self, _: &'a SiteName) -> BoxFuture<'a, Option<Neighbour>> {
        let way = Arc::clone(&self.0) as Arc<dyn Way>;
        Box::pin(async move { Some(Neighbour { link: LinkId::fresh(), at: "there".into(), way }) })
    }

    fn follow(&self, _: &SiteName) -> Box<dyn Send> {
        Box::new(())
    }
}

#[tokio::test(start_paused = true)]
async fn gateways_of_another_make_are_asked_while_the_registry_is_away() {
    let (local, backend) = (LocalLinks::default(), Unreliable::default());
    let store = Store::new(backend.clone());
    let registry = Registry::new(&store, "a", "grpc://a", local.clone(), Rhythm::default(), Timestamp::now());
    let router = Router::new(local, Some(registry.unwrap()), rig::no_peers(), CancellationToken::new());
    backend.set_down(true);
    let error = call(&router, rig::request("GET", "/", "")).await.unwrap_err();
    assert_eq!(error.problem().code, codes::reach::REGISTRY_UNAVAILABLE.id);
    let others = Others(Asked::new(|| Ok(Response::new(Body::from("theirs")))));
    let router = router.beside(Some(Arc::new(others)));
    assert_eq!(call(&router, rig::request("GET", "/", "")).await.unwrap(), "theirs");
}

fn full() -> Result<Response<Body>, LinkError> {
    let id = codes::reach::SITE_NOT_CONNECTED.id;
    let denial = tarbet_link::Denial::new(http::StatusCode::GATEWAY_TIMEOUT, id, "All tunnels are in use.");
    Err(LinkError::Denied(Box::new(denial.untouched())))
}

#[tokio::test(start_paused = true)]
async fn a_way_whose_tunnels_are_all_in_use_does_not_keep_a_request_from_another() {
    let (local, router) = alone();
    let busy = Asked::new(full);
    local.add(busy.held());
    // Alone it is waited for to the end.
    let deadline = Instant::now() + WAIT;
    call(&router, rig::request("POST", "/", "x")).await.unwrap_err();
    assert_eq!(*busy.until.lock().unwrap(), Some(deadline));
    // With others, for a moment.
    let world = World::named("idle");
    let _joined = add(&local, &world).await;
    for _ in 0..4 {
        assert_eq!(call(&router, rig::request("POST", "/", "x")).await.unwrap(), "idle/x");
    }
    assert!(busy.until.lock().unwrap().is_some_and(|until| until < Instant::now() + WAIT));

    let others = Others(Asked::new(|| Ok(Response::new(Body::from("theirs")))));
    let (local, router) = alone();
    local.add(busy.held());
    let router = router.beside(Some(Arc::new(others)));
    assert_eq!(call(&router, rig::request("POST", "/", "x")).await.unwrap(), "theirs");
}

#[tokio::test(start_paused = true)]
async fn ways_that_are_all_in_use_are_asked_in_turn_until_time_is_up() {
    let (local, router) = alone();
    let busy = [Asked::new(full), Asked::new(full)];
    for way in &busy {
        local.add(way.held());
    }
    let error = call(&router, rig::request("POST", "/", "x")).await.unwrap_err();
    assert_eq!(error.problem().message, "All tunnels are in use.");
    assert!(busy.iter().all(|way| way.until.lock().unwrap().is_some()));
}

/// Two other gateways that hold the site: in one all tunnels are in use, the other passes on to a world.
struct Far {
    world: Arc<World>,
    /// How often the busy one was asked.
    busy: Arc<std::sync::atomic::AtomicUsize>,
    router: Router,
    _joined: Vec<Joined>,
}

/// A gateway that has no tunnel free.
struct Busy(Arc<std::sync::atomic::AtomicUsize>);

impl tarbet_link::Handler for Busy {
    fn call(
        &self,
        call: tarbet_link::IncomingCall,
    ) -> BoxFuture<'_, Result<Response<Body>, tarbet_link::Denial>> {
        self.0.fetch_add(1, SeqCst);
        let mut headers = call.request.headers().clone();
        let until = Until::take(&mut headers, WAIT);
        Box::pin(async move {
            tokio::time::sleep_until(until.at).await;
            // Not a byte of it was read.
            drop(call);
            full().map_err(|error| match error {
                LinkError::Denied(denial) => *denial,
                other => panic!("{other}"),
            })
        })
    }
}

impl Far {
    async fn new() -> Self {
        let store = Store::new(Unreliable::default());
        let make = |name: &str, local: &LocalLinks| {
            let url = format!("grpc://{name}");
            Registry::new(&store, name, &url, local.clone(), Rhythm::default(), Timestamp::now()).unwrap()
        };
        let (near, world) = (LocalLinks::default(), World::named("idle"));
        let mut joined = Vec::new();
        for name in ["busy", "idle"] {
            let local = LocalLinks::default();
            joined.push(add(&local, &world).await);
            make(name, &local).announce(&joined[joined.len() - 1].held).await;
        }
        let busy = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let (behind, counted) = (Arc::clone(&world), Arc::clone(&busy));
        let connect: crate::peers::Connect = Arc::new(move |url| {
            let (near, far) = tokio::io::duplex(64 * 1024);
            let handler: Arc<dyn tarbet_link::Handler> = match url.as_str() {
                "grpc://busy" => Arc::new(Busy(Arc::clone(&counted))),
                _ => Arc::clone(&behind) as Arc<dyn tarbet_link::Handler>,
            };
            tokio::spawn(async move {
                let leaving = CancellationToken::new();
                let admit = |_| async move { Ok(handler) };
                crate::peers::receive_peer(ByteStream::new(far), "far", &leaving, admit).await.unwrap();
            });
            Box::pin(async move { Ok(ByteStream::new(near)) })
        });
        let registry = make("near", &near);
        let router = Router::new(near, Some(registry), rig::peers(connect), CancellationToken::new());
        Self { world, busy, router, _joined: joined }
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_request_does_not_stay_at_a_gateway_that_has_no_tunnel_for_it() {
    for length in [1, 64 * 1024 + 1, 8 * 1024 * 1024] {
        let far = Far::new().await;
        // Whichever is asked first: no later than by the second request somebody asked the busy one.
        for _ in 0..8 {
            let answer = call(&far.router, rig::request("POST", "/", "x".repeat(length))).await.unwrap();
            assert_eq!(answer.len(), "idle/".len() + length);
        }
        assert_eq!(far.world.calls.load(SeqCst), 8, "each is begun once");
        assert!(far.busy.load(SeqCst) > 0, "nobody met the busy one");
    }
}
