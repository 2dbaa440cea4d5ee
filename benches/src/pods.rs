//! Pods: states of many, bursts to Slurm, starts on Docker, and what a node costs; beside the bare
//! tools of the machine in the same run.

mod calls;
mod docker;
mod node;
mod slurm;

use anyhow::Result;

use crate::Bench;
use crate::figure::Section;

pub(crate) async fn measure(bench: &Bench) -> Result<Vec<Section>> {
    Ok(vec![slurm::measure(bench).await?, docker::measure(bench).await?, node::measure(bench).await?])
}
