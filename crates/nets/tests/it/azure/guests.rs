//! What others made and Azure's plugin was told to take in: what is kept of it, and how it is given back.

use reqwest::Method;
use serde_json::{Value, json};
use tarbet_nets::Error;
use tarbet_nets::cloud::Cloud;
use tarbet_nets::clouds::azure::{Azure, AzureConfig};
use tarbet_nets::model::{Deployment, Direction};

use super::super::bed::rest;
use super::super::sim::Faults;
use super::{Bed, GROUP, clusters, deployment, machine, network, new_machine, principal, rule};

/// A machine that somebody else made, with Azure's own words: a network, a packet filter and an interface of the
/// same name, in this subnet.
pub(super) fn machine_of_others(bed: &Bed, name: &str, subnet: &str) {
    bed.sim.with(|sim| {
        let vnet = network("virtualNetworks/theirs");
        sim.insert(&vnet, json!({ "location": "westus2", "tags": { "team": "them" }, "properties": { "addressSpace": { "addressPrefixes": ["10.77.0.0/16"] } } }));
        let (third, prefix) = if subnet == "a" { (0, "10.77.0.0/24") } else { (1, "10.77.1.0/24") };
        sim.insert(&format!("{vnet}/subnets/{subnet}"), json!({ "properties": {
            "addressPrefix": prefix,
            "privateEndpointNetworkPolicies": "Enabled",
            "serviceEndpoints": [{ "service": "Microsoft.Storage", "provisioningState": "Succeeded" }],
            "delegations": [{ "name": "d", "properties": { "serviceName": "Microsoft.Web/x", "actions": ["x"] } }],
        } }));
        sim.insert(&network(&format!("networkSecurityGroups/{name}")), json!({ "location": "westus2", "tags": {}, "properties": {} }));
        sim.insert(&network(&format!("networkInterfaces/{name}")), json!({
            "location": "westus2",
            "tags": { "team": "them" },
            "properties": {
                "networkSecurityGroup": { "id": network(&format!("networkSecurityGroups/{name}")) },
                "ipConfigurations": [{ "properties": {
                    "privateIPAddress": format!("10.77.{third}.4"), "subnet": { "id": format!("{vnet}/subnets/{subnet}") },
                } }],
            },
        }));
        sim.insert(&machine(name), json!({
            "location": "westus2",
            "properties": { "networkProfile": { "networkInterfaces": [{ "id": network(&format!("networkInterfaces/{name}")) }] } },
        }));
    });
}

/// Two machines of others behind one packet filter.
pub(super) fn share_a_filter(bed: &Bed) {
    machine_of_others(bed, "one", "a");
    machine_of_others(bed, "two", "b");
    bed.sim.with(|sim| {
        let nic = sim.objects.get_mut(&network("networkInterfaces/two").to_lowercase()).unwrap();
        nic["properties"]["networkSecurityGroup"]["id"] = json!(network("networkSecurityGroups/one"));
    });
}

/// Everything there is, but for what Azure alone writes.
pub(super) fn everything(bed: &Bed) -> Vec<Value> {
    fn plain(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|name, _| !["etag", "provisioningState", "actions"].contains(&name.as_str()));
                fields.values_mut().for_each(plain);
            }
            Value::Array(items) => items.iter_mut().for_each(plain),
            _ => {}
        }
    }
    let mut all: Vec<Value> = bed.sim.with(|sim| sim.objects.values().cloned().collect());
    all.iter_mut().for_each(plain);
    all
}

#[tokio::test]
async fn a_guest_is_given_back_as_it_came_though_cut_off_after_every_change() {
    let bed = Bed::start().await;
    machine_of_others(&bed, "theirs", "a");
    let before = everything(&bed);
    let life = async |azure: &Azure| {
        clusters::allow(azure).await?;
        azure.create_resource(new_machine("other", "vm2", "eastus")).await?;
        azure.attach_resource("default", &machine("theirs")).await?;
        let far = azure.used_spaces(&[deployment("other")]).await?[0].spaces[0];
        let far = far.hosts().nth(3).unwrap().to_string();
        let rules =
            vec![rule("far", Direction::Inbound, &[&far]), rule("out", Direction::Outbound, &["8.8.8.8"])];
        azure.add_rules("default", &machine("theirs"), rules).await
    };
    let azure = bed.azure();
    life(&azure).await.unwrap();
    let held = azure.permit_list("default", &machine("theirs")).await.unwrap();
    assert_eq!(held.len(), 2);
    let peered = || {
        let vnet = bed.object("virtualNetworks/theirs");
        vnet["properties"]["virtualNetworkPeerings"].as_array().map_or(0, Vec::len)
    };
    assert_eq!(peered(), 2, "with the other network and the gateway's");
    let foreign = azure.delete_resource("other", &machine("theirs")).await.unwrap_err();
    assert!(matches!(foreign, Error::Foreign { .. }), "{foreign}");

    bed.sim.faults(Faults::default());
    azure.delete_resource("default", &machine("theirs")).await.unwrap();
    let changes = bed.sim.changes();
    azure.delete_resource("other", &machine("vm2")).await.unwrap();
    assert_eq!(everything(&bed), before, "the machine and its network stay as they were");
    assert!(azure.delete_resource("default", &machine("theirs")).await.unwrap_err().is_not_found());

    // Once more, with every change carried out once and nobody left to hear of it.
    life(&bed.azure()).await.unwrap();
    bed.sim.with(|azure| azure.to_cut.extend(changes.iter().cloned()));
    let (mut crashes, uri) = (0, machine("theirs"));
    loop {
        let azure = bed.azure();
        tokio::select! {
            () = bed.sim.cut() => crashes += 1,
            result = azure.delete_resource("default", &uri) => match result {
                Err(error) if error.is_not_found() => break,
                result => { result.unwrap(); break }
            },
        }
    }
    assert_eq!(crashes, changes.len());
    bed.azure().delete_resource("other", &machine("vm2")).await.unwrap();
    assert_eq!(everything(&bed), before);
    bed.sim.assert_sound();
}

#[tokio::test]
async fn a_deleted_guest_permits_nothing_any_more() {
    let bed = Bed::start().await;
    machine_of_others(&bed, "theirs", "a");
    let of = |path: &str| format!("{}/namespaces/default/clouds/azure/resources{path}", bed.running.rest);
    let (status, made) = rest(Method::POST, of(""), json!({ "id": machine("theirs") })).await;
    assert_eq!((status, &made["ip"]), (200, &json!("10.77.0.4")), "{made}");
    let rules =
        json!([{ "name": "web", "src_port": -1, "dst_port": 443, "protocol": 6, "tags": ["10.77.0.9"] }]);
    let (status, answer) = rest(Method::POST, of("/theirs/applyRules"), rules).await;
    assert_eq!(status, 200, "{answer}");
    let names = || {
        let rules = bed.object("networkSecurityGroups/theirs")["properties"]["securityRules"].clone();
        rules.as_array().unwrap().iter().map(|rule| rule["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names().len(), 3);
    let (status, answer) = rest(Method::DELETE, of("/theirs"), Value::Null).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(names(), Vec::<Value>::new());
    assert!(bed.sim.with(|azure| azure.object(&machine("theirs"))).is_some(), "it is theirs");
    bed.sim.assert_sound();
}

#[tokio::test]
async fn a_network_stays_while_it_has_guests_and_strangers_behind_a_filter_keep_nothing() {
    let bed = Bed::start().await;
    machine_of_others(&bed, "one", "a");
    machine_of_others(&bed, "two", "b");
    // A third behind the filter of the second, which nobody took in.
    bed.sim.with(|sim| {
        let mut nic = sim.object(&network("networkInterfaces/two")).unwrap();
        nic["properties"]["ipConfigurations"][0]["properties"]["privateIPAddress"] = json!("10.77.1.5");
        nic["properties"].as_object_mut().unwrap().remove("virtualMachine");
        sim.insert(&network("networkInterfaces/three"), nic);
    });
    let before = everything(&bed);
    let azure = bed.azure();
    clusters::allow(&azure).await.unwrap();
    for name in ["one", "two"] {
        azure.attach_resource("default", &machine(name)).await.unwrap();
        azure
            .add_rules("default", &machine(name), vec![rule("web", Direction::Inbound, &["10.77.9.9"])])
            .await
            .unwrap();
    }
    let namespace = || bed.object("virtualNetworks/theirs")["tags"]["paraglider-namespace"].clone();
    azure.delete_resource("default", &machine("one")).await.unwrap();
    assert_eq!(namespace(), json!("default"), "the other is there");
    assert_eq!(azure.permit_list("default", &machine("two")).await.unwrap().len(), 1);
    azure.delete_resource("default", &machine("two")).await.unwrap();
    assert_eq!(everything(&bed), before);
    bed.sim.assert_sound();
}

#[tokio::test]
async fn guests_behind_one_filter_are_given_back_with_the_last_of_them() {
    let bed = Bed::start().await;
    share_a_filter(&bed);
    let before = everything(&bed);
    let azure = bed.azure();
    clusters::allow(&azure).await.unwrap();
    let (one, two) = (machine("one"), machine("two"));
    let denials = || {
        let rules = bed.object("networkSecurityGroups/one")["properties"]["securityRules"].clone();
        rules.as_array().unwrap().iter().filter(|rule| rule["properties"]["priority"] == 4096).count()
    };
    azure.attach_resource("default", &one).await.unwrap();
    // Its tag has no members yet, which is written as a denial for nobody.
    azure.add_rules("default", &one, vec![rule("later", Direction::Inbound, &[])]).await.unwrap();
    azure.attach_resource("default", &two).await.unwrap();
    azure.delete_resource("default", &one).await.unwrap();
    assert_eq!(denials(), 2, "the second is behind it");
    azure.delete_resource("default", &two).await.unwrap();
    assert_eq!(everything(&bed), before);

    // Both at once: one of them is the last.
    for uri in [&one, &two] {
        azure.attach_resource("default", uri).await.unwrap();
    }
    let both = tokio::join!(azure.delete_resource("default", &one), azure.delete_resource("default", &two));
    both.0.unwrap();
    both.1.unwrap();
    assert_eq!(everything(&bed), before);
    bed.sim.assert_sound();
}

#[tokio::test]
async fn a_cluster_of_others_is_given_back() {
    let bed = Bed::start().await;
    let vnet = network("virtualNetworks/theirs");
    bed.sim.with(|sim| {
        sim.insert(&vnet, json!({ "location": "westus2", "tags": {}, "properties": { "addressSpace": { "addressPrefixes": ["10.77.0.0/16"] } } }));
        sim.insert(&network("networkSecurityGroups/theirs"), json!({ "location": "westus2", "tags": {}, "properties": {} }));
        let nsg = json!({ "id": network("networkSecurityGroups/theirs") });
        sim.insert(&format!("{vnet}/subnets/a"), json!({ "properties": { "addressPrefix": "10.77.0.0/24", "networkSecurityGroup": nsg } }));
        sim.insert(&clusters::uri("theirs"), json!({ "location": "westus2", "properties": {
            "agentPoolProfiles": [{ "name": "a", "vnetSubnetID": format!("{vnet}/subnets/a") }],
            "networkProfile": { "networkPlugin": "azure", "serviceCidr": "10.78.0.0/16" },
        } }));
    });
    let before = everything(&bed);
    let azure = bed.azure();
    clusters::allow(&azure).await.unwrap();
    azure.attach_resource("default", &clusters::uri("theirs")).await.unwrap();
    let rules = vec![rule("out", Direction::Outbound, &["8.8.8.8"])];
    azure.add_rules("default", &clusters::uri("theirs"), rules).await.unwrap();
    azure.delete_resource("default", &clusters::uri("theirs")).await.unwrap();
    assert_eq!(everything(&bed), before);
    bed.sim.assert_sound();
}

#[tokio::test]
async fn a_machine_of_the_original_goes_with_its_interface_and_filter() {
    let bed = Bed::start().await;
    machine_of_others(&bed, "paraglider-nic-1", "a");
    let tagged = json!({ "paraglider-namespace": "default" });
    bed.sim.with(|sim| {
        for id in [
            "virtualNetworks/theirs",
            "networkSecurityGroups/paraglider-nic-1",
            "networkInterfaces/paraglider-nic-1",
        ] {
            sim.objects.get_mut(&network(id).to_lowercase()).unwrap()["tags"] = tagged.clone();
        }
    });
    bed.azure().delete_resource("default", &machine("paraglider-nic-1")).await.unwrap();
    let left = bed.inventory();
    let gone = ["virtualmachines", "networkinterfaces", "networksecuritygroups"];
    assert!(!left.iter().any(|id| gone.iter().any(|kind| id.contains(kind))), "{left:?}");
    bed.sim.assert_sound();
}

#[tokio::test]
async fn a_guest_in_another_subnet_gets_its_way_out_there_and_keeps_the_rest() {
    let bed = Bed::start().await;
    machine_of_others(&bed, "theirs", "a");
    let azure = bed.azure();
    clusters::allow(&azure).await.unwrap();
    // Ours in the same place has a gateway of its own: none serves two networks.
    azure.create_resource(new_machine("default", "vm1", "westus2")).await.unwrap();
    azure.attach_resource("default", &machine("theirs")).await.unwrap();
    let out = || vec![rule("out", Direction::Outbound, &["8.8.8.8"])];
    for uri in [machine("vm1"), machine("theirs")] {
        azure.add_rules("default", &uri, out()).await.unwrap();
    }
    let subnet = || bed.object("virtualNetworks/theirs/subnets/a")["properties"].clone();
    assert_eq!(
        subnet()["natGateway"]["id"],
        json!(network("natGateways/paraglider-default-of-theirs-nat-gw"))
    );
    let kept = || {
        let subnet = subnet();
        (subnet["privateEndpointNetworkPolicies"].clone(), subnet["serviceEndpoints"][0]["service"].clone())
    };
    assert_eq!(kept(), (json!("Enabled"), json!("Microsoft.Storage")));
    assert_eq!(subnet()["delegations"][0]["properties"]["serviceName"], "Microsoft.Web/x");
    azure.delete_rules("default", &machine("theirs"), vec!["out".into()]).await.unwrap();
    assert_eq!(
        (&subnet()["natGateway"], kept()),
        (&Value::Null, (json!("Enabled"), json!("Microsoft.Storage")))
    );
    let gateways = || bed.inventory().into_iter().filter(|id| id.contains("/natgateways/")).count();
    assert_eq!(gateways(), 1, "ours needs its own");
    azure.delete_rules("default", &machine("vm1"), vec!["out".into()]).await.unwrap();
    assert_eq!(gateways(), 0);

    // One that others put there serves as well, and stays.
    bed.sim.with(|sim| {
        sim.insert(&network("natGateways/own"), json!({ "location": "westus2", "properties": {} }));
        let id = network("virtualNetworks/theirs/subnets/a");
        let mut body = sim.object(&id).unwrap();
        body["properties"]["natGateway"] = json!({ "id": network("natGateways/own") });
        sim.insert(&id, body);
    });
    azure.add_rules("default", &machine("theirs"), out()).await.unwrap();
    azure.delete_rules("default", &machine("theirs"), vec!["out".into()]).await.unwrap();
    assert_eq!((gateways(), &subnet()["natGateway"]["id"]), (1, &json!(network("natGateways/own"))));
    bed.sim.assert_sound();
}

#[tokio::test]
async fn what_a_guests_filter_lets_pass_is_told_and_left() {
    let bed = Bed::start().await;
    machine_of_others(&bed, "theirs", "a");
    let azure = bed.azure();
    clusters::allow(&azure).await.unwrap();
    azure.used_spaces(&[deployment("default")]).await.unwrap();
    azure.attach_resource("default", &machine("theirs")).await.unwrap();
    assert_eq!(azure.drift("default", false).await.unwrap(), Vec::<String>::new());
    let nsg = network("networkSecurityGroups/theirs");
    bed.sim.with(|sim| {
        sim.insert(&format!("{nsg}/securityRules/open"), json!({ "properties": {
            "access": "Allow", "direction": "Inbound", "priority": 100, "protocol": "Tcp", "sourcePortRange": "*",
            "destinationPortRange": "22", "sourceAddressPrefix": "Internet", "destinationAddressPrefix": "*",
        } }));
        sim.remove(&format!("{nsg}/securityRules/paraglider-deny-all-outbound"));
    });
    let open = "the rule open of theirs is in no permit list: Allow Inbound Tcp from Internet to *, port 22";
    let denial = "theirs no longer denies what no rule allows Outbound";
    assert_eq!(azure.drift("default", true).await.unwrap(), [open, denial]);
    assert_eq!(azure.drift("default", true).await.unwrap(), [open], "it is theirs to change");
    bed.sim.assert_sound();
}

#[tokio::test]
async fn what_is_elsewhere_or_has_a_dot_is_not_taken_in() {
    let bed = Bed::start().await;
    machine_of_others(&bed, "the.irs", "a");
    machine_of_others(&bed, "theirs", "a");
    let azure = bed.azure();
    clusters::allow(&azure).await.unwrap();
    let dotted = azure.attach_resource("default", &machine("the.irs")).await.unwrap_err();
    assert!(dotted.to_string().contains("has a dot"), "{dotted}");
    let place = Deployment { id: GROUP.replace("/rg", "/another"), namespace: "default".into() };
    azure.used_spaces(std::slice::from_ref(&place)).await.unwrap();
    let elsewhere = azure.attach_resource("default", &machine("theirs")).await.unwrap_err();
    assert!(elsewhere.to_string().contains("in no deployment"), "{elsewhere}");
    assert_eq!(bed.sim.changes(), Vec::<String>::new(), "refusals touch nothing");
    // Azure's ids have no case.
    azure.used_spaces(&[deployment("default")]).await.unwrap();
    let shouted = machine("theirs").replace("/rg/", "/RG/");
    azure.attach_resource("default", &shouted).await.unwrap();
    bed.sim.assert_sound();
}

#[tokio::test]
async fn the_gateways_space_is_a_setting_and_reported() {
    let bed = Bed::start().await;
    let open = |space: &str| {
        let config = AzureConfig {
            endpoint: bed.sim.url.clone(),
            gateway_space: space.parse().unwrap(),
            ..AzureConfig::default()
        };
        let clock = std::sync::Arc::new(bed.sim.clock.clone());
        Azure::open("azure", &config, principal(&bed.sim, "s3cret-of-ours"), bed.controller.clone(), clock)
    };
    for bad in ["172.31.0.0/30", "172.31.0.1/27"] {
        assert!(open(bad).err().unwrap().to_string().contains("gatewaySpace"), "{bad}");
    }
    let azure = open("172.31.0.0/26").unwrap();
    azure.create_resource(new_machine("default", "vm1", "westus2")).await.unwrap();
    let used = azure.used_spaces(&[deployment("default")]).await.unwrap();
    assert_eq!(used[0].spaces.last().unwrap().to_string(), "172.31.0.0/26");
    // What is there keeps its space, whatever others think now.
    bed.azure().create_resource(new_machine("default", "vm2", "eastus")).await.unwrap();
    let hub = bed.object("virtualNetworks/paraglider-default-vpn-gw-vnet");
    assert_eq!(hub["properties"]["addressSpace"]["addressPrefixes"], json!(["172.31.0.0/26"]));
    bed.sim.assert_sound();
}

#[tokio::test]
async fn two_guests_behind_one_filter_have_a_permit_list_each() {
    let bed = Bed::start().await;
    share_a_filter(&bed);
    let azure = bed.azure();
    clusters::allow(&azure).await.unwrap();
    let (one, two) = (machine("one"), machine("two"));
    for uri in [&one, &two] {
        azure.attach_resource("default", uri).await.unwrap();
    }
    let web = rule("web", Direction::Inbound, &["10.77.9.9"]);
    let open = rule("open", Direction::Inbound, &["10.77.9.8"]);
    azure.add_rules("default", &one, vec![web.clone()]).await.unwrap();
    let taken = azure.add_rules("default", &two, vec![web.clone()]).await.unwrap_err();
    assert!(taken.to_string().contains("another resource behind the packet filter one"), "{taken}");
    azure.add_rules("default", &two, vec![open.clone()]).await.unwrap();
    azure.delete_rules("default", &two, vec!["web".into()]).await.unwrap();
    assert_eq!(azure.permit_list("default", &one).await.unwrap(), [web]);
    assert_eq!(azure.permit_list("default", &two).await.unwrap(), [open]);
    bed.sim.assert_sound();
}

#[tokio::test]
async fn a_guest_whose_filter_is_in_another_group_is_not_taken_in() {
    let bed = Bed::start().await;
    machine_of_others(&bed, "theirs", "a");
    let filter = network("networkSecurityGroups/theirs").replace("/rg/", "/another/");
    bed.sim.with(|sim| {
        sim.insert(&filter, json!({ "location": "westus2", "tags": {}, "properties": {} }));
        let mut nic = sim.object(&network("networkInterfaces/theirs")).unwrap();
        nic["properties"]["networkSecurityGroup"]["id"] = json!(filter);
        sim.insert(&network("networkInterfaces/theirs"), nic);
    });
    let azure = bed.azure();
    clusters::allow(&azure).await.unwrap();
    let refused = azure.attach_resource("default", &machine("theirs")).await.unwrap_err();
    assert!(refused.to_string().contains("is in another resource group"), "{refused}");
    let beside = format!("{GROUP}/../another/providers/Microsoft.Compute/virtualMachines/x");
    assert!(azure.attach_resource("default", &beside).await.unwrap_err().is_not_found());
    assert_eq!(bed.sim.changes(), Vec::<String>::new(), "refusals touch nothing");
    bed.sim.assert_sound();
}
