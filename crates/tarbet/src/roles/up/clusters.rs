//! `tarbet up --kubeconfig`: a virtual node for that cluster, and jobs and mesh where their kinds are.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use serde_json::Value;
use tarbet_cluster::{Client, Connect, Source};
use tarbet_jobs::{Controller, JobMetrics, Remote, RemoteConfig};
use tarbet_mesh::MeshMetrics;
use tarbet_pods::node::{self, NodeConfig, Parts};
use tarbet_telemetry::codes::{cluster, ground};
use tarbet_telemetry::{Coded, Problem, Stage};

use super::served::{self, Served};
use crate::config::Config;
use crate::roles::jobs::{connect, identity};
use crate::roles::process::{Process, bind};

/// What was started.
pub(super) struct Joined {
    /// For the console.
    pub(super) client: Client,
    /// For people, by capability.
    pub(super) told: BTreeMap<String, String>,
}

const REQUESTS: &str = "internalrequests.appstudio.redhat.com";
const RUNS: &str = "pipelineruns.tekton.dev";
const FEDERATIONS: &str = "meshfederations.federation.openshift-service-mesh.io";
const ENTRIES: &str = "serviceentries.networking.istio.io";

pub(super) async fn start(
    process: &Process,
    config: &Config,
    kubeconfig: &Path,
    folder: &Path,
    interlink: Option<&str>,
) -> Result<Joined, Problem> {
    let source = Source::file(kubeconfig.to_owned());
    let client = connect(&source).await?;
    let kinds = kinds(&client).await?;
    let here = |needed: &[&str]| needed.iter().all(|kind| kinds.contains(&(*kind).to_owned()));
    let settings = interlink.map(|interlink| node_settings(&config.node, interlink));
    note(folder, kubeconfig, settings.as_ref(), here(&[FEDERATIONS, ENTRIES]))?;
    let mut told = BTreeMap::new();
    if let Some(settings) = settings {
        told.insert("node".into(), format!("the virtual node `{}` of that cluster", settings.node_name));
        let parts = Parts {
            client: client.clone(),
            source,
            carrier: Connect::network(),
            metrics: process.metrics.clone(),
            health: process.health.clone(),
            supervisor: process.supervisor.clone(),
        };
        node::start(settings, parts).await.map(drop).map_err(|error| error.problem())?;
    }
    let missing = |needed: &[&str]| not_started(&kinds, needed);
    if here(&[REQUESTS, RUNS]) {
        told.insert("jobs".into(), start_jobs(process, config, &client, kubeconfig));
    } else {
        told.insert("jobs".into(), missing(&[REQUESTS, RUNS]));
    }
    if here(&[FEDERATIONS, ENTRIES]) {
        told.insert("mesh".into(), start_mesh(process, config, &client).await?);
    } else {
        told.insert("mesh".into(), missing(&[FEDERATIONS, ENTRIES]));
    }
    tracing::info!(parts = told.len(), "The cluster is served.");
    Ok(Joined { client, told })
}

/// Keeps what is about to be put into the cluster for `tarbet down`, which may be called from elsewhere.
fn note(folder: &Path, kubeconfig: &Path, node: Option<&NodeConfig>, mesh: bool) -> Result<(), Problem> {
    let node = node.map(|settings| settings.node_name.clone());
    std::path::absolute(kubeconfig)
        .and_then(|kubeconfig| served::note(folder, Served { kubeconfig, node, mesh }))
        .map_err(|error| {
            Problem::new(&ground::INTERNAL, "What the cluster gets cannot be noted for `tarbet down`.")
                .because(error.to_string())
        })
}

/// Why something is left out, and what would bring each kind that it needs.
fn not_started(kinds: &[String], needed: &[&str]) -> String {
    let absent = needed.iter().filter(|kind| !kinds.iter().any(|there| there == *kind));
    let told = absent.map(|kind| match *kind {
        RUNS => format!("{kind} (install Tekton Pipelines)"),
        ENTRIES => format!("{kind} (install Istio)"),
        kind => format!("{kind} (kubectl apply -f deploy/crds)"),
    });
    format!("not started: the cluster has no {}", told.collect::<Vec<_>>().join(", "))
}

/// A node for this machine: loopback unless the settings say otherwise.
fn node_settings(base: &NodeConfig, interlink: &str) -> NodeConfig {
    let mut settings = base.clone();
    let usual = NodeConfig::default();
    if settings.interlink_url == usual.interlink_url {
        interlink.clone_into(&mut settings.interlink_url);
    }
    if settings.kubelet_listen == usual.kubelet_listen {
        settings.kubelet_listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 10250));
    }
    if settings.kubelet_cert_file.is_none() {
        // Nobody may be there to approve a request for a certificate.
        settings.disable_csr = true;
    }
    settings
}

/// Requests made in the cluster are served by the pipelines of the same cluster, unless remotes are configured.
fn start_jobs(process: &Process, config: &Config, client: &Client, kubeconfig: &Path) -> String {
    let mut settings = config.jobs.clone();
    let name = "here".to_owned();
    settings.remotes = vec![RemoteConfig {
        name: name.clone(),
        kubeconfig: Some(kubeconfig.to_owned()),
        ..RemoteConfig::default()
    }];
    let told = format!("requests of that cluster, with pipelines of its namespace `{}`", settings.namespace);
    let remotes = vec![Remote { name, client: client.clone() }];
    let metrics = JobMetrics::register(&process.metrics);
    let controller =
        Controller::new(settings, client.clone(), remotes, metrics, process.health.clone(), identity());
    process.supervisor.spawn(Stage::Work, "jobs controller", |stop| async move {
        controller.run(stop).await;
        Ok(())
    });
    told
}

async fn start_mesh(process: &Process, config: &Config, client: &Client) -> Result<String, Problem> {
    let mut settings = config.mesh.clone();
    if settings.listen.ip().is_unspecified() {
        settings.listen.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    let namespace = settings.namespace.clone().unwrap_or_else(|| "istio-system".into());
    let listener = bind(settings.listen, "discovery").await?;
    let told = format!("federation of the namespace `{namespace}`, discovery at {}", settings.listen);
    let metrics = MeshMetrics::register(&process.metrics);
    let controller = tarbet_mesh::Controller::new(
        settings,
        &namespace,
        client.clone(),
        metrics,
        process.health.clone(),
        identity(),
    );
    process.supervisor.spawn(Stage::Work, "mesh controller", |stop| async move {
        controller.run(listener, stop).await.map_err(|error| error.problem())
    });
    Ok(told)
}

/// The names of the cluster's own kinds.
async fn kinds(client: &Client) -> Result<Vec<String>, Problem> {
    let failed = |cause: String| {
        Problem::new(&cluster::CLUSTER_UNREACHABLE, "The cluster does not say which kinds it knows.")
            .because(cause)
    };
    let request = http::Request::get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
        .body(Vec::new())
        .map_err(|error| failed(error.to_string()))?;
    let list: Value = client.request(request).await.map_err(|error| failed(error.to_string()))?;
    let names = list["items"].as_array().into_iter().flatten();
    Ok(names.filter_map(|kind| kind["metadata"]["name"].as_str().map(str::to_owned)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_kind_is_told_with_what_brings_it() {
        let ours = [REQUESTS.to_owned(), FEDERATIONS.to_owned()];
        let jobs = not_started(&ours, &[REQUESTS, RUNS]);
        assert!(jobs.contains("Tekton") && !jobs.contains("deploy/crds"), "{jobs}");
        let mesh = not_started(&[], &[FEDERATIONS, ENTRIES]);
        assert!(mesh.contains("deploy/crds") && mesh.contains("install Istio"), "{mesh}");
    }
}
