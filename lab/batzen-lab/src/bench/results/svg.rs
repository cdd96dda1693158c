//! Plots as SVG text: lines, grouped columns, stacked rows.
//!
//! Colours come from the page (`var(--c0)` to `var(--c7)`), so that a plot suits light and dark backgrounds.

use std::fmt::Write as _;

use batzen_cli_support::numbers::{number, short};

/// Number of colours. Further lines repeat them, dashed.
pub const COLOURS: usize = 8;

/// Width of line and column plots in user units: a phone in portrait shows them at their natural size.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 40.0;

/// Text for HTML and SVG, in elements and in quoted attributes.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Characters that XML does not allow.
            c if c.is_control() && !matches!(c, '\n' | '\t') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

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

/// A plot with lines. The y axis begins at zero.
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

fn open(out: &mut String, width: f64, height: f64, title: &str) {
    let title = escape(title);
    let _ = write!(out, "<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">");
}

fn text(out: &mut String, class: &str, x: f64, y: f64, content: &str) {
    let _ = write!(out, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(content));
}

fn y_axis(out: &mut String, values: &[f64], label: fn(f64) -> String) -> impl Fn(f64) -> f64 + use<> {
    let top = values.last().copied().unwrap_or(1.0);
    let y = move |value: f64| HEIGHT - BOTTOM - value / top * (HEIGHT - BOTTOM - TOP);
    for value in values {
        let at = y(*value);
        let class = if *value == 0.0 { "axis" } else { "grid" };
        let _ = write!(out, "<path class=\"{class}\" d=\"M{LEFT} {at:.1}H{:.1}\"/>", WIDTH - RIGHT);
        text(out, "ey", LEFT - 5.0, at + 4.0, &label(*value));
    }
    y
}

impl LinePlot {
    /// The plot as an `<svg>` element; `None` if there is nothing to show.
    #[must_use]
    pub fn svg(&self) -> Option<String> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        points().next()?;
        let xs = || points().map(|(x, _)| *x).chain(self.x_ticks.iter().map(|(x, _)| *x));
        let (min, max) = (xs().fold(f64::INFINITY, f64::min), xs().fold(f64::NEG_INFINITY, f64::max));
        let span = if max > min { max - min } else { 1.0 };
        let x = |value: f64| LEFT + (value - min) / span * (WIDTH - LEFT - RIGHT);
        let mut out = String::new();
        open(&mut out, WIDTH, HEIGHT, &self.title);
        let y = y_axis(&mut out, &ticks(points().map(|(_, y)| *y).fold(0.0, f64::max)), short);
        for (value, label) in &self.x_ticks {
            let at = x(*value);
            let _ = write!(out, "<path class=\"axis\" d=\"M{at:.1} {:.1}v4\"/>", HEIGHT - BOTTOM);
            text(&mut out, "ex", at, HEIGHT - BOTTOM + 17.0, label);
        }
        text(&mut out, "ex label", (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 6.0, &self.x_label);
        for line in &self.lines {
            let mut path = String::new();
            for (index, (px, py)) in line.points.iter().enumerate() {
                let _ = write!(path, "{}{:.1} {:.1}", if index == 0 { 'M' } else { 'L' }, x(*px), y(*py));
            }
            // A single point is a path of zero length; round caps make it visible.
            if line.points.len() == 1 {
                path.push_str("h0");
            }
            let dashed = if line.colour >= COLOURS { " dashed" } else { "" };
            let _ = write!(
                out,
                "<path class=\"line{dashed}\" stroke=\"var(--c{})\" d=\"{path}\"><title>{}</title></path>",
                line.colour % COLOURS,
                escape(&line.name)
            );
        }
        out.push_str("</svg>");
        Some(out)
    }
}

/// Groups of columns, with one column per run.
#[derive(Clone, Debug, Default)]
pub struct ColumnPlot {
    /// A description for readers who cannot see the plot.
    pub title: String,
    /// The label below the x axis.
    pub x_label: String,
    /// Name of each group.
    pub groups: Vec<String>,
    /// Name, colour, and share (0 to 1) in each group.
    pub series: Vec<(String, usize, Vec<f64>)>,
}

impl ColumnPlot {
    /// The plot as an `<svg>` element; `None` if there is nothing to show.
    #[must_use]
    pub fn svg(&self) -> Option<String> {
        if self.groups.is_empty() || self.series.is_empty() {
            return None;
        }
        let highest = self.series.iter().flat_map(|(_, _, shares)| shares).copied().fold(0.0, f64::max);
        let mut out = String::new();
        open(&mut out, WIDTH, HEIGHT, &self.title);
        let y = y_axis(&mut out, &ticks(highest * 100.0), |percent| format!("{}%", short(percent)));
        let group_width = (WIDTH - LEFT - RIGHT) / self.groups.len() as f64;
        let column_width = (group_width * 0.8 / self.series.len() as f64).min(40.0);
        for (index, group) in self.groups.iter().enumerate() {
            let middle = LEFT + group_width * (index as f64 + 0.5);
            text(&mut out, "ex", middle, HEIGHT - BOTTOM + 17.0, group);
            let mut left = middle - column_width * self.series.len() as f64 / 2.0;
            for (name, colour, shares) in &self.series {
                let percent = shares.get(index).copied().unwrap_or(0.0) * 100.0;
                let top = y(percent);
                let _ = write!(
                    out,
                    "<rect fill=\"var(--c{})\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{column_width:.1}\" \
                     height=\"{:.1}\"><title>{}: {}%</title></rect>",
                    colour % COLOURS,
                    HEIGHT - BOTTOM - top,
                    escape(name),
                    number(percent)
                );
                left += column_width;
            }
        }
        text(&mut out, "ex label", (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 6.0, &self.x_label);
        out.push_str("</svg>");
        Some(out)
    }
}

/// A row of a [`RowPlot`].
#[derive(Clone, Debug)]
pub struct Row {
    /// The text above the row.
    pub label: String,
    /// The text to the right of the label.
    pub value: String,
    /// Name, colour and length of each part, from the left.
    pub parts: Vec<(String, usize, f64)>,
    /// The position of a mark across the row.
    pub mark: Option<f64>,
}

/// Rows of stacked parts, all on one scale.
#[derive(Clone, Debug, Default)]
pub struct RowPlot {
    /// The unit of the parts.
    pub unit: String,
    /// The rows.
    pub rows: Vec<Row>,
    /// The value at the right end; `None`: the largest row's.
    pub max: Option<f64>,
}

impl RowPlot {
    /// The plot: for each row a line of text and a bar as wide as the page allows. `None` if there is nothing
    /// to show.
    #[must_use]
    pub fn html(&self) -> Option<String> {
        /// Width of a bar in user units; bars stretch.
        const BAR: f64 = 1_000.0;
        if self.rows.is_empty() {
            return None;
        }
        let length = |row: &Row| {
            row.parts.iter().map(|(_, _, value)| *value).sum::<f64>().max(row.mark.unwrap_or(0.0))
        };
        let max = self.max.unwrap_or_else(|| self.rows.iter().map(length).fold(0.0, f64::max));
        let scale = if max > 0.0 { BAR / max } else { 0.0 };
        let mut out = String::new();
        for row in &self.rows {
            let (label, value) = (escape(&row.label), escape(&row.value));
            let _ = write!(
                out,
                "<div class=\"row\"><span>{label}</span><b>{value}</b></div><svg class=\"bar\" viewBox=\"0 0 {BAR} 18\" \
                 preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{label}: {value}\">\
                 <rect class=\"rest\" x=\"0\" y=\"3\" width=\"{BAR}\" height=\"12\"/>"
            );
            let mut left = 0.0;
            for (name, colour, value) in &row.parts {
                let width = (value * scale).clamp(0.0, BAR - left);
                let _ = write!(
                    out,
                    "<rect fill=\"var(--c{})\" x=\"{left:.1}\" y=\"3\" width=\"{width:.1}\" height=\"12\"><title>{}: {} \
                     {}</title></rect>",
                    colour % COLOURS,
                    escape(name),
                    number(*value),
                    escape(&self.unit)
                );
                left += width;
            }
            if let Some(mark) = row.mark {
                let at = (mark * scale).clamp(1.0, BAR - 1.0);
                let _ = write!(out, "<path class=\"mark\" d=\"M{at:.1} 0v18\"/>");
            }
            out.push_str("</svg>");
        }
        Some(out)
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
        assert_eq!(escape("a<b>&\"'\u{7}"), "a&lt;b&gt;&amp;&quot;&#39;\u{fffd}");
        let line = Line { name: "</title><script>".into(), colour: 9, points: vec![(0.0, 1.0), (1.0, 2.0)] };
        let plot = LinePlot { title: "\"".into(), lines: vec![line], ..LinePlot::default() };
        let svg = plot.svg().unwrap();
        assert!(
            !svg.contains("<script") && svg.contains("aria-label=\"&quot;\"") && svg.contains("line dashed")
        );
    }

    #[test]
    fn points_stand_where_they_belong() {
        let line = Line { name: "run".into(), colour: 0, points: vec![(0.0, 0.0), (10.0, 100.0)] };
        let plot = LinePlot { lines: vec![line], ..LinePlot::default() };
        let svg = plot.svg().unwrap();
        // From the origin to the top right corner of the frame.
        assert!(svg.contains("d=\"M46.0 190.0L388.0 12.0\""), "{svg}");
        assert!(LinePlot::default().svg().is_none());
        let plot = ColumnPlot {
            groups: vec!["≤ 8".into(), "more".into()],
            series: vec![("run".into(), 1, vec![0.25, 0.75])],
            ..ColumnPlot::default()
        };
        let svg = plot.svg().unwrap();
        assert!(svg.contains("run: 25.0%") && svg.contains("run: 75.0%"), "{svg}");
        let row = Row {
            label: "withdraw".into(),
            value: "0.75".into(),
            parts: vec![("cpu".into(), 0, 75.0)],
            mark: Some(100.0),
        };
        let plot = RowPlot { unit: "µs".into(), rows: vec![row], ..RowPlot::default() };
        let html = plot.html().unwrap();
        assert!(html.contains("width=\"750.0\" height=\"12\"><title>cpu: 75.0 µs"), "{html}");
    }
}
