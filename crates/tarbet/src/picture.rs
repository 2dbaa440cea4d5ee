//! Pictures for people: SVG for slides, text for terminals. Pure; what is drawn comes in as values.

pub mod neck;
pub mod nets;

use std::fmt::Write as _;

/// Colours in light and dark, the same as the console's.
const STYLE: &str = "
svg{color-scheme:light dark;font:15px/1.4 system-ui,'Segoe UI',Roboto,'Helvetica Neue','DejaVu Sans',sans-serif}
.water{fill:#b4d5e1}.shore{fill:none;stroke:#e0f0f3;stroke-width:16;stroke-linejoin:round}
.land{fill:#f6efdd;stroke:#b59f6b;stroke-width:1.5}.legend{fill:#6b5f3f;font-size:13px;font-weight:650;letter-spacing:.12em}
.aside{fill:#6b5f3f;font-size:14px;font-style:italic}.box{fill:#fff;stroke:#9aa8ad}.name{fill:#14242c;font-weight:600}
.note{fill:#52646c;font-size:12px}.gate{fill:#0b5c78}.gatename{fill:#fff;font-weight:600}.gatenote{fill:#d7ecf3;font-size:12px}
.way{fill:none;stroke:#6b5f3f;stroke-width:1.4;stroke-dasharray:2 6;stroke-linecap:round}
.link{fill:none;stroke:#0b5c78;stroke-width:2.2}.off{fill:#fbf7ec;stroke:#8a5300;stroke-dasharray:5 4}
.lamp{fill:#14703f}.unlit{fill:none;stroke:#8a5300;stroke-width:2}
.vpn{fill:none;stroke:#0b5c78;stroke-width:7;stroke-linecap:round}.vpncore{fill:none;stroke:#b4d5e1;stroke-width:3}
.flow{fill:none;stroke:#c23f17;stroke-width:2}.tip{fill:#c23f17}.pill{fill:#fff;stroke:#c23f17}.pilltext{fill:#8f2c0e;font-size:12px;font-weight:600}
@media (prefers-color-scheme:dark){
.water{fill:#0c2937}.shore{stroke:#154155}.land{fill:#26332c;stroke:#5f7566}.legend,.aside{fill:#a9bdae}
.box{fill:#132028;stroke:#4b5f68}.name{fill:#e4edee}.note{fill:#9db0b6}.gate{fill:#6cc5df}.gatename{fill:#06232e}.gatenote{fill:#0d3a4a}
.way{stroke:#a9bdae}.link,.vpn{stroke:#6cc5df}.off{fill:#1c2823;stroke:#f2c069}.lamp{fill:#6fd49b}.unlit{stroke:#f2c069}
.vpncore{stroke:#0c2937}.flow{stroke:#ffb27a}.tip{fill:#ffb27a}.pill{fill:#132028;stroke:#ffb27a}.pilltext{fill:#ffcaa3}}
";

/// An SVG document in the making.
struct Canvas {
    body: String,
    width: f64,
    height: f64,
}

/// A place on it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Point {
    x: f64,
    y: f64,
}

impl Canvas {
    fn new(width: f64, height: f64) -> Self {
        Self { body: String::new(), width, height }
    }

    fn rect(&mut self, class: &str, at: Point, width: f64, height: f64, round: f64) {
        let Point { x, y } = at;
        self.add(format_args!(
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="{round}"/>"#
        ));
    }

    fn path(&mut self, class: &str, d: &str) {
        self.add(format_args!(r#"<path class="{class}" d="{d}"/>"#));
    }

    fn circle(&mut self, class: &str, at: Point, radius: f64) {
        self.add(format_args!(r#"<circle class="{class}" cx="{:.1}" cy="{:.1}" r="{radius}"/>"#, at.x, at.y));
    }

    /// Text that begins, is centred or ends at a place.
    fn text(&mut self, class: &str, at: Point, anchor: &str, text: &str) {
        self.add(format_args!(
            r#"<text class="{class}" x="{:.1}" y="{:.1}" text-anchor="{anchor}">{}</text>"#,
            at.x,
            at.y,
            escape(text)
        ));
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.body, "{element}");
    }

    fn finish(self, title: &str) -> String {
        let Self { body, width, height } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\">\n\
             <title>{}</title>\n<style>{STYLE}</style>\n{body}</svg>",
            escape(title)
        )
    }
}

/// A calm curve from left to right, or back.
fn curve(from: Point, to: Point) -> String {
    let pull = ((to.x - from.x) * 0.5).abs().max(40.0) * if to.x < from.x { -1.0 } else { 1.0 };
    format!(
        "M{:.1} {:.1} C{:.1} {:.1} {:.1} {:.1} {:.1} {:.1}",
        from.x,
        from.y,
        from.x + pull,
        from.y,
        to.x - pull,
        to.y,
        to.x,
        to.y
    )
}

fn escape(text: &str) -> String {
    // Characters that no XML document may hold are left out.
    let allowed =
        |c: &char| matches!(c, '\t' | '\n' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars().filter(allowed) {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            c => escaped.push(c),
        }
    }
    escaped
}

fn clip(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// A count as a coordinate.
#[expect(clippy::cast_precision_loss, reason = "no picture has so many things that it would matter")]
fn number(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_name_breaks_out_of_the_picture(name in "\\PC{0,40}|[\\x00-\\x20<>&\"']{0,20}") {
            let mut canvas = Canvas::new(10.0, 10.0);
            canvas.text("name", Point { x: 1.0, y: 2.0 }, "start", &name);
            let text = canvas.finish(&name);
            prop_assert_eq!(text.matches("<text").count(), 1);
            prop_assert_eq!(text.matches("</svg>").count(), 1);
            let shown = &text[text.find("start\">").unwrap() + 7..text.find("</text>").unwrap()];
            prop_assert!(!shown.contains(['<', '>', '"']));
        }

        #[test]
        fn clipping_keeps_to_its_limit(text in "\\PC{0,60}", most in 1_usize..40) {
            prop_assert!(clip(&text, most).chars().count() <= most);
        }
    }
}
