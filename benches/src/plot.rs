//! Bars beside bars, as SVG without a library.

use std::fmt::Write as _;

use crate::figure::{Part, Section, median};
use crate::growth;

const BAR: usize = 16;
const LEFT: usize = 330;
const WIDTH: usize = 360;

/// Whether a section has somebody to be compared with.
pub(crate) fn is_drawn(section: &Section) -> bool {
    section.figures.iter().any(|figure| !figure.peers.is_empty())
}

/// The name of a section's picture.
pub(crate) fn file(part: &Part, section: &Section) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    format!("{}-{}.svg", part.name, section.title.chars().map(plain).collect::<String>())
}

/// The name of the picture of a part's growth.
pub(crate) fn growth_file(part: &Part) -> String {
    format!("{}-growth.svg", part.name)
}

/// A picture for each section that compares, and one of how costs grow.
pub(crate) fn pictures(part: &Part) -> Vec<(String, String)> {
    let drawn = part.sections.iter().filter(|section| is_drawn(section));
    let bars = drawn.map(|section| (file(part, section), picture(section)));
    let rows = part.growth();
    let title = format!("{}: cost at each size beside the smallest", part.name);
    let curves = (!rows.is_empty()).then(|| (growth_file(part), growth::picture(&title, &rows)));
    bars.chain(curves).collect()
}

fn picture(section: &Section) -> String {
    let (mut body, mut y) = (String::new(), 10);
    for figure in section.figures.iter().filter(|figure| !figure.peers.is_empty()) {
        text(&mut body, 8, y + 12, &format!("{} ({})", figure.what, figure.unit), "bold");
        y += BAR + 4;
        let ours = std::iter::once(("tarbet", figure.value(), "#2b6cb0"));
        let theirs = figure.peers.iter().map(|peer| (peer.name.as_str(), median(&peer.runs), "#a0aec0"));
        let rows: Vec<_> = ours.chain(theirs).filter(|row| row.1.is_finite()).collect();
        let most = rows.iter().map(|row| row.1).fold(f64::MIN_POSITIVE, f64::max);
        for (name, value, colour) in rows {
            let width = (value.max(0.0) / most * WIDTH as f64) as usize;
            text(&mut body, 24, y + 12, name, "normal");
            // Writing to a string cannot fail.
            let _ = writeln!(
                body,
                r#"<rect x="{LEFT}" y="{y}" width="{width}" height="{BAR}" fill="{colour}"/>"#
            );
            text(&mut body, LEFT + width + 6, y + 12, &format!("{value:.2}"), "normal");
            y += BAR + 3;
        }
        y += 8;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{y}\" font-family=\"sans-serif\" \
         font-size=\"12\"><title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n",
        LEFT + WIDTH + 110,
        escape(&section.title)
    )
}

fn text(body: &mut String, x: usize, y: usize, words: &str, weight: &str) {
    let _ = writeln!(body, r#"<text x="{x}" y="{y}" font-weight="{weight}">{}</text>"#, escape(words));
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Figure;

    #[test]
    fn a_picture_has_a_bar_for_each_and_no_stray_markup() {
        let mut section = Section::new("a < b", "");
        section.push(Figure::new("rate & more", "req/s", [2.0]).beside("frp", [1.0]));
        let svg = picture(&section);
        assert_eq!(svg.matches("<rect x=").count(), 2);
        assert!(svg.contains("rate &amp; more") && svg.contains("a &lt; b"));
    }
}
