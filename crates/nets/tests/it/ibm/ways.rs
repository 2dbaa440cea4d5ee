//! Public and transit gateways go when nobody needs them any more, however that came about.

use serde_json::json;
use tarbet_nets::cloud::Cloud;
use tarbet_nets::model::{Direction, Rule};

use super::super::sim::Sim;
use super::vendor::IbmCloud;
use super::{World, deployment, machine, rule};

fn there(sim: &Sim<IbmCloud>, kind: &str) -> usize {
    let of = format!("/{kind}/");
    sim.with(|cloud| cloud.state().keys().filter(|path| path.contains(&of)).count())
}

#[tokio::test]
async fn a_public_gateway_goes_with_the_target_of_a_rule_that_is_replaced() {
    let world = World::start().await;
    let (sim, ibm) = (&world.sim, world.ibm());
    let made = ibm.create_resource(machine("default", "vm-1")).await.unwrap();
    let out = rule("out", Direction::Outbound, "203.0.113.9/32");
    ibm.add_rules("default", &made.uri, vec![out.clone()]).await.unwrap();
    assert_eq!(there(sim, "public_gateways"), 1);
    ibm.add_rules("default", &made.uri, vec![Rule { targets: vec!["10.0.0.9/32".into()], ..out }])
        .await
        .unwrap();
    assert_eq!(there(sim, "public_gateways"), 0);
    sim.assert_sound();
}

#[tokio::test]
async fn what_a_plugin_that_ended_owed_goes_when_drift_is_repaired() {
    let world = World::start().await;
    let (sim, ibm) = (&world.sim, world.ibm());
    let made = ibm.create_resource(machine("default", "vm-1")).await.unwrap();
    ibm.add_rules("default", &made.uri, vec![rule("out", Direction::Outbound, "203.0.113.9/32")])
        .await
        .unwrap();
    // As one that was cut off between the rule and its way: the rule is not wanted any more.
    let id = made.uri.rsplit('/').next().unwrap();
    let controller = &world.running.orchestrator;
    let kept = format!("rules-{id}");
    tarbet_nets::controller::Controller::set_value(controller, "default", "ibm", &kept, "[]").await.unwrap();
    let ibm = world.ibm();
    ibm.used_spaces(&[deployment("default")]).await.unwrap();
    ibm.drift("default", false).await.unwrap();
    assert_eq!(there(sim, "public_gateways"), 1, "a question changes nothing");
    ibm.drift("default", true).await.unwrap();
    assert_eq!(there(sim, "public_gateways"), 0);
    sim.assert_sound();
}

#[tokio::test]
async fn a_transit_gateway_goes_though_it_is_named_after_another_resource_group() {
    let world = World::start().await;
    let (sim, ibm) = (&world.sim, world.ibm());
    let near = ibm.create_resource(machine("default", "vm-1")).await.unwrap();
    let mut new = machine("far", "vm-2");
    new.deployment.id = "/resourcegroup/rg2".into();
    let far = ibm.create_resource(new).await.unwrap();
    let peer = |ip: &str| vec![rule("peer", Direction::Inbound, &format!("{ip}/32"))];
    ibm.add_rules("default", &near.uri, peer(&far.ip)).await.unwrap();
    ibm.add_rules("far", &far.uri, peer(&near.ip)).await.unwrap();
    assert!(there(sim, "transit_gateways") > 0);
    // The first to go is needed by the second; the second looks for those of both.
    ibm.delete_rules("default", &near.uri, vec!["peer".into()]).await.unwrap();
    assert!(there(sim, "transit_gateways") > 0);
    ibm.delete_rules("far", &far.uri, vec!["peer".into()]).await.unwrap();
    assert_eq!((there(sim, "transit_gateways"), there(sim, "connections")), (0, 0));
    sim.assert_sound();
}

#[tokio::test]
async fn networks_that_people_put_on_the_transit_gateway_stay_on_it() {
    let world = World::start().await;
    let (sim, ibm) = (&world.sim, world.ibm());
    let near = ibm.create_resource(machine("default", "vm-1")).await.unwrap();
    let far = ibm.create_resource(machine("other", "vm-2")).await.unwrap();
    let peer = vec![rule("peer", Direction::Inbound, &format!("{}/32", far.ip))];
    ibm.add_rules("default", &near.uri, peer).await.unwrap();
    sim.with(|cloud| {
        cloud.put("vpcs", "v1", &[], json!({ "name": "legacy", "resource_group": { "id": "rg" } }));
        cloud.connect("mine", "crn:us-south/v1/vpcs/v1");
    });
    let mine = || sim.with(|cloud| cloud.state().keys().any(|path| path.ends_with("/connections/mine")));
    ibm.delete_rules("default", &near.uri, vec!["peer".into()]).await.unwrap();
    assert!(mine(), "no rule needs it, and it is not ours");
    for (namespace, uri) in [("default", &near.uri), ("other", &far.uri)] {
        ibm.delete_resource(namespace, uri).await.unwrap();
        assert!(mine(), "after {namespace}");
    }
    assert_eq!(there(sim, "connections"), 1, "ours went with their networks");
    sim.assert_sound();
}
