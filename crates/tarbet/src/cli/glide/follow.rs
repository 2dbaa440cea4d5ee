//! `tarbet glide follow`: tags that stand for what a cluster runs, so that permit lists follow it.
//!
//! Nets knows no cluster, and no cluster knows nets: this command looks at the one and tells the other.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};
use tarbet_cluster::Client;
use tarbet_telemetry::Problem;
use tarbet_telemetry::codes::cluster;

use super::client::{Glide, escape};
use crate::roles::jobs::{connect, source};

pub const EXAMPLES: &str = "Examples:
  tarbet glide follow hpc=node/hpc                       the pods of the virtual node `hpc`
  tarbet glide follow pay=service/shop/pay               the pods behind a service, exported or not
  tarbet glide follow hpc=node/hpc --kubeconfig k --once

Rules that name the tag are changed as pods come and go.";

#[derive(Debug, Args)]
pub struct FollowArgs {
    /// A tag and what it stands for: TAG=node/NAME or TAG=service/NAMESPACE/NAME
    #[arg(required = true, value_name = "TAG=WHAT")]
    tags: Vec<Followed>,
    /// The kubeconfig of the cluster; without it, KUBECONFIG, the pod's account, then the home folder
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Look once, and end
    #[arg(long)]
    once: bool,
    /// How long to wait between two looks
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = humantime::parse_duration)]
    every: Duration,
}

/// A tag and where its members are looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Followed {
    tag: String,
    what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Node(String),
    Service { namespace: String, name: String },
}

impl FromStr for Followed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected TAG=node/NAME or TAG=service/NAMESPACE/NAME".to_owned();
        let (tag, what) = text.split_once('=').filter(|(tag, _)| !tag.is_empty()).ok_or_else(wrong)?;
        let named = |part: &&str| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))
        };
        let parts: Vec<&str> = what.split('/').collect();
        let what = match parts.as_slice() {
            ["node", name] if named(name) => What::Node((*name).to_owned()),
            ["service", namespace, name] if named(namespace) && named(name) => {
                What::Service { namespace: (*namespace).to_owned(), name: (*name).to_owned() }
            }
            _ => return Err(wrong()),
        };
        Ok(Self { tag: tag.to_owned(), what })
    }
}

impl What {
    /// Where the cluster lists it.
    fn path(&self) -> String {
        match self {
            Self::Node(name) => format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{name}"),
            Self::Service { namespace, name } => format!(
                "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{name}"
            ),
        }
    }

    /// The addresses in such a list: of pods that run or are about to, of endpoints that are not unready.
    fn addresses(&self, list: &Value) -> BTreeSet<String> {
        let items = list["items"].as_array().into_iter().flatten();
        let texts = |list: &Value| -> Vec<String> {
            list.as_array()
                .into_iter()
                .flatten()
                .filter_map(|text| text.as_str().map(str::to_owned))
                .collect()
        };
        match self {
            Self::Node(_) => {
                let alive = items.filter(|pod| {
                    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
                    pod["metadata"]["deletionTimestamp"].is_null()
                        && !["Succeeded", "Failed"].contains(&phase)
                });
                let addresses =
                    alive.flat_map(|pod| pod["status"]["podIPs"].as_array().cloned().unwrap_or_default());
                addresses.filter_map(|address| address["ip"].as_str().map(str::to_owned)).collect()
            }
            Self::Service { .. } => {
                let endpoints =
                    items.flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default());
                let ready = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] != false);
                ready.flat_map(|endpoint| texts(&endpoint["addresses"])).collect()
            }
        }
    }
}

/// Members to add and members to take out.
fn difference(now: &BTreeSet<String>, wanted: &BTreeSet<String>) -> (Vec<String>, Vec<String>) {
    (wanted.difference(now).cloned().collect(), now.difference(wanted).cloned().collect())
}

pub async fn run(glide: &Glide, args: FollowArgs) -> Result<(), Problem> {
    let client = connect(&source(args.kubeconfig.as_deref())?).await?;
    if glide.plan {
        let mut calls = Vec::new();
        for followed in &args.tags {
            let (add, remove) = differs(glide, &client, followed).await?;
            calls.extend(add.iter().map(|member| format!("add {member} to the tag `{}`", followed.tag)));
            calls.extend(
                remove.iter().map(|member| format!("take {member} out of the tag `{}`", followed.tag)),
            );
        }
        return glide.format.plan(&calls);
    }
    loop {
        for followed in &args.tags {
            match follow(glide, &client, followed).await {
                Ok(()) => {}
                Err(problem) if args.once => return Err(problem),
                // The next look may find both again.
                Err(problem) => crate::output::problem(&problem),
            }
        }
        if args.once {
            return glide.format.text("The tags are as the cluster is. Next: tarbet glide tag list");
        }
        tokio::select! {
            () = tokio::time::sleep(args.every) => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
    }
}

async fn differs(
    glide: &Glide,
    client: &Client,
    followed: &Followed,
) -> Result<(Vec<String>, Vec<String>), Problem> {
    let failed = |cause: String| {
        Problem::new(&cluster::CLUSTER_UNREACHABLE, "The cluster does not say what it runs.")
            .at("tarbet glide → Kubernetes API")
            .because(cause)
    };
    let request = http::Request::get(followed.what.path())
        .body(Vec::new())
        .map_err(|error| failed(error.to_string()))?;
    let list: Value = client.request(request).await.map_err(|error| failed(error.to_string()))?;
    let known = glide.ask(Method::GET, &format!("/tags/{}", escape(&followed.tag)), Value::Null).await?;
    let members = known["child_tags"].as_array().into_iter().flatten();
    let now = members.filter_map(|member| member.as_str().map(str::to_owned)).collect();
    Ok(difference(&now, &followed.what.addresses(&list)))
}

async fn follow(glide: &Glide, client: &Client, followed: &Followed) -> Result<(), Problem> {
    let (add, remove) = differs(glide, client, followed).await?;
    let tag = escape(&followed.tag);
    if !add.is_empty() {
        let body = json!({ "name": followed.tag, "child_tags": add });
        glide.ask(Method::POST, &format!("/tags/{tag}/applyMembers"), body).await?;
    }
    for member in &remove {
        glide.ask(Method::DELETE, &format!("/tags/{tag}/members/{}", escape(member)), Value::Null).await?;
    }
    if !add.is_empty() || !remove.is_empty() {
        crate::output::note(&format!("{}: {} added, {} gone", followed.tag, add.len(), remove.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_followed_is_read_or_refused() {
        let hpc = Followed { tag: "hpc".into(), what: What::Node("hpc-1".into()) };
        assert_eq!("hpc=node/hpc-1".parse::<Followed>().unwrap(), hpc);
        assert!("pay=service/shop/pay".parse::<Followed>().is_ok());
        for wrong in ["", "hpc", "=node/a", "a=node/", "a=node/x&y", "a=service/pay", "a=pod/b", "a=node/a/b"]
        {
            assert!(wrong.parse::<Followed>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn members_are_those_that_live() {
        let node = What::Node("hpc".into());
        let pods = json!({ "items": [
            { "status": { "phase": "Running", "podIPs": [{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }] } },
            { "status": { "phase": "Succeeded", "podIPs": [{ "ip": "10.0.0.2" }] } },
            { "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" }, "status": { "phase": "Running", "podIPs": [{ "ip": "10.0.0.3" }] } },
            { "status": { "phase": "Pending" } },
        ] });
        assert_eq!(node.addresses(&pods), BTreeSet::from(["10.0.0.1".to_owned(), "fd00::1".to_owned()]));
        let service = What::Service { namespace: "shop".into(), name: "pay".into() };
        let slices = json!({ "items": [{ "endpoints": [
            { "addresses": ["10.0.1.1"], "conditions": { "ready": true } }, { "addresses": ["10.0.1.2"], "conditions": { "ready": false } },
            { "addresses": ["10.0.1.3"] },
        ] }] });
        assert_eq!(
            service.addresses(&slices),
            BTreeSet::from(["10.0.1.1".to_owned(), "10.0.1.3".to_owned()])
        );
    }

    proptest! {
        #[test]
        fn applying_the_difference_gives_what_is_wanted(
            now in prop::collection::btree_set("[a-d]{1,2}", 0..8), wanted in prop::collection::btree_set("[a-d]{1,2}", 0..8)
        ) {
            let (add, remove) = difference(&now, &wanted);
            let mut after = now.clone();
            for member in &remove { prop_assert!(after.remove(member)); }
            for member in add { prop_assert!(after.insert(member)); }
            prop_assert_eq!(after, wanted);
        }
    }
}
