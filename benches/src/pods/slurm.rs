//! Slurm: a burst of pods, the states of all of them, and those of one, again and again.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tarbet_testbed::product::Product;
use tarbet_testbed::{Slurm, eventually};
use tokio::process::Command;
use tokio::task::JoinSet;

use super::calls::{Edge, pod, request};
use crate::Bench;
use crate::figure::{Figure, Mark, Section};
use crate::load::{Aim, keep_alive};

/// Pods that are made at once, and those of them whose states are asked for at once.
const WHOLE: (usize, usize) = (2_000, 1_000);
const QUICK: (usize, usize) = (400, 200);
/// Jobs that the bare tools submit.
const BARE: usize = 200;
const AT_ONCE: usize = 16;

pub(super) async fn measure(bench: &Bench) -> Result<Section> {
    let slurm = Slurm::start().await?;
    let product = Product::new(&bench.binary)?;
    let (squeue, asked) = counted(product.folder().path())?;
    let mut edge = Edge::slurm(&product, &slurm, &[("SQUEUEPATH", &squeue)]).await?;

    let (count, known) = if bench.scale.is_quick() { QUICK } else { WHOLE };
    let pods: Vec<_> = (0..count).map(|number| pod(number, "none", "sleep 600")).collect();
    let begun = Instant::now();
    edge.create(&pods, AT_ONCE).await?;
    let burst = begun.elapsed().as_secs_f64();
    let looks = fs::read_to_string(&asked).unwrap_or_default().lines().count();
    let names = slurm.run("squeue", &["--noheader", "--all", "--format=%j"]).await?;
    let mut names: Vec<&str> = names.lines().collect();
    let sent = names.len();
    names.sort_unstable();
    names.dedup();
    ensure!(names.len() == count, "{} of {count} pods are jobs", names.len());

    let bare = bare(&slurm).await?;
    let (mut cold, mut cached, mut forks) = (Vec::new(), Vec::new(), Vec::new());
    let one = serde_json::to_string(&pods[..1])?;
    for _ in 0..bench.scale.rounds {
        // An API server that has just begun remembers nothing.
        edge.api.process.restart().await?;
        edge.api.ready().await?;
        let begun = Instant::now();
        let states = edge.states(&pods[..known]).await?;
        cold.push(begun.elapsed().as_secs_f64());
        ensure!(states.len() == known, "{} states", states.len());
        let begun = Instant::now();
        slurm.run("squeue", &["--noheader", "--states=all", "--all"]).await?;
        forks.push(begun.elapsed().as_secs_f64());
        let aim = Aim { address: edge.address, request: request("/status", &one, "").into() };
        cached.push(keep_alive(&aim, 8, Duration::from_secs(bench.scale.seconds)).await?.per_second);
    }
    let mut section = Section::new(
        "Slurm",
        "A real Slurm of one node; API server and plugin as two processes. The original asks squeue once for \
         each pod (10 s for 1,000) and answers 3,913 cached states/s on such a machine.",
    );
    section.push(
        Figure::new(format!("pods accepted in a burst of {count}"), "pods/s", [count as f64 / burst])
            .beside("bare sbatch", [bare]),
    );
    let jobs = Figure::new(format!("jobs for {count} pods"), "jobs", [sent as f64]);
    section.push(jobs.mark(Mark::AtMost(count as f64)));
    section.push(
        Figure::new("squeue calls in 5 s of the burst", "calls", [looks as f64 * 5.0 / burst.max(5.0)])
            .mark(Mark::AtMost(1.0)),
    );
    section.push(
        Figure::new(format!("states of {known} pods, cold"), "s", cold)
            .beside("one squeue", forks)
            .mark(Mark::AtMost(0.15)),
    );
    section.push(Figure::new("cached state of one pod", "req/s", cached).mark(Mark::AtLeast(3.0 * 3913.0)));
    drop(edge);
    slurm.run("scancel", &["--user=root"]).await?;
    eventually(Duration::from_mins(2), "the jobs to go", || async {
        let left = slurm.run("squeue", &["--noheader", "--states=R,PD,CG"]).await?;
        ensure!(left.is_empty());
        Ok(())
    })
    .await?;
    Ok(section)
}

/// A squeue that notes each time it is run.
fn counted(folder: &Path) -> Result<(String, String)> {
    let (script, notes) = (folder.join("squeue-counted"), folder.join("squeue-calls"));
    fs::write(&script, format!("#!/bin/sh\necho call >>{}\nexec squeue \"$@\"\n", notes.display()))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok((script.display().to_string(), notes.display().to_string()))
}

/// Jobs a second that sbatch takes without anything in between.
async fn bare(slurm: &Slurm) -> Result<f64> {
    let config = slurm.config().to_owned();
    let begun = Instant::now();
    let mut lanes = JoinSet::new();
    for _ in 0..AT_ONCE {
        let config = config.clone();
        lanes.spawn(async move {
            for _ in 0..BARE / AT_ONCE {
                let mut sbatch = Command::new("sbatch");
                sbatch.args(["--parsable", "--output=/dev/null", "--job-name=bare", "--wrap", "sleep 600"]);
                let done = sbatch.env("SLURM_CONF", &config).kill_on_drop(true).output().await?;
                ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            }
            anyhow::Ok(())
        });
    }
    while let Some(lane) = lanes.join_next().await {
        lane.context("a lane of sbatch")??;
    }
    Ok((BARE / AT_ONCE * AT_ONCE) as f64 / begun.elapsed().as_secs_f64())
}
