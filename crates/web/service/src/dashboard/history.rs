//! The last hour of the dashboard's data, in rings of a fixed size.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use serde_json::{Value as Json, json};

use super::layout::{Bad, Chart, Extra, Layout, Lines, Of, Only, Section, Table, Tile, Unit, Value};
use super::reading::{Buckets, Reading};

/// Seconds between two readings.
pub(super) const INTERVAL_S: u64 = 3;

/// Number of readings back that a tile's rates and quantiles go: with only one they would jump.
const TILE_READINGS: usize = 5;

/// Lines of one chart; more are left out.
const LINES_MAX: usize = 32;

/// Rows of one table; more are left out.
const ROWS_MAX: usize = 64;

/// Tiles for metrics that the layout does not name; more are left out.
const OTHER_TILES_MAX: usize = 16;

/// The ranges that a page may request: seconds shown, and readings per point. The rates and quantiles of a
/// point cover its whole time, so each range has its own points.
const RANGES: [(u64, u64); 3] = [(300, 1), (900, 3), (3600, 10)];

/// One line of a chart: a value for each moment of the range, NaN where there is none.
struct Line {
    name: String,
    points: VecDeque<f64>,
}

/// The points of one range.
struct Range {
    seconds: u64,
    /// Readings per point.
    every: u64,
    points_max: usize,
    /// The reading at the last point.
    last: Option<Arc<Reading>>,
    /// The times of the points, in seconds since 1970.
    times: VecDeque<f64>,
    /// The lines of each chart, in the layout's order.
    charts: Vec<Vec<Line>>,
}

impl Range {
    fn new(layout: &Layout, (seconds, every): (u64, u64)) -> Self {
        let points_max = usize::try_from(seconds / (every * INTERVAL_S)).expect("a small constant");
        let charts = layout.charts().map(|_| Vec::new()).collect();
        Self { seconds, every, points_max, last: None, times: VecDeque::new(), charts }
    }

    fn push(&mut self, layout: &Layout, now: &Arc<Reading>) {
        let before = self.last.replace(Arc::clone(now));
        if self.times.len() == self.points_max {
            self.times.pop_front();
            for line in self.charts.iter_mut().flatten() {
                line.points.pop_front();
            }
        }
        self.times.push_back(now.unix_s);
        let length = self.times.len();
        for (chart, lines) in layout.charts().zip(&mut self.charts) {
            let values = chart.lines.values(layout.work, now, before.as_deref());
            let told: Vec<String> = values.iter().map(|(name, _)| name.clone()).collect();
            for (name, value) in values {
                let line = match lines.iter_mut().position(|line| line.name == name) {
                    Some(at) => &mut lines[at],
                    None if lines.len() == LINES_MAX => continue,
                    None => {
                        lines.push(Line { name, points: VecDeque::new() });
                        lines.last_mut().expect("just pushed")
                    }
                };
                // A new line has no earlier values.
                line.points.resize(length - 1, f64::NAN);
                line.points.push_back(value.unwrap_or(f64::NAN));
            }
            for line in lines.iter_mut() {
                line.points.resize(length, f64::NAN);
            }
            // A line that has ended stays until its last value has left the range.
            lines.retain(|line| told.contains(&line.name) || line.points.iter().any(|value| !value.is_nan()));
        }
    }
}

/// The last hour.
pub(crate) struct History {
    layout: &'static Layout,
    /// The metrics that are kept, by name or by the start of their names.
    wanted: BTreeSet<String>,
    prefixes: Vec<String>,
    /// Readings so far.
    count: u64,
    /// The latest readings, oldest first.
    recent: VecDeque<Arc<Reading>>,
    ranges: [Range; 3],
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("History").field("count", &self.count).finish_non_exhaustive()
    }
}

impl History {
    /// The history of a dashboard.
    pub(crate) fn new(layout: &'static Layout) -> Self {
        let (prefixes, wanted) =
            layout.metrics().into_iter().partition::<Vec<_>, _>(|name| name.ends_with('_'));
        Self {
            layout,
            wanted: wanted.into_iter().collect(),
            prefixes,
            count: 0,
            recent: VecDeque::new(),
            ranges: RANGES.map(|range| Range::new(layout, range)),
        }
    }

    fn is_wanted(&self, name: &str) -> bool {
        self.wanted.contains(name) || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }

    /// Adds the values of a metrics page.
    pub(crate) fn add(&mut self, page: &str, at: Instant, unix_s: f64) {
        let now = Arc::new(Reading::parse(page, at, unix_s, |name| self.is_wanted(name)));
        for range in &mut self.ranges {
            if self.count.is_multiple_of(range.every) {
                range.push(self.layout, &now);
            }
        }
        self.count += 1;
        if self.recent.len() > TILE_READINGS {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
    }

    /// Returns the page's data for a range: the shortest that covers this many seconds.
    pub(crate) fn json(&self, seconds: u64) -> Json {
        let range = self.ranges.iter().find(|range| range.seconds >= seconds).unwrap_or(&self.ranges[2]);
        let Some(now) = self.recent.back() else {
            return json!({ "interval_s": INTERVAL_S, "range_s": range.seconds, "times": [], "sections": [] });
        };
        let before = self.recent.front().filter(|before| !Arc::ptr_eq(before, now));
        let about = |name, label| {
            now.samples(name).first().and_then(|sample| sample.label(label)).unwrap_or_default().to_owned()
        };
        let mut charts = range.charts.iter();
        let mut sections = Vec::new();
        for section in self.layout.sections {
            let lines: Vec<&Vec<Line>> = charts.by_ref().take(section.charts.len()).collect();
            if section.is_of(now) {
                let work = self.layout.work;
                sections.push(section_json(section, work, &lines, now, before.map(AsRef::as_ref)));
            }
        }
        json!({
            "service": about("batzen_build_info", "service"),
            "version": about("batzen_build_info", "version"),
            "currency": about("batzen_currency_info", "currency"),
            "started": now.sum("process_start_time_seconds", &[]),
            "interval_s": INTERVAL_S,
            "range_s": range.seconds,
            "step_s": range.every * INTERVAL_S,
            "at": now.unix_s,
            "times": range.times,
            "sections": sections,
        })
    }
}

fn section_json(
    section: &Section,
    work: &[&str],
    lines: &[&Vec<Line>],
    now: &Reading,
    before: Option<&Reading>,
) -> Json {
    let mut tiles: Vec<TileJson> =
        section.tiles.iter().map(|tile| tile.json(work, now, before)).filter(|tile| tile.is_known).collect();
    let mut table = None;
    match section.extra {
        Extra::None => {}
        Extra::Amounts { prefix, zero } => tiles.extend(other_amounts(section, prefix, zero, now)),
        Extra::Table { make, .. } => table = Some(make(now).json()),
    }
    let charts: Vec<Json> = section
        .charts
        .iter()
        .zip(lines)
        .filter(|(chart, _)| chart.lines.metrics().iter().any(|name| now.has(name)))
        .map(|(chart, lines)| {
            let lines: Vec<Json> = lines
                .iter()
                .map(|line| {
                    let points: Vec<Option<f64>> = line.points.iter().map(|point| short(*point)).collect();
                    json!({ "name": line.name, "points": points })
                })
                .collect();
            json!({
                "id": chart.id, "title": chart.title, "caption": chart.caption, "unit": chart.unit.name(),
                "lines": lines,
            })
        })
        .collect();
    json!({ "id": section.id, "title": section.title, "tiles": tiles, "charts": charts, "table": table })
}

/// A curve shows no more than seven digits; sums of money remain complete.
pub fn short(value: f64) -> Option<f64> {
    if !value.is_finite() {
        return None;
    }
    if value.fract() == 0.0 || value.abs() > 1e5 {
        return Some(value);
    }
    format!("{value:.6e}").parse().ok()
}

/// A tile in the form that the page reads.
#[derive(Serialize)]
struct TileJson {
    id: String,
    label: String,
    unit: &'static str,
    value: Option<f64>,
    bad: bool,
    #[serde(skip)]
    is_known: bool,
}

/// Gauges of amounts that the section does not show, labelled with their help.
fn other_amounts(section: &Section, prefix: &str, zero: &str, now: &Reading) -> Vec<TileJson> {
    let shown = section.metrics();
    let others = now.names(prefix).into_iter().filter(|name| {
        !name.ends_with("_total") && !name.ends_with("_seconds") && !shown.iter().any(|known| known == name)
    });
    let tile = |name: &str| {
        let value = now.sum(name, &[]);
        TileJson {
            id: name.trim_start_matches(prefix).replace('_', "-"),
            label: caption(now.help(name), name),
            unit: Unit::Money.name(),
            value,
            bad: value.is_some_and(|value| value < 0.0 || name == zero && value != 0.0),
            is_known: true,
        }
    };
    others.take(OTHER_TILES_MAX).map(tile).collect()
}

/// A metric's help as a label, or its name if it has no help.
pub fn caption(help: &str, name: &str) -> String {
    let text = if help.is_empty() { name } else { help };
    let text = text.split([';', '.']).next().unwrap_or(text).trim();
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

impl Table {
    fn json(&self) -> Json {
        let column =
            |(title, unit): &(&str, Option<Unit>)| json!({ "title": title, "unit": unit.map(Unit::name) });
        let columns: Vec<Json> = self.columns.iter().map(column).collect();
        let rows = &self.rows[..self.rows.len().min(ROWS_MAX)];
        json!({ "id": self.id, "title": self.title, "empty": self.empty, "columns": columns, "rows": rows })
    }
}

impl Layout {
    fn charts(&self) -> impl Iterator<Item = &'static Chart> + use<> {
        self.sections.iter().flat_map(|section| section.charts)
    }
}

impl Section {
    /// Returns whether the service has the metrics that it shows.
    fn is_of(&self, now: &Reading) -> bool {
        if self.needs.ends_with('_') { !now.names(self.needs).is_empty() } else { now.has(self.needs) }
    }
}

impl Tile {
    fn json(&self, work: &[&str], now: &Reading, before: Option<&Reading>) -> TileJson {
        let value = self.value.of(work, now, before, None);
        let is_bad = |value: f64| match self.bad {
            Bad::Never => false,
            Bad::Positive => value > 0.0,
            Bad::Negative => value < 0.0,
            Bad::Above(limit) => value > limit,
            Bad::Below(limit) => value < limit,
            Bad::AboveShare(share, of) => now.sum(of, &[]).is_some_and(|whole| value > share * whole),
        };
        TileJson {
            id: self.id.to_owned(),
            label: self.label.to_owned(),
            unit: self.unit.name(),
            value: value.and_then(short),
            bad: value.is_some_and(is_bad),
            // A rate needs two readings, so its tile appears before it has a value.
            is_known: self.value.metrics().iter().any(|name| now.has(name)),
        }
    }
}

impl Lines {
    fn values(&self, work: &[&str], now: &Reading, before: Option<&Reading>) -> Vec<(String, Option<f64>)> {
        match self {
            Self::Named(lines) => lines
                .iter()
                .filter(|(_, value)| value.metrics().iter().any(|name| now.has(name)))
                .map(|(name, value)| ((*name).to_owned(), value.of(work, now, before, None)))
                .collect(),
            Self::Each { metric, label, value, only } => now
                .label_values(metric, label)
                .into_iter()
                .filter(|text| match only {
                    Only::All => true,
                    Only::Work => work.contains(text),
                    Only::AllBut(other) => text != other,
                })
                .map(|text| (text.to_owned(), value.of(work, now, before, Some((label, text)))))
                .collect(),
            Self::Largest(metric, label, count) => {
                let samples = now.samples(metric).iter();
                let mut all: Vec<(String, f64)> = samples
                    .filter_map(|sample| Some((sample.label(label)?.to_owned(), sample.value)))
                    .collect();
                all.sort_by(|one, other| other.1.total_cmp(&one.1));
                all.into_iter().take(*count).map(|(name, value)| (name, Some(value))).collect()
            }
        }
    }
}

impl Value {
    /// The current value, over those samples that have this label as well.
    fn of(
        &self,
        work: &[&str],
        now: &Reading,
        before: Option<&Reading>,
        label: Option<(&str, &str)>,
    ) -> Option<f64> {
        let with = |wanted: &[(&'static str, &'static str)]| -> Vec<(String, String)> {
            wanted
                .iter()
                .copied()
                .chain(label)
                .map(|(name, text)| (name.to_owned(), text.to_owned()))
                .collect()
        };
        let plain: Vec<(&str, &str)> = label.into_iter().collect();
        match self {
            Self::Now(Of(name, wanted)) => now.sum(name, &pairs(&with(wanted))),
            Self::Sum(names) => {
                names.iter().filter_map(|name| now.sum(name, &plain)).reduce(|one, other| one + other)
            }
            Self::Ratio(part, whole) => {
                let whole = now.sum(whole, &plain).filter(|whole| *whole > 0.0)?;
                Some(now.sum(part, &plain)? / whole)
            }
            Self::PerSecond(Of(name, wanted)) => now.rate(before, name, &pairs(&with(wanted))),
            Self::Mean(name) => now.mean(before, name, &plain),
            Self::Quantile(Of(name, wanted), quantile) => {
                let buckets = now.buckets(Some(before?), name, &pairs(&with(wanted)));
                buckets.quantile(*quantile, !name.ends_with("_seconds"))
            }
            Self::WorkRate => {
                let rate = |operation: &&str| {
                    let wanted = [("operation", *operation), ("outcome", "done")];
                    now.rate(before, "batzen_operations_total", &wanted)
                };
                work.iter().filter_map(rate).reduce(|one, other| one + other)
            }
            Self::WorkTime(quantile) => {
                let mut all = Buckets::default();
                for operation in work {
                    let wanted = [("operation", *operation)];
                    all.add(&now.buckets(Some(before?), "batzen_operation_seconds", &wanted));
                }
                all.quantile(*quantile, false)
            }
            Self::WorkFailed => {
                let failed = |operation: &&str| {
                    let wanted = [("operation", *operation), ("outcome", "failed")];
                    now.sum("batzen_operations_total", &wanted)
                };
                work.iter().filter_map(failed).reduce(|one, other| one + other)
            }
        }
    }
}

fn pairs(owned: &[(String, String)]) -> Vec<(&str, &str)> {
    owned.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::common;
    use super::super::layout::{gauge, tile};
    use super::*;

    const LAYOUT: Layout = Layout {
        sections: &[
            &common::NOW,
            &Section {
                id: "money",
                title: "Money",
                needs: "batzen_money_issued",
                tiles: &[tile("issued", "issued", Unit::Money, gauge("batzen_money_issued"), Bad::Never)],
                charts: &[],
                extra: Extra::Amounts {
                    prefix: "batzen_money_",
                    zero: "batzen_money_conservation_difference",
                },
            },
            &Section {
                id: "expiry",
                title: "Expiry",
                needs: "batzen_expiry_",
                tiles: &[],
                charts: &[],
                extra: Extra::Table {
                    metrics: &["batzen_expiry_"],
                    make: |now| Table {
                        id: "expiries",
                        title: "Next",
                        empty: "Nothing.",
                        columns: vec![("What", None)],
                        rows: now.names("batzen_expiry_").iter().map(|name| vec![json!(name)]).collect(),
                    },
                },
            },
            &common::OPERATIONS,
            &common::BATCHES,
        ],
        work: &["deposit"],
    };

    fn page(done: u64, money: u64) -> String {
        format!(
            "batzen_build_info{{service=\"exchange\",version=\"1\"}} 1\n\
             batzen_currency_info{{currency=\"KUDOS\"}} 1\n\
             batzen_operations_total{{operation=\"deposit\",outcome=\"done\"}} {done}\n\
             batzen_operations_total{{operation=\"history\",outcome=\"done\"}} {done}\n\
             batzen_money_issued {money}\n\
             # HELP batzen_money_conservation_difference What does not add up; zero\n\
             batzen_money_conservation_difference 0.5\n\
             # HELP batzen_expiry_seconds Until the last key expires\n\
             batzen_expiry_seconds{{kind=\"signing\"}} 60\n\
             batzen_expiry_seconds{{kind=\"denomination\"}} 30\n\
             batzen_lane_queued 0\n"
        )
    }

    fn filled(readings: u64) -> History {
        let (begin, mut history) = (Instant::now(), History::new(&LAYOUT));
        for number in 0..readings {
            let at = begin + Duration::from_secs(number * INTERVAL_S);
            history.add(&page(6 * number, number), at, 1e9 + (number * INTERVAL_S) as f64);
        }
        history
    }

    fn section<'a>(json: &'a Json, id: &str) -> &'a Json {
        let sections = json["sections"].as_array().unwrap();
        sections
            .iter()
            .find(|section| section["id"] == id)
            .unwrap_or_else(|| panic!("section {id} in {json}"))
    }

    fn shown<'a>(json: &'a Json, of: &str, id: &str) -> &'a Json {
        let tiles = section(json, of)["tiles"].as_array().unwrap();
        tiles.iter().find(|tile| tile["id"] == id).unwrap_or_else(|| panic!("tile {id} in {json}"))
    }

    #[test]
    fn the_first_reading_shows_what_there_is() {
        assert_eq!(History::new(&LAYOUT).json(300)["sections"], json!([]));
        let json = filled(1).json(300);
        assert_eq!((&json["service"], &json["currency"]), (&json!("exchange"), &json!("KUDOS")));
        assert_eq!(shown(&json, "money", "issued")["value"], json!(0.0));
        // A rate needs two.
        assert_eq!(shown(&json, "now", "work")["value"], json!(null));
        // Sections that the service has no metrics for are left out.
        assert!(!json["sections"].as_array().unwrap().iter().any(|section| section["id"] == "batches"));
    }

    #[test]
    fn rates_are_of_work_alone() {
        let json = filled(9).json(300);
        assert_eq!(shown(&json, "now", "work")["value"], json!(2.0));
        let operations = &section(&json, "operations")["charts"][0];
        let lines = operations["lines"].as_array().unwrap();
        assert_eq!((lines.len(), &lines[0]["name"]), (1, &json!("deposit")));
        let points = lines[0]["points"].as_array().unwrap();
        assert_eq!((&points[0], &points[1], points.len()), (&json!(null), &json!(2.0), 9));
    }

    #[test]
    fn metrics_that_the_layout_does_not_name_are_shown_by_their_help() {
        let json = filled(1).json(300);
        let difference = shown(&json, "money", "conservation-difference");
        assert_eq!(difference["label"], "what does not add up");
        assert_eq!(difference["bad"], true);
        assert_eq!(section(&json, "expiry")["table"]["rows"], json!([["batzen_expiry_seconds"]]));
    }

    #[test]
    fn an_hour_takes_no_more_memory_than_its_points() {
        let history = filled(2 * 3600 / INTERVAL_S);
        for (seconds, every) in RANGES {
            let json = history.json(seconds);
            let times = json["times"].as_array().unwrap();
            assert_eq!(times.len() as u64, seconds / (every * INTERVAL_S));
            let step = times[1].as_f64().unwrap() - times[0].as_f64().unwrap();
            assert_eq!(step, (every * INTERVAL_S) as f64);
            for chart in json["sections"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|section| section["charts"].as_array().unwrap())
            {
                for line in chart["lines"].as_array().unwrap() {
                    assert_eq!(line["points"].as_array().unwrap().len(), times.len());
                }
            }
        }
        assert!(history.recent.len() <= TILE_READINGS + 1);
        // The rate is the same in every range.
        assert_eq!(section(&history.json(3600), "operations")["charts"][0]["lines"][0]["points"][5], 2.0);
    }

    #[test]
    fn a_label_with_many_values_does_not_fill_the_memory() {
        let mut history = History::new(&LAYOUT);
        let outcome = |number: u32| {
            format!("batzen_operations_total{{operation=\"deposit\",outcome=\"o{number}\"}} 1\n")
        };
        history.add(&(0..300).map(outcome).collect::<String>(), Instant::now(), 0.0);
        let largest = history.ranges.iter().flat_map(|range| &range.charts).map(Vec::len).max();
        assert_eq!(largest, Some(LINES_MAX));
    }
}
