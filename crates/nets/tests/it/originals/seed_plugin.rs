//! Plugins of the first generation behind our orchestrator: they have that generation's service and no other,
//! choose their addresses inside tunnels themselves, and know a rule that is to go by all it says.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::NetsConfig;
use tarbet_nets::wire::invisinets::cloud_plugin_server::{CloudPlugin, CloudPluginServer};
use tarbet_nets::wire::invisinets::{
    AddressSpaceList, BasicResponse, CreateResourceResponse, CreateVpnBgpSessionsRequest,
    CreateVpnBgpSessionsResponse, CreateVpnConnectionsRequest, CreateVpnGatewayResponse,
    InvisinetsDeployment, PermitList, PermitListRule, ResourceDescription, ResourceId,
};
use tarbet_nets::wire::seed_tags::{self, tag_service_client::TagServiceClient};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::super::bed::{self, Clouds, Listening, rest};

/// Every call of all plugins, in order.
type Log = Arc<Mutex<Vec<String>>>;

#[derive(Clone)]
struct Plugin {
    name: &'static str,
    space: &'static str,
    /// Its addresses inside tunnels, whoever is at the other end.
    inside: [&'static str; 2],
    log: Log,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    made: Vec<ResourceDescription>,
    rules: BTreeMap<String, PermitListRule>,
    connections: Vec<CreateVpnConnectionsRequest>,
}

impl Plugin {
    fn new(name: &'static str, space: &'static str, inside: [&'static str; 2], log: &Log) -> Self {
        Self { name, space, inside, log: log.clone(), state: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn note(&self, call: &str) {
        self.log.lock().unwrap().push(format!("{call} {}", self.name));
    }

    fn ip(&self) -> String {
        self.space.replace("0.0/16", "0.4")
    }
}

type Answer<T> = Result<Response<T>, Status>;

fn done() -> BasicResponse {
    BasicResponse { success: true, message: "successful".into(), updated_resource: None }
}

#[tonic::async_trait]
impl CloudPlugin for Plugin {
    async fn get_used_address_spaces(&self, _: Request<InvisinetsDeployment>) -> Answer<AddressSpaceList> {
        let made = !self.lock().made.is_empty();
        let address_spaces = made.then(|| self.space.to_owned()).into_iter().collect();
        Ok(Response::new(AddressSpaceList { address_spaces }))
    }

    async fn create_resource(&self, request: Request<ResourceDescription>) -> Answer<CreateResourceResponse> {
        self.note("CreateResource");
        let uri = format!("uri-of-{}", self.name);
        self.lock().made.push(request.into_inner());
        Ok(Response::new(CreateResourceResponse { name: "its-own-name".into(), uri, ip: self.ip() }))
    }

    async fn get_permit_list(&self, request: Request<ResourceId>) -> Answer<PermitList> {
        let ResourceId { id, namespace } = request.into_inner();
        let rules = self.lock().rules.values().cloned().collect();
        Ok(Response::new(PermitList { associated_resource: id, rules, namespace }))
    }

    async fn add_permit_list_rules(&self, request: Request<PermitList>) -> Answer<BasicResponse> {
        self.note("AddPermitListRules");
        let rules = request.into_inner().rules;
        if rules.iter().any(|rule| rule.dst_port == 666) {
            let message = "not that port".into();
            return Ok(Response::new(BasicResponse { success: false, message, updated_resource: None }));
        }
        self.lock().rules.extend(rules.into_iter().map(|rule| (rule.id.clone(), rule)));
        Ok(Response::new(done()))
    }

    async fn delete_permit_list_rules(&self, request: Request<PermitList>) -> Answer<BasicResponse> {
        self.note("DeletePermitListRules");
        for gone in request.into_inner().rules {
            self.lock().rules.retain(|_, rule| *rule != gone);
        }
        Ok(Response::new(done()))
    }

    async fn create_vpn_gateway(&self, _: Request<InvisinetsDeployment>) -> Answer<CreateVpnGatewayResponse> {
        self.note("CreateVpnGateway");
        let gateway_ip_addresses = (1..3).map(|host| format!("198.51.100.{host}")).collect();
        Ok(Response::new(CreateVpnGatewayResponse { gateway_ip_addresses, asn: 64555 }))
    }

    async fn create_vpn_bgp_sessions(
        &self,
        _: Request<CreateVpnBgpSessionsRequest>,
    ) -> Answer<CreateVpnBgpSessionsResponse> {
        self.note("CreateVpnBgpSessions");
        let bgp_ip_addresses = self.inside.map(str::to_owned).to_vec();
        Ok(Response::new(CreateVpnBgpSessionsResponse { bgp_ip_addresses }))
    }

    async fn create_vpn_connections(
        &self,
        request: Request<CreateVpnConnectionsRequest>,
    ) -> Answer<BasicResponse> {
        self.note("CreateVpnConnections");
        self.lock().connections.push(request.into_inner());
        Ok(Response::new(done()))
    }
}

const AZURE: [&str; 2] = ["169.254.21.1", "169.254.22.1"];
const GCP: [&str; 2] = ["169.254.21.2", "169.254.22.2"];

/// The settings of that generation's own file, with these plugins.
async fn serve(config: &mut NetsConfig, plugin: &Plugin, deployment: &str) -> Listening {
    let at = bed::serve(Routes::new(CloudPluginServer::new(plugin.clone()))).await;
    let place = json!({
        "name": plugin.name, "host": "127.0.0.1", "port": at.address.port(), "invDeployment": deployment,
    });
    config.cloud_plugins.push(serde_json::from_value(place).unwrap());
    at
}

async fn create(url: &str, cloud: &str, description: Value) {
    let place = format!("{url}/namespaces/default/clouds/{cloud}/resources/vm");
    let (status, made) = rest(Method::PUT, place, json!({ "description": description.to_string() })).await;
    assert_eq!((status, &made["name"]), (200, &json!(format!("default.{cloud}.vm"))), "{made}");
}

fn rule(name: &str, port: i32, tag: &str) -> Value {
    json!([{ "name": name, "direction": 1, "src_port": -1, "dst_port": port, "protocol": 6, "tags": [tag] }])
}

#[tokio::test]
async fn its_plugins_are_spoken_to_in_its_words_and_order() {
    let (ports, log): (Clouds, Log) = (bed::clouds(None).await, Log::default());
    let azure = Plugin::new("azure", "10.0.0.0/16", AZURE, &log);
    let gcp = Plugin::new("gcp", "10.1.0.0/16", GCP, &log);
    let mut config = ports.config.clone();
    config.cloud_plugins.clear();
    config.namespaces.clear();
    let _azure = serve(&mut config, &azure, "/subscriptions/s/resourceGroups/rg").await;
    let _gcp = serve(&mut config, &gcp, "projects/p").await;
    let running = bed::orchestrator(&config, &bed::memory().await).await;
    let url = &running.rest;
    // Its tag service is where its file says, in its words.
    let at = format!("http://127.0.0.1:{}", config.tag_service.port);
    let mut tags = TagServiceClient::connect(at).await.unwrap();
    let group = seed_tags::TagMapping {
        tag_name: "g".into(),
        child_tags: vec!["10.9.0.1".into()],
        uri: None,
        ip: None,
    };
    assert!(tags.set_tag(group.clone()).await.unwrap().into_inner().success);
    let found = tags.get_tag(seed_tags::Tag { tag_name: "g".into() }).await.unwrap().into_inner();
    assert_eq!((found.tag_name.as_str(), found.child_tags), ("g", group.child_tags));
    create(url, "azure", json!({ "location": "westus2", "properties": { "hardwareProfile": {} } })).await;
    create(url, "gcp", json!({ "zone": "us-west1-a", "instance_resource": { "machine_type": "m" } })).await;
    let made = azure.lock().made[0].clone();
    assert_eq!(made.id, "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Compute/virtualMachines/vm");
    let description: Value = serde_json::from_slice(&gcp.lock().made[0].description).unwrap();
    assert_eq!(
        (&description["project"], &description["instance_resource"]["name"]),
        (&json!("p"), &json!("vm"))
    );

    log.lock().unwrap().clear();
    let rules = format!("{url}/namespaces/default/clouds/gcp/resources/vm/applyRules");
    let (status, answer) = rest(Method::POST, rules.clone(), rule("web", 443, "default.azure.vm")).await;
    assert_eq!(status, 200, "{answer}");
    let order = [
        "CreateVpnGateway azure",
        "CreateVpnGateway gcp",
        "CreateVpnBgpSessions azure",
        "CreateVpnBgpSessions gcp",
        "CreateVpnConnections azure",
        "CreateVpnConnections gcp",
        "AddPermitListRules gcp",
    ];
    assert_eq!(*log.lock().unwrap(), order);
    let (near, far) = (azure.lock().connections[0].clone(), gcp.lock().connections[0].clone());
    assert_eq!(
        (&near.bgp_ip_addresses[..], &far.bgp_ip_addresses[..]),
        (&GCP.map(String::from)[..], &AZURE.map(String::from)[..])
    );
    assert_eq!((near.shared_key.len(), &near.shared_key), (32, &far.shared_key), "one key for both");
    assert_eq!((near.address_space.as_str(), near.cloud.as_str(), near.asn), ("10.1.0.0/16", "gcp", 64555));
    assert_eq!(gcp.lock().rules["web"].targets, ["10.0.0.4"]);

    // What it refuses in its answer is a refusal here, and a rule goes as it stands there.
    let (status, answer) = rest(Method::POST, rules, rule("bad", 666, "default.azure.vm")).await;
    assert!(status >= 400 && answer.to_string().contains("not that port"), "{status} {answer}");
    let gone = format!("{url}/namespaces/default/clouds/gcp/resources/vm/rules/web");
    assert_eq!(rest(Method::DELETE, gone, Value::Null).await.0, 200);
    assert!(gcp.lock().rules.is_empty());
}

#[tokio::test]
async fn a_plugin_of_today_meets_one_of_the_first_generation() {
    let (ports, log): (Clouds, Log) = (bed::clouds(None).await, Log::default());
    let old = Plugin::new("zulu", "10.200.0.0/16", GCP, &log);
    let mut config = ports.config.clone();
    let _old = serve(&mut config, &old, "z").await;
    let running = bed::orchestrator(&config, &bed::memory().await).await;
    let url = &running.rest;
    create(url, "zulu", json!({})).await;
    assert_eq!(old.lock().made[0].id, "z/vm");
    create(url, "east", json!({})).await;
    let rules = format!("{url}/namespaces/default/clouds/east/resources/vm/applyRules");
    let (status, answer) = rest(Method::POST, rules, rule("web", 443, "default.zulu.vm")).await;
    assert_eq!(status, 200, "{answer}");
    let told = old.lock().connections[0].clone();
    assert_eq!(told.bgp_ip_addresses, AZURE, "the other host of each of its networks of four");
    assert_eq!(told.gateway_ip_addresses.len(), 2);
    assert_eq!(ports.east.tunnels(), [("zulu".to_owned(), told.shared_key)]);
    let (status, refused) = rest(Method::POST, format!("{url}/imports/zulu"), Value::Null).await;
    assert_eq!(status, 501, "{refused}");
    assert!(refused.to_string().contains("plugin of zulu cannot tell"), "{refused}");
}
