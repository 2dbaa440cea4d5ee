//! Deletions that a cloud could not be told are written down, and made once it answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::cloud::{Calls, Cloud as _, MemoryCloud};
use tarbet_nets::error::Error;
use tarbet_testbed::eventually;

use super::bed::{self, rest};

const PATIENCE: Duration = Duration::from_mins(1);

/// The call that both clouds refuse just now.
#[derive(Clone, Default)]
struct Refused(Arc<Mutex<&'static str>>);

impl Refused {
    fn set(&self, call: &'static str) {
        *self.0.lock().unwrap() = call;
    }

    fn calls(&self) -> Calls {
        let refused = self.0.clone();
        Arc::new(move |call, done| {
            let refused = !done && *refused.lock().unwrap() == call;
            Box::pin(async move {
                let (cloud, what) = ("east".to_owned(), call.to_owned());
                if refused { Err(Error::Cloud { cloud, what, said: "out of order".into() }) } else { Ok(()) }
            })
        })
    }
}

fn resource(url: &str, cloud: &str, name: &str) -> String {
    format!("{url}/namespaces/default/clouds/{cloud}/resources/{name}")
}

/// `web` in east and `far` in west, both under the tag `all`, both open for the tag `clients`.
async fn world(url: &str) {
    for (cloud, name) in [("east", "web"), ("west", "far")] {
        let made = || async {
            let body = json!({ "description": "{}" });
            let (status, answer) = rest(Method::PUT, resource(url, cloud, name), body).await;
            if status == 200 { Ok(()) } else { Err(answer.to_string()) }
        };
        eventually(PATIENCE, "the machine is made", made).await.unwrap();
    }
    set(url, "clients", &["203.0.113.7"]).await;
    set(url, "all", &["default.east.web", "default.west.far"]).await;
    let (status, answer) = rest(Method::POST, format!("{url}/tags/all/rules"), rule("open")).await;
    assert_eq!(status, 200, "{answer}");
}

fn rule(name: &str) -> Value {
    json!([{ "name": name, "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["clients"] }])
}

async fn set(url: &str, tag: &str, members: &[&str]) {
    let body = json!({ "name": tag, "child_tags": members });
    let (status, answer) = rest(Method::POST, format!("{url}/tags/{tag}/applyMembers"), body).await;
    assert_eq!(status, 200, "{answer}");
}

async fn targets(cloud: &MemoryCloud, uri: &str) -> Result<Vec<String>, Error> {
    let rules = cloud.permit_list("default", uri).await?;
    Ok(rules.into_iter().flat_map(|rule| rule.targets).collect())
}

const WEB: &str = "memory/east/default/web";
const FAR: &str = "memory/west/default/far";

#[tokio::test]
async fn rules_under_a_tag_go_in_every_cloud_that_answers_and_later_in_the_one_that_did_not() {
    let mut clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = running.rest.clone();
    world(&url).await;
    clouds.east_leaves().await;
    let rules = format!("{url}/tags/all/rules");
    // Rules that nobody here gave are looked for in every cloud, also in one that does not answer.
    let (status, plan) = rest(Method::DELETE, format!("{rules}?plan=true"), json!(["open", "other"])).await;
    assert_eq!(status, 200, "{plan}");
    let (status, told) = rest(Method::DELETE, rules.clone(), json!(["open"])).await;
    assert_eq!((status, &told["code"]), (502, &json!("TB-4201")), "{told}");
    assert!(told["try"].as_str().unwrap().contains("written down"), "{told}");
    assert_eq!(targets(&clouds.west, FAR).await.unwrap(), Vec::<String>::new(), "the other cloud was told");
    assert_eq!(targets(&clouds.east, WEB).await.unwrap(), ["203.0.113.7"]);
    assert_eq!(
        rest(Method::DELETE, rules.clone(), json!(["open"])).await.0,
        502,
        "it is not said to be done"
    );
    // One cloud that does not answer keeps back nothing that is known of it, nor of the others.
    let (status, drift) = rest(Method::GET, format!("{url}/drift"), Value::Null).await;
    assert_eq!((status, drift.as_array().map(Vec::len)), (200, Some(2)), "{drift}");
    let what = format!("rule open of {WEB} is deleted and its cloud has not heard it");
    assert_eq!(drift[0], json!({ "cloud": "east", "what": what, "mend": "repair", "repaired": false }));
    assert!(drift[1]["what"].as_str().unwrap().starts_with("not compared: "), "{drift}");
    assert_eq!(rest(Method::POST, format!("{url}/drift"), Value::Null).await.0, 502, "it is not mended");
    clouds.east_returns().await;
    eventually(PATIENCE, "the rule goes by itself", || async {
        targets(&clouds.east, WEB).await.unwrap().is_empty()
    })
    .await
    .unwrap();
    eventually(PATIENCE, "nothing is left", || async {
        rest(Method::GET, format!("{url}/drift"), Value::Null).await == (200, json!([]))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_rule_that_is_given_again_stays_and_one_that_is_deleted_goes_after_a_restart() {
    let refused = Refused::default();
    let clouds = bed::clouds(Some(refused.calls())).await;
    let store = bed::memory().await;
    let running = bed::orchestrator(&clouds.config, &store).await;
    let url = running.rest.clone();
    world(&url).await;
    let web = resource(&url, "east", "web");
    let gone = format!("{web}/rules/open");

    refused.set("DeletePermitListRules");
    assert_eq!(rest(Method::DELETE, gone.clone(), Value::Null).await.0, 502);
    let left = json!([{
        "cloud": "east",
        "what": format!("rule open of {WEB} is deleted and its cloud has not heard it"),
        "mend": "repair",
        "repaired": false,
    }]);
    assert_eq!(rest(Method::GET, format!("{url}/drift"), Value::Null).await.1, left);
    assert_eq!(running.orchestrator.tags().subscribers("clients").len(), 1, "it follows no tag any more");
    assert_eq!(rest(Method::POST, format!("{web}/applyRules"), rule("open")).await.0, 200);
    refused.set("");
    // Whoever follows a tag makes the deletions that are left first.
    set(&url, "clients", &["203.0.113.8"]).await;
    assert_eq!(targets(&clouds.east, WEB).await.unwrap(), ["203.0.113.7", "203.0.113.8"]);

    refused.set("DeletePermitListRules");
    assert_eq!(rest(Method::DELETE, gone, Value::Null).await.0, 502);
    drop(running);
    refused.set("");
    let again = bed::orchestrator(&clouds.second, &store).await;
    eventually(PATIENCE, "whoever begins makes what is left", || async {
        targets(&clouds.east, WEB).await.unwrap().is_empty()
    })
    .await
    .unwrap();
    assert_eq!(targets(&clouds.west, FAR).await.unwrap().len(), 2, "others keep theirs");
    drop(again);
}

#[tokio::test]
async fn a_resource_is_closed_at_once_and_removed_once_its_cloud_answers() {
    let refused = Refused::default();
    let clouds = bed::clouds(Some(refused.calls())).await;
    let store = bed::memory().await;
    let running = bed::orchestrator(&clouds.config, &store).await;
    let url = running.rest.clone();
    world(&url).await;
    set(&url, "clients", &["default.west.far"]).await;
    let address = running.orchestrator.tags().get("default.west.far").unwrap().ip.unwrap();
    assert!(targets(&clouds.east, WEB).await.unwrap().contains(&address));

    refused.set("DeleteResource");
    let far = resource(&url, "west", "far");
    let (status, told) = rest(Method::DELETE, far.clone(), Value::Null).await;
    assert_eq!(status, 502);
    assert!(told["try"].as_str().unwrap().contains("written down"), "{told}");
    assert_eq!(targets(&clouds.east, WEB).await.unwrap(), ["203.0.113.7"], "nobody permits it any more");
    assert!(targets(&clouds.west, FAR).await.is_ok(), "its cloud has it still");
    let (_, drift) = rest(Method::GET, format!("{url}/drift"), Value::Null).await;
    assert_eq!(drift[0]["what"], json!(format!("{FAR} is deleted and its cloud has not heard it")));
    let body = json!({ "description": "{}" });
    assert_eq!(rest(Method::PUT, far.clone(), body.clone()).await.0, 400, "its name is not free yet");
    // Taken in again, it would be removed all the same once its cloud answers.
    let resources = format!("{url}/namespaces/default/clouds/west/resources");
    let (status, told) = rest(Method::POST, resources, json!({ "id": FAR })).await;
    assert_eq!(status, 400, "{told}");
    assert!(told["error"].as_str().unwrap().contains("has yet to remove it"), "{told}");
    assert_eq!(rest(Method::DELETE, far, Value::Null).await.0, 502, "it is not said to be done");

    drop(running);
    refused.set("");
    let again = bed::orchestrator(&clouds.second, &store).await;
    eventually(PATIENCE, "it goes by itself", || async { targets(&clouds.west, FAR).await.is_err() })
        .await
        .unwrap();
    let far = resource(&again.rest, "west", "far");
    eventually(PATIENCE, "its name is free", || async {
        let (status, answer) = rest(Method::PUT, far.clone(), body.clone()).await;
        if status == 200 { Ok(()) } else { Err(answer.to_string()) }
    })
    .await
    .unwrap();
    assert_eq!(targets(&clouds.west, FAR).await.unwrap(), Vec::<String>::new());
}
