//! Networks that others made: recorded, kept clear of, never changed.

use std::future::Future as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use futures::FutureExt as _;
use ipnet::IpNet;
use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::cloud::{Calls, Cloud as _, Guarded, MemoryCloud, Policy};
use tarbet_nets::controller::{Controller as _, RemoteController};
use tarbet_nets::model::{Deployment, ForeignNetwork};
use tarbet_nets::orchestrator::Options;
use tarbet_telemetry::Coded as _;
use tarbet_testbed::eventually;

use super::bed::{self, rest};

const PATIENCE: Duration = Duration::from_mins(1);

fn network(name: &str, deployment: &str, spaces: &[&str]) -> ForeignNetwork {
    ForeignNetwork {
        id: format!("{deployment}/{name}"),
        name: name.into(),
        region: "r1".into(),
        deployment: deployment.into(),
        spaces: spaces.iter().map(|space| space.parse().unwrap()).collect(),
        subnets: Some(2),
        machines: None,
    }
}

/// What one column of a list says.
pub(super) fn column(list: &Value, field: &str) -> Vec<String> {
    let text = |one: &Value| one[field].as_str().unwrap_or_default().to_owned();
    list.as_array().unwrap().iter().map(text).collect()
}

/// Imports a cloud, or only tells.
pub(super) async fn import(url: &str, cloud: &str, query: &str) -> Value {
    let (status, told) = rest(Method::POST, format!("{url}/imports/{cloud}{query}"), Value::Null).await;
    assert_eq!(status, 200, "{told}");
    told
}

pub(super) async fn imports(url: &str) -> Value {
    rest(Method::GET, format!("{url}/imports"), Value::Null).await.1
}

/// A cloud's calls that change something, by name.
fn noted() -> (Calls, Arc<Mutex<Vec<&'static str>>>) {
    let seen: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    let noting = seen.clone();
    let calls: Calls = Arc::new(move |call, _| {
        noting.lock().unwrap().push(call);
        async { Ok(()) }.boxed()
    });
    (calls, seen)
}

#[tokio::test]
async fn networks_of_others_are_recorded_and_kept_clear_of() {
    let (calls, seen) = noted();
    let clouds = bed::clouds(Some(calls)).await;
    let store = bed::memory().await;
    let running = bed::orchestrator(&clouds.config, &store).await;
    let url = running.rest.clone();
    clouds.east.others_have(vec![
        network("legacy", "e1", &["10.0.0.0/15", "fd00:9::/48"]),
        network("lab", "e2", &["192.168.1.0/24"]),
        network("elsewhere", "e9", &["10.2.0.0/16"]),
    ]);

    // A plan tells all of it and records nothing.
    let planned = import(&url, "east", "?plan=true").await;
    assert_eq!(column(&planned["networks"], "name"), ["lab", "legacy"], "only of deployments that we have");
    assert_eq!(column(&planned["networks"], "change"), ["new", "new"]);
    assert_eq!((&planned["recorded"], &planned["gone"]), (&json!(false), &json!([])));
    assert_eq!(imports(&url).await, json!([]));
    let digest = planned["digest"].as_str().unwrap();
    let (status, refused) = rest(Method::POST, format!("{url}/imports/east?expect=0000"), Value::Null).await;
    assert_eq!((status, &refused["code"]), (409, &json!("TB-4108")), "{refused}");
    let (status, refused) = rest(Method::POST, format!("{url}/imports/east?async=true"), Value::Null).await;
    assert_eq!((status, &refused["code"]), (400, &json!("TB-4101")), "{refused}");
    assert_eq!(imports(&url).await, json!([]));

    // Exactly what was planned, and once.
    let made = import(&url, "east", &format!("?expect={digest}")).await;
    assert_eq!((&made["recorded"], &made["digest"]), (&json!(true), &json!(digest)));
    let recorded = imports(&url).await;
    assert_eq!(column(&recorded, "access"), ["read-only", "read-only"]);
    assert_eq!(recorded[1]["spaces"], json!(["10.0.0.0/15", "fd00:9::/48"]));
    assert_eq!((&recorded[1]["subnets"], &recorded[1]["machines"]), (&json!(2), &Value::Null));
    let again = import(&url, "east", "").await;
    assert_eq!(column(&again["networks"], "change"), ["same", "same"]);
    assert_eq!((&again["digest"], imports(&url).await), (&Value::Null, recorded));

    // Their addresses are given to nobody, and they are nobody's targets.
    let free = running.orchestrator.find_spaces(&[0]).await.unwrap();
    assert_eq!(free, ["10.2.0.0/16".parse::<IpNet>().unwrap()]);
    let create = async |cloud: &str| {
        let at = format!("{url}/namespaces/default/clouds/{cloud}/resources/vm");
        rest(Method::PUT, at, json!({ "description": "{}" })).await.1["ip"].clone()
    };
    assert_eq!(create("west").await, json!("10.3.0.4"));
    let used = running.orchestrator.used_spaces().await.unwrap();
    assert_eq!(used.len(), 1, "plugins are told of what they may connect only: {used:?}");
    let rule =
        json!([{ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["10.1.0.7"] }]);
    let at = format!("{url}/namespaces/default/clouds/west/resources/vm/applyRules");
    let (status, refused) = rest(Method::POST, at, rule).await;
    assert_eq!(status, 400, "{refused}");
    assert!(refused.to_string().contains("10.1.0.7/32 is in legacy of east, which others made"), "{refused}");
    let (_, picture) = rest(Method::GET, format!("{url}/topology"), Value::Null).await;
    assert_eq!(column(&picture["networks"], "name"), ["lab", "legacy"]);

    // Another process on the same store keeps clear of them too.
    drop(running);
    let running = bed::orchestrator(&clouds.second, &store).await;
    let url = running.rest.clone();
    assert_eq!(column(&imports(&url).await, "name"), ["lab", "legacy"]);
    assert_eq!(
        running.orchestrator.find_spaces(&[0]).await.unwrap(),
        ["10.4.0.0/16".parse::<IpNet>().unwrap()]
    );

    // What is gone in the cloud is told and dropped, and its addresses are free again; what meets ours is told.
    clouds.east.others_have(vec![network("lab", "e2", &["192.168.1.0/24", "10.3.128.0/17"])]);
    let planned = import(&url, "east", "?plan=true").await;
    let made = import(&url, "east", "").await;
    for told in [&planned, &made] {
        assert_eq!(column(&told["gone"], "name"), ["legacy"]);
        assert_eq!(column(&told["networks"], "change"), ["changed"]);
        assert_eq!(
            told["overlaps"],
            json!(["10.3.128.0/17 of lab in east overlaps 10.3.0.0/16 of the namespace default in west"])
        );
    }
    assert_eq!(column(&imports(&url).await, "name"), ["lab"]);
    assert_eq!(
        running.orchestrator.find_spaces(&[0]).await.unwrap(),
        ["10.0.0.0/16".parse::<IpNet>().unwrap()]
    );
    assert!(
        seen.lock().unwrap().iter().all(|call| *call == "CreateResource"),
        "no cloud was told anything else"
    );
}

#[tokio::test]
async fn what_was_imported_can_be_forgotten() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    let forget =
        async |query: &str| rest(Method::DELETE, format!("{url}/imports/east{query}"), Value::Null).await;
    clouds.east.others_have(vec![
        network("a/b c", "e1", &["10.0.0.0/16"]),
        network("twin", "e1", &["10.1.0.0/16"]),
        network("twin", "e2", &["10.2.0.0/16"]),
    ]);
    import(&url, "east", "").await;
    let (status, refused) = forget("?network=nothing").await;
    assert_eq!((status, &refused["code"]), (404, &json!("TB-4114")), "{refused}");
    let (status, refused) = forget("?network=twin").await;
    assert_eq!((status, &refused["code"]), (400, &json!("TB-4101")), "{refused}");
    assert!(refused.to_string().contains("e1/twin, e2/twin"), "{refused}");
    let (status, planned) = forget("?network=a%2Fb%20c&plan=true").await;
    assert_eq!((status, &planned["done"]), (200, &json!(false)));
    assert_eq!(imports(&url).await.as_array().unwrap().len(), 3, "a plan forgets nothing");
    let (status, gone) = forget("?network=a%2Fb%20c&network=e2%2Ftwin").await;
    assert_eq!((status, column(&gone["forgotten"], "id")), (200, vec!["e1/a/b c".into(), "e2/twin".into()]));
    assert_eq!(column(&imports(&url).await, "id"), ["e1/twin"]);
    let free = running.orchestrator.find_spaces(&[0, 0]).await.unwrap();
    assert_eq!(free, ["10.0.0.0/16", "10.2.0.0/16"].map(|space| space.parse::<IpNet>().unwrap()));
    // An import finds them again.
    assert_eq!(column(&import(&url, "east", "").await["networks"], "change"), ["new", "same", "new"]);
    assert_eq!(forget("").await.1["forgotten"].as_array().unwrap().len(), 3);
    assert_eq!(forget("").await.0, 200, "nothing is left to forget");
    let (status, refused) = rest(Method::DELETE, format!("{url}/imports/nowhere"), Value::Null).await;
    assert_eq!((status, &refused["code"]), (404, &json!("TB-4105")), "{refused}");
    for (method, query) in [(Method::POST, ""), (Method::POST, "?plan=true")] {
        let (status, refused) = rest(method, format!("{url}/imports/nowhere{query}"), Value::Null).await;
        assert_eq!((status, &refused["code"]), (404, &json!("TB-4105")), "{refused}");
    }
}

/// Notes that somebody is to be polled again.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn what_is_recorded_is_kept_clear_of_also_if_the_caller_leaves_right_then() {
    let clouds = bed::clouds(None).await;
    let folder = tempfile::tempdir().unwrap();
    let running = bed::orchestrator(&clouds.config, &bed::redb(&folder).await).await;
    let orchestrator = &running.orchestrator;
    clouds.east.others_have(vec![network("legacy", "e1", &["10.0.0.0/16"])]);
    let options = Options::default();
    let woken = Arc::new(Woken::default());
    {
        let mut asking = Box::pin(orchestrator.import("east", &options));
        let waker = Waker::from(woken.clone());
        while orchestrator.imports().await.unwrap().is_empty() {
            let polled = asking.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending(), "it was over before it was left");
            eventually(PATIENCE, "there is news", || async {
                let news = woken.0.swap(false, Ordering::SeqCst);
                if news { Ok(()) } else { Err("not yet") }
            })
            .await
            .unwrap();
        }
    }
    // Whoever changes the record next has waited for the one before.
    orchestrator.forget_imported("east", &["nosuch".into()], false).await.unwrap_err();
    let free = orchestrator.find_spaces(&[0]).await.unwrap();
    assert_eq!(free, ["10.1.0.0/16".parse::<IpNet>().unwrap()]);
}

#[tokio::test]
async fn a_plugins_own_policy_holds_for_imports() {
    let controller = Arc::new(RemoteController::new("127.0.0.1", 1).unwrap());
    let cloud = MemoryCloud::new("east", controller);
    cloud.others_have(vec![network("legacy", "e1", &["10.0.0.0/16"])]);
    let policy = Policy {
        deployments: Some(vec!["e1".into()]),
        namespaces: Some(vec!["default".into()]),
        ..Policy::default()
    };
    let guarded = Guarded::new(policy, cloud);
    let ask = async |id: &str, namespace: &str| {
        guarded.foreign_networks(&[Deployment { id: id.into(), namespace: namespace.into() }]).await
    };
    assert_eq!(ask("e1", "default").await.unwrap().len(), 1);
    for (id, namespace) in [("e2", "default"), ("e1", "other")] {
        assert_eq!(ask(id, namespace).await.unwrap_err().problem().code, "TB-4202", "{id} {namespace}");
    }
}
