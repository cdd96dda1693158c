//! Plots as SVG text, without a script: a frame with a y axis, and lines in it.
//!
//! Colours come from the page (`var(--c0)` to `var(--c7)`), so that a plot suits light and dark backgrounds. The page
//! also styles the classes `axis`, `grid`, `line`, `dashed`, `ex` (labels of the x axis) and `ey`.

use std::fmt::{Display, Write as _};

use crate::escape_html;

/// Number of colours. Further lines repeat them, dashed.
pub const COLOURS: usize = 8;

/// Width in user units: a phone in portrait shows a plot at its natural size.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 230.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 40.0;

/// Round values from zero that span up to `max`: four to seven of them, the last not below `max`.
#[must_use]
pub fn ticks(max: f64) -> Vec<f64> {
    if !max.is_finite() || max <= 0.0 {
        return vec![0.0, 1.0];
    }
    let magnitude = 10_f64.powf((max / 5.0).log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|step| step * magnitude);
    let step = step.into_iter().find(|step| max / step <= 5.5).unwrap_or(10.0 * magnitude);
    let count = (max / step - 1e-9).ceil().max(1.0);
    let mut values = Vec::new();
    let mut at = 0.0;
    while at <= count {
        values.push(at * step);
        at += 1.0;
    }
    values
}

/// A line of a plot.
#[derive(Clone, Debug)]
pub struct Line {
    /// The text shown when the pointer rests on the line.
    pub name: String,
    /// Index of the colour.
    pub colour: usize,
    /// Points in the units of the axes.
    pub points: Vec<(f64, f64)>,
}

/// A plot with lines. The y axis includes zero.
#[derive(Clone, Debug, Default)]
pub struct LinePlot {
    /// A description for readers who cannot see the plot.
    pub title: String,
    /// The label below the x axis.
    pub x_label: String,
    /// Positions and labels on the x axis, whose range covers all lines and ticks.
    pub x_ticks: Vec<(f64, String)>,
    /// The lines.
    pub lines: Vec<Line>,
}

impl LinePlot {
    /// The plot as an `<svg>` element; `None` if there is nothing to show. `label` formats the values of the y axis.
    #[must_use]
    pub fn svg(&self, label: impl Fn(f64) -> String) -> Option<String> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        points().next()?;
        let xs = || points().map(|(x, _)| *x).chain(self.x_ticks.iter().map(|(x, _)| *x));
        let (min, max) = (xs().fold(f64::INFINITY, f64::min), xs().fold(f64::NEG_INFINITY, f64::max));
        let span = if max > min { max - min } else { 1.0 };
        let ys = || points().map(|(_, y)| *y);
        let range = (ys().fold(0.0, f64::min), ys().fold(0.0, f64::max));
        let mut frame = Frame::new(&self.title, range, label);
        let (left, right) = frame.sides();
        let x = |value: f64| left + (value - min) / span * (right - left);
        for (value, label) in &self.x_ticks {
            frame.x_tick(x(*value), label);
        }
        for line in &self.lines {
            let mut path = String::new();
            for (index, (px, py)) in line.points.iter().enumerate() {
                let letter = if index == 0 { 'M' } else { 'L' };
                let _ = write!(path, "{letter}{:.1} {:.1}", x(*px), frame.y(*py));
            }
            // A single point is a path of zero length; round caps make it visible.
            if line.points.len() == 1 {
                path.push_str("h0");
            }
            let dashed = if line.colour >= COLOURS { " dashed" } else { "" };
            let (colour, name) = (line.colour % COLOURS, escape_html(&line.name));
            frame.put(format_args!(
                "<path class=\"line{dashed}\" stroke=\"var(--c{colour})\" d=\"{path}\"><title>{name}</title></path>"
            ));
        }
        Some(frame.end(&self.x_label))
    }
}

/// The frame of a plot: an `<svg>` element with a y axis, to which marks are added.
#[derive(Clone, Debug)]
pub struct Frame {
    out: String,
    left: f64,
    low: f64,
    high: f64,
}

impl Frame {
    /// A frame for values in this range, which includes zero. `label` formats the values of the axis.
    #[must_use]
    pub fn new(title: &str, (min, max): (f64, f64), label: impl Fn(f64) -> String) -> Self {
        let all = ticks(max.max(-min));
        let last =
            |bound: f64| all.iter().rposition(|value| *value < bound * (1.0 - 1e-9)).map_or(0, |at| at + 1);
        let above = &all[..=last(max).max(usize::from(min >= 0.0))];
        let below = all[1..=last(-min)].iter().rev().map(|value| -value);
        let values: Vec<f64> = below.chain(above.iter().copied()).collect();
        let labels: Vec<String> = values.iter().map(|value| label(*value)).collect();
        let longest = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
        let (low, high) = (values[0], values[values.len() - 1]);
        let left = (10.0 + 7.0 * longest as f64).clamp(46.0, WIDTH / 2.0);
        let title = escape_html(title);
        let out = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">");
        let mut frame = Self { out, left, low, high };
        for (value, label) in values.into_iter().zip(labels) {
            let at = frame.y(value);
            let class = if value == 0.0 { "axis" } else { "grid" };
            frame.put(format_args!("<path class=\"{class}\" d=\"M{left} {at:.1}H{:.1}\"/>", WIDTH - RIGHT));
            frame.text("ey", left - 5.0, at + 4.0, &label);
        }
        frame
    }

    /// The left and the right end of the x axis.
    #[must_use]
    pub const fn sides(&self) -> (f64, f64) {
        (self.left, WIDTH - RIGHT)
    }

    /// The height at which a value stands.
    #[must_use]
    pub fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - (value - self.low) / (self.high - self.low) * (HEIGHT - BOTTOM - TOP)
    }

    /// Adds an element.
    pub fn put(&mut self, element: impl Display) {
        let _ = write!(self.out, "{element}");
    }

    fn text(&mut self, class: &str, x: f64, y: f64, content: &str) {
        let content = escape_html(content);
        self.put(format_args!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{content}</text>"));
    }

    /// Adds a label below the x axis, without a mark.
    pub fn x_name(&mut self, at: f64, name: &str) {
        self.text("ex", at, HEIGHT - BOTTOM + 17.0, name);
    }

    fn x_tick(&mut self, at: f64, label: &str) {
        self.put(format_args!("<path class=\"axis\" d=\"M{at:.1} {:.1}v4\"/>", HEIGHT - BOTTOM));
        self.x_name(at, label);
    }

    /// The whole element, with the label of the x axis.
    #[must_use]
    pub fn end(mut self, x_label: &str) -> String {
        let (left, right) = self.sides();
        self.text("ex label", (left + right) / 2.0, HEIGHT - 6.0, x_label);
        self.out.push_str("</svg>");
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_everything() {
        assert_eq!(ticks(9_300.0), [0.0, 2_000.0, 4_000.0, 6_000.0, 8_000.0, 10_000.0]);
        assert_eq!(ticks(1.0), [0.0, 0.2, 0.4, 0.600_000_000_000_000_1, 0.8, 1.0]);
        for max in [1e-6, 0.3, 7.0, 11.0, 123.0, 5_500.0, 1e12] {
            let ticks = ticks(max);
            assert!(
                (3..=8).contains(&ticks.len()) && *ticks.last().unwrap() >= max * (1.0 - 1e-9),
                "{max}: {ticks:?}"
            );
        }
        assert_eq!(ticks(0.0), [0.0, 1.0]);
        assert_eq!(ticks(f64::NAN), [0.0, 1.0]);
    }

    #[test]
    fn text_cannot_leave_its_element() {
        let line = Line { name: "</title><script>".into(), colour: 9, points: vec![(0.0, 1.0), (1.0, 2.0)] };
        let plot = LinePlot { title: "\"".into(), lines: vec![line], ..LinePlot::default() };
        let svg = plot.svg(|value| value.to_string()).unwrap();
        assert!(
            !svg.contains("<script") && svg.contains("aria-label=\"&quot;\"") && svg.contains("line dashed")
        );
    }

    #[test]
    fn points_stand_where_they_belong() {
        let plot = |points| LinePlot {
            lines: vec![Line { name: "run".into(), colour: 0, points }],
            ..LinePlot::default()
        };
        let svg = |points| plot(points).svg(|value| value.to_string()).unwrap();
        // From the origin to the top right corner of the frame.
        let up = svg(vec![(0.0, 0.0), (10.0, 100.0)]);
        assert!(up.contains("d=\"M46.0 190.0L388.0 12.0\""), "{up}");
        // Zero is in the middle.
        let across = svg(vec![(0.0, -100.0), (10.0, 100.0)]);
        assert!(
            across.contains("d=\"M46.0 190.0L388.0 12.0\"") && across.contains("M46 101.0H388.0"),
            "{across}"
        );
        let below = svg(vec![(0.0, 0.0), (10.0, -100.0)]);
        assert!(below.contains("d=\"M46.0 12.0L388.0 190.0\""), "{below}");
        assert!(LinePlot::default().svg(|value| value.to_string()).is_none());
    }
}
