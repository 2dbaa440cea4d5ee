//! The tour behind `make demo`: the product driven from outside, with real parts, step by step.
//!
//! Each step prints the commands that it runs as a user would type them, what it proves and how long it
//! took. The tour ends with a count; whatever it started ends with it.

mod console;
mod crossings;
mod far;
mod follow;
mod jobs;
mod mesh;
mod nets;
mod pods;
mod reach;
mod steps;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use steps::Tour;
use tarbet_testbed::product::Product;

#[tokio::main]
async fn main() -> ExitCode {
    let mut tour = Tour::default();
    let walk = async {
        let binary =
            std::env::args_os().nth(1).map(PathBuf::from).context("usage: tour PATH-OF-TARBET [CHAPTER]")?;
        // Commands that it prints are for any folder.
        let binary = binary.canonicalize().with_context(|| format!("there is no {}", binary.display()))?;
        match std::env::args().nth(2).as_deref() {
            None => Box::pin(walk(&mut tour, binary)).await,
            Some("reach") => stay(&reach::walk(&mut tour, &binary).await?).await,
            Some("nets") => {
                let product = Product::new(binary)?.telling(steps::typed);
                Box::pin(nets::walk(&mut tour, &product, None)).await?.leave(&mut tour).await
            }
            Some(other) => {
                anyhow::bail!("there is no chapter `{other}` that stands alone; there are `reach` and `nets`")
            }
        }
    };
    // A tour that stays hears Ctrl-C itself: that is its good end.
    let ended = tokio::select! {
        biased;
        ended = walk => ended,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted; what was started has been removed")),
    };
    tour.close(ended)
}

async fn walk(tour: &mut Tour, binary: PathBuf) -> Result<()> {
    let reach = reach::walk(tour, &binary).await?;
    let jobs = jobs::walk(tour, &reach).await?;
    reach.show(reach::PUBLIC, &jobs.public)?;
    let pods = pods::walk(tour, &reach).await?;
    let _crossings = crossings::walk(tour, &reach, jobs, &pods).await?;
    let mesh = Box::pin(mesh::walk(tour, &binary)).await?;
    reach.show(reach::EAST, mesh.east())?;
    let _far = far::walk(tour, &reach).await?;
    let nets = Box::pin(nets::walk(tour, &reach.product, Some(&reach))).await?;
    console::walk(tour, &reach).await?;
    if is_to_stay() { reach.stay().await } else { nets.leave(tour).await }
}

/// Stays where it is, if that was wished.
async fn stay(scene: &reach::Scene) -> Result<()> {
    if is_to_stay() { scene.stay().await } else { Ok(()) }
}

/// Whether `KEEP=1` was said.
fn is_to_stay() -> bool {
    std::env::var_os("KEEP").is_some_and(|keep| !keep.is_empty() && keep != "0")
}
