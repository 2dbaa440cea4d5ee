//! `tarbet cloud NAME`: a cloud plugin as a process of its own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use clap::{Args, Subcommand};
use tarbet_nets::cloud::{Cloud, Guarded};
use tarbet_nets::clouds::aws;
use tarbet_nets::clouds::azure::{Azure, Environment};
use tarbet_nets::clouds::gcp::{Gcp, default_credentials};
use tarbet_nets::clouds::ibm::{ApiKey, Ibm};
use tarbet_nets::clouds::pace::System;
use tarbet_nets::config::{CloudConfig, ListenConfig};
use tarbet_nets::controller::{Controller, RemoteController};
use tarbet_nets::local::Local;
use tarbet_nets::role::cloud;
use tarbet_store::Clock;
use tarbet_telemetry::{Coded, Problem};

use super::nets::{own_store, surroundings};
use super::process::{Process, Threads};
use super::tags::listen;
use crate::config::Config;
use crate::output::Format;

pub const EXAMPLES: &str = "Examples:
  sudo tarbet cloud local
  sudo tarbet cloud local --name east --listen 127.0.0.1:8097 --orchestrator 127.0.0.1:8081
  sudo tarbet cloud local --remove                   takes away all it ever made";

const AWS_EXAMPLES: &str = "Examples:
  AWS_REGION=us-east-1 AWS_PROFILE=work tarbet cloud aws
  AWS_REGION=us-east-1 AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… tarbet cloud aws --listen 127.0.0.1:8088";
const AZURE_EXAMPLES: &str = "Examples:
  az login && tarbet cloud azure
  AZURE_TENANT_ID=… AZURE_CLIENT_ID=… AZURE_CLIENT_SECRET=… tarbet cloud azure --listen 127.0.0.1:8083";

const GCP_EXAMPLES: &str = "Examples:
  gcloud auth application-default login && tarbet cloud gcp
  GOOGLE_APPLICATION_CREDENTIALS=key.json tarbet cloud gcp --set cloud.gcp.vpnRegion=europe-west4";

const IBM_EXAMPLES: &str = "Examples:
  PARAGLIDER_IBM_API_KEY=… tarbet cloud ibm
  tarbet cloud ibm --set cloud.ibm.apiKeyFile=key --listen 127.0.0.1:8084";

const OBSERVE_AT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8095);

#[derive(Debug, Subcommand)]
pub enum CloudCommand {
    /// Networks and machines of this machine's own kernel, with real packets; needs root
    #[command(after_help = EXAMPLES)]
    Local(LocalArgs),
    /// Azure, through its Resource Manager; as a service principal, a managed identity or whoever did `az login`
    #[command(after_help = AZURE_EXAMPLES)]
    Azure(PublicArgs),
    /// Google Cloud, through Compute Engine; with a key file, a login of gcloud or the machine's own account
    #[command(after_help = GCP_EXAMPLES)]
    Gcp(PublicArgs),
    /// AWS, through EC2; with the keys of the environment or of `aws configure`
    #[command(after_help = AWS_EXAMPLES)]
    Aws(PublicArgs),
    /// IBM Cloud, through its VPC API; with an API key
    #[command(after_help = IBM_EXAMPLES)]
    Ibm(PublicArgs),
}

#[derive(Debug, Args)]
pub struct PublicArgs {
    /// Address of the plugin; each cloud has a port of its own
    #[arg(long, value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// The orchestrator's gRPC listener; again for each further one on the same store
    #[arg(long, value_name = "ADDR")]
    orchestrator: Vec<SocketAddr>,
}

#[derive(Debug, Args)]
pub struct LocalArgs {
    /// The cloud's name, as the orchestrator knows it
    #[arg(long, default_value = "local", value_name = "NAME")]
    name: String,
    /// Address of the plugin
    #[arg(long, default_value = "127.0.0.1:8087", value_name = "ADDR")]
    listen: SocketAddr,
    /// The orchestrator's gRPC listener; again for each further one on the same store
    #[arg(long, value_name = "ADDR")]
    orchestrator: Vec<SocketAddr>,
    /// Print the commands that would bring the kernel in line with what is written down, and end
    #[arg(long)]
    plan: bool,
    /// Remove everything that this cloud made, and end
    #[arg(long, conflicts_with = "plan")]
    remove: bool,
}

pub fn run(config: Config, command: CloudCommand, format: Format) -> Result<(), Problem> {
    match command {
        CloudCommand::Local(args) => local(config, args, format),
        CloudCommand::Azure(args) => public(&config, &args, "azure", 8083, |settings, controller| {
            let environment = Environment::read(|name| std::env::var(name).ok());
            let azure = Azure::open("azure", &settings.azure, environment, controller, System::shared())?;
            Ok(Arc::new(Guarded::new(settings.azure.policy.clone(), azure)))
        }),
        CloudCommand::Gcp(args) => public(&config, &args, "gcp", 8082, |settings, controller| {
            let settings = default_credentials(settings.gcp.clone(), |name| std::env::var(name).ok());
            let gcp = Gcp::new("gcp", &settings, controller)?;
            Ok(Arc::new(Guarded::new(settings.policy, gcp)))
        }),
        CloudCommand::Aws(args) => public(&config, &args, "aws", 8088, |settings, controller| {
            let environment = aws::Environment::read(|name| std::env::var(name).ok());
            let cloud = aws::Aws::open("aws", &settings.aws, environment, controller, System::shared())?;
            Ok(Arc::new(Guarded::new(settings.aws.policy.clone(), cloud)))
        }),
        CloudCommand::Ibm(args) => public(&config, &args, "ibm", 8084, |settings, controller| {
            let key = ApiKey::find(&settings.ibm, |name| std::env::var(name).ok())?;
            let ibm = Ibm::new("ibm", &settings.ibm, key, controller)?;
            Ok(Arc::new(Guarded::new(settings.ibm.policy.clone(), ibm)))
        }),
    }
}

/// Serves a public cloud under its own name: other clouds know by it how to connect.
fn public(
    config: &Config,
    args: &PublicArgs,
    name: &'static str,
    port: u16,
    open: impl Fn(&CloudConfig, Arc<dyn Controller>) -> Result<Arc<dyn Cloud>, tarbet_nets::Error>,
) -> Result<(), Problem> {
    let at = listen(args.listen.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)));
    let orchestrators = orchestrators(config, &args.orchestrator);
    let open = &open;
    Process::run("cloud", config, OBSERVE_AT, Threads::Cores, |process| {
        let (at, orchestrators) = (at.clone(), orchestrators.clone());
        async move {
            let around = surroundings(&process, &own_store(config, &format!("cloud-{name}"))).await?;
            let serve = async {
                let controller =
                    RemoteController::trusting(&orchestrators, &config.cloud.orchestrator_trust)?;
                let opened = open(&config.cloud, Arc::new(controller))?;
                cloud(name, opened, &at, &config.cloud.security, &around).await
            };
            serve.await.map(drop).map_err(|error: tarbet_nets::Error| error.problem())
        }
    })
}

/// Those of the command line, else those of the configuration.
fn orchestrators(config: &Config, told: &[SocketAddr]) -> Vec<ListenConfig> {
    if !told.is_empty() {
        return told.iter().copied().map(listen).collect();
    }
    let CloudConfig { orchestrator, other_orchestrators, .. } = &config.cloud;
    std::iter::once(orchestrator).chain(other_orchestrators).cloned().collect()
}

fn local(config: Config, args: LocalArgs, format: Format) -> Result<(), Problem> {
    let orchestrators = orchestrators(&config, &args.orchestrator);
    let settings = config.cloud.local.clone();
    if args.plan || args.remove {
        return crate::cli::block_on(once(config, args, format));
    }
    Process::run("cloud", &config, OBSERVE_AT, Threads::Cores, |process| {
        let (config, orchestrators) = (config.clone(), orchestrators.clone());
        async move {
            let around = surroundings(&process, &own_store(&config, &format!("cloud-{}", args.name))).await?;
            let open = async {
                let controller =
                    RemoteController::trusting(&orchestrators, &config.cloud.orchestrator_trust)?;
                let local = Local::open(&args.name, &settings, &around.store, Arc::new(controller)).await?;
                let guarded = Arc::new(Guarded::new(settings.policy.clone(), local));
                cloud(&args.name, guarded, &listen(args.listen), &config.cloud.security, &around).await
            };
            open.await.map(drop).map_err(|error: tarbet_nets::Error| error.problem())
        }
    })
}

/// Tells or removes, without serving.
async fn once(config: Config, args: LocalArgs, format: Format) -> Result<(), Problem> {
    let store = tarbet_store::open(&own_store(&config, &format!("cloud-{}", args.name)), Clock::system())
        .await
        .map_err(|error| error.problem())?;
    let work = async {
        let at = orchestrators(&config, &args.orchestrator);
        let controller = Arc::new(RemoteController::trusting(&at, &config.cloud.orchestrator_trust)?);
        if args.remove {
            Local::open_as_is(&args.name, &config.cloud.local, &store, controller).await?.remove().await?;
            return Ok(vec![format!("Everything of the local cloud {} is removed.", args.name)]);
        }
        Local::open_as_is(&args.name, &config.cloud.local, &store, controller).await?.commands().await
    };
    let lines = work.await.map_err(|error: tarbet_nets::Error| error.problem())?;
    format.text(&lines.join("\n"))
}
