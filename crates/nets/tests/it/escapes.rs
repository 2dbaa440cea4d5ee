//! Requests in one namespace that try to get at a resource of another: none does, and by its name it looks like one
//! that does not exist.

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::cloud::{Cloud, Guarded, Policy, Remote};
use tarbet_nets::model::Rule;
use tarbet_nets::{Error, Orchestrator};
use tarbet_testbed::verified;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::bed::{self, effort, rest};
use super::sim::{Faults, Sim, Vendor};
use super::{azure, gcp, ibm};

/// Ways to write the name of the resource into a path; `{v}` is the name.
const FORMS: [&str; 22] = [
    "{v}",
    "{v}",
    "{v}",
    "other.east.{v}",
    "default.east.{v}",
    "../../../other/clouds/east/resources/{v}",
    "..%2f..%2f..%2fother%2fclouds%2feast%2fresources%2f{v}",
    "%2e%2e",
    "{v}%00",
    "{v}%20",
    "%20{v}",
    "{v}.",
    ".{v}",
    "memory%2feast%2fother%2f{v}",
    "memory/east/other/{v}",
    "other%2f{v}",
    "{v}%2frules",
    "{v};ns=other",
    "%76ault",
    "{v}?namespace=other",
    "default.east.x,other.east.{v}",
    "*",
];
/// Namespaces and clouds that are not the resource's own place.
const PLACES: [&str; 10] = [
    "default/clouds/east",
    "default/clouds/east",
    "default/clouds/west",
    "nowhere/clouds/east",
    "OTHER/clouds/east",
    "other%00/clouds/east",
    "default%2fother/clouds/east",
    "default.other/clouds/east",
    "%20other/clouds/east",
    "default/clouds/east%2f..%2f..%2fother",
];
const DEEDS: [(&str, &str); 10] = [
    ("GET", "/rules"),
    ("POST", "/rules"),
    ("POST", "/applyRules"),
    ("POST", "/deleteRules"),
    ("PUT", "/rules/vault-rule"),
    ("DELETE", "/rules/vault-rule"),
    ("DELETE", ""),
    ("DELETE", "?async=true"),
    ("DELETE", "?plan=true"),
    ("PATCH", ""),
];

fn body(deed: (&str, &str)) -> String {
    let rule = json!({ "name": "mine", "direction": "inbound", "src_port": -1, "dst_port": 1, "protocol": 6, "tags": ["0.0.0.0/0"] });
    match deed {
        ("POST", "/rules") | ("PUT", _) => rule.to_string(),
        ("POST", "/applyRules") => json!([rule]).to_string(),
        ("POST", _) => json!(["vault-rule"]).to_string(),
        _ => String::new(),
    }
}

/// A request as it stands, byte for byte: no client of good manners tidies the path up.
async fn raw(port: u16, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    let text = format!("{head}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    (head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0), body.to_owned())
}

/// All that is known of the resource, by those who may.
async fn picture(orchestrator: &Orchestrator, cloud: &dyn Cloud, uri: &str) -> Value {
    let rules = orchestrator.rules("other", "east", "vault").await.unwrap();
    let resources = orchestrator.resources(Some("other")).await.unwrap();
    let there = cloud.permit_list("other", uri).await.unwrap();
    let tag = orchestrator.tags().get("other.east.vault");
    json!([rules, resources, there, tag])
}

#[tokio::test]
async fn nobody_crosses_to_a_resource_of_another_namespace() {
    let clouds = bed::clouds(None).await;
    let running = bed::orchestrator(&clouds.config, &bed::memory().await).await;
    let place = format!("{}/namespaces/other/clouds/east/resources/vault", running.rest);
    let (status, made) = rest(Method::PUT, place.clone(), json!({ "description": "" })).await;
    assert_eq!(status, 200, "{made}");
    let uri = made["uri"].as_str().unwrap().to_owned();
    let rule = json!([{ "name": "vault-rule", "direction": "inbound", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["198.51.100.7"] }]);
    let ruled = rest(Method::POST, format!("{place}/applyRules"), rule).await;
    assert_eq!(ruled.0, 200, "{ruled:?}");
    // The attacker's own namespace is a living one.
    let own = format!("{}/namespaces/default/clouds/east/resources/mine", running.rest);
    assert_eq!(rest(Method::PUT, own, json!({ "description": "" })).await.0, 200);
    let before = picture(&running.orchestrator, &*clouds.east, &uri).await;
    let address = made["ip"].as_str().unwrap();

    let (mut tried, port) = (0, clouds.config.server.port);
    for round in 0..effort() {
        for (n, form) in FORMS.iter().enumerate() {
            for (m, place) in PLACES.iter().enumerate() {
                // Every pair of form and place, with the deeds shifted from round to round.
                for deed in DEEDS.iter().cycle().skip(n + m + round).take(DEEDS.len()) {
                    let mut told = Vec::new();
                    for name in ["vault", "vaulx"] {
                        let form =
                            form.replace("{v}", name).replace("%76ault", &format!("%76{}", &name[1..]));
                        let path = format!("/namespaces/{place}/resources/{form}{}", deed.1);
                        let (status, said) = raw(port, deed.0, &path, &body(*deed)).await;
                        assert!(
                            !said.contains("198.51.100.7") && !said.contains(address),
                            "{} {path}: {said}",
                            deed.0
                        );
                        told.push((status, said.replace(name, "NAME")));
                    }
                    assert_eq!(told[0], told[1], "{} {place} {form}{}", deed.0, deed.1);
                    tried += 1;
                }
            }
        }
    }
    // Straight to the plugin, by the resource's own URI.
    let plugin = &clouds.config.cloud_plugins[0];
    let remote = Remote::new("east", &plugin.host, plugin.port).unwrap();
    for namespace in
        ["default", "", "OTHER", "other ", " other", "other/", "*", "nowhere", "default,other", "other\0"]
    {
        assert!(remote.permit_list(namespace, &uri).await.is_err(), "{namespace}");
        assert!(
            remote
                .add_rules(namespace, &uri, vec![Rule { name: "mine".into(), ..Rule::default() }])
                .await
                .is_err()
        );
        assert!(
            remote.delete_rules(namespace, &uri, vec!["vault-rule".into()]).await.is_err(),
            "{namespace}"
        );
        assert!(remote.delete_resource(namespace, &uri).await.is_err(), "{namespace}");
        assert!(remote.attach_resource(namespace, &uri).await.is_err(), "{namespace}");
        tried += 5;
    }
    assert_eq!(picture(&running.orchestrator, &*clouds.east, &uri).await, before, "nothing of it changed");
    verified("attempts to reach a resource of another namespace: none crosses", tried);
}

/// Everything that can be asked of a resource by its URI, by somebody whom the policy keeps to another deployment.
async fn is_out_of_reach(plugin: impl Cloud, sim: &Sim<impl Vendor>, listed: &str, uri: &str) {
    let policy = Policy { deployments: Some(vec![listed.into()]), ..Policy::default() };
    let guarded = Guarded::new(policy, plugin);
    let rule = Rule { name: "mine".into(), targets: vec!["0.0.0.0/0".into()], ..Rule::default() };
    sim.faults(Faults::default());
    let refused = |error: Option<Error>| {
        assert!(matches!(error, Some(Error::Policy { .. })), "{uri}: {error:?}");
    };
    refused(guarded.permit_list("default", uri).await.err());
    refused(guarded.add_rules("default", uri, vec![rule]).await.err());
    refused(guarded.delete_rules("default", uri, vec!["mine".into()]).await.err());
    refused(guarded.attach_resource("default", uri).await.err());
    refused(guarded.delete_resource("default", uri).await.err());
    assert_eq!(sim.seen().len(), 0, "nothing was asked of the cloud");
}

/// The same deployment, however it is spelt.
async fn is_in_reach(plugin: impl Cloud, listed: &str, uri: &str) {
    let policy = Policy { deployments: Some(vec![listed.into()]), ..Policy::default() };
    assert_eq!(Guarded::new(policy, plugin).permit_list("default", uri).await.unwrap(), []);
}

#[tokio::test]
async fn a_policy_of_deployments_holds_for_resources_by_their_uri() {
    let world = gcp::World::start().await;
    let made = world.gcp().create_resource(gcp::machine("default", "vm-1")).await.unwrap();
    let short = made.uri.strip_prefix("https://www.googleapis.com/compute/v1/").unwrap();
    for uri in [made.uri.as_str(), short] {
        is_out_of_reach(world.gcp(), &world.sim, "projects/q", uri).await;
        is_in_reach(world.gcp(), "projects/p", uri).await;
    }
    let world = ibm::World::start().await;
    let made = world.ibm().create_resource(ibm::machine("default", "vm-1")).await.unwrap();
    is_out_of_reach(world.ibm(), &world.sim, "/resourcegroup/other", &made.uri).await;
    is_in_reach(world.ibm(), "/resourcegroup/rg/zone/us-south-1", &made.uri).await;
    let bed = azure::Bed::start().await;
    let made = bed.azure().create_resource(azure::new_machine("default", "vm1", "westus2")).await.unwrap();
    is_out_of_reach(bed.azure(), &bed.sim, "/subscriptions/s1/resourceGroups/other", &made.uri).await;
    is_in_reach(bed.azure(), "/subscriptions/S1/resourcegroups/RG", &made.uri).await;
    let plugin = bed.azure();
    azure::clusters::allow(&plugin).await.unwrap();
    let made =
        plugin.create_resource(azure::clusters::new_cluster("default", "k1", "westus2")).await.unwrap();
    for uri in [made.uri.clone(), made.uri.to_lowercase()] {
        is_out_of_reach(bed.azure(), &bed.sim, "/subscriptions/s1/resourceGroups/other", &uri).await;
        is_in_reach(bed.azure(), "/subscriptions/S1/resourcegroups/RG", &uri).await;
    }
    bed.sim.assert_sound();
}
