//! `tarbet down`: ends the local `tarbet up` and removes all it made.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tarbet_nets::controller::LateController;
use tarbet_nets::local::Local;
use tarbet_pods::edge::{self, Part};
use tarbet_store::{Clock, StoreConfig};
use tarbet_telemetry::codes::ground;
use tarbet_telemetry::problem::chain;
use tarbet_telemetry::{Coded, Problem};
use tokio_util::sync::CancellationToken;

use super::endpoint::{Endpoint, is_running, is_ups, of_up_alone, state_folder};
use crate::config::Config;
use crate::output::{Format, counted, note};
use crate::roles::up::served::{self, Served};
use crate::roles::up::{networks, pods};

pub const EXAMPLES: &str = "Examples:
  tarbet down --plan          say what would be ended and removed
  tarbet down                 nothing is left: process, pods, networks, virtual node, state folder
  tarbet down --keep-state    sites, tokens and the authority stay for the next `tarbet up`";

/// How long the process may take to end in order.
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK: Duration = Duration::from_millis(100);
/// How long the containers of a pod are given.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub struct DownArgs {
    /// Say what would be done, and do nothing
    #[arg(long)]
    plan: bool,
    /// Keep the state folder
    #[arg(long)]
    keep_state: bool,
}

pub async fn run(args: DownArgs, config: Config, format: Format) -> Result<(), Problem> {
    let folder = state_folder();
    let running = Endpoint::read(&folder).filter(|endpoint| is_running(endpoint.pid));
    if running.is_none() && !folder.exists() {
        return said(format, &["There is nothing to end or remove.".into()], "tarbet up");
    }
    let whole = is_ups(&folder);
    if running.is_none() && !whole && of_up_alone(&folder).is_empty() {
        // A store of another role by default, or the keys of sites that commands remember.
        let stays =
            format!("There is nothing of `tarbet up` here; {} is another's and stays.", folder.display());
        return said(format, &[stays], "tarbet up");
    }
    if args.plan {
        let files =
            (!args.keep_state).then(|| if whole { vec![folder.clone()] } else { of_up_alone(&folder) });
        let steps = plan(running.as_ref(), &served::read(&folder), &files.unwrap_or_default());
        return said(format, &steps, "tarbet down");
    }
    let mut done = Vec::new();
    if let Some(endpoint) = running {
        note(&format!("Ending process {}, which lets open connections finish …", endpoint.pid));
        end(endpoint.pid).await?;
        done.push(format!("Ended process {}.", endpoint.pid));
    }
    Endpoint::remove(&folder);
    for part in [Part::Docker, Part::Process] {
        let removed = remove_pods(&config, &folder, part).await?;
        if removed > 0 {
            done.push(format!("Removed {}.", counted(removed, "pod")));
        }
    }
    done.extend(remove_networks(&config, &folder).await?);
    done.extend(leave_clusters(&folder).await?);
    if !args.keep_state && whole {
        remove(&folder)?;
        done.push(format!("Removed {}.", folder.display()));
    } else if !args.keep_state {
        of_up_alone(&folder).iter().try_for_each(|path| remove(path))?;
        done.push(format!("What others keep in {} stays.", folder.display()));
    }
    said(format, &done, "tarbet up")
}

fn remove(path: &Path) -> Result<(), Problem> {
    let removed = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    removed.map_err(|error| {
        Problem::new(&ground::INTERNAL, format!("{} cannot be removed.", path.display()))
            .at("tarbet down")
            .because(error.to_string())
            .advising("remove it yourself; nothing uses it any more")
    })
}

fn said(format: Format, lines: &[String], next: &str) -> Result<(), Problem> {
    if format == Format::Table {
        return format.text(&format!("{}\nNext: {next}", lines.join("\n")));
    }
    format.value(&json!({ "done": lines }))
}

fn plan(running: Option<&Endpoint>, clusters: &[Served], files: &[PathBuf]) -> Vec<String> {
    let mut steps = Vec::new();
    if let Some(endpoint) = running {
        steps.push(format!("end process {}", endpoint.pid));
    }
    steps.push("remove pods that it runs, and what its local cloud made".into());
    steps.extend(clusters.iter().flat_map(Served::planned));
    steps.extend(files.iter().map(|path| format!("remove {}", path.display())));
    steps
}

async fn end(pid: u32) -> Result<(), Problem> {
    let failed = |cause: String| {
        Problem::new(&ground::INTERNAL, format!("The process {pid} does not end."))
            .at("tarbet down")
            .because(cause)
            .advising("look at its log; `kill -9` ends it at once")
    };
    let id = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| failed("it has no usable id".into()))?;
    kill_process(id, Signal::TERM).map_err(|error| failed(error.to_string()))?;
    let gone = async {
        while is_running(pid) || is_ending(pid) {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.map_err(|_| failed(format!("it had {} s", PATIENCE.as_secs())))
}

/// Whether a process of this id has given up its memory, and its command line with it, but perhaps not yet its
/// files: the lock of the store is one of them.
fn is_ending(pid: u32) -> bool {
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}"));
    let (Ok(words), Ok(stat)) = (read("cmdline"), read("stat")) else { return false };
    // What follows the name, which is in brackets; a zombie has let go of everything.
    let state = stat.rsplit(|byte| *byte == b')').next().and_then(|rest| rest.get(1));
    words.is_empty() && !matches!(state, Some(b'Z' | b'X'))
}

async fn remove_pods(config: &Config, folder: &Path, part: Part) -> Result<usize, Problem> {
    if !pods::root(folder, part).exists() {
        return Ok(0);
    }
    let environment = pods::environment();
    let base = edge::load(config.edge.clone(), Part::Interlink, None, &environment)?;
    if part == Part::Docker && !pods::docker_answers(&base.docker_host) {
        return Ok(0);
    }
    let settings = pods::placed(&base, folder, part);
    let stop = CancellationToken::new();
    let runner = edge::open(part, &settings, &environment, stop.clone())?;
    let listed = runner.list().await.map_err(|error| error.problem())?;
    for pod in &listed {
        runner.delete(&pod.uid, Some(GRACE)).await.map_err(|error| error.problem())?;
    }
    stop.cancel();
    Ok(listed.len())
}

/// Deletes the nodes that clusters were given, once nobody would make them again. What cannot be deleted stays
/// noted as long as the folder does.
async fn leave_clusters(folder: &Path) -> Result<Vec<String>, Problem> {
    let (mut lines, mut kept) = (Vec::new(), Vec::new());
    for cluster in served::read(folder) {
        match cluster.remove_node().await {
            Some(Err(stays)) => {
                lines.push(stays);
                kept.push(cluster.clone());
            }
            gone => lines.extend(gone.and_then(Result::ok)),
        }
        lines.extend(cluster.left());
    }
    served::write(folder, &kept).map_err(|error| {
        Problem::new(&ground::INTERNAL, "What is left in clusters cannot be noted.")
            .at("tarbet down")
            .because(error.to_string())
    })?;
    Ok(lines)
}

/// Removes what local clouds made, if the store still tells.
async fn remove_networks(config: &Config, folder: &Path) -> Result<Option<String>, Problem> {
    let store = config.store();
    let file: Option<PathBuf> = match &store {
        StoreConfig::Redb(redb) => Some(redb.path.clone()),
        _ => None,
    };
    if !rustix::process::geteuid().is_root() || file.is_some_and(|file| !file.exists()) {
        return Ok(None);
    }
    let store = tarbet_store::open(&store, Clock::system()).await.map_err(|error| error.problem())?;
    let mut names = Vec::new();
    for plugin in networks::placed(&config.nets, folder).cloud_plugins {
        let Some(local) = plugin.local else { continue };
        let late = Arc::new(LateController::default());
        let open = Local::open_as_is(&plugin.name, &local, &store, late).await;
        let cloud = open.map_err(|error| error.problem())?;
        cloud.remove().await.map_err(|error| {
            Problem::new(&ground::INTERNAL, format!("The local cloud {} cannot be removed.", plugin.name))
                .because(chain(&error))
        })?;
        names.push(plugin.name);
    }
    Ok((!names.is_empty()).then(|| format!("Removed what the local cloud {} made.", names.join(", "))))
}
