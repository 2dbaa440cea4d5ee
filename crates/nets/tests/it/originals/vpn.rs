//! Connections between clouds whose plugins are the original's.

use tarbet_nets::wire::paraglider as today;

use super::super::bed;
use super::plugin::{Plugin, World};

fn request(a: (&str, &str), b: (&str, &str)) -> today::ConnectCloudsRequest {
    today::ConnectCloudsRequest {
        cloud_a: a.0.into(),
        cloud_b: b.0.into(),
        cloud_a_namespace: "default".into(),
        cloud_b_namespace: "default".into(),
        address_spaces_cloud_a: vec![a.1.into()],
        address_spaces_cloud_b: vec![b.1.into()],
    }
}

#[tokio::test]
async fn azure_and_ibm_are_connected_network_by_network() {
    let azure = Plugin::new("azure", &[]);
    let ibm = Plugin::new("ibm", &[&["10.1.0.0/24", "10.1.1.0/24"], &["10.2.0.0/24"]]);
    let world = World::with(&[&azure, &ibm]).await;
    let _running = bed::orchestrator(&world.config, &bed::memory().await).await;
    let mut controller = world.controller().await;

    // IBM's plugin names the rule's target, which is often one address.
    let first = request(("ibm", "10.1.0.0/24"), ("azure", "10.0.0.5"));
    controller.connect_clouds(first.clone()).await.unwrap();
    let (at_azure, at_ibm) = (azure.gateways(), ibm.gateways());
    assert_eq!((at_azure.len(), at_ibm.len()), (1, 1));
    assert!(
        at_azure[0].bgp_peering_ip_addresses.iter().all(|ip| ip.starts_with("169.254.21.")),
        "{at_azure:?}"
    );
    assert_eq!((at_azure[0].cloud.as_str(), at_ibm[0].address_space.as_str()), ("ibm", "10.1.0.0/24"));
    let (from_azure, from_ibm) = (azure.connections(), ibm.connections());
    assert_eq!(from_ibm[0].remote_addresses, ["10.0.0.5/32"], "routes are made of prefixes");
    assert_eq!(from_azure[0].remote_addresses, ["10.1.0.0/24", "10.1.1.0/24"], "all of the network");
    assert!(from_azure[0].is_bgp_disabled && from_ibm[0].is_bgp_disabled);

    // A further network at either end is told to both, by the same key.
    controller.connect_clouds(request(("azure", "10.0.0.0/16"), ("ibm", "10.2.0.7"))).await.unwrap();
    let (from_azure, from_ibm) = (azure.connections(), ibm.connections());
    assert_eq!((from_azure.len(), from_ibm.len()), (2, 2));
    assert_eq!(from_azure[1].remote_addresses, ["10.2.0.0/24"]);
    assert_eq!(from_ibm[1].remote_addresses, ["10.0.0.0/16"]);
    assert_eq!(ibm.gateways()[1].address_space, "10.2.0.0/24", "another network has a gateway of its own");
    let keys: Vec<&str> = from_azure.iter().chain(&from_ibm).map(|made| made.shared_key.as_str()).collect();
    assert!(keys.iter().all(|key| *key == keys[0] && !key.is_empty()));

    controller.connect_clouds(first).await.unwrap();
    assert_eq!(
        (azure.connections().len(), ibm.connections().len()),
        (2, 2),
        "what is connected stays as it is"
    );
}
