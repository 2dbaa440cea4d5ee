//! BENCHMARKS.md, made from the JSON of every part that was ever measured.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use crate::figure::{Figure, Mark, Part, Section, median, spread};
use crate::growth::{self, Growth};
use crate::plot;

/// Writes the page from the parts in `folder`/benchmarks, and prints it.
#[expect(clippy::print_stdout, reason = "the person who ran it wants to read it")]
pub(crate) fn write(folder: &Path, parts: &[&str]) -> Result<()> {
    let mut page = String::from(
        "# Benchmarks\n\nWritten by `make bench`; do not edit. Everything shares one machine: load, backend, peers \
         and the product. Rows are measured in turn; a figure is the median of its rounds, the spread is (largest - \
         smallest) / median. A ratio compares with the peer in the same run. `make bench QUICK=1` takes minutes \
         and is rougher. How costs grow with size is a table of its own for each part: 1× in its last column costs \
         the same however many there are. The numbers behind the page are in [benchmarks/](benchmarks/).\n",
    );
    for part in parts {
        let file = folder.join("benchmarks").join(format!("{part}.json"));
        let Ok(bytes) = std::fs::read(&file) else { continue };
        let part: Part = serde_json::from_slice(&bytes).with_context(|| file.display().to_string())?;
        write_part(&mut page, &part)?;
    }
    println!("{page}");
    std::fs::write(folder.join("BENCHMARKS.md"), page)?;
    Ok(())
}

fn write_part(page: &mut String, part: &Part) -> Result<()> {
    let Part { name, machine, rounds, seconds, run, sections } = part;
    writeln!(page, "\n## {name}\n\nMachine: {machine}. {rounds} rounds of {seconds} s.")?;
    if !run.versions.is_empty() {
        let (command, minutes) = (part.command(), run.seconds.div_ceil(60));
        writeln!(page, "\n`{command}`, {minutes} min. {}.", run.versions.join(", "))?;
    }
    for section in sections {
        let Section { title, note, figures, .. } = section;
        writeln!(page, "\n### {title}\n\n{note}\n")?;
        writeln!(page, "| what | measured | spread | beside | mark |\n|---|--:|--:|---|---|")?;
        for figure in figures {
            writeln!(
                page,
                "| {} | {} {} | {} | {} | {} |",
                figure.what,
                number(figure.value()),
                figure.unit,
                spread(&figure.runs).map_or_else(|| "one run".to_owned(), percent),
                beside(figure),
                marks(figure),
            )?;
        }
        if plot::is_drawn(section) {
            writeln!(page, "\n![{title}](benchmarks/{})", plot::file(part, section))?;
        }
    }
    let rows = part.growth();
    if !rows.is_empty() {
        writeln!(page, "\n### How costs grow\n\n{}", growth_table(&rows))?;
        writeln!(page, "![How costs grow](benchmarks/{})", plot::growth_file(part))?;
    }
    Ok(())
}

/// Each cost at each size. The last column is that of the largest beside that of the smallest: 1 where it does not
/// matter how many there are.
fn growth_table(rows: &[&Growth]) -> String {
    let sizes = growth::sizes(rows);
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let named =
        ["cost of one".to_owned()].into_iter().chain(sizes.iter().map(|size| grouped(&size.to_string())));
    let mut table = line(&named.chain(["spread".into(), "largest / smallest".into()]).collect::<Vec<_>>());
    // Writing to a string cannot fail.
    let _ = writeln!(table, "|---|{}", "--:|".repeat(sizes.len() + 2));
    for row in rows {
        let costs = sizes.iter().map(|size| row.value(*size).map_or_else(String::new, number));
        let spread = row.spread().map_or_else(|| "one run".to_owned(), percent);
        let ratio = row.ratios().last().map_or_else(|| "-".to_owned(), |(_, ratio)| format!("{ratio:.2}×"));
        let named = [format!("{}, {}", row.what, row.unit)].into_iter();
        table += &line(&named.chain(costs).chain([spread, ratio]).collect::<Vec<_>>());
    }
    table
}

fn beside(figure: &Figure) -> String {
    let peers = figure.peers.iter().map(|peer| {
        let theirs = median(&peer.runs);
        let ratio = figure.value() / theirs;
        let ratio = if ratio.is_finite() { format!("{ratio:.2}×") } else { "-".to_owned() };
        format!("{} {} ({ratio})", peer.name, number(theirs))
    });
    peers.collect::<Vec<_>>().join(", ")
}

fn marks(figure: &Figure) -> String {
    let told = figure.marks.iter().map(|mark| {
        let text = match mark {
            Mark::AtLeast(limit) => format!("≥ {}", number(*limit)),
            Mark::AtMost(limit) => format!("≤ {}", number(*limit)),
            Mark::TimesPeer(peer, times) => format!("≥ {times}× {peer}"),
            Mark::WithinPeer(peer, times) => format!("≤ {times}× {peer}"),
            Mark::OverPeer(peer, more) => format!("≤ {peer} + {}", number(*more)),
        };
        let verdict = match figure.meets(mark) {
            Some(true) => "met",
            Some(false) => "**not met**",
            None => "not compared",
        };
        format!("{text}: {verdict}")
    });
    told.collect::<Vec<_>>().join("; ")
}

/// A share; there is none of nothing.
fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.0} %", share * 100.0) } else { "-".to_owned() }
}

/// Three digits that matter, and thousands apart.
fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let digits = if value.abs() >= 100.0 {
        0
    } else if value.abs() >= 10.0 {
        1
    } else {
        2
    };
    grouped(&format!("{value:.digits$}"))
}

/// Thousands apart.
fn grouped(plain: &str) -> String {
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && digit.is_ascii_digit() && (whole.len() - index) % 3 == 0 && !grouped.ends_with('-') {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_readable() {
        for (value, text) in
            [(1_234_567.8, "1,234,568"), (0.5, "0.50"), (12.34, "12.3"), (999.0, "999"), (-1234.0, "-1,234")]
        {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn a_table_of_growth_has_a_column_for_each_size() {
        let (mut one, mut other) = (Growth::new("a call", "µs"), Growth::new("a link", "KiB"));
        one.at(10, 5.0);
        other.at(10, 20.0);
        other.at(1_000, 30.0);
        let table = growth_table(&[&one, &other]);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "| cost of one | 10 | 1,000 | spread | largest / smallest |");
        assert_eq!(lines[2], "| a call, µs | 5.00 |  | one run | 1.00× |");
        assert_eq!(lines[3], "| a link, KiB | 20.0 | 30.0 | one run | 1.50× |");
    }

    #[test]
    fn a_row_says_the_ratio_and_whether_the_mark_is_met() {
        let figure = Figure::new("rate", "req/s", [30.0])
            .beside("frp", [20.0])
            .mark(Mark::TimesPeer("frp".into(), 1.6))
            .mark(Mark::AtLeast(10.0));
        assert_eq!(beside(&figure), "frp 20.0 (1.50×)");
        assert_eq!(beside(&Figure::new("x", "s", [1.0]).beside("none", [])), "none - (-)");
        assert_eq!((percent(0.5), percent(f64::INFINITY)), ("50 %".to_owned(), "-".to_owned()));
        assert_eq!(marks(&figure), "≥ 1.6× frp: **not met**; ≥ 10.0: met");
    }
}
