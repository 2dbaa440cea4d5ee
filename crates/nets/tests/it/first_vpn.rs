//! Two clouds connected in the first generation's order: gateways, sessions, a key, connections.

use std::sync::Arc;

use serde_json::json;
use tarbet_nets::cloud::{Cloud, MemoryCloud};
use tarbet_nets::controller::LateController;
use tarbet_nets::model::Deployment;
use tarbet_nets::wire::invisinets::cloud_plugin_client::CloudPluginClient;
use tarbet_nets::wire::invisinets::{
    CreateVpnBgpSessionsRequest, CreateVpnConnectionsRequest, InvisinetsDeployment,
};
use tonic::Status;
use tonic::transport::Channel;

use super::bed::{self, Listening};
use super::{azure, gcp, ibm};

/// A plugin on that wire.
pub(crate) struct End {
    name: &'static str,
    place: InvisinetsDeployment,
    space: String,
    client: CloudPluginClient<Channel>,
    _listening: Listening,
}

/// What an end answered.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Answered {
    pub(crate) gateways: Vec<String>,
    pub(crate) asn: i64,
    pub(crate) inside: Vec<String>,
}

impl End {
    /// `space` is that of the network behind it.
    pub(crate) async fn serve(
        name: &'static str,
        cloud: Arc<dyn Cloud>,
        deployment: Deployment,
        space: &str,
    ) -> Self {
        let listening = bed::serve(tarbet_nets::cloud::serve(cloud, name)).await;
        let client = CloudPluginClient::connect(listening.url()).await.unwrap();
        let place = InvisinetsDeployment { id: deployment.id, namespace: deployment.namespace };
        Self { name, place, space: space.into(), client, _listening: listening }
    }

    async fn gateway(&mut self) -> Result<Answered, Status> {
        let made = self.client.create_vpn_gateway(self.place.clone()).await?.into_inner();
        Ok(Answered { gateways: made.gateway_ip_addresses, asn: made.asn, inside: vec![] })
    }

    async fn sessions(&mut self, cloud: &str) -> Result<Vec<String>, Status> {
        let request =
            CreateVpnBgpSessionsRequest { deployment: Some(self.place.clone()), cloud: cloud.into() };
        Ok(self.client.create_vpn_bgp_sessions(request).await?.into_inner().bgp_ip_addresses)
    }

    async fn connect(&mut self, other: &Self, there: &Answered, key: &str) -> Result<(), Status> {
        let request = CreateVpnConnectionsRequest {
            deployment: Some(self.place.clone()),
            cloud: other.name.into(),
            asn: there.asn,
            address_space: other.space.clone(),
            gateway_ip_addresses: there.gateways.clone(),
            bgp_ip_addresses: there.inside.clone(),
            shared_key: key.into(),
        };
        let done = self.client.create_vpn_connections(request).await?.into_inner();
        assert!(done.success, "{done:?}");
        Ok(())
    }
}

/// The order of the first generation's orchestrator.
pub(crate) async fn connect(a: &mut End, b: &mut End, key: &str) -> Result<[Answered; 2], Status> {
    let (mut from_a, mut from_b) = (a.gateway().await?, b.gateway().await?);
    from_a.inside = a.sessions(b.name).await?;
    from_b.inside = b.sessions(a.name).await?;
    a.connect(b, &from_b, key).await?;
    b.connect(a, &from_a, key).await?;
    Ok([from_a, from_b])
}

async fn azure_end(bed: &azure::Bed) -> End {
    let plugin = bed.azure();
    plugin.create_resource(azure::new_machine("default", "vm1", "westus2")).await.unwrap();
    End::serve("azure", Arc::new(plugin), azure::deployment("default"), "10.0.0.0/16").await
}

#[tokio::test]
async fn azure_and_google_meet_at_the_originals_addresses() {
    let (bed, world) = (azure::Bed::start().await, gcp::World::start().await);
    let plugin = world.gcp();
    plugin.create_resource(gcp::machine("default", "vm-1")).await.unwrap();
    let mut google = End::serve("gcp", Arc::new(plugin), gcp::deployment("default"), "10.1.0.0/16").await;
    let mut azure = azure_end(&bed).await;
    let [near, far] = connect(&mut azure, &mut google, "key-of-both").await.unwrap();
    assert_eq!(near.inside, ["169.254.21.1", "169.254.22.1"]);
    assert_eq!(far.inside, ["169.254.21.2", "169.254.22.2"]);
    assert_eq!((near.gateways.len(), far.gateways.len()), (2, 2));
    world.sim.with(|google| {
        let router = google.object("projects/p/regions/us-west1/routers/para-default-router").clone();
        for index in 0..2 {
            assert_eq!(router["interfaces"][index]["ipRange"], json!(format!("{}/30", far.inside[index])));
            assert_eq!(router["bgpPeers"][index]["peerIpAddress"], json!(near.inside[index]));
            assert_eq!(router["bgpPeers"][index]["peerAsn"], json!(near.asn));
        }
        let peer = google.object("projects/p/global/externalVpnGateways/para-default-azure-peer-gw").clone();
        assert_eq!(peer["redundancyType"], "TWO_IPS_REDUNDANCY");
        assert_eq!(peer["interfaces"][1]["ipAddress"], json!(near.gateways[1]));
    });
    for index in 0..2 {
        let there = bed.object(&format!("localNetworkGateways/paraglider-default-gcp-local-gw-{index}"));
        assert_eq!(there["properties"]["gatewayIpAddress"], json!(far.gateways[index]));
        assert_eq!(there["properties"]["bgpSettings"]["bgpPeeringAddress"], json!(far.inside[index]));
    }
    // Once more, as after a lost answer: the same, and nothing changes.
    world.sim.faults(super::sim::Faults::default());
    assert_eq!(connect(&mut azure, &mut google, "key-of-both").await.unwrap(), [near, far]);
    assert_eq!(world.sim.changes(), Vec::<String>::new());
    bed.sim.assert_sound();
    world.sim.assert_sound();
}

#[tokio::test]
async fn azure_and_a_cloud_of_ours_meet() {
    let bed = azure::Bed::start().await;
    let controller = Arc::new(LateController::default());
    controller.set(Arc::new(bed.running.orchestrator.clone()));
    let ours = Arc::new(MemoryCloud::new("east", controller));
    let place = Deployment { id: "e".into(), namespace: "default".into() };
    let mut east = End::serve("east", ours.clone(), place, "10.1.0.0/16").await;
    let mut azure = azure_end(&bed).await;
    let [near, far] = connect(&mut east, &mut azure, "key-of-both").await.unwrap();
    assert_eq!((near.inside.len(), far.inside.len()), (2, 2));
    for index in 0..2 {
        let there = bed.object(&format!("localNetworkGateways/paraglider-default-east-local-gw-{index}"));
        assert_eq!(there["properties"]["bgpSettings"]["bgpPeeringAddress"], json!(near.inside[index]));
    }
    assert_eq!(ours.tunnels(), [("azure".to_owned(), "key-of-both".to_owned())]);
    bed.sim.assert_sound();
}

#[tokio::test]
async fn azure_and_ibm_are_told_each_others_networks_and_others_are_refused() {
    let (bed, world) = (azure::Bed::start().await, ibm::World::start().await);
    let plugin = world.ibm();
    plugin.create_resource(ibm::machine("default", "vm-1")).await.unwrap();
    let mut ibm = End::serve("ibm", Arc::new(plugin), ibm::deployment("default"), "10.1.0.0/16").await;
    let mut azure = azure_end(&bed).await;
    let [near, far] = connect(&mut ibm, &mut azure, "key-of-both").await.unwrap();
    assert_eq!((near.inside.len(), far.inside.len(), far.gateways.len()), (0, 0, 2));
    let routes = world.sim.with(|ibm| {
        let state = ibm.state();
        let routes = state.iter().filter(|(path, _)| path.contains("/routes/"));
        routes.filter(|(_, route)| route["destination"] == "10.0.0.0/16").count()
    });
    assert!(routes > 0, "IBM routes what is behind Azure");
    for index in 0..2 {
        let there = bed.object(&format!("localNetworkGateways/paraglider-default-ibm-local-gw-{index}"));
        assert_eq!(
            there["properties"]["localNetworkAddressSpace"]["addressPrefixes"],
            json!(["10.1.0.0/16"]),
            "{there}"
        );
    }
    let refused = ibm.sessions("gcp").await.unwrap_err();
    assert!(refused.message().contains("ibm has no BGP"), "{refused}");
    bed.sim.assert_sound();
    world.sim.assert_sound();
}
