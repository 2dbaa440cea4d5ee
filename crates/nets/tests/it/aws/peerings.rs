//! Peerings that others made with networks of ours: used as they are, and left.

use tarbet_nets::cloud::Cloud as _;
use tarbet_nets::model::{Deployment, Direction};
use tarbet_testbed::vendor_python;

use super::{Bed, REGIONS, new_machine, rule};

/// What people do with AWS's own tools; `vpc(namespace)` is a network of ours.
const TOOLS: &str = "
import boto3, sys
ec2 = boto3.client('ec2', region_name='us-east-1', endpoint_url=sys.argv[1], aws_access_key_id='a', aws_secret_access_key='b')
def vpc(namespace):
    return ec2.describe_vpcs(Filters=[{'Name': 'tag:Namespace', 'Values': [namespace]}])['Vpcs'][0]['VpcId']
def peer(one, other):
    made = ec2.create_vpc_peering_connection(VpcId=one, PeerVpcId=other)['VpcPeeringConnection']['VpcPeeringConnectionId']
    ec2.accept_vpc_peering_connection(VpcPeeringConnectionId=made)
def standing():
    all = ec2.describe_vpc_peering_connections()['VpcPeeringConnections']
    return [one for one in all if one['Status']['Code'] == 'active']
";

async fn people(bed: &Bed, script: &str) -> String {
    let output = tokio::process::Command::new(vendor_python("aws").await.unwrap())
        .args(["-c", &format!("{TOOLS}{script}"), &bed.proxy.url])
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn place(namespace: &str) -> Deployment {
    Deployment { id: "123456789012".into(), namespace: namespace.into() }
}

#[tokio::test]
async fn peerings_of_others_are_never_taken_away() {
    let bed = Bed::start().await;
    let aws = bed.aws();
    let near = aws.create_resource(new_machine("default", "vm1", REGIONS[0])).await.unwrap();
    people(&bed, "peer(ec2.create_vpc(CidrBlock='172.20.0.0/16')['Vpc']['VpcId'], vpc('default'))").await;
    // Also with a tag of a name that ours have.
    let tagged = "
own = ec2.create_vpc(CidrBlock='172.21.0.0/16')['Vpc']['VpcId']
peer(vpc('default'), own)
ids = [one['VpcPeeringConnectionId'] for one in standing()]
ec2.create_tags(Resources=ids, Tags=[{'Key': 'Namespace', 'Value': 'default'}, {'Key': 'Name', 'Value': 'backup'}])";
    people(&bed, tagged).await;
    let standing = || people(&bed, "print(len(standing()))");
    assert_eq!(standing().await, "2");
    let web = rule("web", Direction::Inbound, 443, "172.20.0.9/32");
    let refused = aws.add_rules("default", &near.uri, vec![web]).await.unwrap_err();
    assert!(refused.to_string().contains("172.20.0.9"), "nobody told us of that network: {refused}");
    let own = rule("own", Direction::Inbound, 443, "10.0.0.9/32");
    aws.add_rules("default", &near.uri, vec![own]).await.unwrap();
    aws.delete_rules("default", &near.uri, vec!["own".into()]).await.unwrap();
    assert_eq!(standing().await, "2", "though no rule needs them");

    // A network would take them with it, so it waits for them.
    aws.delete_resource("default", &near.uri).await.unwrap();
    assert_eq!(standing().await, "2");
    assert_eq!(aws.used_spaces(&[place("default")]).await.unwrap().len(), 1);
    let gone = "[ec2.delete_vpc_peering_connection(VpcPeeringConnectionId=one['VpcPeeringConnectionId']) for one in standing()]";
    people(&bed, gone).await;
    let again = aws.create_resource(new_machine("default", "vm1", REGIONS[0])).await.unwrap();
    aws.delete_resource("default", &again.uri).await.unwrap();
    assert!(aws.used_spaces(&[place("default")]).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_peering_of_others_between_two_networks_of_ours_is_used_and_stays() {
    let bed = Bed::start().await;
    let aws = bed.aws();
    let near = aws.create_resource(new_machine("default", "vm1", REGIONS[0])).await.unwrap();
    let far = aws.create_resource(new_machine("other", "vm2", REGIONS[0])).await.unwrap();
    people(&bed, "peer(vpc('default'), vpc('other'))").await;
    bed.proxy.begin();
    let web = rule("web", Direction::Inbound, 443, &far.ip);
    aws.add_rules("default", &near.uri, vec![web]).await.unwrap();
    assert!(!bed.proxy.changes().contains(&"CreateVpcPeeringConnection".into()), "{:?}", bed.proxy.changes());
    aws.delete_rules("default", &near.uri, vec!["web".into()]).await.unwrap();
    assert_eq!(people(&bed, "print(len(standing()))").await, "1");
}
