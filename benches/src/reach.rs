//! Reach: a site through one gateway and through two, beside what people would use instead.

mod requests;
mod world;

use anyhow::Result;

use crate::Bench;
use crate::figure::Section;

pub(crate) async fn measure(bench: &Bench) -> Result<Vec<Section>> {
    let world = world::World::start(bench).await?;
    let mut sections = vec![world.idle()?];
    sections.extend(requests::measure(bench, &world).await?);
    Ok(sections)
}
