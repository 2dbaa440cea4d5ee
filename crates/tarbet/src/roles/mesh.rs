//! `tarbet mesh`: the federation controller and its discovery.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tarbet_link::{Address, Dialer};
use tarbet_mesh::{Carrier, CarryConfig, Controller, MeshConfig, MeshMetrics};
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::{Coded, Problem, Stage};

use super::jobs::{connect, identity, source};
use super::listeners::{ListenArgs, address, in_a_pod};
use super::process::{Process, Threads, bind};
use crate::cli::endpoint::ServerArgs;
use crate::config::Config;

/// Where a pod finds its own namespace.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

#[derive(Debug, Args)]
pub struct MeshArgs {
    /// The kubeconfig of the cluster; without it KUBECONFIG, the pod's account, ~/.kube/config
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The namespace of the controller and of the rules
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Where peers ask for what is exported
    #[arg(long, value_parser = address, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Where the discovery of a mesh is, if not behind its ingress; may be repeated
    #[arg(long = "discovery", value_name = "MESH=HOST:PORT", value_parser = pair)]
    discovery: Vec<(String, String)>,
    /// The site through which the discovery of a mesh is reached; may be repeated
    #[arg(long = "via-site", value_name = "MESH=SITE", value_parser = pair)]
    via_site: Vec<(String, String)>,
    /// Where calls to services of a mesh behind a site come in; may be repeated
    #[arg(long = "carry", value_name = "MESH=LISTEN", value_parser = pair)]
    carry: Vec<(String, String)>,
    /// The address of this pod, for callers of what is carried
    #[arg(long, env = "POD_IP", value_name = "IP")]
    pod_ip: Option<IpAddr>,
    /// The service account of this pod, whose name ends with the id of the mesh
    #[arg(long, env = "POD_SERVICE_ACCOUNT", value_name = "NAME")]
    service_account: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
    /// Let one of several replicas write
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    leader_elect: Option<bool>,
    #[command(flatten)]
    bind: ListenArgs,
    /// Flags of the original, which say what objects say here
    #[arg(long = "meshPeers", hide = true, value_name = "JSON")]
    mesh_peers: Option<String>,
    #[arg(long = "exportedServiceSet", hide = true, value_name = "JSON")]
    exported_service_set: Option<String>,
    #[arg(long = "importedServiceSet", hide = true, value_name = "JSON")]
    imported_service_set: Option<String>,
}

impl MeshArgs {
    /// The namespace of the controller, as far as arguments and the pod tell.
    pub fn namespace(&self) -> String {
        namespace(self.namespace.clone().filter(|name| !name.is_empty()))
    }
}

pub fn run(mut config: Config, args: MeshArgs) -> Result<(), Problem> {
    originals(&args)?;
    let settings = merged(config.mesh.clone(), &args)?;
    let listeners = args.bind.choose(&config.observability, in_a_pod())?;
    config.observability.listen = listeners.chosen();
    let observability = config.observability.clone();
    Process::run("mesh", &config, listeners.metrics, Threads::Cores, |process| async move {
        let client = connect(&source(settings.kubeconfig.as_deref())?).await?;
        let namespace = namespace(settings.namespace.clone());
        let sites = sites(&settings.via_site, &args.server).await?;
        if let Some(probes) = listeners.probes {
            process.serve_probes(probes, &observability).await?;
        }
        let listener = bind(settings.listen, "discovery").await?;
        let mut carriers = Vec::new();
        for (mesh, carry) in &settings.carry {
            let site = sites.get(mesh).ok_or_else(|| {
                let cause = format!("mesh.carry.{mesh}: needs the site it leads to, --via-site {mesh}=SITE.");
                Problem::new(&ground::CONFIG_INVALID, cause)
            })?;
            carriers.push(carrier(mesh, carry, args.pod_ip, Arc::new(site.clone())).await?);
        }
        let metrics = MeshMetrics::register(&process.metrics);
        let mut controller =
            Controller::new(settings, &namespace, client, metrics, process.health.clone(), identity())
                .account(args.service_account.clone().filter(|account| !account.is_empty()));
        for (mesh, site) in sites {
            controller = controller.through(&mesh, Arc::new(site));
        }
        for carrier in carriers {
            controller = controller.carrying(carrier);
        }
        process.supervisor.spawn(Stage::Work, "mesh controller", |stop| async move {
            controller.run(listener, stop).await.map_err(|error| error.problem())
        });
        Ok(())
    })
}

/// The original is told by flags what objects of the cluster tell here.
fn originals(args: &MeshArgs) -> Result<(), Problem> {
    let flags = [
        (&args.mesh_peers, "--meshPeers", "a MeshFederation"),
        (&args.exported_service_set, "--exportedServiceSet", "spec.export of FederationServiceRules"),
        (&args.imported_service_set, "--importedServiceSet", "spec.import of FederationServiceRules"),
    ];
    match flags.into_iter().find(|(value, ..)| value.is_some()) {
        None => Ok(()),
        Some((_, flag, object)) => Err(Problem::new(
            &ground::CONFIG_INVALID,
            format!("What {flag} says is said by {object}; no restart is needed for it."),
        )
        .because(
            "see docs/guides/mesh.md; `tarbet mesh render --legacy FILE` shows what the flags lead to"
                .to_owned(),
        )),
    }
}

fn merged(mut config: MeshConfig, args: &MeshArgs) -> Result<MeshConfig, Problem> {
    config.kubeconfig = args.kubeconfig.clone().or(config.kubeconfig);
    config.namespace = args.namespace.clone().filter(|namespace| !namespace.is_empty()).or(config.namespace);
    config.listen = args.listen.unwrap_or(config.listen);
    config.discovery.extend(args.discovery.iter().cloned());
    config.via_site.extend(args.via_site.iter().cloned());
    for (mesh, listen) in &args.carry {
        let listen = address(listen)
            .map_err(|cause| Problem::new(&ground::CONFIG_INVALID, format!("--carry {mesh}: {cause}.")))?;
        config.carry.entry(mesh.clone()).or_insert_with(|| CarryConfig::at(listen)).listen = listen;
    }
    config.leader_election = args.leader_elect.unwrap_or(config.leader_election);
    match config.mistakes().first() {
        Some((setting, message)) => {
            Err(Problem::new(&ground::CONFIG_INVALID, format!("mesh.{setting}: {message}.")))
        }
        None => Ok(config),
    }
}

/// Binds the listener that stands for a mesh's gateway.
async fn carrier(
    mesh: &str,
    carry: &CarryConfig,
    pod: Option<IpAddr>,
    dialer: Arc<dyn Dialer>,
) -> Result<Carrier, Problem> {
    let invalid =
        |cause: String| Problem::new(&ground::CONFIG_INVALID, format!("mesh.carry.{mesh}: {cause}."));
    let parse = |text: &str| text.parse::<Address>().map_err(|error| invalid(error.to_string()));
    let listener = bind(carry.listen, "callers of another mesh").await?;
    let own = if carry.listen.ip().is_unspecified() { pod } else { Some(carry.listen.ip()) };
    let advertise = match (&carry.advertise, own) {
        (Some(told), _) => parse(told)?,
        (None, Some(ip)) => {
            let port = listener.local_addr().map_or(carry.listen.port(), |bound| bound.port());
            Address::new(ip.to_string(), port).map_err(|error| invalid(error.to_string()))?
        }
        (None, None) => {
            let cause = "callers need an address: set `advertise`, POD_IP, or listen at one address";
            return Err(invalid(cause.to_owned()));
        }
    };
    let gateway = parse(&carry.gateway)?;
    Ok(Carrier { mesh: mesh.to_owned(), listener, advertise, dialer, gateway })
}

/// As told, else the pod's own, else where Istio usually is.
fn namespace(told: Option<String>) -> String {
    let of_pod = || std::fs::read_to_string(NAMESPACE_FILE).ok().map(|text| text.trim().to_owned());
    told.or_else(of_pod).filter(|name| !name.is_empty()).unwrap_or_else(|| "istio-system".to_owned())
}

async fn sites(
    named: &BTreeMap<String, String>,
    server: &ServerArgs,
) -> Result<BTreeMap<String, tarbet_reach::client::RemoteSite>, Problem> {
    let mut ways = BTreeMap::new();
    for (mesh, site) in named {
        ways.insert(mesh.clone(), super::site::open_way(server, site).await?);
    }
    Ok(ways)
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((mesh, value)) if !mesh.is_empty() && !value.is_empty() => {
            Ok((mesh.to_owned(), value.to_owned()))
        }
        _ => Err("expected MESH=VALUE, such as west=10.0.0.7:15080".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        mesh: MeshArgs,
    }

    fn told(config: MeshConfig, words: &[&str]) -> Result<MeshConfig, Problem> {
        let line = Line::try_parse_from(std::iter::once(&"mesh").chain(words)).unwrap();
        merged(config, &line.mesh)
    }

    #[test]
    fn a_listener_for_a_mesh_needs_no_more_than_its_address() {
        let words = ["--via-site", "west=lab", "--carry", "west=:15543", "--carry", "north=127.0.0.1:7"];
        let config = told(MeshConfig::default(), &words).unwrap();
        let west = &config.carry["west"];
        assert_eq!(west.listen, "0.0.0.0:15543".parse().unwrap());
        assert_eq!(west.gateway, "federation-ingress-gateway.istio-system.svc.cluster.local:15443");
        assert_eq!((&west.advertise, config.carry.len()), (&None, 2));
        assert_eq!(config.via_site["west"], "lab");
    }

    #[test]
    fn flags_of_the_original_are_known_and_lead_to_its_objects() {
        for (flag, object) in [
            ("--meshPeers={}", "MeshFederation"),
            ("--exportedServiceSet={}", "spec.export"),
            ("--importedServiceSet={}", "spec.import"),
        ] {
            let line = Line::try_parse_from(["mesh", flag]).unwrap();
            let error = originals(&line.mesh).err().unwrap();
            assert!(error.to_string().contains(object), "{error}");
        }
        assert!(originals(&Line::try_parse_from(["mesh"]).unwrap().mesh).is_ok());
    }

    #[test]
    fn the_flag_moves_the_listener_and_keeps_the_rest_of_the_file() {
        let mut file = MeshConfig::default();
        let mut carry = CarryConfig::at("127.0.0.1:1".parse().unwrap());
        carry.gateway = "gate.west:443".into();
        file.carry.insert("west".into(), carry);
        let config = told(file, &["--carry", "west=127.0.0.1:15543"]).unwrap();
        assert_eq!(config.carry["west"].listen, "127.0.0.1:15543".parse().unwrap());
        assert_eq!(config.carry["west"].gateway, "gate.west:443");
        assert!(told(MeshConfig::default(), &["--carry", "west=nowhere"]).is_err());
    }

    #[tokio::test]
    async fn callers_are_told_the_pods_address_or_that_of_the_listener() {
        let dialer = || Arc::new(tarbet_link::NetDialer::default());
        let pod = Some(IpAddr::from([10, 0, 0, 9]));
        let open = CarryConfig::at("0.0.0.0:0".parse().unwrap());
        let known = carrier("west", &open, pod, dialer()).await.unwrap();
        assert_eq!(known.advertise.host(), "10.0.0.9");
        let error = carrier("west", &open, None, dialer()).await.err().unwrap();
        assert!(error.to_string().contains("advertise"), "{error}");
        let one = CarryConfig::at("127.0.0.1:0".parse().unwrap());
        assert_eq!(carrier("west", &one, pod, dialer()).await.unwrap().advertise.host(), "127.0.0.1");
    }
}
