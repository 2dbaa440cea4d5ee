//! The first generation's client and orchestrator.

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::cloud::Cloud as _;
use tarbet_nets::wire::invisinets as seed;

use super::super::bed::{self, rest};
use super::bare;

#[tokio::test]
async fn answers_have_the_first_generations_shapes() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let url = &running.rest;
    let create = |id: &'static str| async move {
        bare(Method::POST, format!("{url}/cloud/east/resources/"), &json!({ "id": id, "description": "{}" }))
            .await
    };
    assert_eq!(create("e1/a").await.0, 200);
    // Where the description names it, the id may be blank or missing.
    for (name, id) in [("b1", json!("")), ("b2", Value::Null), ("b3", json!("e1"))] {
        let described = json!({ "project": "p", "instance_resource": { "name": name } }).to_string();
        let mut body = json!({ "description": described });
        if !id.is_null() {
            body["id"] = id;
        }
        let (status, made) = bare(Method::POST, format!("{url}/cloud/east/resources"), &body).await;
        assert_eq!((status, &made["uri"]), (200, &json!(format!("memory/east/default/{name}"))), "{made}");
    }
    let tag = json!({ "tag_name": "g", "child_tags": ["default.east.a", "10.0.0.9", "10.0.0.10"] });
    assert_eq!(bare(Method::POST, format!("{url}/tags/g"), &tag).await.0, 200);
    let (_, found) = rest(Method::GET, format!("{url}/tags/g"), Value::Null).await;
    assert_eq!((&found["tag_name"], &found["name"]), (&json!("g"), &json!("g")), "{found}");
    assert_eq!(bare(Method::POST, format!("{url}/tags/g"), &found).await.0, 200, "an answer is a body too");
    let (_, resolved) = rest(Method::GET, format!("{url}/tags/g/resolve"), Value::Null).await;
    let leaf = json!({ "name": "default.east.a", "tag_name": "default.east.a", "uri": "memory/east/default/a",
        "ip": "10.0.0.4" });
    assert_eq!(resolved, json!({ "mappings": [{ "ip": "10.0.0.10" }, { "ip": "10.0.0.9" }, leaf] }));
    for members in [json!(["10.0.0.9"]), json!({ "tag_name": "g", "child_tags": ["10.0.0.10"] })] {
        assert_eq!(bare(Method::DELETE, format!("{url}/tags/g/members/"), &members).await.0, 200);
    }
    assert_eq!(running.orchestrator.tags().addresses("g"), ["10.0.0.4"]);

    let rule = json!({ "id": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["10.0.0.9"] });
    let list = json!({ "associated_resource": "memory/east/default/a", "rules": [rule] });
    let (status, answer) = bare(Method::POST, format!("{url}/cloud/east/permit-list/rules/"), &list).await;
    assert!(status == 200 && answer["response"].is_string(), "{answer}");
    let permit_list = format!("{url}/cloud/east/permit-list/memory/east/default/a");
    let (_, answer) = rest(Method::GET, permit_list.clone(), Value::Null).await;
    assert_eq!(answer["id"], "memory/east/default/a");
    assert_eq!(answer["permitlist"]["rules"][0]["id"], "web", "{answer}");
    assert_eq!(answer["permitlist"]["associated_resource"], "memory/east/default/a");

    // Either spelling of a path, and a rule without an id.
    let nameless = json!({ "src_port": -1, "dst_port": 80, "protocol": 6, "tags": ["10.0.0.9"] });
    let list = json!({ "associated_resource": "memory/east/default/a", "rules": [nameless] });
    for (method, count) in [(Method::POST, 2), (Method::POST, 2), (Method::DELETE, 1)] {
        let (status, answer) = bare(method, format!("{url}/cloud/east/permit-list/rules"), &list).await;
        assert!(status == 200 && answer["response"].is_string(), "{answer}");
        let (_, answer) = rest(Method::GET, permit_list.clone(), Value::Null).await;
        assert_eq!(answer["permitlist"]["rules"].as_array().unwrap().len(), count, "{answer}");
    }
    for path in ["tags", "tags/g", "tags/g/resolve", "namespaces", "namespace", "ping"] {
        for slash in ["", "/"] {
            let (status, answer) = rest(Method::GET, format!("{url}/{path}{slash}"), Value::Null).await;
            assert_eq!(status, 200, "{path}{slash}: {answer}");
        }
    }
    let more = json!({ "tag_name": "h", "child_tags": ["10.0.0.9", "10.0.0.10"] });
    assert_eq!(bare(Method::POST, format!("{url}/tags/h/"), &more).await.0, 200);
    assert_eq!(bare(Method::DELETE, format!("{url}/tags/h/members"), &json!(["10.0.0.9"])).await.0, 200);
    assert_eq!(running.orchestrator.tags().addresses("h"), ["10.0.0.10"]);
    assert_eq!(bare(Method::DELETE, format!("{url}/tags/h/"), &Value::Null).await.0, 200);

    // The namespace that was chosen is that of all that follows.
    let chosen = || rest(Method::GET, format!("{url}/namespace/"), Value::Null);
    assert_eq!(chosen().await, (200, json!({ "namespace": "default" })));
    assert_eq!(rest(Method::POST, format!("{url}/namespace/other/"), Value::Null).await.0, 200);
    assert_eq!(chosen().await, (200, json!({ "namespace": "other" })));
    assert_eq!(create("e2/b").await.0, 200);
    assert!(running.orchestrator.tags().exists("other.east.b"));
    assert_eq!(rest(Method::GET, permit_list, Value::Null).await.0, 403, "of the other namespace");
    assert_eq!(rest(Method::POST, format!("{url}/namespace/nowhere/"), Value::Null).await.0, 404);
    assert_eq!(chosen().await.1["namespace"], "other");
}

#[tokio::test]
async fn a_permit_list_is_told_without_its_namespace() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let body = json!({ "id": "e1/a", "description": "{}" });
    assert_eq!(bare(Method::POST, format!("{}/cloud/east/resources/", running.rest), &body).await.0, 200);
    let uri = "memory/east/default/a";
    let rule = tarbet_nets::model::Rule { name: "web".into(), ..Default::default() };
    clouds.east.add_rules("default", uri, vec![rule]).await.unwrap();
    let plugin = format!("http://127.0.0.1:{}", clouds.config.cloud_plugins[0].port);
    let mut client = seed::cloud_plugin_client::CloudPluginClient::connect(plugin).await.unwrap();
    let ask = |id: &str, namespace: &str| seed::ResourceId { id: id.into(), namespace: namespace.into() };
    let list = client.get_permit_list(ask(uri, "")).await.unwrap().into_inner();
    assert_eq!((list.namespace.as_str(), list.rules.len()), ("default", 1));
    let foreign = client.get_permit_list(ask(uri, "other")).await.unwrap_err();
    assert_eq!(foreign.code(), tonic::Code::PermissionDenied);
    assert_eq!(
        client.get_permit_list(ask("memory/east/default/none", "")).await.unwrap_err().code(),
        tonic::Code::NotFound
    );
}
