//! Networks of others in an account, the one that AWS makes itself in every region among them.

use serde_json::{Value, json};
use tarbet_nets::cloud::Cloud as _;
use tarbet_nets::model::Deployment;

use super::super::import::{column, import};
use super::{Bed, REGIONS, new_machine};

#[tokio::test]
async fn networks_of_others_are_seen_and_left_alone() {
    let bed = Bed::start().await;
    let aws = bed.aws();
    let made = aws.create_resource(new_machine("default", "vm1", REGIONS[0])).await.unwrap();
    assert!(made.ip.starts_with("10.0."), "{made:?}");
    // Somebody else makes a network, in AWS's own words.
    let answer = reqwest::Client::new()
        .post(&bed.proxy.url)
        .header(
            "authorization",
            format!("AWS4-HMAC-SHA256 Credential=someone/20270101/{}/ec2/aws4_request", REGIONS[0]),
        )
        .header("content-type", "application/x-www-form-urlencoded")
        .body("Action=CreateVpc&Version=2016-11-15&CidrBlock=10.1.0.0/16")
        .send()
        .await
        .unwrap();
    let answer = answer.text().await.unwrap();
    let id = answer.split("<vpcId>").nth(1).unwrap().split('<').next().unwrap().to_owned();

    bed.proxy.begin();
    let places = ["default", "other"]
        .map(|namespace| Deployment { id: "123456789012".into(), namespace: namespace.into() });
    let found = aws.foreign_networks(&places).await.unwrap();
    let spaces: Vec<(&str, String)> = found
        .iter()
        .map(|one| {
            let spaces: Vec<String> = one.spaces.iter().map(ToString::to_string).collect();
            (one.region.as_str(), spaces.join(" "))
        })
        .collect();
    let usual = |region| (region, "172.31.0.0/16".to_owned());
    assert_eq!(spaces, [usual(REGIONS[0]), (REGIONS[0], "10.1.0.0/16".into()), usual(REGIONS[1])]);
    assert_eq!(found[1].id, format!("arn:aws:ec2:{}:123456789012:vpc/{id}", REGIONS[0]));
    assert!(found[0].subnets > Some(0), "{:?}", found[0]);
    assert_eq!((found[1].subnets, found[1].machines), (Some(0), Some(0)));

    let told = import(&bed.running.rest, "aws", "").await;
    assert_eq!(told["networks"].as_array().unwrap().len(), 3);
    assert_eq!(told["overlaps"], Value::Array(Vec::new()));
    let again = import(&bed.running.rest, "aws", "?plan=true").await;
    assert_eq!(column(&again["networks"], "change"), ["same", "same", "same"]);
    assert_eq!((&again["digest"], &again["gone"]), (&Value::Null, &json!([])));
    let actions = bed.proxy.actions();
    assert!(!actions.is_empty() && bed.proxy.changes().is_empty(), "{actions:?}");
    let made = aws.create_resource(new_machine("other", "vm2", REGIONS[1])).await.unwrap();
    assert!(made.ip.starts_with("10.2."), "{made:?}");
}
