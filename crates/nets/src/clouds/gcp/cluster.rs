//! Kubernetes clusters: nodes in a region's subnet, pods and Services in ranges of their own.
//!
//! Nodes are born with one network tag, which lets them speak with their control plane while the cluster is
//! still being made, and a second one that holds the cluster's id follows, as the original names it. Rules are
//! for both: node pools keep the first for ever, those that the cloud makes by itself get the second.

use http::{Method, StatusCode};
use ipnet::{IpNet, Ipv4Net};
use serde_json::{Value, json};
use url::Url;

use super::cloud::{Resource, Site};
use super::describe::{Kind, Named, New, region_of};
use super::firewall::Scope;
use super::network::network_path;
use super::{Gcp, last, legal, n, project, texts, url};
use crate::cloud::NewResource;
use crate::clouds::rest::{Answer, Call};
use crate::error::Error;
use crate::model::Created;
use crate::plan::target;

/// What the names of the rules for control planes begin with; direction and cluster follow.
pub(super) const CONTROL_PLANE: &str = "paraglider-allow-control-plane-";
/// How the original describes both of them.
const CONTROL_PLANE_SAID: &str = "Paraglider allow cluster egress traffic";
/// Before the denial of everything, after all rules of people.
const CONTROL_PLANE_PRIORITY: u16 = 65500;
/// The cloud wants exactly this for a control plane: 16 addresses.
const CONTROL_PLANE_PREFIX: u8 = 28;
const CONTROL_PLANE_SIZE: i32 = 16;
/// Refusals for the state something is in, though nothing shows that state any more or not yet: by a cluster that
/// was busy a moment before, or for a subnet that is still being made. The pauses between them make a minute.
const REFUSALS_MAX: usize = 6;

/// The tag that nodes are born with.
fn birth_tag(namespace: &str, name: &str) -> Result<String, Error> {
    legal("name", format!("{}-gke-{name}-node", n(namespace)))
}

/// The tag that follows.
fn id_tag(namespace: &str, short: &str) -> String {
    format!("{}-cluster-{short}", n(namespace))
}

/// The first eight characters of a cluster's id.
pub(super) fn short_id(cluster: &Value) -> Option<String> {
    let id = cluster["id"].as_str()?;
    id.get(..8)
        .filter(|short| short.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()))
        .map(str::to_owned)
}

/// The pods' addresses.
pub(super) fn pods(cluster: &Value) -> &str {
    let policy = &cluster["ipAllocationPolicy"]["clusterIpv4CidrBlock"];
    policy.as_str().or_else(|| cluster["clusterIpv4Cidr"].as_str()).unwrap_or_default()
}

/// Node pools whose nodes have none of the tags that the cluster's rules are for. Those that the cloud makes by
/// itself take theirs from the cluster.
pub(super) fn untagged_pools(cluster: &Value, namespace: &str) -> Vec<String> {
    let name = cluster["name"].as_str().unwrap_or_default();
    let (Ok(birth), Some(short)) = (birth_tag(namespace, name), short_id(cluster)) else { return Vec::new() };
    if cluster["autopilot"]["enabled"] == true {
        return Vec::new();
    }
    let ours = [birth.clone(), id_tag(namespace, &short)];
    let is_bare = |pool: &&Value| {
        pool["autoscaling"]["autoprovisioned"] != true
            && !texts(&pool["config"]["tags"]).iter().any(|tag| ours.iter().any(|own| own == tag))
    };
    let pools = cluster["nodePools"].as_array().into_iter().flatten().filter(is_bare);
    pools
        .map(|pool| {
            let pool = pool["name"].as_str().unwrap_or_default();
            format!("the node pool {pool} of {name} lacks the network tag {birth}: none of the cluster's rules works there")
        })
        .collect()
}

fn is_busy(cluster: &Value) -> bool {
    ["PROVISIONING", "RECONCILING", "STOPPING"].iter().any(|status| cluster["status"] == *status)
}

/// Whether an answer says that it is too early.
fn is_premature(answer: &Answer) -> bool {
    answer.body["error"]["status"] == "FAILED_PRECONDITION"
}

/// The spaces of a new cluster.
struct Spaces {
    control_plane: Ipv4Net,
    pods: IpNet,
    services: IpNet,
}

/// The request that makes a cluster.
fn request(new: Value, name: &str, namespace: &str, subnet: &str, spaces: &Spaces) -> Result<Value, Error> {
    let tag = birth_tag(namespace, name)?;
    let mut cluster = new;
    cluster["name"] = json!(name);
    cluster["network"] = json!(format!("{}-vpc", n(namespace)));
    cluster["subnetwork"] = json!(last(subnet));
    cluster["ipAllocationPolicy"] = json!({
        "useIpAliases": true, "clusterIpv4CidrBlock": spaces.pods.to_string(),
        "servicesIpv4CidrBlock": spaces.services.to_string(),
    });
    let private = entered(&mut cluster, "privateClusterConfig")?;
    private.insert("masterIpv4CidrBlock".into(), json!(spaces.control_plane.to_string()));
    // A control plane has an address in the network only for nodes that are private.
    private.entry("enablePrivateNodes").or_insert(json!(true));
    let autopilot = cluster["autopilot"]["enabled"] == true;
    if autopilot || cluster["autoscaling"]["enableNodeAutoprovisioning"] == true {
        let tags = entered(&mut cluster, "nodePoolAutoConfig")?.entry("networkTags").or_insert(json!({}));
        add_tag(tags, "cluster.nodePoolAutoConfig.networkTags", &tag)?;
    }
    if autopilot {
        return Ok(json!({ "cluster": cluster }));
    }
    let pools = cluster.get_mut("nodePools").and_then(Value::as_array_mut);
    if let Some(pools) = pools.filter(|pools| !pools.is_empty()) {
        for pool in pools {
            let config = pool.as_object_mut().map(|pool| pool.entry("config").or_insert(json!({})));
            let config = config.ok_or_else(|| misshapen("cluster.nodePools"))?;
            add_tag(config, "cluster.nodePools.config", &tag)?;
        }
    } else {
        entered(&mut cluster, "nodeConfig")?;
        add_tag(&mut cluster["nodeConfig"], "cluster.nodeConfig", &tag)?;
    }
    Ok(json!({ "cluster": cluster }))
}

fn misshapen(field: &str) -> Error {
    Error::invalid(format!("description.{field}"), "is not what the cloud's own API takes there")
}

/// A part of a cluster's description, made if missing.
fn entered<'a>(cluster: &'a mut Value, field: &str) -> Result<&'a mut serde_json::Map<String, Value>, Error> {
    let part = cluster.as_object_mut().map(|cluster| cluster.entry(field).or_insert(json!({})));
    part.and_then(Value::as_object_mut).ok_or_else(|| misshapen(&format!("cluster.{field}")))
}

fn add_tag(of: &mut Value, field: &str, tag: &str) -> Result<(), Error> {
    let tags = of.as_object_mut().map(|of| of.entry("tags").or_insert(json!([])));
    let tags = tags.and_then(Value::as_array_mut).ok_or_else(|| misshapen(&format!("{field}.tags")))?;
    if !tags.iter().any(|one| one == tag) {
        tags.push(json!(tag));
    }
    Ok(())
}

/// The name of a rule for a control plane.
fn control_name(direction: &str, name: &str) -> Result<String, Error> {
    legal("name", format!("{CONTROL_PLANE}{}-{name}", direction.to_ascii_lowercase()))
}

/// The two rules that let nodes and their control plane speak with each other.
fn control_rules(name: &str, network: &str, tags: &[String], range: &str) -> Result<[Value; 2], Error> {
    let rule = |direction: &str, ranges: &str| {
        let mut rule = json!({
            "name": control_name(direction, name)?, "network": network, "direction": direction,
            "priority": CONTROL_PLANE_PRIORITY, "allowed": [{ "IPProtocol": "all" }],
            "targetTags": tags, "description": CONTROL_PLANE_SAID,
        });
        rule[ranges] = json!([range]);
        Ok::<_, Error>(rule)
    };
    Ok([rule("INGRESS", "sourceRanges")?, rule("EGRESS", "destinationRanges")?])
}

impl Gcp {
    fn clusters_at(&self, path: &str) -> Result<Url, Error> {
        let wrong = |error| Error::Internal(format!("the path {path} is none: {error}"));
        self.clusters.join(path).map_err(wrong)
    }

    /// A cluster of a namespace as it is now; nothing if there is none.
    async fn cluster(&self, named: &Named<'_>, namespace: &str) -> Result<Option<Value>, Error> {
        let found = self.rest.get(self.clusters_at(&named.path())?).await?;
        let foreign = |cluster: &Value| {
            cluster["network"].as_str().map(last) != Some(&*format!("{}-vpc", n(namespace)))
        };
        if found.as_ref().is_some_and(foreign) {
            return Err(Error::Foreign { namespace: namespace.into(), resource: named.uri() });
        }
        Ok(found)
    }

    /// What rules of a cluster need to know of it.
    pub(super) async fn cluster_resource(
        &self,
        named: &Named<'_>,
        namespace: &str,
    ) -> Result<Option<Resource>, Error> {
        let Some(cluster) = self.cluster(named, namespace).await? else { return Ok(None) };
        let Named { project, place, name, .. } = named;
        let short = self.short(&cluster)?;
        let region = region_of(place, "uri")?;
        let subnet = last(cluster["subnetwork"].as_str().unwrap_or_default()).to_owned();
        let path = format!("projects/{project}/regions/{region}/subnetworks/{subnet}");
        Ok(Some(Resource {
            project: (*project).into(),
            site: Site::Subnet { region, path },
            network: url(&network_path(project, namespace)),
            scope: Scope::Tags(vec![id_tag(namespace, &short), birth_tag(namespace, name)?]),
            short,
        }))
    }

    fn short(&self, cluster: &Value) -> Result<String, Error> {
        short_id(cluster).ok_or_else(|| self.strange("a cluster without an id"))
    }

    /// Makes a cluster, or what is missing of one.
    pub(super) async fn make_cluster(&self, new: &NewResource, described: New) -> Result<Created, Error> {
        if !self.flags().kubernetes_clusters_enabled {
            let said = "clusters are off: set kubernetesClustersEnabled";
            return Err(Error::Unsupported(said.into()));
        }
        let (project, namespace) = (project(&new.deployment.id)?, &*new.deployment.namespace);
        let name = legal("name", new.name.clone())?;
        let tag = birth_tag(namespace, &name)?;
        let named = Named { project, kind: Kind::Cluster, place: &described.place, name: &name };
        // Names that are too long are refused before anything is made.
        control_name("INGRESS", &name)?;
        let subnet =
            self.subnet(project, namespace, &region_of(&described.place, "description.parent")?).await?;
        let mut operation = None;
        if self.cluster(&named, namespace).await?.is_none() {
            let spaces = self.cluster_spaces().await?;
            let body = request(described.body, &name, namespace, &subnet, &spaces)?;
            let at = self.clusters_at(&format!("projects/{project}/locations/{}/clusters", named.place))?;
            operation = self.post_cluster(&named, &Call::new(Method::POST, at).json(body)).await?;
        }
        let gone = || self.rest.failed(&named.path(), "a cluster that was made is not there");
        let cluster = self.cluster(&named, namespace).await?.ok_or_else(gone)?;
        let id_tag = id_tag(namespace, &self.short(&cluster)?);
        // At once, while the cluster is being made: nodes that do not reach their control plane never join.
        let range = cluster["privateClusterConfig"]["masterIpv4CidrBlock"].as_str();
        if let Some(range) = range {
            self.open_control_plane(&named, namespace, &[id_tag.clone(), tag], range).await?;
        }
        if let Some(operation) = operation {
            self.cluster_operation(&named, operation).await?;
        }
        let has_tag = |cluster: &Value| {
            texts(&cluster["nodePoolAutoConfig"]["networkTags"]["tags"]).contains(&id_tag.as_str())
        };
        let update = |cluster: &Value| {
            let mut tags = texts(&cluster["nodePoolAutoConfig"]["networkTags"]["tags"]);
            tags.push(&id_tag);
            json!({ "update": { "desiredNodePoolAutoConfigNetworkTags": { "tags": tags } } })
        };
        let cluster = self
            .change_cluster(&named, namespace, Method::PUT, |cluster| cluster.is_none_or(has_tag), update)
            .await?
            .ok_or_else(gone)?;
        Ok(Created { ip: pods(&cluster).to_owned(), uri: named.uri(), name })
    }

    /// Begins to make a cluster; nothing if there is one.
    async fn post_cluster(&self, named: &Named<'_>, call: &Call) -> Result<Option<Value>, Error> {
        let path = named.path();
        let mut waiting = self.rest.waiting(&path);
        let mut refusals = 0;
        loop {
            let answer = self.rest.call(call).await?;
            match answer.status {
                status if status.is_success() => return Ok(Some(answer.body)),
                StatusCode::CONFLICT => return Ok(None),
                _ if is_premature(&answer) && refusals < REFUSALS_MAX => {
                    refusals += 1;
                    waiting.pause(None).await?;
                }
                _ => return Err(self.rest.refusal(call, &answer)),
            }
        }
    }

    /// Space for the control plane, for pods and for Services.
    async fn cluster_spaces(&self) -> Result<Spaces, Error> {
        let found = self.controller.find_spaces(&[CONTROL_PLANE_SIZE, 0, 0]).await?;
        let none = || Error::Unsupported("a cluster needs three IPv4 address spaces".into());
        let [IpNet::V4(first), pods @ IpNet::V4(_), services @ IpNet::V4(_)] = found.as_slice() else {
            return Err(none());
        };
        // What is given may be larger.
        let control_plane = Ipv4Net::new(first.network(), CONTROL_PLANE_PREFIX).map_err(|_| none())?;
        Ok(Spaces { control_plane, pods: *pods, services: *services })
    }

    async fn open_control_plane(
        &self,
        named: &Named<'_>,
        namespace: &str,
        tags: &[String],
        range: &str,
    ) -> Result<(), Error> {
        let firewalls = format!("projects/{}/global/firewalls", named.project);
        let network = url(&network_path(named.project, namespace));
        for rule in control_rules(named.name, &network, tags, range)? {
            let path = format!("{firewalls}/{}", rule["name"].as_str().unwrap_or_default());
            let Some(found) = self.get(&path).await? else {
                self.insert(&firewalls, rule).await?;
                continue;
            };
            if found["network"].as_str().map(last) != Some(last(&network)) {
                let said = "its rule for the control plane is that of another namespace's cluster: choose another name";
                return Err(Error::invalid("name", said));
            }
            let same = |field: &str| texts(&found[field]) == texts(&rule[field]);
            if !(same("sourceRanges") && same("destinationRanges") && same("targetTags")) {
                self.change(Method::PATCH, &path, Some(rule)).await?;
            }
        }
        Ok(())
    }

    /// Waits for the end of an operation on a cluster.
    async fn cluster_operation(&self, named: &Named<'_>, mut operation: Value) -> Result<(), Error> {
        let path = named.path();
        let mut waiting = self.rest.waiting(&path);
        while operation["status"] != "DONE" {
            let name = operation["name"].as_str();
            let name = name.ok_or_else(|| self.rest.failed(&path, "the answer is no operation"))?;
            let at = format!("projects/{}/locations/{}/operations/{name}", named.project, named.place);
            waiting.pause(None).await?;
            operation = self.rest.must(&Call::new(Method::GET, self.clusters_at(&at)?)).await?.body;
        }
        match operation["error"]["message"].as_str().or_else(|| operation["statusMessage"].as_str()) {
            Some(said) => Err(self.rest.failed(&path, said)),
            None => Ok(()),
        }
    }

    /// Changes a cluster until it is as it should be, and gives it back. It takes one change at a time, and
    /// whoever began another one may have stopped, so its own word counts.
    async fn change_cluster(
        &self,
        named: &Named<'_>,
        namespace: &str,
        method: Method,
        is_done: impl Fn(Option<&Value>) -> bool,
        body: impl Fn(&Value) -> Value,
    ) -> Result<Option<Value>, Error> {
        let path = named.path();
        let mut waiting = self.rest.waiting(&path);
        let mut refusals = 0;
        loop {
            let cluster = self.cluster(named, namespace).await?;
            let Some(now) = cluster.as_ref().filter(|now| !is_done(Some(now)) || is_busy(now)) else {
                return Ok(cluster);
            };
            if is_busy(now) {
                waiting.pause(None).await?;
                continue;
            }
            if now["status"] == "ERROR" && method != Method::DELETE {
                return Err(self
                    .rest
                    .failed(&path, now["statusMessage"].as_str().unwrap_or("the cluster failed")));
            }
            let call = Call::new(method.clone(), self.clusters_at(&path)?);
            let call = if method == Method::DELETE { call } else { call.json(body(now)) };
            let answer = self.rest.call(&call).await?;
            match answer.status {
                status if status.is_success() => self.cluster_operation(named, answer.body).await?,
                StatusCode::NOT_FOUND => {}
                _ if is_premature(&answer) && refusals < REFUSALS_MAX => {
                    refusals += 1;
                    waiting.pause(None).await?;
                }
                _ => return Err(self.rest.refusal(&call, &answer)),
            }
        }
    }

    /// Removes a cluster and its rules; it may be gone already.
    pub(super) async fn remove_cluster(&self, named: &Named<'_>, namespace: &str) -> Result<(), Error> {
        let firewalls = format!("projects/{}/global/firewalls", named.project);
        if let Some(cluster) = self.cluster(named, namespace).await? {
            self.remove_rules(named.project, namespace, &self.short(&cluster)?).await?;
            self.change_cluster(named, namespace, Method::DELETE, |_| false, |_| Value::Null).await?;
        }
        for direction in ["ingress", "egress"] {
            let name = control_name(direction, named.name)?;
            for item in self.firewalls(named.project, namespace, &name).await? {
                if item["name"] == *name {
                    self.remove(&format!("{firewalls}/{name}")).await?;
                }
            }
        }
        Ok(())
    }

    /// The rules for control planes in a namespace.
    pub(super) async fn control_planes(&self, project: &str, namespace: &str) -> Result<Vec<Value>, Error> {
        self.firewalls(project, namespace, CONTROL_PLANE).await
    }

    /// All clusters in a namespace's network. Projects without any need not have this API.
    pub(super) async fn all_clusters(&self, project: &str, namespace: &str) -> Result<Vec<Value>, Error> {
        let path = format!("projects/{project}/locations/-/clusters");
        let list = self.rest.must(&Call::new(Method::GET, self.clusters_at(&path)?)).await?.body;
        self.whole(&path, &list["missingZones"])?;
        let network = format!("{}-vpc", n(namespace));
        let of_network = |cluster: &&Value| cluster["network"].as_str().map(last) == Some(&*network);
        Ok(list["clusters"].as_array().into_iter().flatten().filter(of_network).cloned().collect())
    }
}

/// The spaces of control planes, which are in no subnet.
pub(super) fn control_spaces(rules: &[Value]) -> impl Iterator<Item = IpNet> + '_ {
    rules.iter().flat_map(|rule| texts(&rule["destinationRanges"])).filter_map(target::parse)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(cluster: Value) -> Result<Value, Error> {
        let spaces = Spaces {
            control_plane: "10.1.0.0/28".parse().unwrap(),
            pods: "10.2.0.0/16".parse().unwrap(),
            services: "10.3.0.0/16".parse().unwrap(),
        };
        request(cluster, "c", "default", "projects/p/regions/r/subnetworks/s", &spaces)
    }

    #[test]
    fn nodes_are_born_with_a_tag_wherever_they_come_from() {
        let tag = json!(["para-default-gke-c-node"]);
        let plain = made(json!({ "initialNodeCount": 1 })).unwrap();
        assert_eq!(plain["cluster"]["nodeConfig"]["tags"], tag);
        assert_eq!(
            plain["cluster"]["privateClusterConfig"],
            json!({ "masterIpv4CidrBlock": "10.1.0.0/28", "enablePrivateNodes": true })
        );
        assert_eq!(
            (&plain["cluster"]["network"], &plain["cluster"]["subnetwork"]),
            (&json!("para-default-vpc"), &json!("s"))
        );
        let pools =
            made(json!({ "nodePools": [{ "name": "a" }, { "name": "b", "config": { "tags": ["own"] } }] }))
                .unwrap();
        assert_eq!(pools["cluster"]["nodePools"][0]["config"]["tags"], tag);
        assert_eq!(
            pools["cluster"]["nodePools"][1]["config"]["tags"],
            json!(["own", "para-default-gke-c-node"])
        );
        assert!(pools["cluster"].get("nodeConfig").is_none(), "the cloud refuses both");
        let auto = made(json!({ "autopilot": { "enabled": true } })).unwrap();
        assert_eq!(auto["cluster"]["nodePoolAutoConfig"]["networkTags"]["tags"], tag);
        assert!(auto["cluster"].get("nodeConfig").is_none());
        for bad in
            [json!({ "nodePools": [1] }), json!({ "nodeConfig": [] }), json!({ "privateClusterConfig": 1 })]
        {
            assert!(matches!(made(bad.clone()), Err(Error::Invalid(_))), "{bad}");
        }
    }

    #[test]
    fn pools_without_a_tag_of_ours_are_known() {
        let of = |more: Value| {
            let mut cluster = json!({ "name": "c", "id": "0a1b2c3d4e", "nodePools": [
                { "name": "first", "config": { "tags": ["own", "para-default-gke-c-node"] } },
                { "name": "second", "config": { "tags": ["para-default-cluster-0a1b2c3d"] } },
                { "name": "auto", "config": {}, "autoscaling": { "autoprovisioned": true } },
                { "name": "late", "config": { "tags": ["own", "para-other-gke-c-node"] } },
                { "name": "bare" },
            ] });
            cluster.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            untagged_pools(&cluster, "default")
        };
        let found = of(json!({}));
        assert!(
            found.len() == 2 && found[0].contains("late of c") && found[1].contains("bare of c"),
            "{found:?}"
        );
        assert!(found[0].contains("para-default-gke-c-node"), "{found:?}");
        assert!(of(json!({ "autopilot": { "enabled": true } })).is_empty());
    }

    #[test]
    fn control_planes_are_reached_both_ways() {
        let rules = control_rules("c", "net", &["t".into()], "10.1.0.0/28").unwrap();
        assert_eq!(rules[0]["name"], "paraglider-allow-control-plane-ingress-c");
        assert_eq!(
            (&rules[0]["sourceRanges"], &rules[1]["destinationRanges"]),
            (&json!(["10.1.0.0/28"]), &json!(["10.1.0.0/28"]))
        );
        assert_eq!(control_spaces(&rules).collect::<Vec<_>>(), ["10.1.0.0/28".parse().unwrap()]);
        assert!(control_rules(&"x".repeat(40), "net", &[], "").is_err(), "too long a name");
        assert_eq!(short_id(&json!({ "id": "0a1b2c3d4e" })).unwrap(), "0a1b2c3d");
        assert!(
            short_id(&json!({ "id": "0a1b" })).is_none() && short_id(&json!({ "id": "ääääää" })).is_none()
        );
    }
}
