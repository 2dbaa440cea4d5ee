//! The harness behind `make bench`: each figure beside a peer in the same run, as a ratio.
//!
//! Everything runs on loopback and in bounded loops. Rows are repeated in turn and medians are
//! taken, so that a busy moment of the machine falls on all rows alike. Nothing here decides
//! whether a build is good: figures are reported beside their marks, never asserted.
//!
//! A capability adds one file with `measure(&Bench) -> Result<Vec<Section>>` and one line to [`PARTS`]
//! and [`measure`]. Each part has its own JSON in the report's folder, and the page is made from all
//! of them, so one part can be measured again alone: `bench TARBET docs reach`.

mod cpu;
mod figure;
mod growth;
mod jobs;
mod load;
mod mesh;
mod nets;
mod page;
mod peers;
mod plot;
mod pods;
mod reach;
mod store;
mod up;
mod versions;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use figure::{Part, Run, Section};

/// What is measured, in the order of the page.
const PARTS: [&str; 7] = ["up", "reach", "jobs", "pods", "nets", "mesh", "store"];

async fn measure(part: &str, bench: &Bench) -> Result<Vec<Section>> {
    match part {
        "up" => up::measure(bench).await,
        "reach" => reach::measure(bench).await,
        "jobs" => jobs::measure(bench).await,
        "pods" => pods::measure(bench).await,
        "nets" => nets::measure(bench).await,
        "mesh" => Box::pin(mesh::measure(bench)).await,
        "store" => store::measure(bench).await,
        other => bail!("there is no part `{other}`; there are {}", PARTS.join(", ")),
    }
}

/// What every part is given.
pub(crate) struct Bench {
    /// The program that is measured.
    pub(crate) binary: PathBuf,
    /// How much is measured.
    pub(crate) scale: Scale,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Times each row is measured.
    pub(crate) rounds: usize,
    /// Seconds of one measurement.
    pub(crate) seconds: u64,
}

impl Scale {
    /// Whether somebody waits for it: counts are smaller then.
    pub(crate) fn is_quick(self) -> bool {
        self.rounds < FULL.rounds
    }
}

const QUICK: Scale = Scale { rounds: 3, seconds: 1 };
const FULL: Scale = Scale { rounds: 5, seconds: 4 };

#[tokio::main]
async fn main() -> Result<()> {
    const USAGE: &str = "usage: bench PATH-OF-TARBET REPORT-FOLDER [PART...]";
    let mut args = std::env::args().skip(1);
    let binary = args.next().map(PathBuf::from).context(USAGE)?;
    let folder = args.next().map(PathBuf::from).context(USAGE)?;
    let wanted: Vec<String> = args.collect();
    let quick = std::env::var_os("QUICK").is_some_and(|quick| !quick.is_empty() && quick != "0");
    let scale = if quick { QUICK } else { FULL };
    let bench = Bench { binary, scale };

    let mut failed = Vec::new();
    for part in
        PARTS.iter().map(ToString::to_string).filter(|part| wanted.is_empty() || wanted.contains(part))
    {
        let begun = std::time::Instant::now();
        // One part that fails takes no other's figures.
        match measure(&part, &bench).await {
            Ok(sections) => {
                let run =
                    Run { seconds: begun.elapsed().as_secs(), versions: versions::of(&part, &bench.binary) };
                keep(&folder, &Part::new(&part, scale, run, sections))?;
            }
            Err(error) => failed.push(format!("{part}: {error:#}")),
        }
        say(&format!("{part}: {:.0} s", begun.elapsed().as_secs_f64()));
    }
    page::write(&folder, &PARTS)?;
    if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("; ")) }
}

fn keep(folder: &Path, part: &Part) -> Result<()> {
    let folder = folder.join("benchmarks");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join(format!("{}.json", part.name)), serde_json::to_vec_pretty(part)?)?;
    for (file, picture) in plot::pictures(part) {
        std::fs::write(folder.join(file), picture)?;
    }
    Ok(())
}

/// Tells the person who waits how far it is.
#[expect(clippy::print_stderr, reason = "progress of a program that people run")]
pub(crate) fn say(text: &str) {
    eprintln!("bench: {text}");
}
