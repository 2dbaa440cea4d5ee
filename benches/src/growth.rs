//! What one unit of work costs while there are 10, 100, 1,000 and 10,000 of what it lies among.
//!
//! A part takes these costs where it has made so many anyway, and the page shows all rows of a part together, each
//! with what the largest size costs beside the smallest.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::figure::{median, spread};

/// The sizes at which costs are taken.
pub(crate) const SIZES: [usize; 4] = [10, 100, 1_000, 10_000];

/// The cost of one thing at several sizes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Growth {
    /// What is done, among how many of what.
    pub(crate) what: String,
    pub(crate) unit: String,
    pub(crate) points: Vec<Point>,
}

/// What each round gave at one size.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) size: usize,
    pub(crate) runs: Vec<f64>,
}

impl Growth {
    pub(crate) fn new(what: impl Into<String>, unit: &str) -> Self {
        Self { what: what.into(), unit: unit.to_owned(), points: Vec::new() }
    }

    /// Notes one more run at this size.
    pub(crate) fn at(&mut self, size: usize, run: f64) {
        match self.points.iter_mut().find(|point| point.size == size) {
            Some(point) => point.runs.push(run),
            None => self.points.push(Point { size, runs: vec![run] }),
        }
        self.points.sort_by_key(|point| point.size);
    }

    /// The middle run at this size.
    pub(crate) fn value(&self, size: usize) -> Option<f64> {
        self.points.iter().find(|point| point.size == size).map(|point| median(&point.runs))
    }

    /// Each size with its cost beside that of the smallest.
    pub(crate) fn ratios(&self) -> Vec<(usize, f64)> {
        let least = self.points.first().map_or(f64::NAN, |point| median(&point.runs));
        let ratios = self.points.iter().map(|point| (point.size, median(&point.runs) / least));
        ratios.filter(|(_, ratio)| ratio.is_finite() && *ratio > 0.0).collect()
    }

    /// How far the runs lie apart where they do most.
    pub(crate) fn spread(&self) -> Option<f64> {
        self.points.iter().filter_map(|point| spread(&point.runs)).max_by(f64::total_cmp)
    }
}

/// All sizes that occur.
pub(crate) fn sizes(rows: &[&Growth]) -> Vec<usize> {
    let mut sizes: Vec<usize> =
        rows.iter().flat_map(|row| row.points.iter().map(|point| point.size)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

const LEFT: f64 = 60.0;
const TOP: f64 = 14.0;
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 240.0;
const LINE: f64 = 18.0;
const COLOURS: [&str; 10] = [
    "#2b6cb0", "#c05621", "#2f855a", "#b83280", "#6b46c1", "#b7791f", "#2c7a7b", "#c53030", "#4a5568",
    "#1a202c",
];

/// Curves of all rows, on two scales of powers of ten: a flat one costs the same at every size, one that climbs with
/// the grid's diagonal costs ten times as much for ten times as many.
pub(crate) fn picture(title: &str, rows: &[&Growth]) -> String {
    let sizes = sizes(rows);
    let power = |value: f64| value.log10();
    let (first, last) = (
        power(sizes.first().copied().unwrap_or(1) as f64),
        power(sizes.last().copied().unwrap_or(10) as f64),
    );
    let ratios = || rows.iter().flat_map(|row| row.ratios()).map(|(_, ratio)| power(ratio));
    let (low, high) = (
        ratios().fold(-1.0, |low, one| f64::min(low, one.floor())),
        ratios().fold(1.0, |high, one| f64::max(high, one.ceil())),
    );
    let x = |size: usize| LEFT + (power(size as f64) - first) / (last - first).max(1e-9) * WIDTH;
    let y = |ratio: f64| TOP + (high - power(ratio)) / (high - low) * HEIGHT;
    let mut body = String::new();
    // Writing to a string cannot fail.
    for step in 0..=((high - low) as u32) {
        let ratio = 10f64.powf(low + f64::from(step));
        let (at, right) = (y(ratio), LEFT + WIDTH);
        let _ = writeln!(body, r##"<path d="M{LEFT} {at:.1}H{right}" stroke="#e2e8f0"/>"##);
        let _ = writeln!(body, r#"<text x="8" y="{:.1}">{ratio}×</text>"#, at + 4.0);
    }
    for size in &sizes {
        let (at, bottom) = (x(*size), TOP + HEIGHT);
        let _ = writeln!(body, r##"<path d="M{at:.1} {TOP}V{bottom}" stroke="#e2e8f0"/>"##);
        let _ =
            writeln!(body, r#"<text x="{at:.1}" y="{}" text-anchor="middle">{size}</text>"#, bottom + LINE);
    }
    let mut line = TOP + HEIGHT + 2.5 * LINE;
    for (row, colour) in rows.iter().zip(COLOURS.iter().cycle()) {
        let ratios = row.ratios();
        let places: Vec<String> =
            ratios.iter().map(|(size, ratio)| format!("{:.1},{:.1}", x(*size), y(*ratio))).collect();
        let _ = writeln!(
            body,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#,
            places.join(" ")
        );
        for (size, ratio) in &ratios {
            let _ = writeln!(
                body,
                r#"<circle cx="{:.1}" cy="{:.1}" r="3" fill="{colour}"/>"#,
                x(*size),
                y(*ratio)
            );
        }
        let told = ratios.last().map_or(String::new(), |(size, ratio)| format!(": {ratio:.2}× at {size}"));
        let words = crate::plot::escape(&format!("{} ({}){told}", row.what, row.unit));
        let _ =
            writeln!(body, r#"<rect x="8" y="{:.1}" width="12" height="12" fill="{colour}"/>"#, line - 11.0);
        let _ = writeln!(body, r#"<text x="28" y="{line:.1}">{words}</text>"#);
        line += LINE;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{line:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\"><title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n",
        LEFT + WIDTH + 60.0,
        crate::plot::escape(title)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Growth {
        let mut row = Growth::new("a call & its answer", "µs");
        for (size, run) in [(1_000, 30.0), (10, 10.0), (10, 12.0), (10, 11.0)] {
            row.at(size, run);
        }
        row
    }

    #[test]
    fn costs_are_told_beside_those_of_the_smallest_size() {
        let row = row();
        assert_eq!((row.value(10), row.value(1_000), row.value(100)), (Some(11.0), Some(30.0), None));
        let ratios = row.ratios();
        assert!(ratios[0] == (10, 1.0) && (ratios[1].1 - 30.0 / 11.0).abs() < 1e-9);
        assert!((row.spread().unwrap() - 2.0 / 11.0).abs() < 1e-9);
    }

    #[test]
    fn a_picture_has_a_point_for_each_size_and_no_stray_markup() {
        let svg = picture("a < b", &[&row()]);
        assert_eq!((svg.matches("<circle").count(), svg.matches("<polyline").count()), (2, 1));
        assert!(svg.contains("a call &amp; its answer (µs): 2.73× at 1000") && svg.contains("a &lt; b"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(!picture("nothing", &[]).contains("NaN"));
    }
}
