//! The whole: two lands and the neck between them; callers on the one side, sites on the other.

use std::fmt::Write as _;

use super::{Canvas, Point, clip, curve, number};

/// Who stands where.
#[derive(Debug, Clone, Default)]
pub struct Neck {
    /// People and programs that asked for something lately.
    pub callers: Vec<String>,
    /// Gateways.
    pub gateways: Vec<String>,
    /// Sites.
    pub sites: Vec<Site>,
}

/// A site in the picture.
#[derive(Debug, Clone, Default)]
pub struct Site {
    /// Its name.
    pub name: String,
    /// The gateways that hold its links; none if it is not connected.
    pub gateways: Vec<String>,
    /// What its agents offer.
    pub services: Vec<String>,
}

/// More of a kind are told by their number.
const MOST_SITES: usize = 24;
const MOST_CALLERS: usize = 6;
const WIDTH: f64 = 1200.0;
/// Behind it there is land on every side.
const SHORE: f64 = 760.0;

impl Neck {
    /// For a slide.
    pub fn svg(&self) -> String {
        let shown = self.sites.len().min(MOST_SITES);
        let rows = number(shown.max(3));
        let height = (rows * 62.0 + 150.0).max(430.0);
        let middle = height / 2.0;
        let mut canvas = Canvas::new(WIDTH, height);
        canvas.rect("water", Point { x: 0.0, y: 0.0 }, WIDTH, height, 14.0);
        let neck = (number(self.gateways.len().clamp(1, 6)) * 31.0 + 14.0).max(46.0);
        let land = land(height, neck);
        canvas.path("shore", &land);
        canvas.path("land", &land);
        canvas.text("legend", Point { x: 28.0, y: 40.0 }, "start", "PUBLIC SIDE");
        canvas.text("legend", Point { x: WIDTH - 28.0, y: 40.0 }, "end", "PRIVATE SIDE");
        let foot = Point { x: WIDTH - 28.0, y: height - 22.0 };
        canvas.text("aside", foot, "end", "agents dial out, nothing is opened");

        let spread = |count: usize, x: f64, gap: f64| {
            (0..count).map(move |i| Point { x, y: middle + (number(i) - (number(count) - 1.0) / 2.0) * gap })
        };
        let gateways: Vec<Point> = spread(self.gateways.len(), 578.0, 62.0).collect();
        let callers: Vec<Point> = spread(self.callers.len().min(MOST_CALLERS), 170.0, 58.0).collect();
        let sites: Vec<Point> = spread(shown, 1010.0, 62.0).collect();
        for from in &callers {
            for to in &gateways {
                canvas.path(
                    "way",
                    &curve(Point { x: from.x + 85.0, ..*from }, Point { x: to.x - 66.0, ..*to }),
                );
            }
        }
        for (site, to) in self.sites.iter().zip(&sites) {
            for (gateway, from) in self.gateways.iter().zip(&gateways) {
                if site.gateways.contains(gateway) {
                    // Straight along the neck, for the water is on both sides, then to the site.
                    let rest = curve(Point { x: SHORE, ..*from }, Point { x: to.x - 135.0, ..*to });
                    let rest = rest.trim_start_matches('M');
                    canvas.path("link", &format!("M{:.1} {:.1} L{rest}", from.x + 66.0, from.y));
                }
            }
        }
        for (name, at) in self.callers.iter().zip(&callers) {
            canvas.rect("box", Point { x: at.x - 85.0, y: at.y - 20.0 }, 170.0, 40.0, 10.0);
            canvas.text("name", Point { x: at.x, y: at.y + 5.0 }, "middle", &clip(name, 19));
        }
        for (name, at) in self.gateways.iter().zip(&gateways) {
            canvas.rect("gate", Point { x: at.x - 66.0, y: at.y - 24.0 }, 132.0, 48.0, 10.0);
            canvas.text("gatename", Point { x: at.x, y: at.y - 1.0 }, "middle", &clip(name, 15));
            canvas.text("gatenote", Point { x: at.x, y: at.y + 16.0 }, "middle", "gateway");
        }
        for (site, at) in self.sites.iter().zip(&sites) {
            draw_site(&mut canvas, site, *at);
        }
        if self.sites.is_empty() {
            canvas.text(
                "aside",
                Point { x: 1010.0, y: middle },
                "middle",
                "no site yet: tarbet site add lab",
            );
        }
        if self.sites.len() > shown {
            let text = format!("and {} more sites", self.sites.len() - shown);
            canvas.text("aside", Point { x: 1010.0, y: height - 46.0 }, "middle", &text);
        }
        canvas.finish("Who reaches whom: callers, gateways and sites")
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut page = String::new();
        let callers = if self.callers.is_empty() { "nobody yet".to_owned() } else { self.callers.join(", ") };
        // Writing to a string cannot fail.
        let _ = writeln!(page, "public side   {callers}");
        let _ = writeln!(page, "              │");
        let _ = writeln!(page, "the neck      ╞═ {}", self.gateways.join("  ╞═ "));
        let width = self.sites.iter().map(|site| site.name.chars().count()).max().unwrap_or_default();
        for site in &self.sites {
            let Site { name, gateways, services } = site;
            if gateways.is_empty() {
                let _ = writeln!(page, "              ┊   ○ {name:<width$}  not connected");
            } else {
                let (held, offered) = (gateways.join(", "), services.join(" "));
                let _ = writeln!(page, "              ├── ● {name:<width$}  {offered}  (through {held})");
            }
        }
        if self.sites.is_empty() {
            let _ = writeln!(page, "              ┊   no site yet: tarbet site add lab");
        }
        let _ = write!(page, "private side  agents dial out, nothing is opened");
        page
    }
}

fn draw_site(canvas: &mut Canvas, site: &Site, at: Point) {
    let connected = !site.gateways.is_empty();
    let corner = Point { x: at.x - 135.0, y: at.y - 25.0 };
    canvas.rect(if connected { "box" } else { "off" }, corner, 270.0, 50.0, 10.0);
    canvas.circle(if connected { "lamp" } else { "unlit" }, Point { x: corner.x + 20.0, ..at }, 5.0);
    canvas.text("name", Point { x: corner.x + 36.0, y: at.y - 3.0 }, "start", &clip(&site.name, 26));
    let note = if connected { site.services.join(" · ") } else { "not connected".into() };
    canvas.text("note", Point { x: corner.x + 36.0, y: at.y + 14.0 }, "start", &clip(&note, 36));
}

/// The outline of both lands and the neck: each shore swings out into a headland before it turns.
fn land(height: f64, neck: f64) -> String {
    let (near, far, bay, dent) = (420.0, 736.0, 70.0, 34.0);
    let (middle, side, end) = (height / 2.0, height + 60.0, WIDTH + 60.0);
    let (top, low) = (middle - neck, middle + neck);
    let p = |u: f64, v: f64| format!("{u:.1} {v:.1}");
    [
        format!("M{} L{}", p(-60.0, -60.0), p(near - bay * 1.3, -60.0)),
        format!(
            "C{} {} {}",
            p(near + dent, top * 0.1),
            p(near - bay * 1.5, top * 0.42),
            p(near - bay * 0.35, top * 0.62)
        ),
        format!("S{} {}", p(near - bay * 0.2, top), p(near + bay * 0.9, top)),
        format!(
            "C{} {} {}",
            p(near + bay * 1.5, top + 7.0),
            p(far - bay * 1.4, top - 5.0),
            p(far - bay * 0.7, top)
        ),
        format!("S{} {}", p(far + bay * 0.5, top * 0.72), p(far + bay * 0.1, top * 0.5)),
        format!("S{} {}", p(far - dent, top * 0.2), p(far + bay * 1.1, -60.0)),
        format!("L{} L{} L{}", p(end, -60.0), p(end, side), p(far + bay * 0.7, side)),
        format!(
            "C{} {} {}",
            p(far - bay * 0.4, side - (side - low) * 0.25),
            p(far + bay * 1.2, side - (side - low) * 0.45),
            p(far + bay * 0.35, low + (side - low) * 0.34)
        ),
        format!("S{} {}", p(far + bay * 0.2, low), p(far - bay * 0.8, low)),
        format!(
            "C{} {} {}",
            p(far - bay * 1.5, low - 6.0),
            p(near + bay * 1.4, low + 6.0),
            p(near + bay * 0.7, low)
        ),
        format!(
            "S{} {}",
            p(near - bay * 0.3, low + (side - low) * 0.2),
            p(near - bay * 0.5, low + (side - low) * 0.46)
        ),
        format!("S{} {}", p(near + dent * 0.6, side - (side - low) * 0.3), p(near - bay * 1.1, side)),
        format!("L{}Z", p(-60.0, side)),
    ]
    .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_is_in_both_pictures() {
        let neck = Neck {
            callers: vec!["admin".into()],
            gateways: vec!["gw-1".into(), "gw-2".into()],
            sites: vec![
                Site {
                    name: "lab".into(),
                    gateways: vec!["gw-1".into()],
                    services: vec!["kubernetes".into()],
                },
                Site { name: "edge".into(), ..Site::default() },
            ],
        };
        let (svg, text) = (neck.svg(), neck.text());
        for shown in ["admin", "gw-1", "gw-2", "lab", "edge", "kubernetes", "not connected"] {
            assert!(svg.contains(shown) && text.contains(shown), "{shown}\n{text}");
        }
        assert_eq!(svg.matches(r#"class="link""#).count(), 1);
        assert!(Neck::default().text().contains("tarbet site add lab"));
        let crowd = (0..1000).map(|i| Site { name: format!("s{i}"), ..Site::default() }).collect();
        assert!(Neck { sites: crowd, ..Neck::default() }.svg().contains("and 976 more sites"));
    }
}
