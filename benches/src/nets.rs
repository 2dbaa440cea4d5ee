//! Tags, address spaces, permit lists, plans and local clouds of `tarbet nets`, each as its users
//! meet it: the program as it is started, over its own listeners.

mod bare;
mod local;
mod rules;
mod spaces;
mod tags;
mod vpn;
mod world;

use std::time::Instant;

use anyhow::Result;

use crate::figure::{Section, median};
use crate::{Bench, say};

pub(crate) async fn measure(bench: &Bench) -> Result<Vec<Section>> {
    let mut sections = tags::measure(bench).await?;
    say("nets: tags are measured");
    sections.push(spaces::measure(bench).await?);
    say("nets: address spaces are measured");
    sections.extend(rules::measure(bench).await?);
    say("nets: permit lists and plans are measured");
    sections.push(vpn::measure(bench).await?);
    say("nets: a VPN is measured");
    sections.push(local::measure(bench).await?);
    Ok(sections)
}

/// Runs one client as a program of its own would be: on a thread that does nothing else, so that what is
/// measured is the service and not how this process hands work from thread to thread.
async fn alone<T: Send + 'static, F: Future<Output = Result<T>>>(
    client: impl FnOnce() -> F + Send + 'static,
) -> Result<T> {
    let run = move || tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(client());
    tokio::task::spawn_blocking(run).await?
}

/// The middle time of calls made one after another, in milliseconds.
async fn in_turn<F: Future<Output = Result<()>>>(
    calls: usize,
    mut call: impl FnMut(usize) -> F,
) -> Result<f64> {
    let mut times = Vec::with_capacity(calls);
    for number in 0..calls {
        let begun = Instant::now();
        call(number).await?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(&times))
}
