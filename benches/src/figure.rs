//! What a part reports: sections of figures, each with its runs, its peers and its marks.

use serde::{Deserialize, Serialize};

use crate::Scale;
use crate::growth::Growth;

/// One part of the report, as its JSON keeps it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) machine: String,
    pub(crate) rounds: usize,
    pub(crate) seconds: u64,
    #[serde(default)]
    pub(crate) run: Run,
    pub(crate) sections: Vec<Section>,
}

/// What else must be known to repeat it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Run {
    /// How long the whole part took.
    pub(crate) seconds: u64,
    /// Every program that had a share in it.
    pub(crate) versions: Vec<String>,
}

/// Figures of one kind.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Section {
    pub(crate) title: String,
    /// How it was measured, in a sentence or two.
    pub(crate) note: String,
    pub(crate) figures: Vec<Figure>,
    /// What its subject costs at several sizes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) growth: Vec<Growth>,
}

/// One number of ours, with what others did in the same run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) what: String,
    pub(crate) unit: String,
    /// What each round gave.
    pub(crate) runs: Vec<f64>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) marks: Vec<Mark>,
}

/// The same number of somebody else.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) runs: Vec<f64>,
}

/// What the figure should reach.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Mark {
    AtLeast(f64),
    AtMost(f64),
    /// At least this many times the peer of this name.
    TimesPeer(String, f64),
    /// At most this many times the peer of this name.
    WithinPeer(String, f64),
    /// At most this much more than the peer of this name.
    OverPeer(String, f64),
}

impl Part {
    pub(crate) fn new(name: &str, scale: Scale, run: Run, sections: Vec<Section>) -> Self {
        let Scale { rounds, seconds, .. } = scale;
        Self { name: name.to_owned(), machine: machine(), rounds, seconds, run, sections }
    }

    /// What all of its sections tell of growth.
    pub(crate) fn growth(&self) -> Vec<&Growth> {
        self.sections.iter().flat_map(|section| &section.growth).collect()
    }

    /// What a person types to measure it again.
    pub(crate) fn command(&self) -> String {
        let quick =
            if (Scale { rounds: self.rounds, seconds: self.seconds }).is_quick() { "QUICK=1 " } else { "" };
        format!("{quick}tools/bench {}", self.name)
    }
}

impl Section {
    pub(crate) fn new(title: &str, note: &str) -> Self {
        Self { title: title.to_owned(), note: note.to_owned(), figures: Vec::new(), growth: Vec::new() }
    }

    pub(crate) fn push(&mut self, figure: Figure) {
        self.figures.push(figure);
    }
}

impl Figure {
    pub(crate) fn new(what: impl Into<String>, unit: &str, runs: impl IntoIterator<Item = f64>) -> Self {
        Self {
            what: what.into(),
            unit: unit.to_owned(),
            runs: runs.into_iter().collect(),
            peers: Vec::new(),
            marks: Vec::new(),
        }
    }

    pub(crate) fn beside(mut self, name: &str, runs: impl IntoIterator<Item = f64>) -> Self {
        self.peers.push(Peer { name: name.to_owned(), runs: runs.into_iter().collect() });
        self
    }

    pub(crate) fn mark(mut self, mark: Mark) -> Self {
        self.marks.push(mark);
        self
    }

    pub(crate) fn value(&self) -> f64 {
        median(&self.runs)
    }

    pub(crate) fn peer(&self, name: &str) -> Option<f64> {
        self.peers.iter().find(|peer| peer.name == name).map(|peer| median(&peer.runs))
    }

    /// Whether a mark is met; unknown if its peer was not measured.
    pub(crate) fn meets(&self, mark: &Mark) -> Option<bool> {
        let value = self.value();
        Some(match mark {
            Mark::AtLeast(limit) => value >= *limit,
            Mark::AtMost(limit) => value <= *limit,
            Mark::TimesPeer(name, times) => value >= self.peer(name)? * times,
            Mark::WithinPeer(name, times) => value <= self.peer(name)? * times,
            Mark::OverPeer(name, more) => value <= self.peer(name)? + more,
        })
    }
}

/// The middle value.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => values[length / 2],
        length => f64::midpoint(values[length / 2 - 1], values[length / 2]),
    }
}

/// How far the runs lie apart, as a share of the middle one; one run alone tells nothing of it.
pub(crate) fn spread(values: &[f64]) -> Option<f64> {
    let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
    // Runs that all gave nothing do not lie apart.
    (values.len() > 1).then(|| if high <= low { 0.0 } else { (high - low) / median(values) })
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
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("?").to_owned();
    format!("{cores} cores of {model}, kernel {}, load average {load} when it ended", kernel.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_judged_by_medians() {
        let figure = Figure::new("rate", "req/s", [10.0, 12.0, 50.0]).beside("frp", [6.0, 6.0, 90.0]);
        assert_eq!(figure.meets(&Mark::TimesPeer("frp".into(), 2.0)), Some(true));
        assert_eq!(figure.meets(&Mark::TimesPeer("frp".into(), 2.1)), Some(false));
        assert_eq!(figure.meets(&Mark::AtMost(11.0)), Some(false));
        assert_eq!(figure.meets(&Mark::OverPeer("frp".into(), 6.0)), Some(true));
        assert_eq!(figure.meets(&Mark::WithinPeer("nobody".into(), 1.0)), None);
    }

    #[test]
    fn medians_of_even_counts_lie_between() {
        assert!((median(&[1.0, 3.0, 2.0, 10.0]) - 2.5).abs() < 1e-9);
        assert!((spread(&[9.0, 10.0, 11.0]).unwrap() - 0.2).abs() < 1e-9);
        assert!(spread(&[0.0, 0.0]).unwrap().abs() < 1e-9);
        assert_eq!(spread(&[1.0]), None);
    }
}
