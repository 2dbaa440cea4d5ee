//! NAT gateways go when nobody needs them any more, however that came about.

use tarbet_nets::cloud::Cloud;
use tarbet_nets::model::Direction;

use super::super::sim::Faults;
use super::guests::share_a_filter;
use super::{Bed, clusters, deployment, machine, network, new_machine, nsg_of, rule};

fn nats(bed: &Bed) -> usize {
    bed.inventory().into_iter().filter(|id| id.contains("/natgateways/")).count()
}

#[tokio::test]
async fn a_way_goes_with_the_target_of_a_rule_that_is_replaced() {
    let bed = Bed::start().await;
    let azure = bed.azure();
    let made = azure.create_resource(new_machine("default", "vm1", "westus2")).await.unwrap();
    let near = made.ip.replace(".0.4", ".0.9");
    let out = |targets: &[&str]| vec![rule("out", Direction::Outbound, targets)];
    azure.add_rules("default", &made.uri, out(&["8.8.8.8", &near])).await.unwrap();
    assert_eq!(nats(&bed), 1);
    azure.add_rules("default", &made.uri, out(&[&near])).await.unwrap();
    assert_eq!(nats(&bed), 0);
    bed.sim.assert_sound();
}

#[tokio::test]
async fn a_way_goes_if_its_rule_could_not_be_written() {
    let bed = Bed::start().await;
    share_a_filter(&bed);
    let azure = bed.azure();
    clusters::allow(&azure).await.unwrap();
    for name in ["one", "two"] {
        azure.attach_resource("default", &machine(name)).await.unwrap();
    }
    let web = |target: &str| vec![rule("web", Direction::Outbound, &[target])];
    azure.add_rules("default", &machine("one"), web("10.77.9.9")).await.unwrap();
    // The name is the other's, behind the same filter.
    let refused = azure.add_rules("default", &machine("two"), web("8.8.8.8")).await.unwrap_err();
    assert!(refused.to_string().contains("another resource behind"), "{refused}");
    assert_eq!(nats(&bed), 0);
    bed.sim.assert_sound();
}

#[tokio::test]
async fn a_way_that_a_plugin_that_ended_owed_goes_when_drift_is_repaired() {
    let bed = Bed::start().await;
    let made = bed.azure().create_resource(new_machine("default", "vm1", "westus2")).await.unwrap();
    let out = vec![rule("out", Direction::Outbound, &["8.8.8.8"])];
    bed.azure().add_rules("default", &made.uri, out).await.unwrap();
    let filter = nsg_of(&bed, "vm1")["name"].as_str().unwrap().to_owned();
    bed.sim.with(|sim| {
        sim.remove(&network(&format!("networkSecurityGroups/{filter}/securityRules/paraglider-out")));
    });
    let azure = bed.azure();
    azure.used_spaces(&[deployment("default")]).await.unwrap();
    azure.drift("default", false).await.unwrap();
    assert_eq!(nats(&bed), 1, "a question changes nothing");
    azure.drift("default", true).await.unwrap();
    assert_eq!(nats(&bed), 0);
    bed.sim.assert_sound();
}

#[tokio::test]
async fn what_is_owed_waits_for_a_change_and_a_question_is_none() {
    let bed = Bed::start().await;
    let azure = bed.azure();
    azure.used_spaces(&[deployment("default")]).await.unwrap();
    let made = azure.create_resource(new_machine("default", "vm1", "westus2")).await.unwrap();
    let out = vec![rule("out", Direction::Outbound, &["8.8.8.8"])];
    azure.add_rules("default", &made.uri, out).await.unwrap();
    // Whoever takes the way away is cut off between the gateway and its address.
    let gateway = network("natGateways/paraglider-default-westus2-nat-gw");
    bed.sim.with(|sim| sim.to_cut.insert(format!("DELETE {gateway}")));
    tokio::select! {
        () = bed.sim.cut() => {}
        done = azure.delete_rules("default", &made.uri, vec!["out".into()]) => panic!("{done:?}"),
    }
    bed.sim.faults(Faults::default());
    azure.drift("default", false).await.unwrap();
    assert_eq!(bed.sim.changes(), Vec::<String>::new());
    azure.drift("default", true).await.unwrap();
    let address = network("publicIPAddresses/paraglider-default-westus2-nat-gw-ip");
    assert_eq!(bed.sim.changes().last(), Some(&format!("DELETE {address}")));
    bed.sim.assert_sound();
}
