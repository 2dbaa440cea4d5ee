//! Kubernetes clusters of Azure: what is made for them, what they are to others, and how they go.

use ipnet::IpNet;
use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::Error;
use tarbet_nets::cloud::{Cloud, NewResource};
use tarbet_nets::model::{Direction, Flags};

use super::super::bed::rest;
use super::super::sim::Faults;
use super::{Bed, GROUP, deployment, network, new_machine, rule};

pub(super) fn uri(name: &str) -> String {
    format!("{GROUP}/providers/Microsoft.ContainerService/managedClusters/{name}")
}

pub(crate) fn new_cluster(namespace: &str, name: &str, location: &str) -> NewResource {
    let description = json!({
        "location": location,
        "identity": { "type": "SystemAssigned" },
        "properties": {
            "dnsPrefix": name,
            "agentPoolProfiles": [
                { "name": "system", "mode": "System", "count": 1, "vmSize": "Standard_B4ms" },
                { "name": "user", "mode": "User", "count": 2, "vmSize": "Standard_B4ms" },
            ],
        },
    });
    NewResource { deployment: deployment(namespace), name: name.into(), description: description.to_string() }
}

/// Switches clusters on, as the orchestrator does.
pub(crate) async fn allow(azure: &dyn Cloud) -> Result<(), Error> {
    azure
        .set_flags(Flags {
            kubernetes_clusters_enabled: true,
            attach_resource_enabled: true,
            ..Flags::default()
        })
        .await
}

/// Names and priorities of the rules of a cluster's packet filter.
fn filter(bed: &Bed, name: &str) -> Vec<(String, u64)> {
    let nsg = bed.object(&format!("networkSecurityGroups/{name}-default-nsg"));
    let rules = nsg["properties"]["securityRules"].as_array().cloned().unwrap_or_default();
    let told = |rule: &Value| {
        let priority = rule["properties"]["priority"].as_u64().unwrap();
        (rule["name"].as_str().unwrap().to_owned(), priority)
    };
    rules.iter().map(told).collect()
}

#[tokio::test]
async fn the_calls_of_a_cluster() {
    let bed = Bed::start().await;
    let azure = bed.azure();
    let off = azure.create_resource(new_cluster("default", "k1", "westus2")).await.unwrap_err();
    assert!(matches!(&off, Error::Unsupported(said) if said.contains("kubernetesClustersEnabled")), "{off}");
    allow(&azure).await.unwrap();
    for (field, value) in [
        ("vnetSubnetID", json!({ "agentPoolProfiles": [{ "name": "a", "vnetSubnetID": "x" }] })),
        (
            "serviceCidr",
            json!({ "agentPoolProfiles": [{ "name": "a" }], "networkProfile": { "serviceCidr": "x" } }),
        ),
        ("podCidr", json!({ "agentPoolProfiles": [{ "name": "a" }], "networkProfile": { "podCidr": "x" } })),
    ] {
        let description = json!({ "location": "westus2", "properties": value }).to_string();
        let chosen = NewResource { description, ..new_cluster("default", "k1", "westus2") };
        let said = azure.create_resource(chosen).await.unwrap_err().to_string();
        assert!(said.contains(field), "{said}");
    }
    let named = azure.create_resource(new_cluster("default", "k.1", "westus2")).await.unwrap_err();
    assert!(matches!(named, Error::Invalid(_)), "{named}");
    assert_eq!(bed.sim.changes(), Vec::<String>::new(), "refusals touch nothing");

    let made = azure.create_resource(new_cluster("default", "k1", "West US 2")).await.unwrap();
    assert_eq!(made.uri, uri("k1"));
    let vnet = network("virtualNetworks/paraglider-default-westus2-vnet");
    let nsg = network("networkSecurityGroups/k1-default-nsg");
    let hub = network("virtualNetworks/paraglider-default-vpn-gw-vnet");
    let calls = [
        format!("PUT {nsg}"),
        format!("PUT {vnet}"),
        format!("PUT {vnet}"),
        format!("PUT {nsg}/securityRules/paraglider-allow-inbound-localsubnet"),
        format!("PUT {nsg}/securityRules/paraglider-allow-outbound-localsubnet"),
        format!("PUT {}", uri("k1")),
        format!("PUT {nsg}/securityRules/paraglider-deny-all-outbound"),
        format!("PUT {hub}"),
        format!(
            "PUT {hub}/virtualNetworkPeerings/paraglider-default-vpn-gw-vnet-to-paraglider-default-westus2-vnet"
        ),
        format!(
            "PUT {vnet}/virtualNetworkPeerings/paraglider-default-westus2-vnet-to-paraglider-default-vpn-gw-vnet"
        ),
    ];
    assert_eq!(bed.sim.changes(), calls);
    let built_in = [
        ("paraglider-allow-inbound-localsubnet".to_owned(), 4095),
        ("paraglider-allow-outbound-localsubnet".to_owned(), 4095),
        ("paraglider-deny-all-inbound".to_owned(), 4096),
        ("paraglider-deny-all-outbound".to_owned(), 4096),
    ];
    assert_eq!(filter(&bed, "k1"), built_in);
    let subnet = bed.object("virtualNetworks/paraglider-default-westus2-vnet/subnets/k1-subnet");
    assert_eq!(subnet["properties"]["addressPrefix"], json!(made.ip));
    assert_eq!(subnet["properties"]["networkSecurityGroup"]["id"], json!(nsg));
    let cluster = bed.sim.with(|sim| sim.object(&uri("k1"))).unwrap();
    let properties = &cluster["properties"];
    for pool in properties["agentPoolProfiles"].as_array().unwrap() {
        assert_eq!(pool["vnetSubnetID"], json!(format!("{vnet}/subnets/k1-subnet")));
    }
    assert_eq!(properties["apiServerAccessProfile"]["enablePrivateCluster"], true);
    assert_eq!(properties["networkProfile"]["networkPlugin"], "azure");
    let services: IpNet = properties["networkProfile"]["serviceCidr"].as_str().unwrap().parse().unwrap();
    let dns = format!("{}.10", services.network().to_string().rsplit_once('.').unwrap().0);
    assert_eq!(properties["networkProfile"]["dnsServiceIP"], json!(dns));

    // The same again, by a process that just started, changes nothing.
    let again = bed.azure();
    allow(&again).await.unwrap();
    assert_eq!(again.create_resource(new_cluster("default", "k1", "westus2")).await.unwrap(), made);
    assert_eq!(bed.sim.changes().len(), calls.len());
    let moved = azure.create_resource(new_cluster("default", "k1", "eastus")).await.unwrap_err();
    assert!(moved.to_string().contains("description.location"), "{moved}");
    let taken = azure.create_resource(new_cluster("other", "k1", "westus2")).await.unwrap_err();
    assert!(matches!(taken, Error::Foreign { .. }), "{taken}");

    // What others must not be given, told also by a plugin that has clusters switched off.
    let used = bed.azure().used_spaces(&[deployment("default")]).await.unwrap();
    let spaces = &used[0].spaces;
    assert!(spaces.len() == 4 && spaces.contains(&services), "{used:?}");
    assert!(spaces.contains(&"192.168.255.0/27".parse().unwrap()), "the gateway's network: {used:?}");
    assert!(spaces.contains(&made.ip.parse().unwrap()), "{used:?}");
    azure.create_resource(new_machine("default", "vm1", "westus2")).await.unwrap();
    let held = azure.list_resources("default").await.unwrap();
    let held: Vec<_> = held.iter().map(|one| (one.name.as_str(), one.uri.as_str())).collect();
    assert!(held.len() == 2 && held.contains(&("k1", &made.uri)), "{held:?}");

    // Its permit list, with its range as the near end.
    let foreign = azure.permit_list("other", &made.uri).await.unwrap_err();
    assert!(matches!(foreign, Error::Foreign { .. }), "{foreign}");
    assert_eq!(azure.permit_list("default", &made.uri).await.unwrap(), []);
    let machine = azure.used_spaces(&[deployment("default")]).await.unwrap()[0].spaces[0];
    let machine = machine.hosts().nth(3).unwrap().to_string();
    let rules =
        vec![rule("out", Direction::Outbound, &["8.8.8.8"]), rule("web", Direction::Inbound, &[&machine])];
    azure.add_rules("default", &made.uri, rules.clone()).await.unwrap();
    assert_eq!(azure.permit_list("default", &made.uri).await.unwrap(), rules);
    let web = bed.object("networkSecurityGroups/k1-default-nsg/securityRules/paraglider-web");
    assert_eq!(web["properties"]["destinationAddressPrefix"], json!(made.ip));
    let nat = |subnet: &str| {
        let subnet = bed.object(&format!("virtualNetworks/paraglider-default-westus2-vnet/subnets/{subnet}"));
        subnet["properties"]["natGateway"]["id"].clone()
    };
    assert_eq!(nat("k1-subnet"), json!(network("natGateways/paraglider-default-westus2-nat-gw")));
    assert_eq!(nat("default"), Value::Null, "machines asked for nothing");
    let of_services = rule("no", Direction::Outbound, &[&dns]);
    let said = azure.add_rules("default", &made.uri, vec![of_services]).await.unwrap_err().to_string();
    assert!(said.contains("Services"), "{said}");
    assert_eq!(azure.drift("default", true).await.unwrap(), Vec::<String>::new());

    // The machine goes and the cluster stays, then the cluster with all that was made for it.
    azure.delete_resource("default", &super::machine("vm1")).await.unwrap();
    assert!(bed.inventory().iter().any(|name| name.ends_with("/k1-subnet")), "{:?}", bed.inventory());
    let foreign = azure.delete_resource("other", &made.uri).await.unwrap_err();
    assert!(matches!(foreign, Error::Foreign { .. }), "{foreign}");
    azure.delete_resource("default", &made.uri).await.unwrap();
    assert_eq!(bed.inventory(), Vec::<String>::new(), "nothing is left");
    assert!(azure.delete_resource("default", &made.uri).await.unwrap_err().is_not_found());
    bed.sim.assert_sound();
}

#[tokio::test]
async fn a_cluster_goes_and_its_space_with_it() {
    let bed = Bed::start().await;
    let azure = bed.azure();
    allow(&azure).await.unwrap();
    azure.create_resource(new_machine("default", "vm1", "westus2")).await.unwrap();
    let before = bed.inventory();
    let half = "virtualNetworks/paraglider-default-vpn-gw-vnet/virtualNetworkPeerings/\
                paraglider-default-vpn-gw-vnet-to-paraglider-default-westus2-vnet";
    let known = || bed.object(half)["properties"]["remoteAddressSpace"]["addressPrefixes"].clone();
    let alone = known();
    let made = azure.create_resource(new_cluster("default", "k1", "westus2")).await.unwrap();
    let both = known();
    assert!(both.as_array().unwrap().contains(&json!(made.ip)), "the gateway's network learned {both}");
    azure.delete_resource("default", &made.uri).await.unwrap();
    assert_eq!((known(), bed.inventory()), (alone, before));
    bed.sim.assert_sound();
}

#[tokio::test]
async fn a_cluster_that_failed_is_made_where_it_was() {
    let bed = Bed::start().await;
    let azure = bed.azure();
    allow(&azure).await.unwrap();
    let made = azure.create_resource(new_cluster("default", "k1", "westus2")).await.unwrap();
    bed.sim.with(|sim| sim.failed.insert(uri("k1").to_lowercase()));
    bed.sim.faults(Faults::default());
    // A stand-in that refuses another space for Services, as Azure does.
    assert_eq!(azure.create_resource(new_cluster("default", "k1", "westus2")).await.unwrap(), made);
    assert_eq!(bed.sim.changes(), [format!("PUT {}", uri("k1"))]);
    bed.sim.assert_sound();
}

#[tokio::test]
async fn what_others_change_of_a_cluster_is_found_and_mended() {
    let bed = Bed::start().await;
    let azure = bed.azure();
    allow(&azure).await.unwrap();
    azure.create_resource(new_cluster("default", "k1", "westus2")).await.unwrap();
    assert_eq!(azure.drift("default", false).await.unwrap(), Vec::<String>::new());
    let (nsg, vnet) = (
        network("networkSecurityGroups/k1-default-nsg"),
        network("virtualNetworks/paraglider-default-westus2-vnet"),
    );
    bed.sim.with(|sim| {
        sim.remove(&format!("{nsg}/securityRules/paraglider-deny-all-outbound"));
        sim.remove(&format!("{nsg}/securityRules/paraglider-allow-inbound-localsubnet"));
        let subnet = format!("{vnet}/subnets/k1-subnet");
        let mut bare = sim.object(&subnet).unwrap();
        bare["properties"].as_object_mut().unwrap().remove("networkSecurityGroup");
        sim.insert(&subnet, bare);
        let mut wider = sim.object(&vnet).unwrap();
        wider["properties"]["addressSpace"]["addressPrefixes"]
            .as_array_mut()
            .unwrap()
            .push(json!("10.99.0.0/16"));
        sim.insert(&vnet, wider);
    });
    let found = azure.drift("default", true).await.unwrap();
    assert_eq!(found.len(), 4, "{found:?}");
    assert_eq!(azure.drift("default", false).await.unwrap(), Vec::<String>::new());
    // Without its cluster a filter is told of and left: one may be in the making.
    bed.sim.with(|sim| sim.remove(&uri("k1")));
    let found = azure.drift("default", true).await.unwrap();
    assert_eq!(found, ["the packet filter k1-default-nsg belongs to no cluster"]);
    bed.sim.assert_sound();
}

#[tokio::test]
async fn a_cluster_of_others_is_taken_in() {
    let bed = Bed::start().await;
    let vnet = network("virtualNetworks/theirs");
    bed.sim.with(|sim| {
        sim.insert(&vnet, json!({ "location": "westus2", "properties": { "addressSpace": { "addressPrefixes": ["10.77.0.0/16"] } } }));
        sim.insert(&network("networkSecurityGroups/theirs"), json!({ "location": "westus2", "properties": {} }));
        let busy = json!({ "properties": {
            "access": "Allow", "direction": "Inbound", "priority": 4095, "protocol": "Tcp", "sourcePortRange": "*",
            "destinationPortRange": "443", "sourceAddressPrefix": "10.77.1.0/24", "destinationAddressPrefix": "*",
        } });
        sim.insert(&network("networkSecurityGroups/theirs/securityRules/busy"), busy);
        let nsg = json!({ "id": network("networkSecurityGroups/theirs") });
        sim.insert(&format!("{vnet}/subnets/a"), json!({ "properties": { "addressPrefix": "10.77.0.0/24", "networkSecurityGroup": nsg } }));
        for (name, mode) in [("theirs", Value::Null), ("overlay", json!("overlay"))] {
            sim.insert(&uri(name), json!({ "location": "westus2", "properties": {
                "agentPoolProfiles": [{ "name": "a", "vnetSubnetID": format!("{vnet}/subnets/a") }],
                "networkProfile": { "networkPlugin": "azure", "networkPluginMode": mode, "serviceCidr": "10.78.0.0/16" },
            } }));
        }
    });
    let azure = bed.azure();
    azure.set_flags(Flags { attach_resource_enabled: true, ..Flags::default() }).await.unwrap();
    let off = azure.attach_resource("default", &uri("theirs")).await.unwrap_err();
    assert!(off.to_string().contains("kubernetesClustersEnabled"), "{off}");
    allow(&azure).await.unwrap();
    let overlay = azure.attach_resource("default", &uri("overlay")).await.unwrap_err();
    assert!(overlay.to_string().contains("pods have no addresses"), "{overlay}");
    assert_eq!(bed.sim.changes(), Vec::<String>::new(), "refusals touch nothing");
    let made = azure.attach_resource("default", &uri("theirs")).await.unwrap();
    assert_eq!((made.name.as_str(), made.ip.as_str()), ("theirs", "10.77.0.0/24"));
    let rules = bed.object("networkSecurityGroups/theirs")["properties"]["securityRules"].clone();
    let priority = |name: &str| {
        let rule = rules.as_array().unwrap().iter().find(|rule| rule["id"].as_str().unwrap().ends_with(name));
        rule.unwrap_or_else(|| panic!("no {name}"))["properties"]["priority"].as_u64().unwrap()
    };
    assert_eq!(priority("/paraglider-allow-inbound-localsubnet"), 4094, "4095 was taken");
    assert_eq!(priority("/paraglider-allow-outbound-localsubnet"), 4095);
    assert_eq!(priority("/paraglider-deny-all-outbound"), 4096);
    bed.sim.faults(Faults::default());
    assert_eq!(azure.attach_resource("default", &uri("theirs")).await.unwrap(), made);
    assert_eq!(bed.sim.changes(), Vec::<String>::new(), "once is enough");
    let used = azure.used_spaces(&[deployment("default")]).await.unwrap();
    for space in ["10.77.0.0/16", "10.78.0.0/16"] {
        assert!(used[0].spaces.contains(&space.parse().unwrap()), "{used:?}");
    }
    let web = rule("web", Direction::Inbound, &["10.77.9.9"]);
    azure.add_rules("default", &made.uri, vec![web.clone()]).await.unwrap();
    assert_eq!(azure.permit_list("default", &made.uri).await.unwrap(), [web]);
    assert!(azure.permit_list("other", &made.uri).await.is_err());
    bed.sim.assert_sound();
}

#[tokio::test]
async fn a_clusters_tag_is_its_range() {
    let bed = Bed::start().await;
    let url = |path: &str| format!("{}/namespaces/default/clouds/{path}", bed.running.rest);
    let made = |path: &'static str, description: String| {
        let at = url(path);
        async move { rest(Method::PUT, at, json!({ "description": description })).await }
    };
    let (status, cluster) =
        made("azure/resources/k1", new_cluster("default", "k1", "westus2").description).await;
    assert_eq!((status, &cluster["uri"]), (200, &json!(uri("k1"))), "{cluster}");
    let (status, vm) =
        made("azure/resources/vm1", new_machine("default", "vm1", "westus2").description).await;
    assert_eq!(status, 200, "{vm}");
    let (status, far) = made("gcp/resources/far", "{}".into()).await;
    assert_eq!(status, 200, "{far}");
    let permit = |of: &'static str, tag: &str| {
        let rules = json!([{ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": [tag] }]);
        let at = url(&format!("{of}/applyRules"));
        async move { rest(Method::POST, at, rules).await }
    };
    // Within one network nothing else is needed; the other cloud is reached by VPN, from the cluster's range.
    let (status, answer) = permit("azure/resources/vm1", "default.azure.k1").await;
    assert_eq!(status, 200, "{answer}");
    let (_, rules) = rest(Method::GET, url("azure/resources/vm1/rules"), Value::Null).await;
    assert_eq!(rules[0]["targets"], json!([cluster["ip"]]));
    assert!(!bed.inventory().iter().any(|name| name.contains("connections")));
    let (status, answer) = permit("azure/resources/k1", "default.gcp.far").await;
    assert_eq!(status, 200, "{answer}");
    let (_, rules) = rest(Method::GET, url("azure/resources/k1/rules"), Value::Null).await;
    assert_eq!(rules[0]["targets"], json!([far["ip"]]));
    assert!(bed.inventory().iter().any(|name| name.ends_with("paraglider-default-gcp-conn-1")));
    let (_, drift) = rest(Method::GET, format!("{}/drift", bed.running.rest), Value::Null).await;
    assert_eq!(drift, json!([]));

    for path in ["azure/resources/k1", "azure/resources/vm1", "gcp/resources/far"] {
        let (status, answer) = rest(Method::DELETE, url(path), Value::Null).await;
        assert_eq!(status, 200, "{answer}");
    }
    let (status, answer) = rest(Method::POST, format!("{}/links/prune", bed.running.rest), Value::Null).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(bed.inventory(), Vec::<String>::new(), "nothing is left");
    bed.sim.assert_sound();
}
