//! Ways out of a network in AWS: to other clouds and to public addresses.

use std::future::Future;

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::cloud::{Cloud, NewConnections, NewGateway, OldConnections};
use tarbet_nets::clouds::aws::Aws;
use tarbet_nets::error::Error;
use tarbet_nets::model::{Deployment, Direction, Rule, SharedKey};

use super::super::bed::rest;
use super::{Bed, REGIONS, new_machine, rule};

/// Where every tunnel of moto ends.
const MOTO: &str = "52.2.144.13";

fn place() -> Deployment {
    Deployment { id: "123456789012".into(), namespace: "default".into() }
}

impl Bed {
    /// Tries until it is done, each time with a plugin that was started anew, since each change cuts one off.
    async fn persist<T, F: Future<Output = Result<T, Error>>>(
        &self,
        what: &str,
        attempt: impl Fn(Aws) -> F,
    ) -> T {
        loop {
            tokio::select! {
                () = self.proxy.cut() => {}
                result = attempt(self.aws()) => return result.unwrap_or_else(|error| panic!("{what}: {error:?}")),
            }
        }
    }

    /// What a second time changes.
    async fn again<T, F: Future<Output = Result<T, Error>>>(
        &self,
        attempt: impl Fn(Aws) -> F,
    ) -> Vec<String> {
        self.proxy.begin();
        drop(attempt(self.aws()).await.unwrap());
        self.proxy.changes()
    }
}

pub(super) async fn gateway(aws: Aws) -> Result<Vec<String>, Error> {
    let bgp_addresses = vec!["169.254.21.1".parse().unwrap(), "169.254.21.5".parse().unwrap()];
    let new = NewGateway { deployment: place(), cloud: "gcp".into(), bgp_addresses, space: None };
    let made = aws.create_gateway(new).await?;
    assert!((64512..=65534).contains(&made.asn), "{}", made.asn);
    Ok(made.addresses)
}

pub(super) async fn connections(aws: Aws) -> Result<(), Error> {
    aws.create_connections(NewConnections {
        deployment: place(),
        cloud: "gcp".into(),
        asn: 64999,
        gateways: vec!["198.51.100.1".into(), "198.51.100.2".into()],
        bgp_addresses: vec!["169.254.21.2".parse().unwrap(), "169.254.21.6".parse().unwrap()],
        key: SharedKey::new("abcdefghijklmnop"),
        remote_spaces: vec![],
        bgp: true,
        space: None,
    })
    .await
}

pub(super) async fn parted(aws: Aws) -> Result<(), Error> {
    let bgp_addresses = vec!["169.254.21.2".parse().unwrap(), "169.254.21.6".parse().unwrap()];
    aws.delete_connections(OldConnections { deployment: place(), cloud: "gcp".into(), bgp_addresses }).await
}

#[tokio::test]
async fn a_vpn_in_aws_is_made_and_removed_though_cut_off_after_every_change() {
    let bed = Bed::start().await;
    let machine = bed.aws().create_resource(new_machine("default", "vm1", REGIONS[1])).await.unwrap();
    bed.proxy.cut_each_change();
    assert_eq!(
        bed.persist("gateway", gateway).await,
        Vec::<String>::new(),
        "not before the other end is known"
    );
    bed.persist("connections", connections).await;
    assert_eq!(bed.persist("gateway", gateway).await, [MOTO, MOTO]);
    assert_eq!(bed.again(gateway).await, Vec::<String>::new());
    assert_eq!(bed.again(connections).await, Vec::<String>::new());
    assert_eq!(bed.aws().used_asns(&[place()]).await.unwrap().len(), 1, "one gateway");

    bed.persist("parting", parted).await;
    assert_eq!(bed.aws().used_asns(&[place()]).await.unwrap(), Vec::<u32>::new());
    assert_eq!(bed.again(parted).await, Vec::<String>::new());
    bed.persist("removal", |aws| {
        let uri = machine.uri.clone();
        async move {
            match aws.delete_resource("default", &uri).await {
                Err(error) if error.is_not_found() => Ok(()),
                result => result,
            }
        }
    })
    .await;
    assert!(bed.aws().used_spaces(&[place()]).await.unwrap().is_empty());
    let aws = bed.aws();
    let refused = aws.create_gateway(NewGateway {
        deployment: place(),
        cloud: "gcp".into(),
        bgp_addresses: vec![],
        space: None,
    });
    assert!(refused.await.unwrap_err().to_string().contains("no network"));
}

#[tokio::test]
async fn a_rule_connects_aws_with_another_cloud() {
    let bed = Bed::start().await;
    let new = new_machine("default", "vm1", REGIONS[0]);
    let machine = bed.aws().create_resource(new).await.unwrap();
    let far = bed.gcp.create_resource(new_machine("default", "vm2", REGIONS[0])).await.unwrap();
    let aws = bed.aws();
    bed.proxy.begin();
    let rules = vec![rule("in", Direction::Inbound, 443, &far.ip)];
    aws.add_rules("default", &machine.uri, rules.clone()).await.unwrap();
    assert!(bed.proxy.changes().contains(&"CreateRoute".into()), "{:?}", bed.proxy.changes());
    let tunnels = bed.gcp.tunnels();
    assert_eq!(tunnels.iter().map(|(cloud, _)| cloud.as_str()).collect::<Vec<_>>(), ["aws"]);
    let (_, picture) = rest(Method::GET, format!("{}/topology", bed.running.rest), Value::Null).await;
    assert_eq!(picture["links"][0]["complete"], json!(true), "{picture}");
    bed.proxy.begin();
    aws.add_rules("default", &machine.uri, rules).await.unwrap();
    assert_eq!(bed.proxy.changes(), Vec::<String>::new());

    aws.delete_rules("default", &machine.uri, vec!["in".into()]).await.unwrap();
    let (status, answer) = rest(Method::POST, format!("{}/links/prune", bed.running.rest), Value::Null).await;
    assert_eq!(status, 200, "{answer}");
    assert!(bed.gcp.tunnels().is_empty());
    assert_eq!(aws.used_asns(&[place()]).await.unwrap(), Vec::<u32>::new());
}

#[tokio::test]
async fn public_targets_give_a_machine_an_address_until_none_is_left() {
    let bed = Bed::start().await;
    let machine = bed.aws().create_resource(new_machine("default", "vm1", REGIONS[0])).await.unwrap();
    let add = |aws: Aws| {
        let uri = machine.uri.clone();
        async move {
            let rules = vec![
                rule("out", Direction::Outbound, 443, "203.0.113.0/24"),
                rule("also", Direction::Outbound, 53, "198.51.100.7"),
            ];
            aws.add_rules("default", &uri, rules).await
        }
    };
    let take = |name: &'static str| {
        let uri = machine.uri.clone();
        move |aws: Aws| {
            let uri = uri.clone();
            async move { aws.delete_rules("default", &uri, vec![name.into()]).await }
        }
    };
    bed.proxy.begin();
    bed.proxy.cut_each_change();
    bed.persist("rules", add).await;
    for made in ["CreateInternetGateway", "AttachInternetGateway", "CreateRoute", "AllocateAddress"] {
        let times = bed.proxy.changes().iter().filter(|action| *action == made).count();
        assert_eq!(times, 1, "{made}");
    }
    assert_eq!(bed.again(add).await, Vec::<String>::new());

    bed.proxy.begin();
    bed.persist("one less", take("also")).await;
    assert!(!bed.proxy.changes().contains(&"ReleaseAddress".into()), "the other rule needs it");
    bed.persist("none", take("out")).await;
    assert!(bed.proxy.changes().contains(&"ReleaseAddress".into()), "{:?}", bed.proxy.changes());
    assert_eq!(bed.again(take("out")).await, Vec::<String>::new());

    // A machine takes its address with it, and the last one the gateway.
    bed.persist("rules", add).await;
    bed.proxy.begin();
    bed.persist("removal", |aws| {
        let uri = machine.uri.clone();
        async move {
            match aws.delete_resource("default", &uri).await {
                Err(error) if error.is_not_found() => Ok(()),
                result => result,
            }
        }
    })
    .await;
    for gone in ["ReleaseAddress", "DetachInternetGateway", "DeleteInternetGateway", "DeleteVpc"] {
        assert!(bed.proxy.changes().contains(&gone.into()), "{gone}: {:?}", bed.proxy.changes());
    }
    assert!(bed.aws().used_spaces(&[place()]).await.unwrap().is_empty());
    let six = Rule { src_port: -1, ..rule("six", Direction::Outbound, 1, "2001:db8::1") };
    let create =
        |aws: Aws| async move { aws.create_resource(new_machine("default", "vm1", REGIONS[0])).await };
    let machine = bed.persist("another", create).await;
    let refused = bed.aws().add_rules("default", &machine.uri, vec![six]).await.unwrap_err();
    assert!(refused.to_string().contains("six.targets"), "{refused}");
}
