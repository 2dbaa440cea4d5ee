//! The networks: an island a cloud, its resources on it, VPNs between, and what may pass.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;

use super::{Canvas, Point, clip, curve, number};
use crate::output::counted;

/// What the orchestrator says there is.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Networks {
    clouds: Vec<String>,
    resources: Vec<Resource>,
    links: Vec<Link>,
    flows: Vec<Flow>,
    #[serde(rename = "networks")]
    foreign: Vec<Foreign>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Resource {
    name: String,
    cloud: String,
    ip: String,
    rules: usize,
}

/// A network that others made.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Foreign {
    name: String,
    cloud: String,
    spaces: Vec<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Link {
    from: String,
    to: String,
    tunnels: u8,
    complete: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Flow {
    from: String,
    to: String,
    what: Vec<String>,
}

const CARD: (f64, f64) = (250.0, 48.0);
const ISLAND: f64 = 310.0;
const STRAIT: f64 = 190.0;
const TOP: f64 = 120.0;

impl Networks {
    /// For a slide.
    pub fn svg(&self) -> String {
        let cards_of = |cloud: &String| self.of(cloud).count() + self.others_of(cloud).count();
        let rows = self.clouds.iter().map(cards_of).max().unwrap_or_default().max(1);
        let height = TOP + number(rows) * 64.0 + 70.0;
        let islands = number(self.clouds.len().max(1));
        // Flows that stay on the last island bend out beside it.
        let width = 130.0 + islands * ISLAND + (islands - 1.0) * STRAIT;
        let mut canvas = Canvas::new(width, height);
        canvas.rect("water", Point { x: 0.0, y: 0.0 }, width, height, 14.0);
        let mut cards = BTreeMap::new();
        let mut shores = BTreeMap::new();
        for (index, cloud) in self.clouds.iter().enumerate() {
            let left = 65.0 + number(index) * (ISLAND + STRAIT);
            let corner = Point { x: left, y: 34.0 };
            canvas.rect("shore", corner, ISLAND, height - 68.0, 46.0);
            canvas.rect("land", corner, ISLAND, height - 68.0, 46.0);
            canvas.text("legend", Point { x: left + 30.0, y: 74.0 }, "start", &cloud.to_uppercase());
            shores.insert(cloud.as_str(), left);
            let mut empty = true;
            for (row, resource) in self.of(cloud).enumerate() {
                empty = false;
                let at = Point { x: left + 30.0, y: TOP - 16.0 + number(row) * 64.0 };
                cards.insert(resource.name.as_str(), at);
            }
            for (row, network) in self.others_of(cloud).enumerate() {
                let row = row + self.of(cloud).count();
                empty = false;
                network.draw(&mut canvas, Point { x: left + 30.0, y: TOP - 16.0 + number(row) * 64.0 });
            }
            if empty {
                let at = Point { x: left + ISLAND / 2.0, y: TOP + 12.0 };
                canvas.text("aside", at, "middle", "nothing here yet");
            }
        }
        self.draw_links(&mut canvas, &shores);
        for resource in &self.resources {
            let Some(&at) = cards.get(resource.name.as_str()) else { continue };
            canvas.rect("box", at, CARD.0, CARD.1, 10.0);
            canvas.text("name", Point { x: at.x + 14.0, y: at.y + 21.0 }, "start", &clip(&resource.name, 27));
            let rules = counted(resource.rules, "rule");
            let note = format!("{} · {rules}", resource.ip);
            canvas.text("note", Point { x: at.x + 14.0, y: at.y + 38.0 }, "start", &note);
        }
        for (index, flow) in self.flows.iter().enumerate() {
            let (Some(&from), Some(&to)) = (cards.get(flow.from.as_str()), cards.get(flow.to.as_str()))
            else {
                continue;
            };
            draw_flow(&mut canvas, from, to, &flow.what.join(", "), index);
        }
        canvas.finish("Networks, and what may pass between them")
    }

    fn draw_links(&self, canvas: &mut Canvas, shores: &BTreeMap<&str, f64>) {
        for link in &self.links {
            let (Some(&a), Some(&b)) = (shores.get(link.from.as_str()), shores.get(link.to.as_str())) else {
                continue;
            };
            let (left, right) = if a < b { (a, b) } else { (b, a) };
            let d = format!(
                "M{:.1} 66 Q{:.1} 46 {right:.1} 66",
                left + ISLAND,
                f64::midpoint(left + ISLAND, right)
            );
            canvas.path("vpn", &d);
            canvas.path("vpncore", &d);
            let at = Point { x: f64::midpoint(left + ISLAND, right), y: 38.0 };
            canvas.text("note", at, "middle", &link.words());
        }
    }

    fn of<'a>(&'a self, cloud: &'a str) -> impl Iterator<Item = &'a Resource> {
        self.resources.iter().filter(move |resource| resource.cloud == cloud)
    }

    fn others_of<'a>(&'a self, cloud: &'a str) -> impl Iterator<Item = &'a Foreign> {
        self.foreign.iter().filter(move |network| network.cloud == cloud)
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut page = String::new();
        let names = self.resources.iter().map(|resource| &resource.name);
        let names = names.chain(self.foreign.iter().map(|network| &network.name));
        let width = names.map(|name| name.chars().count()).max().unwrap_or_default();
        for cloud in &self.clouds {
            // Writing to a string cannot fail.
            let _ = writeln!(page, "▲ {cloud}");
            let mut empty = true;
            for Resource { name, ip, rules, .. } in self.of(cloud) {
                empty = false;
                let _ = writeln!(page, "  ├ {name:<width$}  {ip:<15}  {}", counted(*rules, "rule"));
            }
            for network in self.others_of(cloud) {
                empty = false;
                let _ = writeln!(page, "  ├ {:<width$}  {}", network.name, network.words());
            }
            if empty {
                let _ =
                    writeln!(page, "  ├ nothing here yet: tarbet glide resource create {cloud} NAME FILE");
            }
        }
        for link in &self.links {
            let _ = writeln!(page, "≈ {} ══ {}  {}", link.from, link.to, link.words());
        }
        let _ = writeln!(page, "{}", if self.flows.is_empty() { "Nothing may pass." } else { "May pass:" });
        for Flow { from, to, what } in &self.flows {
            let _ = writeln!(page, "  {from:<width$} ──▶ {to:<width$}  {}", what.join(", "));
        }
        page.trim_end().to_owned()
    }
}

impl Foreign {
    fn words(&self) -> String {
        // Some have one in each of forty regions.
        match self.spaces.as_slice() {
            [] => "read-only, no addresses".to_owned(),
            [one] => format!("read-only, {one}"),
            [first, rest @ ..] => format!("read-only, {first} and {} more", rest.len()),
        }
    }

    fn draw(&self, canvas: &mut Canvas, at: Point) {
        canvas.rect("off", at, CARD.0, CARD.1, 10.0);
        canvas.text("name", Point { x: at.x + 14.0, y: at.y + 21.0 }, "start", &clip(&self.name, 27));
        canvas.text("note", Point { x: at.x + 14.0, y: at.y + 38.0 }, "start", &clip(&self.words(), 38));
    }
}

impl Link {
    fn words(&self) -> String {
        let tunnels =
            if self.tunnels == 1 { "1 tunnel".to_owned() } else { format!("{} tunnels", self.tunnels) };
        let state = if self.complete { "" } else { ", being made" };
        format!("VPN, {tunnels}{state}")
    }
}

/// An arrow with what passes written on it.
fn draw_flow(canvas: &mut Canvas, from: Point, to: Point, what: &str, index: usize) {
    let middle = CARD.1 / 2.0;
    // Flows that run the other way do not lie on each other.
    let shift = if index.is_multiple_of(2) { -7.0 } else { 7.0 };
    let (a, b, d) = if (from.x - to.x).abs() < 1.0 {
        let a = Point { x: from.x + CARD.0, y: from.y + middle + shift };
        let b = Point { x: to.x + CARD.0 + 7.0, y: to.y + middle + shift };
        let out = a.x + 52.0;
        let d =
            format!("M{:.1} {:.1} C{out:.1} {:.1} {out:.1} {:.1} {:.1} {:.1}", a.x, a.y, a.y, b.y, b.x, b.y);
        (Point { x: out, ..a }, Point { x: out, ..b }, d)
    } else if from.x < to.x {
        let a = Point { x: from.x + CARD.0, y: from.y + middle + shift };
        let b = Point { x: to.x - 8.0, y: to.y + middle + shift };
        (a, b, curve(a, b))
    } else {
        let a = Point { x: from.x, y: from.y + middle + shift };
        let b = Point { x: to.x + CARD.0 + 8.0, y: to.y + middle + shift };
        (a, b, curve(a, b))
    };
    canvas.path("flow", &d);
    let (tip, back) = if from.x < to.x {
        (Point { x: to.x, y: to.y + middle + shift }, -9.0)
    } else {
        (Point { x: to.x + CARD.0, y: to.y + middle + shift }, 9.0)
    };
    let d = format!("M{:.1} {:.1} l{back} -5 l0 10 z", tip.x, tip.y);
    canvas.path("tip", &d);
    let label = clip(what, 22);
    let wide = number(label.chars().count()) * 7.0 + 16.0;
    // Off the middle by a little, so that labels of opposite flows do not meet.
    let at =
        Point { x: f64::midpoint(a.x, b.x) - wide / 2.0, y: f64::midpoint(a.y, b.y) - 10.0 + shift * 1.4 };
    canvas.rect("pill", at, wide, 20.0, 10.0);
    canvas.text("pilltext", Point { x: at.x + wide / 2.0, y: at.y + 14.0 }, "middle", &label);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample() -> Networks {
        serde_json::from_value(json!({
            "clouds": ["east", "west"],
            "resources": [
                {"name": "default.east.a", "namespace": "default", "cloud": "east", "ip": "10.0.0.4", "rules": 1},
                {"name": "default.west.b", "namespace": "default", "cloud": "west", "ip": "10.1.0.4", "rules": 2},
            ],
            "links": [{"name": "l", "from": "east", "to": "west", "tunnels": 2, "complete": true}],
            "flows": [{"from": "default.east.a", "to": "default.west.b", "what": ["tcp/8000"]}],
            "networks": [{"name": "legacy", "cloud": "west", "spaces": ["10.77.0.0/16", "10.78.0.0/16"], "access": "read-only"}],
        }))
        .unwrap()
    }

    #[test]
    fn both_forms_show_everything() {
        let (svg, text) = (sample().svg(), sample().text());
        for shown in [
            "default.east.a",
            "default.west.b",
            "10.1.0.4",
            "tcp/8000",
            "VPN, 2 tunnels",
            "legacy",
            "read-only, 10.77.0.0/16 and 1 more",
        ] {
            assert!(svg.contains(shown) && text.contains(shown), "{shown}\n{text}");
        }
        assert!(text.contains("default.east.a ──▶ default.west.b  tcp/8000"), "{text}");
    }

    #[test]
    fn nothing_says_what_to_do() {
        let empty = Networks { clouds: vec!["local".into()], ..Networks::default() };
        assert!(empty.text().contains("tarbet glide resource create local"));
        assert!(empty.svg().contains("nothing here yet"));
        assert!(Networks::default().svg().starts_with("<svg"));
    }
}
