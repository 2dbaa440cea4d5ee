//! What the plugin does with endpoint gateways.

use serde_json::json;
use sha2::{Digest as _, Sha256};
use tarbet_nets::Error;
use tarbet_nets::cloud::{Cloud, NewResource};
use tarbet_nets::model::{Direction, Flags};

use super::super::sim::Faults;
use super::{World, deployment, machine, rule};

pub(super) fn endpoint(namespace: &str, name: &str) -> NewResource {
    let target = json!({ "resource_type": "provider_cloud_service", "crn": "crn:v1:bluemix:public:cos:::x" });
    let description = json!({ "target": target, "zone": { "name": "us-south-1" } });
    NewResource { deployment: deployment(namespace), name: name.into(), description: description.to_string() }
}

/// The stand-in's ids follow from names.
pub(super) fn uri(namespace: &str, name: &str) -> String {
    let hash = |text: &str, bytes: usize| hex::encode(&Sha256::digest(text.as_bytes())[..bytes]);
    let name = format!("paraglider-{name}-{}", hash(&format!("rg\n{namespace}\nus-south\nus-south-1"), 4));
    let id = hash(&format!("us-south/v1/endpoint_gateways/\"{name}\""), 8);
    format!("/resourcegroup/rg/zone/us-south-1/endpoint/{id}")
}

/// Switches endpoints on, as the orchestrator does.
pub(super) async fn allow(ibm: &dyn Cloud) -> Result<(), Error> {
    ibm.set_flags(Flags { private_endpoints_enabled: true, ..Flags::default() }).await
}

#[tokio::test]
async fn the_calls_of_an_endpoint() {
    let world = World::start().await;
    let (sim, ibm) = (&world.sim, world.ibm());
    sim.faults(Faults::default());
    let off = ibm.create_resource(endpoint("default", "e-1")).await.unwrap_err();
    assert!(matches!(&off, Error::Unsupported(said) if said.contains("privateEndpointsEnabled")), "{off}");
    allow(&ibm).await.unwrap();
    let mut chosen = endpoint("default", "e-1");
    chosen.description = chosen.description.replace("\"zone\"", "\"vpc\"");
    let chosen = ibm.create_resource(chosen).await.unwrap_err().to_string();
    assert!(chosen.contains("description.vpc"), "{chosen}");
    assert_eq!(sim.changes(), Vec::<String>::new(), "refusals touch nothing");

    let made = ibm.create_resource(endpoint("default", "e-1")).await.unwrap();
    assert_eq!(made.uri, uri("default", "e-1"));
    let changes = sim.changes();
    let kinds: Vec<&str> = changes.iter().map(|call| call.rsplit('/').next().unwrap()).collect();
    assert_eq!(
        kinds,
        ["vpcs", "address_prefixes", "subnets", "security_groups", "reserved_ips", "endpoint_gateways"]
    );
    assert_eq!(ibm.create_resource(endpoint("default", "e-1")).await.unwrap(), made);
    assert_eq!(sim.changes().len(), kinds.len(), "the same again changes nothing");
    let used = ibm.used_spaces(&[deployment("default")]).await.unwrap();
    assert!(used[0].spaces[0].contains(&made.ip.parse::<std::net::IpAddr>().unwrap()), "{used:?} {made:?}");
    sim.with(|cloud| {
        let tags = cloud.tags.iter().find(|(crn, _)| crn.contains("/endpoint_gateways/")).unwrap().1;
        assert!(tags.contains("pg") && tags.contains("default"), "{tags:?}");
    });

    // It has rules and a place among the resources as a machine has.
    let vm = ibm.create_resource(machine("default", "vm-1")).await.unwrap();
    let held = ibm.list_resources("default").await.unwrap();
    let held: Vec<_> = held.iter().map(|one| (&*one.name, &*one.uri, &*one.ip)).collect();
    assert_eq!(held, [("vm-1", &*vm.uri, &*vm.ip), ("e-1", &*made.uri, &*made.ip)]);
    let foreign = ibm.permit_list("other", &made.uri).await.unwrap_err();
    assert!(matches!(foreign, Error::Foreign { .. }), "{foreign}");
    sim.faults(Faults::default());
    let web = rule("web", Direction::Inbound, &format!("{}/32", vm.ip));
    let public = rule("out", Direction::Outbound, "203.0.113.9/32");
    ibm.add_rules("default", &made.uri, vec![web.clone(), public]).await.unwrap();
    assert!(sim.changes().iter().all(|call| call.ends_with("/rules")), "no way out: {:?}", sim.changes());
    ibm.delete_rules("default", &made.uri, vec!["out".into()]).await.unwrap();
    assert_eq!(ibm.permit_list("default", &made.uri).await.unwrap(), [web]);
    assert!(ibm.permit_list("default", &vm.uri).await.unwrap().is_empty(), "each has a group of its own");
    sim.with(super::IbmCloud::lose_rules);
    assert_eq!(ibm.drift("default", true).await.unwrap().len(), 1);
    assert_eq!(ibm.drift("default", false).await.unwrap(), Vec::<String>::new());

    // The network stays as long as anything is in it.
    ibm.delete_resource("default", &vm.uri).await.unwrap();
    assert_eq!(ibm.permit_list("default", &made.uri).await.unwrap().len(), 1);
    ibm.delete_resource("default", &made.uri).await.unwrap();
    assert_eq!(sim.with(|cloud| cloud.state()), std::collections::BTreeMap::default(), "nothing is left");
    ibm.delete_resource("default", &made.uri).await.unwrap();
    sim.assert_sound();
}

#[tokio::test]
async fn an_endpoint_that_others_put_into_the_network_is_theirs() {
    let world = World::start().await;
    let (sim, ibm) = (&world.sim, world.ibm());
    allow(&ibm).await.unwrap();
    ibm.create_resource(machine("default", "vm-1")).await.unwrap();
    sim.with(|cloud| {
        let vpc = cloud.state().into_iter().find(|(path, _)| path.contains("/vpcs/")).unwrap().1;
        let of = json!({ "id": vpc["id"], "name": vpc["name"] });
        let theirs = json!({
            "name": "theirs", "vpc": of, "resource_group": { "id": "rg" }, "security_groups": [{ "id": "g9", "name": "usual" }],
            "ips": [{ "address": "10.0.0.99" }], "target": { "crn": "crn:x" },
        });
        cloud.put("security_groups", "g9", &[], json!({ "name": "usual", "vpc": of }));
        let rule = json!({ "direction": "inbound", "protocol": "all", "remote": { "address": "10.0.0.9" } });
        cloud.put("security_groups/g9/rules", "r9", &[], rule);
        cloud.put("endpoint_gateways", "e9", &[], theirs);
    });
    let before = sim.with(|cloud| cloud.state());
    let theirs = "/resourcegroup/rg/zone/us-south-1/endpoint/e9";
    let foreign = |result: Result<(), Error>| matches!(result, Err(Error::Foreign { .. }));
    let web = vec![rule("web", Direction::Inbound, "10.0.0.9/32")];
    assert!(foreign(ibm.add_rules("default", theirs, web).await));
    assert!(foreign(ibm.delete_rules("default", theirs, vec!["web".into()]).await));
    assert!(foreign(ibm.delete_resource("default", theirs).await));
    assert_eq!(sim.with(|cloud| cloud.state()), before);
    sim.assert_sound();
}

#[tokio::test]
async fn an_endpoint_of_that_name_which_leads_elsewhere_is_not_taken_for_it() {
    let world = World::start().await;
    let (sim, ibm) = (&world.sim, world.ibm());
    allow(&ibm).await.unwrap();
    ibm.create_resource(endpoint("default", "e-1")).await.unwrap();
    let mut other = endpoint("default", "e-1");
    other.description = other.description.replace(":cos:", ":kms:");
    let refused = ibm.create_resource(other).await.unwrap_err().to_string();
    assert!(refused.contains("description.target"), "{refused}");
    sim.assert_sound();
}
