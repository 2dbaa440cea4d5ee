//! What was measured, for people and for programs.

use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use serde_json::json;

use crate::Scale;

/// One row of the table of requests.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) connections: usize,
    pub(crate) per_second: f64,
    pub(crate) p50_micros: f64,
    pub(crate) p99_micros: f64,
    pub(crate) cpu_per_100k: f64,
}

/// Everything that was measured.
pub(crate) struct Report {
    scale: Scale,
    requests: Vec<Row>,
    stores: Vec<(String, f64)>,
    memory: Vec<(String, f64)>,
}

impl Report {
    pub(crate) fn new(scale: Scale) -> Self {
        Self { scale, requests: vec![], stores: vec![], memory: vec![] }
    }

    pub(crate) fn request(&mut self, row: Row) {
        self.requests.push(row);
    }

    pub(crate) fn store(&mut self, name: &str, per_second: f64) {
        self.stores.push((name.to_owned(), per_second));
    }

    pub(crate) fn memory(&mut self, name: &str, mib: f64) {
        self.memory.push((name.to_owned(), mib));
    }

    /// Writes BENCHMARKS.md and benchmarks.json, and prints the first.
    #[expect(clippy::print_stdout, reason = "the person who ran it wants to read it")]
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let page = self.page()?;
        println!("{page}");
        std::fs::create_dir_all(folder)?;
        std::fs::write(folder.join("BENCHMARKS.md"), page)?;
        std::fs::write(folder.join("benchmarks.json"), serde_json::to_vec_pretty(&self.json())?)?;
        Ok(())
    }

    fn page(&self) -> Result<String> {
        let mut page = String::from("# Benchmarks\n\nWritten by `make bench`; do not edit.\n\n");
        writeln!(page, "{}", machine())?;
        writeln!(
            page,
            "\nMedians of {} rounds of {} s, all rows in turn. Load, backend and all parts share the machine.",
            self.scale.rounds, self.scale.seconds
        )?;
        writeln!(page, "\n## Small requests on kept-alive connections\n")?;
        writeln!(
            page,
            "| path | connections | requests/s | of direct | of haproxy | p50 µs | p99 µs | CPU s per 100,000 |\n|---|--:|--:|--:|--:|--:|--:|--:|"
        )?;
        for row in &self.requests {
            let against = |name: &str| {
                let peer = self
                    .requests
                    .iter()
                    .find(|peer| peer.name.starts_with(name) && peer.connections == row.connections);
                peer.map_or_else(|| "-".to_owned(), |peer| format!("{:.2}", row.per_second / peer.per_second))
            };
            let Row { name, connections, per_second, p50_micros, p99_micros, cpu_per_100k } = row;
            writeln!(
                page,
                "| {name} | {connections} | {per_second:.0} | {} | {} | {p50_micros:.0} | {p99_micros:.0} | {cpu_per_100k:.2} |",
                against("direct"),
                against("haproxy"),
            )?;
        }
        writeln!(
            page,
            "\n## Commits to the store by 64 writers\n\n| store | commits/s | of a file synced for each write |\n|---|--:|--:|"
        )?;
        let base = self.stores.first().map_or(1.0, |(_, rate)| *rate);
        for (name, rate) in &self.stores {
            writeln!(page, "| {name} | {rate:.0} | {:.1} |", rate / base)?;
        }
        writeln!(page, "\n## Memory\n\n| process | MiB |\n|---|--:|")?;
        for (name, mib) in &self.memory {
            writeln!(page, "| {name} | {mib:.1} |")?;
        }
        Ok(page)
    }

    fn json(&self) -> serde_json::Value {
        let requests = self.requests.iter().map(|row| {
            json!({
                "path": row.name, "connections": row.connections, "perSecond": row.per_second,
                "p50Micros": row.p50_micros, "p99Micros": row.p99_micros, "cpuSecondsPer100k": row.cpu_per_100k,
            })
        });
        let pairs = |pairs: &[(String, f64)]| {
            pairs.iter().map(|(name, value)| json!({"name": name, "value": value})).collect::<Vec<_>>()
        };
        json!({
            "machine": machine(), "rounds": self.scale.rounds, "seconds": self.scale.seconds,
            "requests": requests.collect::<Vec<_>>(), "storeCommitsPerSecond": pairs(&self.stores), "residentMib": pairs(&self.memory),
        })
    }
}

/// The middle value.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name))
        .unwrap_or("unknown")
        .to_owned();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Machine: {cores} cores of {model}, kernel {}.", kernel.trim())
}
