//! Azure's plugin against a stand-in that holds every request against Azure's own contract.

pub(super) mod clusters;
mod contract;
mod credentials;
mod foreign;
mod guests;
mod peerings;
mod refuse;
mod scenario;
mod sdk;
mod vendor;
mod ways;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use tarbet_nets::cloud::{Cloud, MemoryCloud, NewResource, Remote};
use tarbet_nets::clouds::azure::{Azure, AzureConfig, Environment};
use tarbet_nets::controller::RemoteController;
use tarbet_nets::model::{Deployment, Direction, Flags, Rule};
use tarbet_testbed::Lease;

use super::bed::{self, Listening, Running};
use super::sim::Sim;
use vendor::AzureSim;

const GROUP: &str = "/subscriptions/s1/resourceGroups/rg";

pub(super) fn deployment(namespace: &str) -> Deployment {
    Deployment { id: GROUP.into(), namespace: namespace.into() }
}

fn machine(name: &str) -> String {
    format!("{GROUP}/providers/Microsoft.Compute/virtualMachines/{name}")
}

fn network(path: &str) -> String {
    format!("{GROUP}/providers/Microsoft.Network/{path}")
}

pub(super) fn new_machine(namespace: &str, name: &str, location: &str) -> NewResource {
    let description = json!({
        "location": location,
        "properties": {
            "hardwareProfile": { "vmSize": "Standard_B1s" },
            "osProfile": { "computerName": name, "adminUsername": "someone", "adminPassword": "Pass-word-1" },
            "storageProfile": { "imageReference": {
                "publisher": "canonical", "offer": "ubuntu", "sku": "22_04-lts", "version": "latest",
            } },
        },
    });
    NewResource { deployment: deployment(namespace), name: name.into(), description: description.to_string() }
}

fn rule(name: &str, direction: Direction, targets: &[&str]) -> Rule {
    Rule {
        name: name.into(),
        direction,
        src_port: -1,
        dst_port: 443,
        protocol: 6,
        targets: targets.iter().map(ToString::to_string).collect(),
        tags: targets.iter().map(ToString::to_string).collect(),
    }
}

/// A service principal of the stand-in; `other` is one that is never disturbed.
fn principal(sim: &Sim<AzureSim>, secret: &str) -> Environment {
    let variables = BTreeMap::from([
        ("AZURE_TENANT_ID", "tenant".to_owned()),
        ("AZURE_CLIENT_ID", "client".to_owned()),
        ("AZURE_CLIENT_SECRET", secret.to_owned()),
        ("AZURE_AUTHORITY_HOST", sim.url.clone()),
    ]);
    Environment::read(|name| variables.get(name).cloned())
}

/// The stand-in, the plugin behind gRPC, a remembered cloud called gcp, and the orchestrator of both.
pub(super) struct Bed {
    pub(super) sim: Sim<AzureSim>,
    controller: Arc<RemoteController>,
    pub(super) running: Running,
    remote: Remote,
    _listening: Vec<Listening>,
    _ports: Lease,
}

impl Bed {
    pub(super) async fn start() -> Self {
        let sim = Sim::start(AzureSim::default()).await;
        let ports = Lease::block(4).unwrap();
        let controller = Arc::new(RemoteController::new("127.0.0.1", ports.port(1)).unwrap());
        let served = Arc::new(open(&sim, "secret-of-the-other", &controller));
        let gcp = Arc::new(MemoryCloud::new("gcp", controller.clone()));
        let at = bed::serve(tarbet_nets::cloud::serve(served, "azure")).await;
        let gcp_at = bed::serve(tarbet_nets::cloud::serve(gcp, "gcp")).await;
        let config = json!({
            "server": { "host": "127.0.0.1", "port": ports.port(0), "rpcPort": ports.port(1) },
            "tagService": { "host": "127.0.0.1", "port": ports.port(2) },
            "kvStore": { "host": "127.0.0.1", "port": ports.port(3) },
            "cloudPlugins": [
                { "name": "azure", "host": "127.0.0.1", "port": at.address.port() },
                { "name": "gcp", "host": "127.0.0.1", "port": gcp_at.address.port() },
            ],
            "namespaces": {
                "default": [{ "name": "azure", "deployment": GROUP }, { "name": "gcp", "deployment": "projects/p" }],
                "other": [{ "name": "azure", "deployment": GROUP }],
            },
            "featureFlags": { "azure": { "attachResourceEnabled": true, "kubernetesClustersEnabled": true } },
            "spaceRefresh": "0s",
        });
        let running = bed::orchestrator(&serde_json::from_value(config).unwrap(), &bed::memory().await).await;
        let remote = Remote::new("azure", "127.0.0.1", at.address.port()).unwrap();
        Self { sim, controller, running, remote, _listening: vec![at, gcp_at], _ports: ports }
    }

    /// A plugin as a process that just started has it.
    pub(super) fn azure(&self) -> Azure {
        open(&self.sim, "s3cret-of-ours", &self.controller)
    }

    fn inventory(&self) -> Vec<String> {
        self.sim.with(|azure| azure.inventory())
    }

    pub(super) fn object(&self, path: &str) -> Value {
        self.sim.with(|azure| azure.object(&network(path))).unwrap_or_default()
    }
}

fn open(sim: &Sim<AzureSim>, secret: &str, controller: &Arc<RemoteController>) -> Azure {
    let config = AzureConfig { endpoint: sim.url.clone(), ..AzureConfig::default() };
    let clock = Arc::new(sim.clock.clone());
    Azure::open("azure", &config, principal(sim, secret), controller.clone(), clock).unwrap()
}

/// The packet filter of a machine.
fn nsg_of(bed: &Bed, name: &str) -> Value {
    let nic = bed.sim.with(|azure| azure.object(&machine(name))).unwrap();
    let nic = nic
        .pointer("/properties/networkProfile/networkInterfaces/0/id")
        .unwrap()
        .as_str()
        .unwrap()
        .to_owned();
    bed.object(&format!("networkSecurityGroups/{}-default-nsg", nic.rsplit('/').next().unwrap()))
}

#[tokio::test]
async fn a_machine_begins_denied_and_rules_open_it() {
    let bed = Bed::start().await;
    let azure = bed.azure();
    let made = azure.create_resource(new_machine("default", "vm1", "West US 2")).await.unwrap();
    assert_eq!((made.uri.as_str(), made.ip.ends_with(".0.4")), (machine("vm1").as_str(), true), "{made:?}");
    let denied: Vec<(Value, Value)> = nsg_of(&bed, "vm1")["properties"]["securityRules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| (rule["name"].clone(), rule["properties"]["priority"].clone()))
        .collect();
    assert_eq!(
        denied,
        [
            (json!("paraglider-deny-all-inbound"), json!(4096)),
            (json!("paraglider-deny-all-outbound"), json!(4096))
        ]
    );

    // Through the wire of today, as an orchestrator asks.
    let near = made.ip.replace(".0.4", ".0.9");
    let rules = vec![rule("web", Direction::Inbound, &[&near]), rule("out", Direction::Outbound, &[&near])];
    bed.remote.add_rules("default", &made.uri, rules.clone()).await.unwrap();
    let mut listed = bed.remote.permit_list("default", &made.uri).await.unwrap();
    listed.sort_by(|a, b| b.name.cmp(&a.name));
    assert_eq!(listed, rules);
    let first = nsg_of(&bed, "vm1")["properties"]["securityRules"]
        .as_array()
        .unwrap()
        .iter()
        .find(|rule| rule["name"] == "paraglider-web")
        .cloned()
        .unwrap();
    assert_eq!(first["properties"]["priority"], 100);
    assert_eq!(first["properties"]["description"], json!(format!("paraglider rule:[{near}]")));
    assert_eq!(first["properties"]["destinationAddressPrefix"], json!(made.ip));

    // Once more: nothing changes.
    bed.sim.faults(super::sim::Faults::default());
    azure.create_resource(new_machine("default", "vm1", "westus2")).await.unwrap();
    azure.add_rules("default", &made.uri, rules).await.unwrap();
    assert_eq!(bed.sim.changes(), Vec::<String>::new());

    // Tags too long for a description are kept, and found by another process.
    let tags: Vec<String> = (0..20).map(|number| format!("default.gcp.machine-{number}")).collect();
    let long = Rule { tags: tags.clone(), ..rule("long", Direction::Inbound, &[&near]) };
    azure.add_rules("default", &made.uri, vec![long]).await.unwrap();
    let found = bed.azure().permit_list("default", &made.uri).await.unwrap();
    assert_eq!(found.iter().find(|rule| rule.name == "long").unwrap().tags, tags);

    // Another namespace has no say, nor has a description that chooses a network.
    let foreign = azure.permit_list("other", &made.uri).await.unwrap_err();
    assert!(foreign.to_string().contains("does not belong"), "{foreign}");
    let before = bed.inventory();
    let mut chosen = new_machine("default", "vm2", "westus2");
    chosen.description =
        r#"{"location":"westus2","properties":{"hardwareProfile":{},"networkProfile":{}}}"#.into();
    assert!(azure.create_resource(chosen).await.unwrap_err().to_string().contains("networkProfile"));
    assert_eq!(bed.inventory(), before);

    let held = bed.remote.list_resources("default").await.unwrap();
    assert_eq!(held.iter().map(|held| held.name.as_str()).collect::<Vec<_>>(), ["vm1"]);
    azure
        .delete_rules("default", &made.uri, vec!["web".into(), "long".into(), "never".into()])
        .await
        .unwrap();
    assert_eq!(azure.permit_list("default", &made.uri).await.unwrap().len(), 1);
    azure.delete_resource("default", &made.uri).await.unwrap();
    assert_eq!(bed.inventory(), Vec::<String>::new(), "nothing is left");
    bed.sim.assert_sound();
}

#[tokio::test]
async fn what_others_change_is_found_and_mended() {
    let bed = Bed::start().await;
    let azure = bed.azure();
    azure.create_resource(new_machine("default", "vm1", "westus2")).await.unwrap();
    assert_eq!(azure.drift("default", false).await.unwrap(), Vec::<String>::new());
    let nsg = nsg_of(&bed, "vm1")["id"].as_str().unwrap().to_owned();
    bed.sim.with(|sim| {
        sim.remove(&format!("{nsg}/securityRules/paraglider-deny-all-inbound"));
        let hub = network("virtualNetworks/paraglider-default-vpn-gw-vnet");
        sim.remove(&format!(
            "{hub}/virtualNetworkPeerings/paraglider-default-vpn-gw-vnet-to-paraglider-default-westus2-vnet"
        ));
    });
    assert_eq!(azure.drift("default", true).await.unwrap().len(), 2);
    assert_eq!(azure.drift("default", false).await.unwrap(), Vec::<String>::new());

    // Rules of others before ours, one of them under a name that only clusters have.
    let open = |access: &str, priority: u64| {
        json!({ "properties": {
            "access": access, "direction": "Inbound", "priority": priority, "protocol": "*", "sourcePortRange": "*",
            "destinationPortRange": "*", "sourceAddressPrefix": "*", "destinationAddressPrefix": "*",
        } })
    };
    bed.sim.with(|sim| {
        sim.insert(&format!("{nsg}/securityRules/open"), open("Allow", 100));
        sim.insert(&format!("{nsg}/securityRules/paraglider-allow-inbound-localsubnet"), open("Allow", 101));
        sim.insert(&format!("{nsg}/securityRules/quarantine"), open("Deny", 102));
    });
    let found = azure.drift("default", true).await.unwrap();
    assert_eq!(found.len(), 3, "{found:?}");
    let told = "is in no permit list: Allow Inbound * from * to *, port *";
    assert!(found[0].starts_with("the rule open of ") && found[0].ends_with(told), "{found:?}");
    let left = azure.drift("default", false).await.unwrap();
    assert!(left.len() == 1 && left[0].contains("the rule quarantine of "), "denials are left: {left:?}");
    bed.sim.assert_sound();
}

#[tokio::test]
async fn a_machine_of_others_is_taken_in() {
    let bed = Bed::start().await;
    guests::machine_of_others(&bed, "theirs", "a");
    let azure = bed.azure();
    let off = azure.attach_resource("default", &machine("theirs")).await.unwrap_err();
    assert!(off.to_string().contains("attachResourceEnabled"), "{off}");
    bed.remote.set_flags(Flags { attach_resource_enabled: true, ..Flags::default() }).await.unwrap();
    let made = bed.remote.attach_resource("default", &machine("theirs")).await.unwrap();
    assert_eq!((made.name.as_str(), made.ip.as_str()), ("theirs", "10.77.0.4"));
    let rules =
        bed.object("networkSecurityGroups/theirs")["properties"]["securityRules"].as_array().unwrap().len();
    assert_eq!(rules, 2, "all is denied from now on");
    let mappings = azure.used_spaces(&[deployment("default")]).await.unwrap();
    assert_eq!(mappings[0].spaces, ["10.77.0.0/16", "192.168.255.0/27"].map(|space| space.parse().unwrap()));
    let web = rule("web", Direction::Inbound, &["10.77.0.9"]);
    azure.add_rules("default", &made.uri, vec![web.clone()]).await.unwrap();
    assert_eq!(azure.permit_list("default", &made.uri).await.unwrap(), [web]);
    assert!(azure.permit_list("other", &made.uri).await.is_err());
    bed.sim.assert_sound();
}

#[tokio::test]
async fn the_first_generation_is_served() {
    let bed = Bed::start().await;
    let new = new_machine("default", "vm1", "westus2");
    super::life::speaks_the_first_generation(bed.azure(), "azure", &machine("vm1"), new, "10.0.0.9").await;
    bed.sim.assert_sound();
}
