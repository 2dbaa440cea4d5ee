//! A stand-in of Google's Kubernetes Engine, and what the plugin does with it.

use ipnet::IpNet;
use serde_json::{Value, json};
use tarbet_nets::Error;
use tarbet_nets::cloud::{Cloud, NewResource};
use tarbet_nets::clouds::pace::Clock as _;
use tarbet_nets::model::{Direction, Flags, Rule};

use super::super::sim::{Faults, Reply, Seen, SimClock};
use super::vendor::{Google, Object, PREFIX};
use super::{World, deployment, machine, rule};

fn refuse(code: u16, status: &str, message: &str) -> Reply {
    Reply::new(code, json!({ "error": { "code": code, "message": message, "status": status } }))
}

/// Ranges of an object: a subnet's, or those of a cluster.
fn ranges(body: &Value) -> Vec<IpNet> {
    let secondary = body["secondaryIpRanges"].as_array().into_iter().flatten().map(|one| &one["ipCidrRange"]);
    let of = [&body["ipCidrRange"], &body["privateClusterConfig"]["masterIpv4CidrBlock"]];
    of.into_iter().chain(secondary).filter_map(|text| text.as_str()?.parse().ok()).collect()
}

impl Google {
    /// Takes out which spaces were given, which differs from run to run; that they fit together stays.
    pub(super) fn forget_spaces(&self, body: &mut Value) {
        body.as_object_mut().unwrap().remove("status");
        for place in ["/ipAllocationPolicy", "/secondaryIpRanges"] {
            if let Some(value) = body.pointer_mut(place) {
                *value = Value::Null;
            }
        }
        let name = body["name"].as_str().unwrap_or_default().to_owned();
        let cluster =
            name.strip_prefix("paraglider-allow-control-plane-").and_then(|rest| rest.split_once('-'));
        if let Some((_, cluster)) = cluster {
            let of = |(path, object): (&String, &Object)| {
                path.ends_with(&format!("/clusters/{cluster}"))
                    .then(|| object.body["privateClusterConfig"]["masterIpv4CidrBlock"].clone())
            };
            let block = self.objects.iter().find_map(of);
            for field in ["sourceRanges", "destinationRanges"] {
                if body[field] == json!([block]) {
                    body[field] = json!("of the control plane");
                }
            }
        }
        if let Some(block) = body.pointer_mut("/privateClusterConfig/masterIpv4CidrBlock") {
            *block = Value::Null;
        }
    }

    /// What goes with a cluster: its nodes, and its ranges of the subnet.
    pub(super) fn after_cluster(&mut self, path: &str) {
        let Some((_, cluster)) = path.split_once("/clusters/") else { return };
        let node = format!("/instances/gke-{cluster}-");
        self.objects.retain(|path, _| !path.contains(&node));
        for object in self.objects.values_mut() {
            if let Some(ranges) = object.body["secondaryIpRanges"].as_array_mut() {
                let of = format!("gke-{cluster}-");
                ranges.retain(|range| !range["rangeName"].as_str().unwrap().starts_with(&of));
                if ranges.is_empty() {
                    object.body.as_object_mut().unwrap().remove("secondaryIpRanges");
                }
            }
        }
    }

    pub(super) fn answer_of_clusters(&mut self, seen: &Seen, path: &str, clock: &SimClock) -> Reply {
        let now = clock.now();
        let missing = || refuse(404, "NOT_FOUND", &format!("Not found: {path}."));
        match (seen.method.as_str(), path.split('/').collect::<Vec<_>>().as_slice()) {
            ("GET", ["projects", _, "locations", _, "operations", name]) => {
                // Questions take time.
                clock.pass(std::time::Duration::from_secs(1));
                self.told(name, clock.now())
            }
            ("GET", ["projects", project, "locations", "-", "clusters"]) => {
                let mark = format!("projects/{project}/locations/");
                let of = |(path, _): &(&String, &Object)| {
                    path.starts_with(&mark) && !self.silent.iter().any(|zone| path.contains(zone))
                };
                let all = self.objects.iter().filter(of).map(|(_, object)| told(object, now));
                Reply::new(200, json!({ "clusters": all.collect::<Vec<_>>(), "missingZones": self.silent }))
            }
            ("POST", ["projects", project, "locations", place, "clusters"]) => {
                self.create(seen, project, place, clock)
            }
            ("GET", _) => match self.objects.get(path) {
                Some(object) => Reply::new(200, told(object, now)),
                None => missing(),
            },
            (method, _) => {
                let takes = self.takes;
                let Some(object) = self.objects.get_mut(path) else { return missing() };
                if object.ready_at > now || object.gone_at.is_some() {
                    return refuse(400, "FAILED_PRECONDITION", "Cluster is running incompatible operation.");
                }
                if method == "DELETE" {
                    object.gone_at = Some(now + takes);
                    return self.begin(seen, "DELETE_CLUSTER", now);
                }
                let tags = &seen.body["update"]["desiredNodePoolAutoConfigNetworkTags"];
                assert!(tags.is_object(), "the only update this stand-in knows");
                object.body["nodePoolAutoConfig"]["networkTags"] = tags.clone();
                object.body["status"] = json!("RECONCILING");
                object.ready_at = now + takes;
                self.begin(seen, "UPDATE_CLUSTER", now)
            }
        }
    }

    fn create(&mut self, seen: &Seen, project: &str, place: &str, clock: &SimClock) -> Reply {
        let now = clock.now();
        let mut body = seen.body["cluster"].clone();
        let name = body["name"].as_str().unwrap().to_owned();
        let path = format!("projects/{project}/locations/{place}/clusters/{name}");
        if self.objects.contains_key(&path) {
            return refuse(409, "ALREADY_EXISTS", &format!("Already exists: {path}."));
        }
        let region = place.split('-').take(2).collect::<Vec<_>>().join("-");
        let text = |field: &str| body[field].as_str().unwrap().to_owned();
        let network = format!("projects/{project}/global/networks/{}", text("network"));
        let subnet = format!("projects/{project}/regions/{region}/subnetworks/{}", text("subnetwork"));
        for path in [&network, &subnet] {
            match self.objects.get(path) {
                None => return refuse(400, "INVALID_ARGUMENT", &format!("{path} does not exist.")),
                Some(object) if object.ready_at > now || object.gone_at.is_some() => {
                    return refuse(400, "FAILED_PRECONDITION", &format!("{path} is not ready."));
                }
                Some(_) => {}
            }
        }
        let policy = &body["ipAllocationPolicy"];
        let wanted: Vec<IpNet> = [
            &body["privateClusterConfig"]["masterIpv4CidrBlock"],
            &policy["clusterIpv4CidrBlock"],
            &policy["servicesIpv4CidrBlock"],
        ]
        .map(|text| text.as_str().unwrap().parse().unwrap())
        .to_vec();
        if wanted[0].prefix_len() != 28 {
            return refuse(400, "INVALID_ARGUMENT", "master_ipv4_cidr_block must be a /28.");
        }
        let mut taken: Vec<IpNet> = self.objects.values().flat_map(|object| ranges(&object.body)).collect();
        for range in wanted {
            if taken.iter().any(|other| other.contains(&range) || range.contains(other)) {
                return refuse(400, "INVALID_ARGUMENT", &format!("The range {range} is in use."));
            }
            taken.push(range);
        }
        let number = path.bytes().fold(7_u64, |sum, byte| sum.rotate_left(7) ^ u64::from(byte));
        let id = format!("{number:016x}{number:016x}");
        let range = |kind: &str, of: &Value| json!({ "rangeName": format!("gke-{name}-{kind}-{}", &id[..8]), "ipCidrRange": of });
        let secondary = [
            range("pods", &policy["clusterIpv4CidrBlock"]),
            range("services", &policy["servicesIpv4CidrBlock"]),
        ];
        let of_subnet = &mut self.objects.get_mut(&subnet).unwrap().body;
        let mut list = of_subnet["secondaryIpRanges"].as_array().cloned().unwrap_or_default();
        list.extend(secondary);
        of_subnet["secondaryIpRanges"] = json!(list);

        let zone = if place == region { format!("{place}-a") } else { place.to_owned() };
        let interface =
            json!({ "network": format!("{PREFIX}{network}"), "subnetwork": format!("{PREFIX}{subnet}") });
        let node = json!({
            "name": format!("gke-{name}-default-pool-0"), "id": "77", "labels": { "goog-gke-node": "" },
            "tags": { "items": body["nodeConfig"]["tags"] }, "zone": format!("{PREFIX}projects/{project}/zones/{zone}"),
            "networkInterfaces": [interface],
        });
        let at = format!("projects/{project}/zones/{zone}/instances/gke-{name}-default-pool-0");
        self.objects.insert(at, Object { body: node, ready_at: now, gone_at: None });

        body["nodePools"] = json!([{ "name": "default-pool", "config": body["nodeConfig"] }]);
        body["clusterIpv4Cidr"] = policy_block(&body);
        body["id"] = json!(id);
        body["location"] = json!(place);
        body["status"] = json!("PROVISIONING");
        self.objects.insert(path, Object { body, ready_at: now + self.takes, gone_at: None });
        self.begin(seen, "CREATE_CLUSTER", now)
    }
}

fn policy_block(body: &Value) -> Value {
    body["ipAllocationPolicy"]["clusterIpv4CidrBlock"].clone()
}

/// A cluster as it is told.
fn told(object: &Object, now: std::time::Duration) -> Value {
    let mut body = object.body.clone();
    if object.gone_at.is_some() {
        body["status"] = json!("STOPPING");
    } else if object.ready_at <= now {
        body["status"] = json!("RUNNING");
    }
    body
}

pub(super) fn cluster(namespace: &str, name: &str) -> NewResource {
    let place = format!("{}/locations/us-west1-a", deployment(namespace).id);
    let description = json!({ "parent": place, "cluster": { "initial_node_count": 1 } });
    NewResource { deployment: deployment(namespace), name: name.into(), description: description.to_string() }
}

pub(super) fn uri(namespace: &str, name: &str) -> String {
    let deployment = deployment(namespace).id;
    format!("https://container.googleapis.com/v1beta1/{deployment}/locations/us-west1-a/clusters/{name}")
}

/// Switches clusters on, as the orchestrator does.
pub(super) async fn allow(gcp: &dyn Cloud) -> Result<(), Error> {
    gcp.set_flags(Flags { kubernetes_clusters_enabled: true, ..Flags::default() }).await
}

#[tokio::test]
async fn the_calls_of_a_cluster() {
    let world = World::start().await;
    let (sim, gcp) = (&world.sim, world.gcp());
    let off = gcp.create_resource(cluster("default", "c-1")).await.unwrap_err();
    assert!(matches!(&off, Error::Unsupported(said) if said.contains("kubernetesClustersEnabled")), "{off}");
    allow(&gcp).await.unwrap();
    let mut chosen = cluster("default", "c-1");
    chosen.description = chosen.description.replace("initial_node_count", "subnetwork");
    let chosen = gcp.create_resource(chosen).await.unwrap_err().to_string();
    assert!(chosen.contains("description.cluster.subnetwork"), "{chosen}");
    let long = gcp.create_resource(cluster("default", &"c".repeat(40))).await.unwrap_err();
    assert!(matches!(long, Error::Invalid(_)), "{long}");
    assert_eq!(sim.changes(), Vec::<String>::new(), "refusals touch nothing");

    let made = gcp.create_resource(cluster("default", "c-1")).await.unwrap();
    assert_eq!(made.uri, uri("default", "c-1"));
    let calls = [
        "POST /compute/v1/projects/p/global/networks",
        "POST /compute/v1/projects/p/global/firewalls",
        "POST /compute/v1/projects/p/regions/us-west1/subnetworks",
        "POST /v1/projects/p/locations/us-west1-a/clusters",
        "POST /compute/v1/projects/p/global/firewalls",
        "POST /compute/v1/projects/p/global/firewalls",
        "PUT /v1/projects/p/locations/us-west1-a/clusters/c-1",
    ];
    assert_eq!(sim.changes(), calls);
    let path = "projects/p/locations/us-west1-a/clusters/c-1";
    let (short, block, tags) = sim.with(|google| {
        let cluster = google.object(path);
        let id = cluster["id"].as_str().unwrap();
        let block = cluster["privateClusterConfig"]["masterIpv4CidrBlock"].as_str().unwrap().to_owned();
        assert_eq!(cluster["nodePools"][0]["config"]["tags"], json!(["para-default-gke-c-1-node"]));
        (id[..8].to_owned(), block, cluster["nodePoolAutoConfig"]["networkTags"]["tags"].clone())
    });
    let id_tag = format!("para-default-cluster-{short}");
    assert_eq!(tags, json!([id_tag]));
    let both = json!([id_tag, "para-default-gke-c-1-node"]);
    sim.with(|google| {
        let rule = |way: &str| {
            let name = format!("projects/p/global/firewalls/paraglider-allow-control-plane-{way}-c-1");
            google.object(&name).clone()
        };
        let (into, out) = (rule("ingress"), rule("egress"));
        assert_eq!((&into["sourceRanges"], &out["destinationRanges"]), (&json!([block]), &json!([block])));
        for rule in [into, out] {
            assert_eq!((&rule["priority"], &rule["targetTags"]), (&json!(65500), &both));
        }
    });
    // The same again changes nothing.
    assert_eq!(gcp.create_resource(cluster("default", "c-1")).await.unwrap(), made);
    assert_eq!(sim.changes().len(), calls.len());

    // What others must not be given: nodes, pods, Services, and the control plane, which is in no subnet.
    let used = gcp.used_spaces(&[deployment("default")]).await.unwrap();
    assert_eq!(used[0].spaces.len(), 4, "{used:?}");
    assert!(
        used[0].spaces.contains(&block.parse().unwrap())
            && used[0].spaces.contains(&made.ip.parse().unwrap())
    );
    // A node is no resource of its own.
    gcp.create_resource(machine("default", "vm-1")).await.unwrap();
    let held = gcp.list_resources("default").await.unwrap();
    let held: Vec<_> =
        held.iter().map(|one| (one.name.as_str(), one.uri.as_str(), one.ip.as_str())).collect();
    assert_eq!(held.len(), 2, "{held:?}");
    assert!(held.contains(&("c-1", &made.uri, &made.ip)), "{held:?}");

    let foreign = gcp.permit_list("other", &made.uri).await.unwrap_err();
    assert!(matches!(foreign, Error::Foreign { .. }), "{foreign}");
    let web = rule("web", Direction::Inbound, "10.0.0.9/32");
    gcp.add_rules("default", &made.uri, vec![web.clone()]).await.unwrap();
    assert_eq!(gcp.permit_list("default", &made.uri).await.unwrap(), std::slice::from_ref(&web));
    let wall = format!("projects/p/global/firewalls/para-default-fw-{short}-web");
    assert_eq!(sim.with(|google| google.object(&wall)["targetTags"].clone()), both);
    assert_eq!(
        gcp.drift("default", true).await.unwrap(),
        Vec::<String>::new(),
        "its rules are nobody else's"
    );
    // A pool that was added later, by somebody who did not know of the tag.
    sim.with(|google| {
        let pools = google.objects.get_mut(path).unwrap().body["nodePools"].as_array_mut().unwrap();
        pools.push(json!({ "name": "late", "config": { "tags": [] } }));
    });
    let found = gcp.drift("default", true).await.unwrap();
    assert!(
        found.len() == 1 && found[0].contains("late") && found[0].contains("para-default-gke-c-1-node"),
        "{found:?}"
    );
    sim.with(|google| {
        google.objects.get_mut(path).unwrap().body["nodePools"].as_array_mut().unwrap().pop();
    });
    let public = Rule { targets: vec!["203.0.113.9/32".into()], direction: Direction::Outbound, ..web };
    gcp.add_rules("default", &made.uri, vec![Rule { name: "out".into(), ..public }]).await.unwrap();
    gcp.delete_rules("default", &made.uri, vec!["out".into()]).await.unwrap();
    assert_eq!(gcp.permit_list("default", &made.uri).await.unwrap().len(), 1);

    sim.faults(Faults::default());
    gcp.delete_resource("default", &super::uri("default", "vm-1")).await.unwrap();
    gcp.delete_resource("default", &made.uri).await.unwrap();
    assert_eq!(sim.with(|google| google.state()), std::collections::BTreeMap::default(), "nothing is left");
    gcp.delete_resource("default", &made.uri).await.unwrap();
    sim.assert_sound();
}
