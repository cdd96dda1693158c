//! The text forms of a series and of a latency distribution.

use std::fmt::Write as _;
use std::path::Path;

use hdrhistogram::Histogram;

use super::{PercentilePoint, ResultError, Sample};

/// Names of the columns of `series.csv`, in order.
pub(super) const COLUMNS: [&str; 9] = [
    "t_s",
    "ops_per_s",
    "p50_us",
    "p99_us",
    "batch_size",
    "server_cores_busy",
    "client_cores_busy",
    "queue_depth",
    "server_stolen_share",
];
/// The columns that existed from the beginning; a file of an earlier version may end after any later one.
const COLUMNS_MIN: usize = 8;

pub(super) fn series_csv(series: &[Sample]) -> String {
    let mut text = COLUMNS.join(",");
    text.push('\n');
    for sample in series {
        let optional = [
            sample.p50_us,
            sample.p99_us,
            sample.batch_size,
            sample.server_cores_busy,
            sample.client_cores_busy,
            sample.queue_depth,
            sample.server_stolen_share,
        ];
        let _ = write!(text, "{},{}", rounded(sample.t_s), rounded(sample.ops_per_s));
        for value in optional {
            text.push(',');
            if let Some(value) = value {
                let _ = write!(text, "{}", rounded(value));
            }
        }
        text.push('\n');
    }
    text
}

/// Three decimals are enough for every column.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

pub(super) fn parse_series(path: &Path, text: &str) -> Result<Vec<Sample>, ResultError> {
    let wrong = |line: usize, what: String| ResultError::Line { path: path.to_owned(), line, what };
    let mut lines = text.lines().enumerate();
    let head = lines.next().map_or("", |(_, head)| head);
    let count = head.split(',').count();
    if !(COLUMNS_MIN..=COLUMNS.len()).contains(&count) || head.trim() != COLUMNS[..count].join(",") {
        return Err(wrong(1, format!("the columns must be {}", COLUMNS.join(","))));
    }
    let mut series = Vec::new();
    for (index, line) in lines {
        let mut values = [None; COLUMNS.len()];
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        if cells.len() != count {
            return Err(wrong(index + 1, format!("{} cells instead of {count}", cells.len())));
        }
        for ((value, cell), name) in values.iter_mut().zip(&cells).zip(COLUMNS) {
            if !cell.is_empty() {
                let number = cell.parse::<f64>().ok().filter(|number| number.is_finite());
                let number =
                    number.ok_or_else(|| wrong(index + 1, format!("{name} is not a number: {cell:?}")))?;
                *value = Some(number);
            }
        }
        let [
            t_s,
            ops_per_s,
            p50_us,
            p99_us,
            batch_size,
            server_cores_busy,
            client_cores_busy,
            queue_depth,
            server_stolen_share,
        ] = values;
        let (Some(t_s), Some(ops_per_s)) = (t_s, ops_per_s) else {
            return Err(wrong(index + 1, "t_s and ops_per_s must be there".into()));
        };
        series.push(Sample {
            t_s,
            ops_per_s,
            p50_us,
            p99_us,
            batch_size,
            server_cores_busy,
            client_cores_busy,
            queue_depth,
            server_stolen_share,
        });
    }
    Ok(series)
}

/// Number of points for each halving of the distance to 100 %: enough for a smooth curve.
const POINTS_PER_HALVING: u32 = 5;

/// The points of a histogram of microseconds that are worth plotting.
pub(crate) fn percentile_points(histogram: &Histogram<u64>) -> Vec<PercentilePoint> {
    let mut points: Vec<PercentilePoint> = Vec::new();
    for step in histogram.iter_quantiles(POINTS_PER_HALVING) {
        let value_us = step.value_iterated_to() as f64;
        let quantile = step.quantile_iterated_to();
        let count = histogram.count_between(0, step.value_iterated_to());
        points.push(PercentilePoint { value_us, quantile, count });
    }
    points
}

pub(super) fn latency_hgrm(points: &[PercentilePoint]) -> String {
    let mut text =
        format!("{:>12} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    for point in points {
        let _ = write!(text, "{:>12.3} {:>14.12} {:>10}", point.value_us, point.quantile, point.count);
        if point.quantile < 1.0 {
            let _ = write!(text, " {:>14.2}", 1.0 / (1.0 - point.quantile));
        }
        text.push('\n');
    }
    if let Some(last) = points.last() {
        let _ = writeln!(text, "#[Max     = {:>12.3}, Total count    = {:>12}]", last.value_us, last.count);
    }
    text
}

pub(super) fn parse_latency(path: &Path, text: &str) -> Result<Vec<PercentilePoint>, ResultError> {
    let wrong = |line: usize, what: String| ResultError::Line { path: path.to_owned(), line, what };
    let head = text.lines().next().unwrap_or_default();
    if head.split_whitespace().next() != Some("Value") {
        return Err(wrong(1, "not a latency distribution: the first column must be Value".into()));
    }
    let mut points = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if index == 0 || line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let mut cells = line.split_whitespace();
        let point = (|| {
            let value_us = cells.next()?.parse().ok().filter(|value: &f64| value.is_finite())?;
            let quantile = cells.next()?.parse().ok().filter(|quantile| (0.0..=1.0).contains(quantile))?;
            let count = cells.next()?.parse().ok()?;
            // The fourth column follows from the second.
            let is_rest =
                cells.next().is_none_or(|rest| rest.parse::<f64>().is_ok()) && cells.next().is_none();
            is_rest.then_some(PercentilePoint { value_us, quantile, count })
        })();
        let what = || format!("not a value, a percentile and a count: {line:?}");
        points.push(point.ok_or_else(|| wrong(index + 1, what()))?);
    }
    Ok(points)
}
