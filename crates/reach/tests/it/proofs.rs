//! Who a site believes: callers' tokens, keys, and nothing that a gateway says.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tarbet_identity::caller::{CallerIssuer, RequestDigest};
use tarbet_identity::{PinSet, PrivateKey, PublicKey, Secret, Subject};
use tarbet_link::{Dialer, LinkError};
use tarbet_reach::agent::callers::Callers;
use tarbet_reach::agent::end_to_end::EndToEnd;
use tarbet_reach::agent::policy::{Policy, ServiceFor, ServiceRule};
use tarbet_reach::agent::{Dispatcher, Door};
use tarbet_reach::audit::AuditLog;
use tarbet_reach::client::{Prove, RemoteSite};
use tarbet_reach::config::GatewayConfig;
use tokio_util::sync::CancellationToken;

use super::lab::{AgentProcess, Echo, Gateway, Lab, Shared, ask, code, request, target};

/// A site whose one service is for ann alone.
struct World {
    lab: Lab,
    _gateway: Gateway,
    _agent: AgentProcess,
    issuer: CallerIssuer,
    issuer_key: PublicKey,
    key: PrivateKey,
    echo: Arc<Echo>,
    dispatcher: Arc<Dispatcher>,
}

async fn world(policy: impl FnOnce(Policy) -> Policy) -> World {
    let lab = Lab::new().await;
    let gateway = lab.gateway("gw", GatewayConfig::default(), AuditLog::none());
    let token = lab.add_site("paris").await;
    let (issuing, key) = (PrivateKey::generate().unwrap(), PrivateKey::generate().unwrap());
    let rule = ServiceFor { name: "echo".into(), callers: Some(vec!["ann".into()]) };
    let policy = policy(Policy { services: vec![ServiceRule::For(rule)], ..Policy::default() });
    let echo = Echo::named("paris");
    let dispatcher = Dispatcher::new(vec![Arc::new(Shared(Arc::clone(&echo)))], policy)
        .believing(Callers::new(paris(), [issuing.public()]).unwrap())
        .reached_end_to_end(EndToEnd::new(&key, "agent", CancellationToken::new()).unwrap());
    let dispatcher = Arc::new(dispatcher);
    let mut agent = lab.agent("host", &token, &["gw"], Door::of_links(Arc::clone(&dispatcher)), 1);
    agent.up(2).await;
    World {
        lab,
        _gateway: gateway,
        _agent: agent,
        issuer_key: issuing.public(),
        issuer: CallerIssuer::new(issuing),
        key,
        echo,
        dispatcher,
    }
}

fn paris() -> Subject {
    Subject::site("paris").unwrap()
}

const MINUTE: Duration = Duration::from_mins(1);

impl World {
    fn plain(&self) -> RemoteSite {
        self.lab.remote("gw", "paris")
    }

    fn sealed(&self, key: &PrivateKey, proof: Option<Secret>) -> RemoteSite {
        let pins = PinSet::default();
        pins.insert(key.public().pin());
        let prove: Prove = Arc::new(move || proof.clone());
        self.plain().sealed(pins, prove).unwrap()
    }

    fn token(&self, principal: &str, digest: Option<&RequestDigest>) -> Secret {
        self.issuer.issue(principal, &paris(), digest, Timestamp::now(), MINUTE).unwrap()
    }
}

async fn with_token(way: &RemoteSite, method: &str, body: &str, token: &str) -> Result<String, LinkError> {
    let mut asked = request(method, "/x?y=1", body);
    asked.headers_mut().insert("tarbet-caller-token", token.parse().unwrap());
    ask(way, asked).await
}

#[tokio::test]
async fn a_name_counts_only_if_a_known_issuer_signed_it() {
    let before = Timestamp::now() - Duration::from_secs(2);
    let world = world(|policy| policy).await;
    let way = world.plain();
    let refused = |answer: Result<String, LinkError>| assert_eq!(code(&answer.unwrap_err()), "TB-1201");

    // No proof, or only the gateway's word.
    refused(ask(&way, request("GET", "/", "")).await);
    let mut claimed = request("GET", "/", "");
    claimed.headers_mut().insert("tarbet-caller", "ann".parse().unwrap());
    refused(ask(&way, claimed).await);

    // Reads need a token of ann's, good for any read.
    let ann = world.token("ann", None);
    assert_eq!(with_token(&way, "GET", "", ann.expose()).await.unwrap(), "paris:");
    refused(with_token(&way, "GET", "", world.token("bob", None).expose()).await);

    // Writes need one for this very request, once.
    refused(with_token(&way, "POST", "body", ann.expose()).await);
    let digest = RequestDigest::new("POST", "/x?y=1", b"body");
    let bound = world.token("ann", Some(&digest));
    refused(with_token(&way, "POST", "other body", bound.expose()).await);
    refused(with_token(&way, "PUT", "body", bound.expose()).await);
    assert_eq!(with_token(&way, "POST", "body", bound.expose()).await.unwrap(), "paris:body");
    refused(with_token(&way, "POST", "body", bound.expose()).await);
    let empty = world.token("ann", Some(&RequestDigest::new("DELETE", "/x?y=1", b"")));
    assert_eq!(with_token(&way, "DELETE", "", empty.expose()).await.unwrap(), "paris:");

    // One that an agent which is gone may have taken already.
    let old = world.issuer.issue("ann", &paris(), Some(&digest), before, MINUTE).unwrap();
    refused(with_token(&way, "POST", "body", old.expose()).await);
    let old = world.issuer.issue("ann", &paris(), None, before, MINUTE).unwrap();
    assert_eq!(with_token(&way, "GET", "", old.expose()).await.unwrap(), "paris:");

    // Forged, expired, or made for another site.
    let stranger = CallerIssuer::new(PrivateKey::generate().unwrap());
    let forged = stranger.issue("ann", &paris(), None, Timestamp::now(), MINUTE).unwrap();
    refused(with_token(&way, "GET", "", forged.expose()).await);
    let past = Timestamp::now() - Duration::from_hours(1);
    let expired = world.issuer.issue("ann", &paris(), None, past, MINUTE).unwrap();
    refused(with_token(&way, "GET", "", expired.expose()).await);
    let lyon =
        world.issuer.issue("ann", &Subject::site("lyon").unwrap(), None, Timestamp::now(), MINUTE).unwrap();
    refused(with_token(&way, "GET", "", lyon.expose()).await);
    refused(with_token(&way, "GET", "", "nonsense").await);

    // A stream has no place for a token, so it must come end to end.
    assert_eq!(code(&way.open(target("echo")).await.unwrap_err()), "TB-1201");
}

#[tokio::test]
async fn the_service_never_sees_the_token() {
    let world = world(|policy| policy).await;
    let token = world.token("ann", None);
    let mut asked = request("GET", "/", "");
    asked.headers_mut().insert("tarbet-caller-token", token.expose().parse().unwrap());
    let answer = tarbet_link::Caller::call(&world.plain(), asked).await.unwrap();
    assert!(!answer.headers().contains_key("seen-tarbet-caller-token"), "{:?}", answer.headers());
}

#[tokio::test]
async fn end_to_end_the_agent_proves_its_key_and_the_caller_its_name() {
    let world = world(|policy| policy).await;
    let ann = world.sealed(&world.key, Some(world.token("ann", None)));
    assert_eq!(ask(&ann, request("POST", "/", "sealed")).await.unwrap(), "paris:sealed");
    let mut stream = ann.open(target("echo")).await.unwrap();
    let mut name = [0; 6];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut name).await.unwrap();
    assert_eq!(&name, b"paris:");

    // Without a proof, with one of somebody else, with a forged one.
    let nobody = world.sealed(&world.key, None);
    assert_eq!(code(&ask(&nobody, request("GET", "/", "")).await.unwrap_err()), "TB-1201");
    let bob = world.sealed(&world.key, Some(world.token("bob", None)));
    assert_eq!(code(&ask(&bob, request("GET", "/", "")).await.unwrap_err()), "TB-1201");
    let forged = world.sealed(&world.key, Some(Secret::new("forged".into())));
    assert_eq!(code(&ask(&forged, request("GET", "/", "")).await.unwrap_err()), "TB-1201");

    // An agent with another key, as a gateway that pretends to be one would have.
    let other = world.sealed(&PrivateKey::generate().unwrap(), None);
    assert_eq!(code(&ask(&other, request("GET", "/", "")).await.unwrap_err()), "TB-1204");
    assert_eq!(world.echo.begun.load(std::sync::atomic::Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_issuer_that_is_taken_out_counts_no_more_where_it_was_believed_before() {
    let world = world(|policy| policy).await;
    let ann = world.sealed(&world.key, Some(world.token("ann", None)));
    let get = async || ask(&ann, request("GET", "/", "")).await;
    assert_eq!(get().await.unwrap(), "paris:");

    // Another issuer beside it: the connection that is open goes on.
    let (second, policy) = (PrivateKey::generate().unwrap().public(), || Policy {
        services: vec![ServiceRule::For(ServiceFor {
            name: "echo".into(),
            callers: Some(vec!["ann".into()]),
        })],
        ..Policy::default()
    });
    let next = |issuers: Vec<_>| {
        Dispatcher::new(Vec::new(), policy()).believing(Callers::new(paris(), issuers).unwrap())
    };
    let first = world.issuer_key;
    world.dispatcher.judge_like(&next(vec![first, second]));
    assert_eq!(get().await.unwrap(), "paris:");

    // Only the other one: neither that connection nor a token by itself counts any more.
    world.dispatcher.judge_like(&next(vec![second]));
    assert_eq!(code(&get().await.unwrap_err()), "TB-1201");
    let token = world.token("ann", None);
    assert_eq!(code(&with_token(&world.plain(), "GET", "", token.expose()).await.unwrap_err()), "TB-1201");

    // Nobody is believed, and then the first one again.
    world.dispatcher.judge_like(&Dispatcher::new(Vec::new(), policy()));
    assert_eq!(code(&get().await.unwrap_err()), "TB-1201");
    world.dispatcher.judge_like(&next(vec![first]));
    assert_eq!(get().await.unwrap(), "paris:");
}

#[tokio::test]
async fn a_site_may_refuse_what_a_gateway_can_read() {
    let world = world(|policy| Policy {
        accept_plain: false,
        services: vec![ServiceRule::Name("echo".into())],
        ..policy
    })
    .await;
    let refused = ask(&world.plain(), request("GET", "/", "")).await.unwrap_err();
    assert_eq!(code(&refused), "TB-1201");
    assert!(refused.to_string().contains("sealed"), "{refused}");
    assert_eq!(code(&world.plain().open(target("echo")).await.unwrap_err()), "TB-1201");
    let sealed = world.sealed(&world.key, None);
    assert_eq!(ask(&sealed, request("GET", "/", "")).await.unwrap(), "paris:");
}

#[tokio::test]
async fn the_key_that_an_agent_shows_is_remembered_with_its_site() {
    let world = world(|policy| policy).await;
    let site = world.lab.directory().site(&"paris".parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(site.keys.iter().map(|key| key.pin).collect::<Vec<_>>(), [world.key.public().pin()]);
}
