//! Permit lists that could not follow their tags at once, or whose tags others changed, are made good.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::cloud::{Calls, Cloud as _};
use tarbet_nets::config::ListenConfig;
use tarbet_nets::error::Error;
use tarbet_nets::plan::tags::Mapping;
use tarbet_nets::tags::{Sharing, Tags};
use tarbet_nets::wire::seed_tags::tag_service_client::TagServiceClient as SeedClient;
use tarbet_nets::wire::tags::tag_service_client::TagServiceClient;
use tarbet_nets::wire::{seed_tags, tags};
use tarbet_testbed::{Lease, Redis, eventually};

use super::bed::{self, rest};

const PATIENCE: Duration = Duration::from_mins(1);
const URI: &str = "memory/east/default/web";

/// Refuses new rules while it is on.
#[derive(Clone, Default)]
struct Broken(Arc<AtomicBool>);

impl Broken {
    fn set(&self, broken: bool) {
        self.0.store(broken, Ordering::SeqCst);
    }

    fn calls(&self) -> Calls {
        let broken = self.0.clone();
        Arc::new(move |call, done| {
            let broken = broken.load(Ordering::SeqCst) && call == "AddPermitListRules" && !done;
            Box::pin(async move {
                let (cloud, what) = ("east".to_owned(), call.to_owned());
                if broken { Err(Error::Cloud { cloud, what, said: "out of order".into() }) } else { Ok(()) }
            })
        })
    }
}

/// A machine whose rule follows the tag `top`, which has the members `clients` and 10.0.0.10; `clients` has
/// 10.0.0.11.
async fn world(url: &str) {
    let web = format!("{url}/namespaces/default/clouds/east/resources/web");
    let made = || async {
        let (status, answer) = rest(Method::PUT, web.clone(), json!({ "description": "{}" })).await;
        if status == 200 { Ok(()) } else { Err(answer.to_string()) }
    };
    eventually(PATIENCE, "the machine is made", made).await.unwrap();
    assert_eq!(set(url, "clients", "10.0.0.11").await.0, 200);
    assert_eq!(set(url, "top", "clients").await.0, 200);
    assert_eq!(set(url, "top", "10.0.0.10").await.0, 200);
    let rule = json!([{ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["top"] }]);
    let (status, answer) = rest(Method::POST, format!("{web}/applyRules"), rule).await;
    assert_eq!(status, 200, "{answer}");
}

async fn set(url: &str, tag: &str, member: &str) -> (u16, Value) {
    let body = json!({ "name": tag, "child_tags": [member] });
    rest(Method::POST, format!("{url}/tags/{tag}/applyMembers"), body).await
}

async fn permitted(clouds: &bed::Clouds) -> Vec<String> {
    let rules = clouds.east.permit_list("default", URI).await.unwrap();
    rules.into_iter().flat_map(|rule| rule.targets).collect()
}

async fn comes_to_permit(clouds: &bed::Clouds, wanted: &[&str]) {
    eventually(PATIENCE, "the permit list follows", || async {
        let now = permitted(clouds).await;
        if now == wanted { Ok(()) } else { Err(format!("{now:?}, not {wanted:?}")) }
    })
    .await
    .unwrap();
}

async fn drift(url: &str) -> Value {
    rest(Method::GET, format!("{url}/drift"), Value::Null).await.1
}

#[tokio::test]
async fn a_change_that_a_cloud_could_not_follow_is_made_good() {
    let broken = Broken::default();
    let clouds = bed::clouds(Some(broken.calls())).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    world(&url).await;
    let lags = json!([{
        "cloud": "east",
        "what": format!("the targets of rule web of {URI} are not what its tags stand for"),
        "mend": "repair",
        "repaired": false,
    }]);
    let member = format!("{url}/tags/clients/members/10.0.0.11");
    let plan = |url: &str| {
        let url = format!("{url}?plan=true");
        async move { rest(Method::DELETE, url, Value::Null).await.1["calls"].as_array().unwrap().len() }
    };

    // A member is taken out while the cloud is out of order.
    broken.set(true);
    assert_eq!(rest(Method::DELETE, member.clone(), Value::Null).await.0, 502);
    assert_eq!(running.orchestrator.tags().addresses("top"), ["10.0.0.10"], "the tag is changed");
    assert_eq!(permitted(&clouds).await, ["10.0.0.10", "10.0.0.11"], "its permit list is not");
    assert_eq!(drift(&url).await, lags);
    assert_eq!(plan(&member).await, 1, "there is something left to do");
    assert_eq!(
        rest(Method::DELETE, member.clone(), Value::Null).await.0,
        502,
        "and it is not said to be done"
    );
    assert_eq!(rest(Method::POST, format!("{url}/drift"), Value::Null).await.0, 502);
    broken.set(false);
    assert_eq!(rest(Method::DELETE, member.clone(), Value::Null).await.0, 200);
    assert_eq!(permitted(&clouds).await, ["10.0.0.10"]);
    assert_eq!((plan(&member).await, drift(&url).await), (0, json!([])));

    // The same with a member that comes in, which nobody asks for again.
    broken.set(true);
    assert_eq!(set(&url, "clients", "10.0.0.12").await.0, 502);
    assert_eq!(set(&url, "clients", "10.0.0.12").await.0, 502, "not done yet");
    broken.set(false);
    comes_to_permit(&clouds, &["10.0.0.10", "10.0.0.12"]).await;

    // A tag that is gone when it is asked to go again.
    broken.set(true);
    let tag = format!("{url}/tags/clients");
    assert_eq!(rest(Method::DELETE, tag.clone(), Value::Null).await.0, 502);
    assert!(!running.orchestrator.tags().exists("clients"));
    assert_eq!(plan(&tag).await, 1, "its followers are left to do");
    let never = rest(Method::DELETE, format!("{url}/tags/never"), Value::Null).await;
    assert_eq!(never, (200, json!({})), "what never was is as wanted");
    broken.set(false);
    comes_to_permit(&clouds, &["10.0.0.10"]).await;
    eventually(PATIENCE, "nothing is left", || async {
        let left = plan(&tag).await;
        if left == 0 { Ok(()) } else { Err(left) }
    })
    .await
    .unwrap();

    // A machine whose own tag somebody follows already.
    assert_eq!(set(&url, "top", "default.east.late").await.0, 200);
    broken.set(true);
    let late = format!("{url}/namespaces/default/clouds/east/resources/late");
    let body = json!({ "description": "{}" });
    assert_eq!(rest(Method::PUT, late.clone(), body.clone()).await.0, 502);
    assert_eq!(rest(Method::PUT, late.clone(), body.clone()).await.0, 502, "not done yet");
    broken.set(false);
    let (status, made) = rest(Method::PUT, late.clone(), body).await;
    assert_eq!((status, made["ip"].as_str()), (200, Some("10.0.0.5")), "{made}");
    assert_eq!(permitted(&clouds).await, ["10.0.0.10", "10.0.0.5"]);
    broken.set(true);
    assert_eq!(rest(Method::DELETE, late.clone(), Value::Null).await.0, 502);
    assert_eq!(plan(&late).await, 1);
    broken.set(false);
    comes_to_permit(&clouds, &["10.0.0.10"]).await;
}

#[tokio::test]
async fn whoever_begins_compares_every_permit_list_with_its_tags() {
    let clouds = bed::clouds(None).await;
    let store = bed::memory().await;
    let running = bed::orchestrator(&clouds.config, &store).await;
    let url = running.rest.clone();
    world(&url).await;
    // Another hand on the same records, of which nobody here hears.
    let there = Tags::open(&store, Sharing::Alone).await.unwrap();
    there.delete_member("top", "clients").await.unwrap();
    drop(running);
    let again = bed::orchestrator(&clouds.second, &store).await;
    // Whoever begins compares everything by itself.
    comes_to_permit(&clouds, &["10.0.0.10"]).await;
    eventually(PATIENCE, "it is written down", || async { drift(&again.rest).await == json!([]) })
        .await
        .unwrap();
    let (_, operations) = rest(Method::GET, format!("{}/operations", again.rest), Value::Null).await;
    let titles = operations.as_array().unwrap().iter().filter_map(|operation| operation["title"].as_str());
    assert!(
        titles.into_iter().any(|title| title == "bring 1 permit lists in line with their tags"),
        "{operations}"
    );
}

#[tokio::test]
async fn changes_over_the_tag_services_own_wires_are_followed() {
    let clouds = bed::clouds(None).await;
    let mut config = clouds.config.clone();
    let port = Lease::block(1).unwrap();
    config.seed_tag_service = Some(ListenConfig { host: "127.0.0.1".into(), port: port.port(0) });
    let running = bed::orchestrator(&config, &bed::memory().await).await;
    world(&running.rest).await;
    let group = |tag: &str, member: &str| Mapping {
        name: tag.into(),
        child_tags: vec![member.into()],
        ..Mapping::default()
    };

    let at = format!("http://127.0.0.1:{}", config.tag_service.port);
    let mut today = TagServiceClient::connect(at).await.unwrap();
    today.set_tag(tags::SetTagRequest { tag: Some(group("clients", "10.0.0.20").into()) }).await.unwrap();
    comes_to_permit(&clouds, &["10.0.0.10", "10.0.0.11", "10.0.0.20"]).await;
    let member = tags::DeleteTagMemberRequest { parent_tag: "clients".into(), child_tag: "10.0.0.11".into() };
    today.delete_tag_member(member).await.unwrap();
    comes_to_permit(&clouds, &["10.0.0.10", "10.0.0.20"]).await;
    today.delete_tag(tags::DeleteTagRequest { tag_name: "clients".into() }).await.unwrap();
    comes_to_permit(&clouds, &["10.0.0.10"]).await;

    let at = format!("http://127.0.0.1:{}", port.port(0));
    let mut seed = SeedClient::connect(at).await.unwrap();
    seed.set_tag(seed_tags::TagMapping::from(group("top", "10.0.0.30"))).await.unwrap();
    comes_to_permit(&clouds, &["10.0.0.10", "10.0.0.30"]).await;
    seed.delete_tag_member(seed_tags::TagMapping::from(group("top", "10.0.0.10"))).await.unwrap();
    comes_to_permit(&clouds, &["10.0.0.30"]).await;
    seed.delete_tag(seed_tags::Tag { tag_name: "top".into() }).await.unwrap();
    comes_to_permit(&clouds, &[]).await;
}

#[tokio::test]
async fn changes_by_another_process_on_the_same_store_are_followed() {
    let redis = Redis::start().await.unwrap();
    let clouds = bed::clouds(None).await;
    let running = bed::replica(&clouds.config, &bed::redis(&redis).await).await;
    world(&running.rest).await;
    let other = Tags::open(&bed::redis(&redis).await, Sharing::Shared).await.unwrap();
    other.delete_member("clients", "10.0.0.11").await.unwrap();
    comes_to_permit(&clouds, &["10.0.0.10"]).await;
    other.delete("top").await.unwrap();
    comes_to_permit(&clouds, &[]).await;
}

#[tokio::test]
async fn a_tag_that_is_deleted_and_set_again_is_followed_again() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    world(&url).await;
    let tag = format!("{url}/tags/top");
    let (_, plan) = rest(Method::DELETE, format!("{tag}?plan=true"), Value::Null).await;
    let wanted = json!([
        "tags: DeleteTag top",
        format!("east: AddPermitListRules web (-2) to {URI}"),
        "tags: Unsubscribe all from top",
    ]);
    assert_eq!(plan["calls"], wanted);
    assert_eq!(rest(Method::DELETE, tag, Value::Null).await.0, 200);
    assert_eq!(
        running.orchestrator.tags().subscribers("top"),
        Vec::<String>::new(),
        "nobody follows what is not"
    );
    assert_eq!(permitted(&clouds).await, Vec::<String>::new());
    // The rule names it still.
    assert_eq!(set(&url, "top", "10.0.0.40").await.0, 200);
    assert_eq!(permitted(&clouds).await, ["10.0.0.40"]);
    assert_eq!(running.orchestrator.tags().subscribers("top").len(), 1);
}

#[tokio::test]
async fn a_plan_of_a_tag_names_its_calls_and_refuses_what_could_never_work() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    world(&url).await;
    let far = format!("{url}/namespaces/default/clouds/west/resources/far");
    assert_eq!(rest(Method::PUT, far, json!({ "description": "{}" })).await.0, 200);

    // An address in no network, far below what the rule names, is refused while nothing is changed.
    let (status, refused) = set(&url, "clients", "10.99.0.1").await;
    assert_eq!(status, 400, "{refused}");
    assert!(refused["error"].as_str().unwrap().contains("10.99.0.1"), "{refused}");
    assert_eq!(running.orchestrator.tags().get("clients").unwrap().child_tags, ["10.0.0.11"]);

    // A member in another cloud needs a connection, and the plan says so.
    let body = json!({ "name": "clients", "child_tags": ["default.west.far"] });
    let apply = |how: &str| {
        let url = format!("{url}/tags/clients/applyMembers?{how}");
        let body = body.clone();
        async move { rest(Method::POST, url, body).await }
    };
    let (_, plan) = apply("plan=true").await;
    let calls: Vec<&str> = plan["calls"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(calls.first(), Some(&"ConnectClouds east/default with west/default"));
    let own: Vec<&&str> = calls[1..].iter().filter(|call| !call.starts_with("  ")).collect();
    assert_eq!(
        own,
        [&"tags: SetTag clients", &format!("east: AddPermitListRules web (+1) to {URI}").as_str()]
    );
    let digest = plan["digest"].as_str().unwrap().to_owned();
    // Somebody else changes what the list would be told.
    assert_eq!(set(&url, "other", "10.0.0.50").await.0, 200);
    assert_eq!(set(&url, "top", "other").await.0, 200);
    assert_eq!(set(&url, "other", "10.0.0.51").await.0, 200);
    assert_eq!(apply(&format!("expect={digest}")).await.0, 409);
    assert!(clouds.east.tunnels().is_empty());
    let (_, plan) = apply("plan=true").await;
    let digest = plan["digest"].as_str().unwrap();
    assert_eq!(apply(&format!("expect={digest}")).await.0, 200);
    assert_eq!((clouds.east.tunnels().len(), clouds.west.tunnels().len()), (1, 1));
    assert!(permitted(&clouds).await.contains(&"10.1.0.4".to_owned()));
    let (_, operations) = rest(Method::GET, format!("{url}/operations"), Value::Null).await;
    let connects = operations.as_array().unwrap().iter().filter(|operation| {
        operation["calls"]
            .as_array()
            .unwrap()
            .iter()
            .any(|call| call.as_str().unwrap().starts_with("Connect"))
    });
    assert_eq!(connects.count(), 1, "the plugin found it made: {operations}");

    // The same resource by its URI, as the first generation names it.
    let rule = json!({ "associated_resource": URI, "rules": [
        { "id": "seed", "src_port": -1, "dst_port": 22, "protocol": 6, "tags": ["10.99.0.1"] },
    ] });
    let path = format!("{url}/cloud/east/permit-list/rules/");
    let (status, refused) = rest(Method::POST, path, rule).await;
    assert_eq!((status, &refused["code"]), (400, &json!("TB-4101")), "{refused}");

    // Taking the last away that needs the connection says that it is free.
    let rules = format!("{url}/namespaces/default/clouds/east/resources/web/rules/web");
    let (_, plan) = rest(Method::DELETE, format!("{rules}?plan=true"), Value::Null).await;
    assert_eq!(plan["unneeded"].as_array().map(Vec::len), Some(1), "{plan}");
    // So does the answer, and the record of it.
    let (status, answer) = rest(Method::DELETE, rules, Value::Null).await;
    assert_eq!((status, &answer["unneeded"]), (200, &plan["unneeded"]));
    let (_, operations) = rest(Method::GET, format!("{url}/operations"), Value::Null).await;
    let telling = operations.as_array().unwrap().iter().filter(|operation| operation["unneeded"].is_array());
    let told: Vec<&Value> = telling.map(|operation| &operation["unneeded"]).collect();
    assert_eq!(told, [&plan["unneeded"]]);
    let (_, prune) = rest(Method::POST, format!("{url}/links/prune?plan=true"), Value::Null).await;
    let link = plan["unneeded"][0].as_str().unwrap();
    assert_eq!(prune["calls"], json!([format!("DisconnectClouds {link}")]));
}
