//! NAT goes when nobody needs it any more, however that came about; and no list with holes in it is believed.

use serde_json::json;
use tarbet_nets::cloud::Cloud;
use tarbet_nets::model::{Direction, Rule};

use super::super::sim::Sim;
use super::vendor::{Google, PREFIX};
use super::{World, clusters, deployment, machine, rule, step};

fn routers(sim: &Sim<Google>) -> usize {
    sim.with(|google| google.state().keys().filter(|path| path.contains("/routers/")).count())
}

#[tokio::test]
async fn nat_goes_with_the_target_of_a_rule_that_is_replaced() {
    let world = World::start().await;
    let (sim, gcp) = (&world.sim, world.gcp());
    let made = gcp.create_resource(machine("default", "vm-1")).await.unwrap();
    let out = rule("out", Direction::Outbound, "203.0.113.9/32");
    gcp.add_rules("default", &made.uri, vec![out.clone()]).await.unwrap();
    assert_eq!(routers(sim), 1);
    gcp.add_rules("default", &made.uri, vec![Rule { targets: vec!["10.0.0.9/32".into()], ..out.clone() }])
        .await
        .unwrap();
    assert_eq!(routers(sim), 0);
    // Without targets it is no firewall at all.
    gcp.add_rules("default", &made.uri, vec![out.clone()]).await.unwrap();
    gcp.add_rules("default", &made.uri, vec![Rule { targets: vec![], ..out }]).await.unwrap();
    assert_eq!(routers(sim), 0);
    sim.assert_sound();
}

#[tokio::test]
async fn what_a_plugin_that_ended_owed_goes_when_drift_is_repaired() {
    let world = World::start().await;
    let sim = &world.sim;
    step(0, &world.gcp()).await.unwrap();
    step(3, &world.gcp()).await.unwrap();
    let out = sim.with(|google| google.state().into_keys().find(|path| path.ends_with("-out")).unwrap());
    sim.with(|google| google.lose(&out));
    let gcp = world.gcp();
    gcp.used_spaces(&[deployment("default")]).await.unwrap();
    gcp.drift("default", false).await.unwrap();
    assert_eq!(routers(sim), 1, "a question changes nothing");
    gcp.drift("default", true).await.unwrap();
    assert_eq!(routers(sim), 0);
    sim.assert_sound();
}

#[tokio::test]
async fn rules_of_a_cluster_stay_while_its_zone_does_not_answer() {
    let world = World::start().await;
    let (sim, gcp) = (&world.sim, world.gcp());
    clusters::allow(&gcp).await.unwrap();
    let made = gcp.create_resource(clusters::cluster("default", "c-1")).await.unwrap();
    gcp.add_rules("default", &made.uri, vec![rule("web", Direction::Inbound, "10.0.0.9/32")]).await.unwrap();
    let before = sim.with(|google| google.state());
    sim.with(|google| google.silent = vec!["us-west1-a".into()]);
    let refused = gcp.drift("default", true).await.unwrap_err();
    let said = format!("{refused:?}");
    assert!(said.contains("us-west1-a did not answer"), "{said}");
    assert_eq!(sim.with(|google| google.state()), before);
    sim.with(|google| google.silent.clear());
    assert_eq!(gcp.drift("default", true).await.unwrap(), Vec::<String>::new());
    sim.assert_sound();
}

#[tokio::test]
async fn what_others_added_to_a_firewall_goes_when_its_rule_is_given_again() {
    let world = World::start().await;
    let (sim, gcp) = (&world.sim, world.gcp());
    let made = gcp.create_resource(machine("default", "vm-1")).await.unwrap();
    let web = rule("web", Direction::Inbound, "10.0.0.9/32");
    gcp.add_rules("default", &made.uri, vec![web.clone()]).await.unwrap();
    let before = sim.with(|google| google.state());
    let path = before.keys().find(|path| path.ends_with("-web")).unwrap().clone();
    sim.with(|google| {
        let wall = &mut google.objects.get_mut(&path).unwrap().body;
        wall["sourceTags"] = json!(["anybody"]);
        wall["destinationRanges"] = json!(["10.0.0.77/32"]);
    });
    gcp.add_rules("default", &made.uri, vec![web]).await.unwrap();
    sim.with(|google| {
        let wall = google.object(&path);
        assert_eq!((&wall["sourceTags"], &wall["destinationRanges"]), (&json!([]), &json!([])));
    });
    sim.assert_sound();
}

/// People peer a network of ours with another.
fn peer(google: &mut Google, path: &str, name: &str, other: &str) {
    google.change(path, |network| {
        let made =
            json!({ "name": name, "network": format!("{PREFIX}{other}"), "exchangeSubnetRoutes": true });
        let mut all = network["peerings"].as_array().cloned().unwrap_or_default();
        all.push(made);
        network["peerings"] = json!(all);
    });
}

#[tokio::test]
async fn peerings_of_others_are_used_and_never_taken_away() {
    const NEAR: &str = "projects/p/global/networks/para-default-vpc";
    const FAR: &str = "projects/q/global/networks/para-other-vpc";
    let world = World::start().await;
    let (sim, gcp) = (&world.sim, world.gcp());
    let near = gcp.create_resource(machine("default", "vm-1")).await.unwrap();
    let far = gcp.create_resource(machine("other", "vm-2")).await.unwrap();
    sim.with(|google| {
        google.put("projects/z/global/networks/legacy", json!({ "name": "legacy" }));
        peer(google, NEAR, "mine", "projects/z/global/networks/legacy");
        peer(google, NEAR, "there", FAR);
        peer(google, FAR, "back", NEAR);
    });
    let names = |path: &str| {
        sim.with(|google| {
            let all = google.object(path)["peerings"].as_array().cloned().unwrap_or_default();
            all.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        })
    };
    let web = rule("web", Direction::Inbound, &format!("{}/32", far.ip));
    gcp.add_rules("default", &near.uri, vec![web]).await.unwrap();
    assert_eq!((names(NEAR), names(FAR)), (vec!["mine".into(), "there".into()], vec!["back".to_owned()]));
    gcp.delete_rules("default", &near.uri, vec!["web".into()]).await.unwrap();
    for (namespace, uri) in [("default", &near.uri), ("other", &far.uri)] {
        gcp.delete_resource(namespace, uri).await.unwrap();
    }
    assert_eq!((names(NEAR), names(FAR)), (vec!["mine".into(), "there".into()], vec!["back".to_owned()]));
    let denied = "projects/p/global/firewalls/para-default-deny-all-egress";
    assert!(sim.with(|google| google.state().contains_key(denied)), "a network that stays lets nothing out");
    sim.assert_sound();
}
