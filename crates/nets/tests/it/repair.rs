//! What differs: found, told honestly where it cannot be, and mended as an operation. And what a plan leaves alone.

use std::sync::{Arc, Mutex};

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::Error;
use tarbet_nets::cloud::{Calls, Cloud as _, MemoryCloud, Remote};
use tarbet_nets::controller::RemoteController;
use tarbet_nets::model::Rule;
use tarbet_nets::orchestrator::{Options, Request};
use tarbet_nets::values::Values;
use tarbet_telemetry::Coded as _;
use tonic::service::Routes;

use super::bed::{self, rest};

const URI: &str = "memory/east/default/a";

async fn create(url: &str, cloud: &str, name: &str) {
    let path = format!("{url}/namespaces/default/clouds/{cloud}/resources/{name}");
    let (status, answer) = rest(Method::PUT, path, json!({ "description": "{}" })).await;
    assert_eq!(status, 200, "{answer}");
}

fn stray() -> Rule {
    Rule { name: "stray".into(), ..Rule::default() }
}

#[tokio::test]
async fn mending_is_planned_and_is_an_operation() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    create(&url, "east", "a").await;
    let web = json!({ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["10.0.0.9"] });
    let rules = format!("{url}/namespaces/default/clouds/east/resources/a/rules");
    assert_eq!(rest(Method::POST, rules, web).await.0, 200);
    clouds.east.delete_rules("default", URI, vec!["web".into()]).await.unwrap();
    clouds.east.add_rules("default", URI, vec![stray()]).await.unwrap();

    let (status, plan) = rest(Method::POST, format!("{url}/drift?plan=true"), Value::Null).await;
    assert_eq!(status, 200, "{plan}");
    let call = format!("east: AddPermitListRules web to {URI} and DeletePermitListRules stray from it");
    assert_eq!(plan["calls"], json!([call]));
    let names = async || {
        let rules = clouds.east.permit_list("default", URI).await.unwrap();
        rules.into_iter().map(|rule| rule.name).collect::<Vec<_>>()
    };
    assert_eq!(names().await, ["stray"], "a plan mends nothing");
    assert_eq!(rest(Method::POST, format!("{url}/drift?expect=0123"), Value::Null).await.0, 409);
    let exactly = format!("{url}/drift?expect={}", plan["digest"].as_str().unwrap());
    let (status, mended) = rest(Method::POST, exactly, Value::Null).await;
    assert_eq!(status, 200, "{mended}");
    let mended = mended.as_array().unwrap();
    assert!(mended.len() == 2 && mended.iter().all(|line| line["repaired"] == true), "{mended:?}");
    assert_eq!(names().await, ["web"]);
    let (_, operations) = rest(Method::GET, format!("{url}/operations"), Value::Null).await;
    assert_eq!(
        (&operations[0]["title"], &operations[0]["state"]),
        (&json!("mend what differs"), &json!("done")),
    );
    assert_eq!(rest(Method::POST, format!("{url}/drift"), Value::Null).await, (200, json!([])));
}

#[tokio::test]
async fn a_resource_that_was_given_no_rules_is_looked_at_too() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    create(&url, "east", "a").await;
    clouds.east.add_rules("default", URI, vec![stray()]).await.unwrap();
    let what = format!("rule stray of {URI} was not given here, and stays");
    let told = json!([{ "cloud": "east", "what": what, "mend": "nothing", "repaired": false }]);
    assert_eq!(rest(Method::GET, format!("{url}/drift"), Value::Null).await, (200, told.clone()));
    assert_eq!(rest(Method::POST, format!("{url}/drift"), Value::Null).await, (200, told));
    assert_eq!(clouds.east.permit_list("default", URI).await.unwrap().len(), 1, "others may have given it");
}

#[tokio::test]
async fn only_what_was_planned_is_mended() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    create(&url, "east", "a").await;
    let rule = |name: &str| json!({ "name": name, "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["10.0.0.9"] });
    let rules = format!("{url}/namespaces/default/clouds/east/resources/a/applyRules");
    assert_eq!(rest(Method::POST, rules, json!([rule("web"), rule("ssh")])).await.0, 200);
    let take = async |name: &str| clouds.east.delete_rules("default", URI, vec![name.into()]).await.unwrap();
    let names = async || {
        let rules = clouds.east.permit_list("default", URI).await.unwrap();
        rules.into_iter().map(|rule| rule.name).collect::<Vec<_>>()
    };
    let orchestrator = &running.orchestrator;
    let repair = async |found| orchestrator.execute(Request::Repair(found), Options::default()).await;

    // Between the plan and its calls another rule goes, and another one comes.
    take("web").await;
    clouds.east.add_rules("default", URI, vec![stray()]).await.unwrap();
    let found = orchestrator.compare().await.unwrap();
    take("ssh").await;
    clouds.east.add_rules("default", URI, vec![Rule { name: "later".into(), ..stray() }]).await.unwrap();
    repair(found).await.unwrap();
    assert_eq!(names().await, ["later", "web"], "what came later was in no plan");
    repair(orchestrator.compare().await.unwrap()).await.unwrap();
    assert_eq!(names().await, ["ssh", "web"]);

    // A cloud mends all of itself or nothing: one that is broken otherwise than was planned is left as it is. The
    // permit lists after it are mended all the same.
    clouds.east.breaks("the network is missing");
    take("web").await;
    let found = orchestrator.compare().await.unwrap();
    clouds.east.breaks("the tunnel is down");
    let refused = repair(found).await.unwrap_err().problem();
    assert_eq!(refused.code, "TB-4108", "{refused:?}");
    assert!(
        refused.message.contains("tunnel is down") && !refused.message.contains("network"),
        "{refused:?}"
    );
    assert_eq!(names().await, ["ssh", "web"]);
    assert_eq!(clouds.east.drift("default", false).await.unwrap().len(), 2);
    repair(orchestrator.compare().await.unwrap()).await.unwrap();
    assert_eq!(rest(Method::GET, format!("{url}/drift"), Value::Null).await, (200, json!([])));
}

/// The two clouds, of which east is looked at as told; nobody else knows it.
async fn with_east(looks: Calls) -> (bed::Clouds, bed::Listening, Arc<MemoryCloud>) {
    let mut clouds = bed::clouds(None).await;
    let rpc = clouds.config.server.rpc_port;
    let controller = Arc::new(RemoteController::new("127.0.0.1", rpc).unwrap());
    let east = Arc::new(MemoryCloud::new("east", controller).looked_at(looks));
    let listening = bed::serve(tarbet_nets::cloud::serve(east.clone(), "east")).await;
    clouds.config.cloud_plugins[0].port = listening.address.port();
    (clouds, listening, east)
}

#[tokio::test]
async fn what_cannot_be_compared_is_told() {
    let looks: Calls = Arc::new(|call, _| {
        Box::pin(async move {
            match call {
                "Drift" => Err(Error::Unsupported("a rule of vm1 cannot be said".into())),
                _ => Ok(()),
            }
        })
    });
    let (clouds, _listening, east) = with_east(looks).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    create(&url, "east", "a").await;
    let web = json!({ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["10.0.0.9"] });
    let rules = format!("{url}/namespaces/default/clouds/east/resources/a/rules");
    assert_eq!(rest(Method::POST, rules, web).await.0, 200);
    east.delete_rules("default", URI, vec!["web".into()]).await.unwrap();
    let (status, mended) = rest(Method::POST, format!("{url}/drift"), Value::Null).await;
    assert_eq!((status, mended.as_array().map(Vec::len)), (200, Some(2)), "{mended}");
    assert_eq!(mended[0]["repaired"], true, "the permit lists are: {mended}");
    assert!(mended[1]["what"].as_str().unwrap().contains("rule of vm1 cannot be said"), "{mended}");
    assert_eq!(mended[1]["repaired"], false);
    let (_, left) = rest(Method::GET, format!("{url}/drift"), Value::Null).await;
    assert_eq!(left.as_array().unwrap().len(), 1, "it never says that nothing differs: {left}");
}

#[tokio::test]
async fn a_permit_list_that_cannot_be_read_keeps_no_other_from_being_compared() {
    let looks: Calls = Arc::new(|call, _| {
        Box::pin(async move {
            match call {
                "GetPermitList" => Err(Error::Unsupported("it holds what no rule can say".into())),
                _ => Ok(()),
            }
        })
    });
    let (clouds, _listening, _east) = with_east(looks).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    create(&url, "east", "a").await;
    create(&url, "west", "b").await;
    let far = "memory/west/default/b";
    clouds.west.add_rules("default", far, vec![stray()]).await.unwrap();
    let (status, found) = rest(Method::GET, format!("{url}/drift"), Value::Null).await;
    assert_eq!((status, found.as_array().map(Vec::len)), (200, Some(2)), "{found}");
    assert_eq!(found[0]["what"], json!(format!("rule stray of {far} was not given here, and stays")));
    let said = found[1]["what"].as_str().unwrap();
    assert!(said.starts_with(&format!("{URI} is not compared")), "{found}");
}

#[tokio::test]
async fn a_plugin_learns_where_its_networks_are_before_it_compares_itself() {
    let seen: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    let looks: Calls = {
        let seen = seen.clone();
        Arc::new(move |call, _| {
            seen.lock().unwrap().push(call);
            Box::pin(async { Ok(()) })
        })
    };
    let (clouds, _listening, _east) = with_east(looks).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    for _ in 0..2 {
        // The plugin may have been started again since the last question.
        seen.lock().unwrap().clear();
        assert_eq!(rest(Method::GET, format!("{url}/drift"), Value::Null).await, (200, json!([])));
        let seen = seen.lock().unwrap().clone();
        assert_eq!(seen[..2], ["GetUsedAddressSpaces", "Drift"], "{seen:?}");
    }
}

#[tokio::test]
async fn a_plan_without_new_rules_asks_no_cloud_for_its_networks() {
    let seen: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    let looks: Calls = {
        let seen = seen.clone();
        Arc::new(move |call, _| {
            seen.lock().unwrap().push(call);
            Box::pin(async { Ok(()) })
        })
    };
    let (clouds, _listening, _east) = with_east(looks).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    for name in ["a", "b"] {
        create(&url, "east", name).await;
    }
    let clients = json!({ "name": "clients", "child_tags": ["10.0.0.9"] });
    assert_eq!(rest(Method::POST, format!("{url}/tags/clients/applyMembers"), clients).await.0, 200);
    let web = json!({ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["clients"] });
    let resources = format!("{url}/namespaces/default/clouds/east/resources");
    assert_eq!(rest(Method::POST, format!("{resources}/a/rules"), web).await.0, 200);
    // What is known of the networks counts no more.
    assert_eq!(rest(Method::DELETE, format!("{resources}/b"), Value::Null).await.0, 200);
    seen.lock().unwrap().clear();
    let (status, plan) = rest(Method::DELETE, format!("{url}/tags/clients?plan=true"), Value::Null).await;
    assert_eq!((status, plan["calls"].as_array().map(Vec::len)), (200, Some(3)), "{plan}");
    assert_eq!(*seen.lock().unwrap(), Vec::<&str>::new(), "a cloud that hangs would keep the plan back");
}

#[tokio::test]
async fn what_only_wants_to_be_planned_is_never_made() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    let group = json!({ "name": "group", "child_tags": ["10.0.0.1", "10.0.0.2", "10.0.0.3"] });
    assert_eq!(rest(Method::POST, format!("{url}/tags/group/applyMembers"), group).await.0, 200);
    let (_, operations) = rest(Method::GET, format!("{url}/operations"), Value::Null).await;
    let members = || running.orchestrator.tags().get("group").unwrap().child_tags.len();

    let path = format!("{url}/tags/group/members");
    let gone = json!(["10.0.0.1", "10.0.0.2"]);
    let (_, plan) = rest(Method::DELETE, format!("{path}?plan=true"), gone.clone()).await;
    assert_eq!(plan["calls"].as_array().map(Vec::len), Some(2), "{plan}");
    assert_eq!(members(), 3);
    assert_eq!(rest(Method::DELETE, format!("{path}?expect=0123"), gone.clone()).await.0, 409);
    let exactly = format!("{path}?expect={}", plan["digest"].as_str().unwrap());
    assert_eq!(rest(Method::DELETE, exactly, gone).await.1, json!({ "response": "Deleted the members" }));
    assert_eq!(members(), 1);

    // What is no operation cannot be planned, and says so.
    let id = operations[0]["id"].as_str().unwrap();
    for how in ["plan=true", "expect=0123", "async=true"] {
        let choose = format!("{url}/namespace/other?{how}");
        assert_eq!(rest(Method::POST, choose, Value::Null).await.0, 400, "{how}");
        let cancel = format!("{url}/operations/{id}?{how}");
        assert_eq!(rest(Method::DELETE, cancel, Value::Null).await.0, 400, "{how}");
    }
    let (_, chosen) = rest(Method::GET, format!("{url}/namespace"), Value::Null).await;
    assert_eq!(chosen, json!({ "namespace": "default" }));

    // A tag that is not there is as gone as one that was deleted.
    assert_eq!(rest(Method::DELETE, format!("{url}/tags/nothing"), Value::Null).await, (200, json!({})));
    let rule = json!({ "name": "x", "direction": 0, "dst_port": 443 });
    for body in [json!({ "id": "memory/x" }), json!({ "name": "x", "id": "memory/x" }), rule] {
        let put = format!("{url}/namespaces/default/clouds/east/resources/x");
        let (status, answer) = rest(Method::PUT, put, body).await;
        assert_eq!(status, 400, "what was meant for another path: {answer}");
    }
}

#[tokio::test]
async fn a_plugin_elsewhere_tells_what_it_can_do() {
    let clouds = bed::clouds(None).await;
    let port = clouds.config.cloud_plugins[0].port;
    let east = Remote::new("east", "127.0.0.1", port).unwrap();
    assert_eq!(east.at_once(), 32, "as long as nobody asked");
    let able = east.abilities().await.unwrap();
    assert_eq!((able.replaces_keys, able.at_once), (true, clouds.east.at_once()));
    assert_eq!(east.at_once(), clouds.east.at_once());
    assert!(east.at_once() > 32);
    // One that has no word for it, as the originals' have not, is taken for one that cannot.
    let values = Values::new(&bed::memory().await).unwrap();
    let nobody = bed::serve(Routes::new(values.service())).await;
    let other = Remote::new("other", "127.0.0.1", nobody.address.port()).unwrap();
    assert!(!other.abilities().await.unwrap().replaces_keys);
    assert_eq!(other.find_deployment("x").await.unwrap(), None);
}
