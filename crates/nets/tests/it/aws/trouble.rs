//! AWS under its limits of calls, and failing.

use tarbet_nets::cloud::Cloud as _;
use tarbet_nets::model::{Deployment, Direction};

use super::proxy::Trouble;
use super::{Bed, REGIONS, new_machine, rule, step, ways};

/// How many calls a life takes.
async fn live(bed: &Bed, trouble: Trouble) -> usize {
    bed.proxy.trouble(trouble);
    let (aws, mut uris) = (bed.aws(), Vec::new());
    for number in 0..7 {
        step(number, &aws, &mut uris).await.unwrap_or_else(|error| panic!("step {number}: {error:?}"));
    }
    assert!(aws.list_resources("").await.unwrap().is_empty());
    bed.proxy.actions().len()
}

#[tokio::test]
async fn a_cloud_in_trouble_is_borne_with_few_calls_more() {
    let bed = Bed::start().await;
    let least = live(&bed, Trouble::default()).await;
    for trouble in [
        Trouble { throttle_every: 3, fail_every: 0 },
        Trouble { throttle_every: 0, fail_every: 4 },
        Trouble { throttle_every: 4, fail_every: 5 },
    ] {
        let calls = live(&bed, trouble).await;
        assert!(calls > least && calls <= 3 * least, "{calls} calls instead of {least} with {trouble:?}");
    }
}

/// How often each thing was asked for.
fn asked(bed: &Bed) -> Vec<(String, usize)> {
    let mut asked: Vec<(String, usize)> = Vec::new();
    for action in bed.proxy.changes() {
        let makes =
            action.starts_with("Create") || action.starts_with("Allocate") || action.starts_with("Run");
        // A route has no other name than its destination.
        if makes && action != "CreateRoute" {
            match asked.iter_mut().find(|(known, _)| *known == action) {
                Some((_, times)) => *times += 1,
                None => asked.push((action, 1)),
            }
        }
    }
    asked
}

fn places() -> [Deployment; 2] {
    ["default", "other"]
        .map(|namespace| Deployment { id: "123456789012".into(), namespace: namespace.into() })
}

#[tokio::test]
async fn a_success_that_is_told_as_a_failure_makes_nothing_twice() {
    let bed = Bed::start().await;
    bed.proxy.begin();
    bed.proxy.deny_each_success();
    let (aws, mut uris) = (bed.aws(), Vec::new());
    for number in 0..3 {
        step(number, &aws, &mut uris).await.unwrap_or_else(|error| panic!("step {number}: {error:?}"));
    }
    let once = |action: &str, times| (action.to_owned(), times);
    assert_eq!(
        asked(&bed),
        [
            once("CreateVpc", 2),
            once("CreateSubnet", 2),
            once("CreateSecurityGroup", 2),
            once("RunInstances", 2),
            once("CreateVpcPeeringConnection", 1)
        ]
    );
    let spaces = aws.used_spaces(&places()).await.unwrap();
    assert_eq!(spaces.iter().map(|mapping| mapping.spaces.len()).collect::<Vec<_>>(), [1, 1], "{spaces:?}");
    assert_eq!(aws.list_resources("").await.unwrap().len(), 2);
    for number in 3..7 {
        step(number, &aws, &mut uris).await.unwrap_or_else(|error| panic!("step {number}: {error:?}"));
    }
    assert!(aws.used_spaces(&places()).await.unwrap().is_empty(), "no network is left");

    // The ways out of a network, too.
    bed.proxy.begin();
    let machine = aws.create_resource(new_machine("default", "vm1", REGIONS[0])).await.unwrap();
    let out = rule("out", Direction::Outbound, 443, "203.0.113.0/24");
    aws.add_rules("default", &machine.uri, vec![out]).await.unwrap();
    ways::gateway(bed.aws()).await.unwrap();
    ways::connections(bed.aws()).await.unwrap();
    let made = [
        once("CreateVpc", 1),
        once("CreateSubnet", 1),
        once("CreateSecurityGroup", 1),
        once("RunInstances", 1),
        once("CreateInternetGateway", 1),
        once("AllocateAddress", 1),
        once("CreateVpnGateway", 1),
        once("CreateCustomerGateway", 2),
        once("CreateVpnConnection", 2),
    ];
    assert_eq!(asked(&bed), made);
    ways::parted(bed.aws()).await.unwrap();
    aws.delete_resource("default", &machine.uri).await.unwrap();
    assert!(aws.used_spaces(&places()).await.unwrap().is_empty());
    let denied = bed.proxy.denied();
    tarbet_testbed::verified("changes in AWS whose success is told as a failure: none is made twice", denied);
}

#[tokio::test]
async fn what_was_made_a_moment_ago_is_waited_for() {
    let bed = Bed::start().await;
    bed.proxy.be_slow_to_know();
    let (aws, mut uris) = (bed.aws(), Vec::new());
    for number in 0..3 {
        step(number, &aws, &mut uris).await.unwrap_or_else(|error| panic!("step {number}: {error:?}"));
    }
    let out = rule("public", Direction::Outbound, 443, "203.0.113.0/24");
    aws.add_rules("default", &uris[0].0, vec![out]).await.unwrap();
    for number in 3..7 {
        step(number, &aws, &mut uris).await.unwrap_or_else(|error| panic!("step {number}: {error:?}"));
    }
    assert!(aws.used_spaces(&places()).await.unwrap().is_empty());
}
