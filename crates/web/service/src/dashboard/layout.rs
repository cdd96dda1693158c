//! The layout of a dashboard: sections of tiles, charts and tables, each with the metrics that it comes from.
//! A section is left out if it needs a metric that the service does not have.

use serde_json::Value as Json;

use Bad::AboveShare;
use Lines::{Each, Named};
use Unit::{ByteRate, Bytes, Count, Money, Percent, Rate, Time, YesNo};
use Value::{Mean, Now, PerSecond, Quantile, Ratio, Sum, WorkFailed, WorkRate, WorkTime};

use super::reading::Reading;

/// The dashboard of a service.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Its sections, in order.
    pub sections: &'static [&'static Section],
    /// Operations that are answered at once. Others may be long polls, whose times and counts say nothing about the
    /// load.
    pub work: &'static [&'static str],
}

impl Layout {
    /// The metrics that the page is computed from. A name that ends with `_` stands for all that begin with it.
    #[must_use]
    pub fn metrics(&self) -> Vec<String> {
        let page = ["batzen_build_info", "batzen_currency_info", "process_start_time_seconds"];
        let needs = self.sections.iter().map(|section| section.needs);
        let sections = self.sections.iter().flat_map(|section| section.metrics());
        page.into_iter().chain(needs).map(str::to_owned).chain(sections).collect()
    }
}

/// The form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Events per second.
    Rate,
    /// A number.
    Count,
    /// Bytes.
    Bytes,
    /// Bytes per second.
    ByteRate,
    /// An amount in the service's currency.
    Money,
    /// A fraction, shown as a percentage.
    Percent,
    /// Zero is no.
    YesNo,
    /// Seconds.
    Time,
}

impl Unit {
    /// Its name in the JSON that the page reads.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Rate => "rate",
            Count => "count",
            Bytes => "bytes",
            ByteRate => "byteRate",
            Money => "money",
            Percent => "percent",
            YesNo => "yes",
            Time => "time",
        }
    }
}

/// Samples of one metric: all that have these labels.
#[derive(Clone, Copy, Debug)]
pub struct Of(pub &'static str, pub &'static [(&'static str, &'static str)]);

/// A value that is computed from one reading or from two.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// The sum of the samples.
    Now(Of),
    /// The sum of several metrics.
    Sum(&'static [&'static str]),
    /// One sum as a fraction of another.
    Ratio(&'static str, &'static str),
    /// The growth per second of the sum of the samples.
    PerSecond(Of),
    /// The mean of what a histogram recorded.
    Mean(&'static str),
    /// A quantile of what a histogram recorded.
    Quantile(Of, f64),
    /// Operations completed per second, without long polls.
    WorkRate,
    /// A quantile of their response times.
    WorkTime(f64),
    /// Number of them that failed since the start.
    WorkFailed,
}

/// The values that need attention.
#[derive(Clone, Copy, Debug)]
pub enum Bad {
    /// None.
    Never,
    /// Above zero.
    Positive,
    /// Below zero.
    Negative,
    /// Above this limit.
    Above(f64),
    /// Below this limit.
    Below(f64),
    /// Above this share of another metric.
    AboveShare(f64, &'static str),
}

/// One number.
#[derive(Clone, Copy, Debug)]
pub struct Tile {
    pub(super) id: &'static str,
    pub(super) label: &'static str,
    pub(super) unit: Unit,
    pub(super) value: Value,
    pub(super) bad: Bad,
}

/// The lines of a chart.
#[derive(Clone, Copy, Debug)]
pub enum Lines {
    /// The named lines.
    Named(&'static [(&'static str, Value)]),
    /// One for each value of a label.
    Each {
        /// The metric that has the label.
        metric: &'static str,
        /// The label.
        label: &'static str,
        /// The value of a line.
        value: Value,
        /// The label values that have a line.
        only: Only,
    },
    /// The label values with the largest samples.
    Largest(&'static str, &'static str, usize),
}

/// The label values that have a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// All.
    All,
    /// Operations that count as work, see [`Layout::work`].
    Work,
    /// All but one.
    AllBut(&'static str),
}

/// Lines over time.
#[derive(Clone, Copy, Debug)]
pub struct Chart {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    pub(super) caption: &'static str,
    pub(super) unit: Unit,
    pub(super) lines: Lines,
}

/// Other parts of a section.
#[derive(Clone, Copy, Debug)]
pub enum Extra {
    /// None.
    None,
    /// Tiles for gauges of amounts that no tile of the section shows, labelled with their help. None may be negative.
    Amounts {
        /// The start of their names.
        prefix: &'static str,
        /// A gauge that must be zero.
        zero: &'static str,
    },
    /// A table.
    Table {
        /// The metrics that it is made of. A name that ends with `_` stands for all that begin with it.
        metrics: &'static [&'static str],
        /// Makes it.
        make: fn(&Reading) -> Table,
    },
}

/// A table in the form that the page reads.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its name for programs.
    pub id: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The text in place of an empty table.
    pub empty: &'static str,
    /// Title of each column, and the unit of numbers.
    pub columns: Vec<(&'static str, Option<Unit>)>,
    /// The cells.
    pub rows: Vec<Vec<Json>>,
}

/// A part of the page.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Its name for programs.
    pub id: &'static str,
    /// Its title.
    pub title: &'static str,
    /// The start of a metric's name. Without such a metric, there is no section.
    pub needs: &'static str,
    /// Its numbers.
    pub tiles: &'static [Tile],
    /// Its charts.
    pub charts: &'static [Chart],
    /// Anything else.
    pub extra: Extra,
}

/// A number.
#[must_use]
pub const fn tile(id: &'static str, label: &'static str, unit: Unit, value: Value, bad: Bad) -> Tile {
    Tile { id, label, unit, value, bad }
}

/// A chart.
#[must_use]
pub const fn chart(
    id: &'static str,
    title: &'static str,
    caption: &'static str,
    unit: Unit,
    lines: Lines,
) -> Chart {
    Chart { id, title, caption, unit, lines }
}

/// The sum of a metric's samples.
#[must_use]
pub const fn gauge(name: &'static str) -> Value {
    Now(Of(name, &[]))
}

/// Returns the growth per second of a metric.
#[must_use]
pub const fn rate(name: &'static str) -> Value {
    PerSecond(Of(name, &[]))
}

/// A quantile of what a histogram recorded.
#[must_use]
pub const fn quantile(name: &'static str, quantile: f64) -> Value {
    Quantile(Of(name, &[]), quantile)
}

/// A line for each value of a label.
#[must_use]
pub const fn each(metric: &'static str, label: &'static str, value: Value) -> Lines {
    Each { metric, label, value, only: Only::All }
}

/// The median and the 99th percentile of a histogram.
#[macro_export]
macro_rules! spread {
    ($name:literal) => {
        $crate::dashboard::Lines::Named(&[
            ("median", $crate::dashboard::quantile($name, 0.5)),
            ("99th percentile", $crate::dashboard::quantile($name, 0.99)),
        ])
    };
}

impl Value {
    /// The metrics that it is computed from.
    pub(super) fn metrics(&self) -> Vec<String> {
        match self {
            Now(Of(name, _)) | PerSecond(Of(name, _)) => vec![(*name).to_owned()],
            Sum(names) => names.iter().map(|name| (*name).to_owned()).collect(),
            Ratio(part, whole) => vec![(*part).to_owned(), (*whole).to_owned()],
            Mean(name) => vec![format!("{name}_sum"), format!("{name}_count")],
            Quantile(Of(name, _), _) => vec![format!("{name}_bucket")],
            WorkRate | WorkFailed => vec!["batzen_operations_total".to_owned()],
            WorkTime(_) => vec!["batzen_operation_seconds_bucket".to_owned()],
        }
    }
}

impl Lines {
    /// The metrics that they are computed from.
    pub(super) fn metrics(&self) -> Vec<String> {
        match self {
            Named(lines) => lines.iter().flat_map(|(_, value)| value.metrics()).collect(),
            Each { metric, value, .. } => [vec![(*metric).to_owned()], value.metrics()].concat(),
            Self::Largest(metric, ..) => vec![(*metric).to_owned()],
        }
    }
}

impl Section {
    /// The metrics that it is computed from. A name that ends with `_` stands for all that begin with it.
    pub(super) fn metrics(&self) -> Vec<String> {
        let mut names: Vec<String> = self.tiles.iter().flat_map(|tile| tile.value.metrics()).collect();
        for tile in self.tiles {
            if let AboveShare(_, of) = tile.bad {
                names.push(of.to_owned());
            }
        }
        names.extend(self.charts.iter().flat_map(|chart| chart.lines.metrics()));
        match self.extra {
            Extra::None => {}
            Extra::Amounts { prefix, .. } => names.push(prefix.to_owned()),
            Extra::Table { metrics, .. } => names.extend(metrics.iter().map(|name| (*name).to_owned())),
        }
        names
    }
}
