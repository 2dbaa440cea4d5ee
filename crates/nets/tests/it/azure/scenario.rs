//! A whole life in Azure, undisturbed, throttled, failing, and cut off after every call.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::cloud::{Cloud, NewConnections, NewGateway, OldConnections};
use tarbet_nets::clouds::azure::Azure;
use tarbet_nets::error::Error;
use tarbet_nets::model::{Direction, SharedKey};

use super::super::bed::rest;
use super::super::sim::Faults;
use super::clusters::{self, new_cluster};
use super::{Bed, deployment, machine, network, new_machine, rule};

const KEY: &str = "KeyOfBothEnds1234567890";

fn inside(last: [u8; 2]) -> Vec<Ipv4Addr> {
    last.iter().map(|last| Ipv4Addr::new(169, 254, 21, *last)).collect()
}

/// How many steps there are.
const STEPS: usize = 13;
/// After this many, everything is there.
const BUILT: usize = 7;

/// One step; each is one call of an orchestrator, and may be made again.
async fn step(number: usize, azure: &Azure) -> Result<(), Error> {
    let (one, two, cluster) = (machine("vm1"), machine("vm2"), clusters::uri("k1"));
    match number {
        0 => azure.create_resource(new_machine("default", "vm1", "westus2")).await.map(drop),
        1 => azure.create_resource(new_machine("other", "vm2", "eastus")).await.map(drop),
        2 => {
            let far = azure.used_spaces(&[deployment("other")]).await?[0].spaces[0];
            let far = far.hosts().nth(3).unwrap().to_string();
            let rules = vec![
                rule("far", Direction::Inbound, &[&far]),
                rule("public", Direction::Outbound, &["8.8.8.8"]),
            ];
            azure.add_rules("default", &one, rules).await
        }
        3 => {
            clusters::allow(azure).await?;
            azure.create_resource(new_cluster("default", "k1", "westus2")).await.map(drop)
        }
        4 => {
            let far = azure.used_spaces(&[deployment("other")]).await?[0].spaces[0];
            let far = far.hosts().nth(3).unwrap().to_string();
            let rules = vec![
                rule("far", Direction::Outbound, &[&far]),
                rule("public", Direction::Outbound, &["8.8.8.8"]),
            ];
            azure.add_rules("default", &cluster, rules).await
        }
        5 => {
            let new = NewGateway {
                deployment: deployment("default"),
                cloud: "gcp".into(),
                bgp_addresses: inside([1, 5]),
                space: None,
            };
            let gateway = azure.create_gateway(new).await?;
            assert_eq!(gateway.addresses.len(), 2);
            Ok(())
        }
        6 => {
            let new = NewConnections {
                deployment: deployment("default"),
                cloud: "gcp".into(),
                asn: 65001,
                gateways: vec!["35.0.0.1".into(), "35.0.0.2".into()],
                bgp_addresses: inside([2, 6]),
                key: SharedKey::new(KEY),
                remote_spaces: vec![],
                bgp: true,
                space: None,
            };
            azure.create_connections(new).await
        }
        7 => azure.delete_rules("default", &one, vec!["far".into(), "public".into()]).await,
        8 => azure.delete_rules("default", &cluster, vec!["far".into(), "public".into()]).await,
        9 => {
            let old = OldConnections {
                deployment: deployment("default"),
                cloud: "gcp".into(),
                bgp_addresses: inside([2, 6]),
            };
            azure.delete_connections(old).await
        }
        10 => gone(azure.delete_resource("default", &cluster).await),
        11 => gone(azure.delete_resource("default", &one).await),
        _ => gone(azure.delete_resource("other", &two).await),
    }
}

/// Who removes what is gone has what they want.
fn gone(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        result => result,
    }
}

/// All that should be there when everything is built.
fn check_built(bed: &Bed) {
    let gateway = bed.object("virtualNetworkGateways/paraglider-default-vpn-gw");
    let settings = &gateway["properties"]["bgpSettings"]["bgpPeeringAddresses"];
    assert_eq!(settings[0]["customBgpIpAddresses"], json!(["169.254.21.1"]));
    assert_eq!(settings[1]["customBgpIpAddresses"], json!(["169.254.21.5"]));
    for index in 0..2 {
        let connection = network(&format!("connections/paraglider-default-gcp-conn-{index}"));
        assert_eq!(
            bed.sim.with(|azure| azure.key(&connection)).as_deref(),
            Some(KEY),
            "one key, whatever was tried"
        );
    }
    let vnet = bed.object("virtualNetworks/paraglider-default-westus2-vnet");
    let mut peers: Vec<(String, Value, Value)> = vnet["properties"]["virtualNetworkPeerings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|half| {
            let properties = &half["properties"];
            let name = half["name"].as_str().unwrap().split("-to-").nth(1).unwrap().to_owned();
            (name, properties["peeringState"].clone(), properties["useRemoteGateways"].clone())
        })
        .collect();
    peers.sort_by(|a, b| a.0.cmp(&b.0));
    let connected = json!("Connected");
    assert_eq!(
        peers,
        [
            ("paraglider-default-vpn-gw-vnet".to_owned(), connected.clone(), json!(true)),
            ("paraglider-other-eastus-vnet".to_owned(), connected, json!(false)),
        ]
    );
    for subnet in 0..2 {
        let nat = vnet.pointer(&format!("/properties/subnets/{subnet}/properties/natGateway/id")).unwrap();
        assert_eq!(nat, &json!(network("natGateways/paraglider-default-westus2-nat-gw")));
    }
    for half in vnet["properties"]["virtualNetworkPeerings"].as_array().unwrap() {
        assert_eq!(
            half["properties"]["peeringSyncLevel"], "FullyInSync",
            "both ends know the cluster's space"
        );
    }
}

/// Lives the whole life; the calls it took, what was there at its height, and which calls changed something.
async fn live(bed: &Bed, faults: &Faults) -> (usize, Vec<String>, Vec<String>) {
    bed.sim.faults(faults.clone());
    let azure = bed.azure();
    let mut height = Vec::new();
    for number in 0..STEPS {
        step(number, &azure).await.unwrap_or_else(|error| panic!("step {number}: {error:?}"));
        if number + 1 == BUILT {
            check_built(bed);
            height = bed.inventory();
        }
    }
    assert_eq!(bed.inventory(), Vec::<String>::new(), "nothing is left");
    (bed.sim.seen().len(), height, bed.sim.changes())
}

#[tokio::test]
async fn a_cloud_in_trouble_is_borne_with_few_calls_more() {
    let bed = Bed::start().await;
    let (minimal, height, _) = live(&bed, &Faults::default()).await;
    for faults in [
        Faults { throttle_every: 4, ..Faults::default() },
        Faults { fail_every: 5, ..Faults::default() },
        Faults { throttle_every: 6, fail_every: 7, ..Faults::default() },
    ] {
        let (calls, built, _) = live(&bed, &faults).await;
        assert_eq!(built, height);
        assert!(calls <= 3 * minimal, "{calls} calls instead of {minimal} with {faults:?}");
    }
    bed.sim.assert_sound();
}

#[tokio::test]
async fn done_again_nothing_changes() {
    let bed = Bed::start().await;
    let azure = bed.azure();
    for number in 0..BUILT {
        step(number, &azure).await.unwrap();
    }
    bed.sim.faults(Faults::default());
    for number in 0..BUILT {
        step(number, &bed.azure()).await.unwrap();
    }
    assert_eq!(bed.sim.changes(), Vec::<String>::new());
    check_built(&bed);
    bed.sim.assert_sound();
}

#[tokio::test]
async fn every_cut_point_ends_as_wanted() {
    let bed = Bed::start().await;
    let (_, height, changes) = live(&bed, &Faults::default()).await;
    let all: BTreeSet<String> = changes.into_iter().collect();
    // Every change is carried out once with nobody left to hear of it.
    bed.sim.faults(Faults::default());
    bed.sim.with(|azure| azure.to_cut.clone_from(&all));
    let mut crashes = 0;
    for number in 0..STEPS {
        loop {
            let azure = bed.azure();
            let crashed = tokio::select! {
                () = bed.sim.cut() => true,
                result = step(number, &azure) => {
                    result.unwrap_or_else(|error| panic!("step {number}: {error:?}"));
                    false
                }
            };
            if !crashed {
                break;
            }
            crashes += 1;
        }
        if number + 1 == BUILT {
            check_built(&bed);
            assert_eq!(bed.inventory(), height);
        }
    }
    assert_eq!(bed.inventory(), Vec::<String>::new(), "no orphan is left");
    assert_eq!(bed.sim.with(|azure| azure.to_cut.clone()), BTreeSet::new(), "each change was cut off once");
    assert_eq!(crashes, all.len());
    assert!(crashes > 40, "only {crashes}");
    bed.sim.assert_sound();
    tarbet_testbed::verified("changes in Azure after which a plugin is cut off: it ends as wanted", crashes);
}

#[tokio::test]
async fn a_tag_in_another_cloud_is_reached_by_vpn() {
    let bed = Bed::start().await;
    let url = |path: &str| format!("{}/namespaces/default/clouds/{path}", bed.running.rest);
    let description = json!({ "description": new_machine("default", "vm1", "westus2").description });
    let (status, made) = rest(Method::PUT, url("azure/resources/vm1"), description).await;
    assert_eq!(status, 200, "{made}");
    assert_eq!(made["uri"], json!(machine("vm1")));
    let (status, far) = rest(Method::PUT, url("gcp/resources/far"), json!({ "description": "{}" })).await;
    assert_eq!(status, 200, "{far}");
    let rules = json!([{ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["default.gcp.far"] }]);
    let planned = url("azure/resources/vm1/applyRules?plan=true");
    let (_, plan) = rest(Method::POST, planned.clone(), rules.clone()).await;
    let paid = |how: &str| {
        let azure = format!("azure: a VPN gateway and its public addresses, {how}");
        json!([azure, format!("gcp: 2 VPN tunnels, {how}")])
    };
    assert_eq!(plan["prices"], paid("by the hour from then on"), "{plan}");
    let (status, answer) = rest(Method::POST, url("azure/resources/vm1/applyRules"), rules.clone()).await;
    assert_eq!(status, 200, "{answer}");
    let (_, plan) = rest(Method::POST, planned, rules).await;
    assert_eq!(plan["prices"], Value::Null, "{plan}");
    let (_, rules) = rest(Method::GET, url("azure/resources/vm1/rules"), Value::Null).await;
    assert_eq!((&rules[0]["tags"], &rules[0]["targets"]), (&json!(["default.gcp.far"]), &json!([far["ip"]])));
    let local = bed.object("localNetworkGateways/paraglider-default-gcp-local-gw-0");
    assert_eq!(local["properties"]["bgpSettings"]["bgpPeeringAddress"], "169.254.21.2");
    assert!(bed.inventory().iter().any(|name| name.ends_with("paraglider-default-gcp-conn-1")));

    for path in ["azure/resources/vm1", "gcp/resources/far"] {
        let (status, answer) = rest(Method::DELETE, url(path), Value::Null).await;
        assert_eq!(status, 200, "{answer}");
    }
    let prune = format!("{}/links/prune", bed.running.rest);
    let (_, plan) = rest(Method::POST, format!("{prune}?plan=true"), Value::Null).await;
    assert_eq!(plan["prices"], paid("no longer by the hour"), "{plan}");
    let (status, answer) = rest(Method::POST, prune, Value::Null).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(bed.inventory(), Vec::<String>::new(), "the VPN goes with what needed it");
    bed.sim.assert_sound();
}

#[tokio::test]
async fn another_key_replaces_the_first() {
    let bed = Bed::start().await;
    let url = |path: &str| format!("{}/namespaces/default/clouds/{path}", bed.running.rest);
    let description = json!({ "description": new_machine("default", "vm1", "westus2").description });
    assert_eq!(rest(Method::PUT, url("azure/resources/vm1"), description).await.0, 200);
    let far = json!({ "description": "{}" });
    assert_eq!(rest(Method::PUT, url("gcp/resources/far"), far).await.0, 200);
    let rules = json!([{ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["default.gcp.far"] }]);
    let (status, answer) = rest(Method::POST, url("azure/resources/vm1/applyRules"), rules).await;
    assert_eq!(status, 200, "{answer}");
    let keys = || {
        let of = |index: usize| network(&format!("connections/paraglider-default-gcp-conn-{index}"));
        bed.sim.with(|azure| [0, 1].map(|index| azure.key(&of(index)).unwrap()))
    };
    let old = keys();
    assert_eq!(old[0], old[1]);

    // As `glide vpn rekey` asks for it.
    let (_, links) = rest(Method::GET, format!("{}/topology", bed.running.rest), Value::Null).await;
    let (status, answer) = rest(Method::POST, format!("{}/links/rekey", bed.running.rest), Value::Null).await;
    assert_eq!(status, 200, "{answer} {links}");
    let new = keys();
    assert!(new[0] == new[1] && new[0] != old[0] && new[0].len() >= 24, "one key for both, and another one");

    // Where a plugin is told another key for tunnels that it has, it changes that and nothing else.
    let live = bed.azure();
    let remote = |index: usize, field: &str| {
        let local = bed.object(&format!("localNetworkGateways/paraglider-default-gcp-local-gw-{index}"));
        local.pointer(field).unwrap().clone()
    };
    let text = |value: Value| value.as_str().unwrap().to_owned();
    let again = |key: &str| NewConnections {
        deployment: deployment("default"),
        cloud: "gcp".into(),
        asn: u32::try_from(remote(0, "/properties/bgpSettings/asn").as_u64().unwrap()).unwrap(),
        gateways: [0, 1].map(|index| text(remote(index, "/properties/gatewayIpAddress"))).to_vec(),
        bgp_addresses: [0, 1]
            .map(|index| text(remote(index, "/properties/bgpSettings/bgpPeeringAddress")).parse().unwrap())
            .to_vec(),
        key: SharedKey::new(key),
        remote_spaces: vec![],
        bgp: true,
        space: None,
    };
    bed.sim.faults(Faults::default());
    live.create_connections(again(KEY)).await.unwrap();
    let of = |index: usize| network(&format!("connections/paraglider-default-gcp-conn-{index}"));
    assert_eq!(bed.sim.changes(), [0, 1].map(|index| format!("PUT {}/sharedkey", of(index))));
    assert_eq!(keys(), [KEY, KEY]);
    live.create_connections(again(KEY)).await.unwrap();
    assert_eq!(bed.sim.changes().len(), 2, "the same key is told once");
    bed.sim.assert_sound();
}
