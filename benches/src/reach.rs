//! Reach: a site through one gateway and through two, beside what people would use instead.

mod far;
mod fleet;
mod kubernetes;
mod line;
mod registry;
mod requests;
mod streams;
mod world;

use anyhow::{Context, Result};

use crate::figure::Section;
use crate::{Bench, peers, say};

pub(crate) async fn measure(bench: &Bench) -> Result<Vec<Section>> {
    let world = world::World::start(bench).await.context("gateways and an agent")?;
    let peers = peers::all(world.backend).await;
    let mut sections = vec![world.idle()?];
    // Before anything else: memory that was used once is not given back at once.
    say("reach: open streams");
    sections.push(streams::measure(bench, &world, &peers).await.context("open streams")?);
    sections.extend(requests::measure(bench, &world, &peers).await?);
    drop(peers);
    say("reach: the Kubernetes API");
    sections.push(kubernetes::measure(bench, &world).await.context("the Kubernetes API")?);
    drop(world);
    say("reach: far away");
    sections.push(far::measure(bench).await.context("far away")?);
    say("reach: many agents");
    sections.push(fleet::measure(bench).await.context("many agents")?);
    say("reach: many sites");
    sections.push(registry::measure(bench).await.context("many sites")?);
    Ok(sections)
}
