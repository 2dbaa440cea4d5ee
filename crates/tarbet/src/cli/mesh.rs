//! `tarbet mesh …`: the controller, and what people ask of a federation.

mod trial;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tarbet_mesh::offline::{Rendered, render_folder, render_legacy};
use tarbet_mesh::{MeshError, report};
use tarbet_telemetry::codes::mesh;
use tarbet_telemetry::{Coded, Problem};

use super::block_on;
use crate::config::Config;
use crate::output::Format;
use crate::roles::jobs::{connect, source};
use crate::roles::mesh::MeshArgs;

pub const EXAMPLES: &str = "Examples:
  tarbet mesh                                      the controller, in the cluster of its pod
  tarbet mesh --kubeconfig east.yaml --discovery west=192.0.2.7:15080
  tarbet mesh --via-site west=lab --carry west=:15543
                                                   west through the site lab: discovery and calls
  tarbet mesh render -f federation/                what it would write, without a cluster
  tarbet mesh status
  tarbet mesh test --to pay.shop
  tarbet mesh cleanup

What is federated is decided by a MeshFederation and by FederationServiceRules in each mesh.";

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = false, mut_args(of_the_controller))]
pub struct MeshCommand {
    #[command(flatten)]
    role: MeshArgs,
    #[command(subcommand)]
    command: Option<Sub>,
}

/// What finds a gateway is for the controller alone: its subcommands ask none, and only share the cluster.
fn of_the_controller(arg: clap::Arg) -> clap::Arg {
    let shared = arg.get_id() == "kubeconfig";
    arg.global(shared)
}

#[derive(Debug, Subcommand)]
enum Sub {
    /// Print the objects that would be written, from files
    #[command(
        after_help = "Examples:\n  tarbet mesh render -f federation/\n  tarbet mesh render -f federation/ -o json | jq .\n  tarbet mesh render --legacy flags.json\n\nThe folder holds a MeshFederation, FederationServiceRules, Services and Namespaces in YAML or JSON\nfiles, and fds/MESH.json with the services that each peer offers: hostname, ports, labels."
    )]
    Render {
        /// The folder
        #[arg(long = "folder", short = 'f', value_name = "DIR", required_unless_present = "legacy")]
        folder: Option<PathBuf>,
        /// Instead: one JSON file with the flags of the original
        #[arg(long, value_name = "FILE", conflicts_with = "folder")]
        legacy: Option<PathBuf>,
    },
    /// Tell how the federation is: remotes, imports, and what is wrong
    #[command(after_help = "Examples:\n  tarbet mesh status\n  tarbet mesh status -o json")]
    Status,
    /// Call an imported service step by step: import, name, mutual TLS, HTTP
    #[command(after_help = trial::EXAMPLES)]
    Test(trial::TestArgs),
    /// Remove everything that federation made, and the objects it was made for
    #[command(
        after_help = "Examples:\n  tarbet mesh cleanup --plan\n  tarbet mesh cleanup --yes\n\nDeletes the FederationServiceRules and the MeshFederation first, so that a running controller\nmakes nothing new, and then every object with the label app.kubernetes.io/managed-by=tarbet-mesh,\nand the lease of the controllers in its namespace once none of them runs."
    )]
    Cleanup {
        /// Without it, only say what would be asked for
        #[arg(long)]
        yes: bool,
        /// Ask the cluster what would be removed, and remove nothing
        #[arg(long, conflicts_with = "yes")]
        plan: bool,
    },
}

pub fn run(
    config: impl FnOnce() -> Result<Config, Problem>,
    args: MeshCommand,
    format: Format,
) -> Result<(), Problem> {
    let MeshCommand { role, command } = args;
    match command {
        None => crate::roles::mesh::run(config()?, role),
        Some(Sub::Render { folder, legacy }) => render(folder, legacy, format),
        Some(Sub::Status) => block_on(status(role, format)),
        Some(Sub::Test(test)) => block_on(trial::run(role.kubeconfig, test, format)),
        Some(Sub::Cleanup { plan: true, .. }) => block_on(cleanup(role, true, format)),
        Some(Sub::Cleanup { yes: false, .. }) => Err(Problem::new(
            &mesh::UNCONFIRMED,
            "Everything that federation made in this cluster would be removed.",
        )),
        Some(Sub::Cleanup { yes: true, .. }) => block_on(cleanup(role, false, format)),
    }
}

fn render(folder: Option<PathBuf>, legacy: Option<PathBuf>, format: Format) -> Result<(), Problem> {
    let rendered = match (folder, legacy) {
        (_, Some(file)) => render_legacy(&file),
        (folder, None) => render_folder(&folder.unwrap_or_default()),
    };
    let Rendered { manifests, plan } = rendered.map_err(|error| error.problem())?;
    for finding in &plan.findings {
        crate::output::note(&format!("note {}: {}", finding.reason.word(), finding.message));
    }
    for (mesh, view) in &plan.remotes {
        for refusal in &view.refusals {
            crate::output::note(&format!("note Refused: {} of {mesh}: {}", refusal.hostname, refusal.reason));
        }
    }
    if format == Format::Json {
        return format.value(&json!({ "apiVersion": "v1", "kind": "List", "items": manifests }));
    }
    // One document after another, as kubectl takes them.
    for manifest in &manifests {
        format.text("---")?;
        Format::Yaml.value(manifest)?;
    }
    Ok(())
}

async fn status(args: MeshArgs, format: Format) -> Result<(), Problem> {
    let client = connect(&source(args.kubeconfig.as_deref())?).await?;
    let report = report(&client).await.map_err(|error: MeshError| error.problem())?;
    if format != Format::Table {
        return format.value(&report);
    }
    for object in &report.declarations {
        format.text(&format!("{}: {}", object.name, object.state))?;
    }
    let rows: Vec<Value> = report.remotes.iter().map(|remote| json!(remote)).collect();
    let keys = ["id", "connected", "since", "offered", "imported", "refused", "error"];
    format.rows(&keys, &keys, &rows)
}

async fn cleanup(args: MeshArgs, plan: bool, format: Format) -> Result<(), Problem> {
    let client = connect(&source(args.kubeconfig.as_deref())?).await?;
    let namespace = args.namespace();
    if plan {
        let found = tarbet_mesh::cleanup_plan(&client, &namespace).await.map_err(|error| error.problem())?;
        let calls: Vec<String> = found.iter().map(|(kind, count)| format!("delete {count} {kind}")).collect();
        return format.plan(&calls);
    }
    let gone = tarbet_mesh::cleanup(&client, &namespace).await.map_err(|error| error.problem())?;
    let rows: Vec<Value> =
        gone.iter().map(|(kind, count)| json!({ "kind": kind, "removed": count })).collect();
    format.rows(&["kind", "removed"], &["kind", "removed"], &rows)
}
