//! Pods: states of many, bursts to Slurm, starts on Docker, and what a node costs; beside the bare
//! tools of the machine in the same run.

mod calls;
mod docker;
mod growth;
mod node;
mod slurm;

use anyhow::Result;

use crate::figure::Section;
use crate::{Bench, say};

pub(crate) async fn measure(bench: &Bench) -> Result<Vec<Section>> {
    let mut slurm = slurm::measure(bench).await?;
    say("pods: more and more of them");
    slurm.growth = growth::measure(bench).await?;
    Ok(vec![slurm, docker::measure(bench).await?, node::measure(bench).await?])
}
