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
    sections.push(attempt("Open streams", streams::measure(bench, &world, &peers)).await);
    sections.extend(requests::measure(bench, &world, &peers).await?);
    drop(peers);
    sections.push(attempt("The Kubernetes API", kubernetes::measure(bench, &world)).await);
    drop(world);
    sections.push(attempt("40 ms away", far::measure(bench)).await);
    sections.push(attempt("Many agents", fleet::measure(bench)).await);
    sections.push(attempt("Many sites", registry::measure(bench)).await);
    Ok(sections)
}

/// One section. If it fails it says so on the page and takes no other's figures.
async fn attempt(title: &str, measured: impl Future<Output = Result<Section>>) -> Section {
    say(&format!("reach: {title}"));
    measured.await.unwrap_or_else(|error| {
        say(&format!("reach: {title}: {error:#}"));
        Section::new(title, &format!("Not measured: {error}."))
    })
}
