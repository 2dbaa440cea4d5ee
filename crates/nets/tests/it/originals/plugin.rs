//! A plugin as the original's are: it leaves out what may be left out, has names of its own for what it makes,
//! and reads what it needs without looking whether it is there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use ipnet::IpNet;
use serde_json::json;
use tarbet_nets::NetsConfig;
use tarbet_nets::wire::paraglider as today;
use today::cloud_plugin_server::{CloudPlugin, CloudPluginServer};
use today::controller_client::ControllerClient;
use tonic::service::Routes;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::super::bed::{self, Clouds, Listening};

/// What it calls every resource.
pub(super) const URI: &str = "/resourcegroup/rg/zone/z/instance/0a1b";

#[derive(Clone)]
pub(super) struct Plugin {
    name: &'static str,
    /// The prefixes of each of its networks.
    networks: Vec<Vec<&'static str>>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    refusals: usize,
    flags: Option<today::PluginFlags>,
    rules: BTreeMap<String, today::PermitListRule>,
    gateways: Vec<today::CreateVpnGatewayRequest>,
    connections: Vec<today::CreateVpnConnectionsRequest>,
}

impl Plugin {
    pub(super) fn new(name: &'static str, networks: &[&[&'static str]]) -> Self {
        let networks = networks.iter().map(|network| network.to_vec()).collect();
        Self { name, networks, state: Arc::default() }
    }

    pub(super) fn refusing_flags(self, times: usize) -> Self {
        self.lock().refusals = times;
        self
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(super) fn flags(&self) -> Option<today::PluginFlags> {
        self.lock().flags
    }

    pub(super) fn give(&self, rule: today::PermitListRule) {
        self.lock().rules.insert(rule.name.clone(), rule);
    }

    pub(super) fn rule(&self, name: &str) -> Option<today::PermitListRule> {
        self.lock().rules.get(name).cloned()
    }

    pub(super) fn gateways(&self) -> Vec<today::CreateVpnGatewayRequest> {
        self.lock().gateways.clone()
    }

    pub(super) fn connections(&self) -> Vec<today::CreateVpnConnectionsRequest> {
        self.lock().connections.clone()
    }
}

/// An orchestrator's surroundings that consist of such plugins.
pub(super) struct World {
    pub(super) config: NetsConfig,
    _ports: Clouds,
    _listening: Vec<Listening>,
}

impl World {
    pub(super) async fn with(plugins: &[&Plugin]) -> Self {
        let ports = bed::clouds(None).await;
        let mut config = ports.config.clone();
        let (mut listening, mut places, mut deployments) = (Vec::new(), Vec::new(), Vec::new());
        for &plugin in plugins {
            let at = bed::serve(Routes::new(CloudPluginServer::new(plugin.clone()))).await;
            places.push(json!({ "name": plugin.name, "host": "127.0.0.1", "port": at.address.port() }));
            deployments
                .push(json!({ "name": plugin.name, "deployment": format!("deployment of {}", plugin.name) }));
            listening.push(at);
        }
        config.cloud_plugins = serde_json::from_value(json!(places)).unwrap();
        config.namespaces = serde_json::from_value(json!({ "default": deployments })).unwrap();
        Self { config, _ports: ports, _listening: listening }
    }

    pub(super) async fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::connect(format!("http://127.0.0.1:{}", self.config.server.rpc_port)).await.unwrap()
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[expect(clippy::unnecessary_wraps, reason = "the form every call answers in")]
fn answer<T>(message: T) -> Answer<T> {
    Ok(Response::new(message))
}

#[tonic::async_trait]
impl CloudPlugin for Plugin {
    async fn get_used_address_spaces(
        &self,
        request: Request<today::GetUsedAddressSpacesRequest>,
    ) -> Answer<today::GetUsedAddressSpacesResponse> {
        let mapping = |deployment: today::ParagliderDeployment| today::AddressSpaceMapping {
            address_spaces: self.networks.iter().flatten().map(ToString::to_string).collect(),
            cloud: self.name.into(),
            namespace: deployment.namespace,
            deployment: None,
        };
        let address_space_mappings = request.into_inner().deployments.into_iter().map(mapping).collect();
        answer(today::GetUsedAddressSpacesResponse { address_space_mappings })
    }

    async fn get_used_asns(
        &self,
        _: Request<today::GetUsedAsnsRequest>,
    ) -> Answer<today::GetUsedAsnsResponse> {
        answer(today::GetUsedAsnsResponse::default())
    }

    async fn get_used_bgp_peering_ip_addresses(
        &self,
        _: Request<today::GetUsedBgpPeeringIpAddressesRequest>,
    ) -> Answer<today::GetUsedBgpPeeringIpAddressesResponse> {
        answer(today::GetUsedBgpPeeringIpAddressesResponse::default())
    }

    async fn create_resource(
        &self,
        _: Request<today::CreateResourceRequest>,
    ) -> Answer<today::CreateResourceResponse> {
        let name = format!("paraglider-{}-0a1b2c3d", self.name);
        answer(today::CreateResourceResponse { name, uri: URI.into(), ip: "10.3.0.4".into() })
    }

    async fn attach_resource(
        &self,
        _: Request<today::AttachResourceRequest>,
    ) -> Answer<today::AttachResourceResponse> {
        Err(Status::unknown("feature is disabled"))
    }

    async fn get_permit_list(
        &self,
        _: Request<today::GetPermitListRequest>,
    ) -> Answer<today::GetPermitListResponse> {
        answer(today::GetPermitListResponse { rules: self.lock().rules.values().cloned().collect() })
    }

    async fn add_permit_list_rules(
        &self,
        request: Request<today::AddPermitListRulesRequest>,
    ) -> Answer<today::AddPermitListRulesResponse> {
        request.into_inner().rules.into_iter().for_each(|rule| self.give(rule));
        answer(today::AddPermitListRulesResponse {})
    }

    async fn delete_permit_list_rules(
        &self,
        request: Request<today::DeletePermitListRulesRequest>,
    ) -> Answer<today::DeletePermitListRulesResponse> {
        for name in request.into_inner().rule_names {
            self.lock().rules.remove(&name);
        }
        answer(today::DeletePermitListRulesResponse {})
    }

    async fn create_vpn_gateway(
        &self,
        request: Request<today::CreateVpnGatewayRequest>,
    ) -> Answer<today::CreateVpnGatewayResponse> {
        let request = request.into_inner();
        // One for each half of the gateway, taken by its index.
        if request.bgp_peering_ip_addresses.len() < 2 {
            return Err(Status::unknown("runtime error: index out of range"));
        }
        self.lock().gateways.push(request);
        let gateway_ip_addresses = ["192.0.2.1", "192.0.2.2"].map(Into::into).to_vec();
        answer(today::CreateVpnGatewayResponse { asn: 64512, gateway_ip_addresses })
    }

    async fn create_vpn_connections(
        &self,
        request: Request<today::CreateVpnConnectionsRequest>,
    ) -> Answer<today::CreateVpnConnectionsResponse> {
        self.lock().connections.push(request.into_inner());
        answer(today::CreateVpnConnectionsResponse {})
    }

    /// The network that holds the space. One that is not known is given back as it came, as Azure's does.
    async fn get_network_address_spaces(
        &self,
        request: Request<today::GetNetworkAddressSpacesRequest>,
    ) -> Answer<today::GetNetworkAddressSpacesResponse> {
        let given = request.into_inner().address_space;
        let wanted: IpNet = given.parse().map_err(|_| Status::unknown("invalid CIDR address"))?;
        let holds = |space: &&str| space.parse::<IpNet>().unwrap().contains(&wanted);
        let found = self.networks.iter().find(|network| network.iter().any(holds));
        let address_spaces =
            found.map_or_else(|| vec![given], |network| network.iter().map(ToString::to_string).collect());
        answer(today::GetNetworkAddressSpacesResponse { address_spaces })
    }

    async fn set_flags(&self, request: Request<today::SetFlagsRequest>) -> Answer<today::SetFlagsResponse> {
        let mut state = self.lock();
        if state.refusals > 0 {
            state.refusals -= 1;
            return Err(Status::unavailable("not up yet"));
        }
        state.flags = request.into_inner().flags;
        answer(today::SetFlagsResponse {})
    }
}
