//! Peerings that others made between networks that were taken in: used as they are, and left.

use serde_json::json;
use tarbet_nets::cloud::Cloud;
use tarbet_nets::model::Direction;

use super::guests::{everything, machine_of_others};
use super::{Bed, clusters, deployment, machine, network, new_machine, rule};

/// Peers two networks as people do; the second uses the first one's gateway.
fn peer(bed: &Bed, first: &str, second: &str, access: bool) {
    bed.sim.with(|sim| {
        for (own, other, uses) in [(first, second, false), (second, first, true)] {
            let at = network(&format!("virtualNetworks/{own}/virtualNetworkPeerings/{own}-to-{other}"));
            sim.insert(
                &at,
                json!({ "properties": {
                "remoteVirtualNetwork": { "id": network(&format!("virtualNetworks/{other}")) },
                "allowVirtualNetworkAccess": access, "allowGatewayTransit": !uses, "useRemoteGateways": uses,
            } }),
            );
            sim.met.insert(at.to_lowercase());
        }
    });
}

/// The network `hub` with a machine of that name, beside `theirs` with the machine `spoke`.
fn second_network(bed: &Bed) {
    machine_of_others(bed, "spoke", "a");
    bed.sim.with(|sim| {
        let vnet = network("virtualNetworks/hub");
        sim.insert(&vnet, json!({ "location": "westus2", "tags": {}, "properties": { "addressSpace": { "addressPrefixes": ["10.99.0.0/16"] } } }));
        sim.insert(&format!("{vnet}/subnets/a"), json!({ "properties": { "addressPrefix": "10.99.0.0/24" } }));
        sim.insert(&network("networkSecurityGroups/hub"), json!({ "location": "westus2", "tags": {}, "properties": {} }));
        sim.insert(&network("networkInterfaces/hub"), json!({ "location": "westus2", "tags": {}, "properties": {
            "networkSecurityGroup": { "id": network("networkSecurityGroups/hub") },
            "ipConfigurations": [{ "properties": { "privateIPAddress": "10.99.0.4", "subnet": { "id": format!("{vnet}/subnets/a") } } }],
        } }));
        sim.insert(&machine("hub"), json!({ "location": "westus2", "properties": {
            "networkProfile": { "networkInterfaces": [{ "id": network("networkInterfaces/hub") }] },
        } }));
    });
}

#[tokio::test]
async fn peerings_of_others_stay_though_they_are_called_like_ours() {
    let bed = Bed::start().await;
    machine_of_others(&bed, "theirs", "a");
    bed.sim.with(|sim| {
        sim.insert(&network("virtualNetworks/far"), json!({ "location": "westus2", "properties": { "addressSpace": { "addressPrefixes": ["10.99.0.0/16"] } } }));
    });
    peer(&bed, "theirs", "far", true);
    let before = everything(&bed);
    let azure = bed.azure();
    clusters::allow(&azure).await.unwrap();
    azure.used_spaces(&[deployment("default")]).await.unwrap();
    azure.attach_resource("default", &machine("theirs")).await.unwrap();
    let web = rule("web", Direction::Inbound, &["10.77.9.9"]);
    azure.add_rules("default", &machine("theirs"), vec![web]).await.unwrap();
    azure.drift("default", true).await.unwrap();
    azure.delete_rules("default", &machine("theirs"), vec!["web".into()]).await.unwrap();
    azure.delete_resource("default", &machine("theirs")).await.unwrap();
    assert_eq!(everything(&bed), before);
    bed.sim.assert_sound();
}

#[tokio::test]
async fn a_peering_of_others_between_two_guests_is_used_and_stays_as_it_is() {
    let bed = Bed::start().await;
    second_network(&bed);
    peer(&bed, "hub", "theirs", true);
    let before = everything(&bed);
    let azure = bed.azure();
    clusters::allow(&azure).await.unwrap();
    for name in ["hub", "spoke"] {
        azure.attach_resource("default", &machine(name)).await.unwrap();
    }
    let theirs = || {
        let at = network("virtualNetworks/theirs/virtualNetworkPeerings/theirs-to-hub");
        bed.sim.with(|sim| sim.object(&at)).unwrap()["properties"]["useRemoteGateways"].clone()
    };
    let rules = vec![rule("web", Direction::Inbound, &["10.99.0.4"])];
    azure.add_rules("default", &machine("spoke"), rules).await.unwrap();
    assert_eq!(theirs(), json!(true), "it is theirs to say");
    azure.drift("default", true).await.unwrap();
    azure.delete_rules("default", &machine("spoke"), vec!["web".into()]).await.unwrap();
    assert_eq!(theirs(), json!(true));
    for name in ["hub", "spoke"] {
        azure.delete_resource("default", &machine(name)).await.unwrap();
    }
    assert_eq!(everything(&bed), before);

    // One that carries nothing between them is told, and nothing is written over it.
    bed.sim.with(|sim| {
        let at = network("virtualNetworks/theirs/virtualNetworkPeerings/theirs-to-hub").to_lowercase();
        sim.objects.get_mut(&at).unwrap()["properties"]["allowVirtualNetworkAccess"] = json!(false);
    });
    for name in ["hub", "spoke"] {
        azure.attach_resource("default", &machine(name)).await.unwrap();
    }
    let rules = vec![rule("web", Direction::Inbound, &["10.99.0.4"])];
    let refused = azure.add_rules("default", &machine("spoke"), rules).await.unwrap_err();
    assert!(refused.to_string().contains("theirs-to-hub"), "{refused}");
    bed.sim.assert_sound();
}

#[tokio::test]
async fn a_peering_between_two_guests_has_a_name_of_ours_and_goes_with_the_rule() {
    let bed = Bed::start().await;
    second_network(&bed);
    let before = everything(&bed);
    let azure = bed.azure();
    clusters::allow(&azure).await.unwrap();
    for name in ["hub", "spoke"] {
        azure.attach_resource("default", &machine(name)).await.unwrap();
    }
    let rules = vec![rule("web", Direction::Inbound, &["10.99.0.4"])];
    azure.add_rules("default", &machine("spoke"), rules).await.unwrap();
    let ours = || {
        bed.inventory().into_iter().filter(|id| id.contains("/paraglider-") && id.contains("-to-")).count()
    };
    let peered = || {
        let at = network("virtualNetworks/theirs/virtualNetworkPeerings/paraglider-theirs-to-hub");
        bed.sim.with(|sim| sim.object(&at)).map(|half| half["properties"]["peeringState"].clone())
    };
    assert_eq!(peered(), Some(json!("Connected")));
    assert!(ours() >= 2);
    azure.delete_rules("default", &machine("spoke"), vec!["web".into()]).await.unwrap();
    assert_eq!(peered(), None);
    for name in ["hub", "spoke"] {
        azure.delete_resource("default", &machine(name)).await.unwrap();
    }
    assert_eq!(everything(&bed), before);
    bed.sim.assert_sound();
}

#[tokio::test]
async fn a_network_of_ours_that_others_peered_stays_until_they_part() {
    const OURS: &str = "paraglider-default-westus2-vnet";
    let bed = Bed::start().await;
    let azure = bed.azure();
    azure.create_resource(new_machine("default", "vm1", "westus2")).await.unwrap();
    bed.sim.with(|sim| {
        sim.insert(&network("virtualNetworks/far"), json!({ "location": "westus2", "properties": { "addressSpace": { "addressPrefixes": ["172.20.0.0/16"] } } }));
    });
    peer(&bed, OURS, "far", true);
    let at = network(&format!("virtualNetworks/{OURS}/virtualNetworkPeerings/{OURS}-to-far"));
    let there = || bed.sim.with(|sim| sim.object(&at)).is_some();
    azure.delete_resource("default", &machine("vm1")).await.unwrap();
    assert!(there(), "it is theirs to remove");
    assert_eq!(azure.used_spaces(&[deployment("default")]).await.unwrap().len(), 1);
    bed.sim.with(|sim| {
        sim.objects.remove(&at.to_lowercase()).unwrap();
    });
    azure.create_resource(new_machine("default", "vm1", "westus2")).await.unwrap();
    azure.delete_resource("default", &machine("vm1")).await.unwrap();
    assert!(bed.sim.with(|sim| sim.object(&network(&format!("virtualNetworks/{OURS}")))).is_none());
    bed.sim.assert_sound();
}
