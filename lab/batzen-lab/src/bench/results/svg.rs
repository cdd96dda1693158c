//! Plots that only reports have: grouped columns, stacked rows.

use std::fmt::Write as _;

use batzen_cli_support::numbers::{number, short};
use batzen_http::escape_html;
use batzen_http::plot::{COLOURS, Frame};

/// Groups of columns, with one column per run.
#[derive(Clone, Debug, Default)]
pub(crate) struct ColumnPlot {
    /// A description for readers who cannot see the plot.
    pub(crate) title: String,
    /// The label below the x axis.
    pub(crate) x_label: String,
    /// Name of each group.
    pub(crate) groups: Vec<String>,
    /// Name, colour, and share (0 to 1) in each group.
    pub(crate) series: Vec<(String, usize, Vec<f64>)>,
}

impl ColumnPlot {
    /// The plot as an `<svg>` element; `None` if there is nothing to show.
    pub(crate) fn svg(&self) -> Option<String> {
        if self.groups.is_empty() || self.series.is_empty() {
            return None;
        }
        let highest = self.series.iter().flat_map(|(_, _, shares)| shares).copied().fold(0.0, f64::max);
        let label = |percent| format!("{}%", short(percent));
        let mut frame = Frame::new(&self.title, (0.0, highest * 100.0), label);
        let (left_side, right_side) = frame.sides();
        let group_width = (right_side - left_side) / self.groups.len() as f64;
        let column_width = (group_width * 0.8 / self.series.len() as f64).min(40.0);
        for (index, group) in self.groups.iter().enumerate() {
            let middle = left_side + group_width * (index as f64 + 0.5);
            frame.x_name(middle, group);
            let mut left = middle - column_width * self.series.len() as f64 / 2.0;
            for (name, colour, shares) in &self.series {
                let percent = shares.get(index).copied().unwrap_or(0.0) * 100.0;
                let (top, bottom) = (frame.y(percent), frame.y(0.0));
                frame.put(format_args!(
                    "<rect fill=\"var(--c{})\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{column_width:.1}\" \
                     height=\"{:.1}\"><title>{}: {}%</title></rect>",
                    colour % COLOURS,
                    bottom - top,
                    escape_html(name),
                    number(percent)
                ));
                left += column_width;
            }
        }
        Some(frame.end(&self.x_label))
    }
}

/// A row of a [`RowPlot`].
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// The text above the row.
    pub(crate) label: String,
    /// The text to the right of the label.
    pub(crate) value: String,
    /// Name, colour and length of each part, from the left.
    pub(crate) parts: Vec<(String, usize, f64)>,
    /// The position of a mark across the row.
    pub(crate) mark: Option<f64>,
}

/// Rows of stacked parts, all on one scale.
#[derive(Clone, Debug, Default)]
pub(crate) struct RowPlot {
    /// The unit of the parts.
    pub(crate) unit: String,
    pub(crate) rows: Vec<Row>,
    /// The value at the right end; `None`: the largest row's.
    pub(crate) max: Option<f64>,
}

impl RowPlot {
    /// The plot: for each row a line of text and a bar as wide as the page allows. `None` if there is nothing
    /// to show.
    pub(crate) fn html(&self) -> Option<String> {
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
            let (label, value) = (escape_html(&row.label), escape_html(&row.value));
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
                    escape_html(name),
                    number(*value),
                    escape_html(&self.unit)
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
    fn columns_and_rows_have_their_size() {
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
