//! The report as an SVG picture: waiting, network card and cold start over the number of nodes.
//!
//! Owns lines and letters only. Invariant: the same report gives the same bytes.

use std::fmt::Write;

use super::mode::Mode;
use super::report::{Report, Row};

const WIDTH: f64 = 620.0;
const PANEL: f64 = 200.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
const GAP: f64 = 60.0;
const LEGEND: f64 = 150.0;

/// One quantity over the number of nodes.
struct Panel {
    title: &'static str,
    value: fn(&Row) -> f64,
    /// Whether equal distances are equal factors.
    logarithmic: bool,
}

const PANELS: [Panel; 3] = [
    Panel {
        title: "waiting for data, % of the time",
        value: |row| row.wait_ratio * 100.0,
        logarithmic: false,
    },
    Panel {
        title: "busiest network card, % of what it can",
        value: |row| row.nic_share * 100.0,
        logarithmic: false,
    },
    Panel {
        title: "cold start to first step, s",
        value: |row| row.first_step_seconds,
        logarithmic: true,
    },
];

fn colour(mode: Mode) -> &'static str {
    match mode {
        Mode::Serial => "#b2182b",
        Mode::Concurrent => "#ef8a62",
        Mode::Prefetch => "#e0a800",
        Mode::StoreColocated => "#8073ac",
        Mode::StoreSpread => "#4393c3",
        Mode::Stoker => "#1b7837",
        Mode::StokerFallback => "#7fbf7b",
    }
}

impl Report {
    /// The picture.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let height = TOP + PANELS.len() as f64 * (PANEL + GAP);
        let all = LEFT + WIDTH + LEGEND;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{all}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        for (place, panel) in PANELS.iter().enumerate() {
            self.panel(&mut svg, panel, TOP + place as f64 * (PANEL + GAP));
        }
        for (place, mode) in Mode::ALL.into_iter().enumerate() {
            let (x, y) = (LEFT + WIDTH + 12.0, TOP + 14.0 + place as f64 * 18.0);
            let _ = writeln!(
                svg,
                "<text x=\"{x}\" y=\"{y}\" fill=\"{}\" font-weight=\"bold\">{}</text>",
                colour(mode),
                mode.name()
            );
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn panel(&self, svg: &mut String, panel: &Panel, top: f64) {
        let scale = |value: f64| {
            if panel.logarithmic {
                value.max(1e-3).log10()
            } else {
                value
            }
        };
        let values = || self.rows.iter().map(|row| scale((panel.value)(row)));
        let least = if panel.logarithmic {
            values().fold(f64::INFINITY, f64::min).floor()
        } else {
            0.0
        };
        let most = values().fold(least, f64::max).ceil().max(least + 1.0);
        let y = |value: f64| top + PANEL - (value - least) / (most - least) * PANEL;
        let nodes = || self.rows.iter().map(|row| f64::from(row.nodes).log2());
        let first = nodes().fold(f64::INFINITY, f64::min);
        let last = nodes().fold(first, f64::max).max(first + 1.0);
        let x = |row: &Row| LEFT + (f64::from(row.nodes).log2() - first) / (last - first) * WIDTH;

        let _ = writeln!(
            svg,
            "<text x=\"{LEFT}\" y=\"{}\" font-weight=\"bold\">{}</text>",
            top - 8.0,
            panel.title
        );
        for tick in 0..=4 {
            let value = least + (most - least) * f64::from(tick) / 4.0;
            let shown = if panel.logarithmic {
                10f64.powf(value)
            } else {
                value
            };
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {at:.1}h{WIDTH}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{shown:.3}</text>",
                LEFT - 6.0,
                y(value) + 4.0,
                at = y(value),
            );
        }
        for row in self.rows.iter().filter(|row| row.mode == Mode::Stoker) {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                x(row),
                top + PANEL + 16.0,
                row.nodes
            );
        }
        for mode in Mode::ALL {
            let points: Vec<String> = (self.rows.iter())
                .filter(|row| row.mode == mode)
                .map(|row| format!("{:.1},{:.1}", x(row), y(scale((panel.value)(row)))))
                .collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>",
                points.join(" "),
                colour(mode)
            );
        }
    }
}
