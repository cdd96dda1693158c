//! Reading a service's `/metrics`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::bench::BenchError;
use crate::bench::error::Result;
use crate::bench::load::wire;
use crate::bench::results::result::{BatchBucket, BatchSizes};

/// The content of a service's `/metrics`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    /// The text as received.
    pub(crate) text: String,
    values: BTreeMap<String, f64>,
}

impl Page {
    /// Fetches the page of one service.
    pub(crate) fn fetch(server: SocketAddr) -> Result<Self> {
        let failed = |reason: String| BenchError::set_up("cannot read the server's /metrics", reason);
        let answer = wire::call(server, &wire::get("/metrics")).map_err(|error| failed(error.to_string()))?;
        if answer.status != 200 {
            return Err(failed(format!("HTTP {}", answer.status)));
        }
        Ok(Self::parse(String::from_utf8_lossy(&answer.body).into_owned()))
    }

    /// Fetches the pages of several processes of a service, and adds up their series.
    pub(crate) fn fetch_all(servers: &[SocketAddr]) -> Result<Self> {
        let mut all = Self::default();
        for server in servers {
            let page = Self::fetch(*server)?;
            all.text.push_str(&page.text);
            for (series, value) in page.values {
                *all.values.entry(series).or_default() += value;
            }
        }
        Ok(all)
    }

    /// Parses Prometheus' text format. Lines that it does not recognise are skipped.
    pub(crate) fn parse(text: String) -> Self {
        let mut values = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            // Label values may contain spaces.
            let split = line.rfind('}').map_or_else(|| line.find(' '), |brace| Some(brace + 1));
            let Some((name, rest)) = split.and_then(|at| line.split_at_checked(at)) else { continue };
            if let Some(value) = rest.split_whitespace().next().and_then(|text| text.parse().ok()) {
                values.insert(name.to_owned(), value);
            }
        }
        Self { text, values }
    }

    /// The value of a series; its name is written as in the text, with labels.
    pub(crate) fn value(&self, series: &str) -> Option<f64> {
        self.values.get(series).copied()
    }

    /// The largest value of a family of series.
    pub(crate) fn largest(&self, family: &str) -> Option<f64> {
        let of_family = self.values.iter().filter(|(series, _)| {
            series.strip_prefix(family).is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
        });
        of_family.map(|(_, value)| *value).max_by(f64::total_cmp)
    }

    /// Returns the growth of a counter since `earlier`.
    pub(crate) fn growth(&self, earlier: &Self, series: &str) -> Option<f64> {
        Some(self.value(series)? - earlier.value(series).unwrap_or(0.0))
    }

    /// The database figures of a backend since `earlier`; empty for the embedded store. A race is a commit
    /// that lost to another: it was repeated on top of the other's rows.
    pub(crate) fn database_figures(&self, earlier: &Self, ops: u64) -> BTreeMap<String, f64> {
        let growth = |series: &str| self.growth(earlier, series);
        let per_op = |count: f64| count / (ops as f64).max(1.0);
        let Some(statements) = growth("batzen_postgres_statements_total") else { return BTreeMap::new() };
        let mut figures = BTreeMap::from([("backend_statements_per_op".to_owned(), per_op(statements))]);
        for (name, series) in [
            ("serialization_retries", "batzen_postgres_retries_total"),
            ("lost_races", "batzen_postgres_races_total"),
            ("reconnects", "batzen_postgres_reconnects_total"),
        ] {
            figures.extend(growth(series).map(|growth| (name.to_owned(), growth)));
        }
        let trips = growth("batzen_postgres_round_trips_total");
        figures.extend(trips.map(|trips| ("round_trips_per_op".to_owned(), per_op(trips))));
        figures
    }

    /// The growth of a histogram of sizes since `earlier`, by label values (an empty string without labels).
    pub(crate) fn sizes(&self, earlier: &Self, family: &str) -> BTreeMap<String, BatchSizes> {
        let mut found: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        let prefix = format!("{family}_bucket{{");
        for series in self.values.keys() {
            let Some(labels) = series.strip_prefix(&prefix) else { continue };
            let (mut key, mut limit) = (String::new(), None);
            for label in labels.trim_end_matches('}').split(',') {
                let Some((name, value)) = label.split_once('=') else { continue };
                let value = value.trim_matches('"');
                if name == "le" {
                    limit = if value == "+Inf" { Some(f64::INFINITY) } else { value.parse().ok() };
                } else {
                    key.push_str(value);
                }
            }
            if let (Some(limit), Some(growth)) = (limit, self.growth(earlier, series)) {
                found.entry(key).or_default().push((limit, growth));
            }
        }
        found
            .into_iter()
            .map(|(key, cumulative)| {
                let mean = self.mean(earlier, family, &key);
                (key, sizes(cumulative, mean))
            })
            .filter(|(_, sizes)| sizes.batches > 0)
            .collect()
    }

    /// Mean of a histogram's observations since `earlier`, over the series whose only label besides `le` has
    /// this value.
    fn mean(&self, earlier: &Self, family: &str, label: &str) -> f64 {
        let find = |what: &str| {
            let name = format!("{family}_{what}");
            let labelled = format!("=\"{label}\"}}");
            let series = self.values.keys().find(|series| match series.strip_prefix(&name) {
                Some("") => label.is_empty(),
                Some(rest) => rest.starts_with('{') && rest.ends_with(&labelled),
                None => false,
            });
            series.and_then(|series| self.growth(earlier, series)).unwrap_or(0.0)
        };
        let count = find("count");
        if count > 0.0 { find("sum") / count } else { 0.0 }
    }
}

/// From Prometheus' cumulative buckets.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes and numbers of batches are small"
)]
fn sizes(mut cumulative: Vec<(f64, f64)>, mean: f64) -> BatchSizes {
    cumulative.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut sizes = BatchSizes { mean, ..BatchSizes::default() };
    let mut below = 0.0;
    for (limit, count) in cumulative {
        let batches = (count - below).max(0.0) as u64;
        sizes.batches += batches;
        sizes.buckets.push(BatchBucket { up_to: limit.is_finite().then_some(limit as u64), batches });
        below = count;
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_and_subtracted() {
        let before = Page::parse("# HELP a b\n# TYPE a counter\na 1\nb{type=\"x y\"} 2.5\nbroken\n".into());
        let after = Page::parse("a 11\nb{type=\"x y\"} 3\nc 4 1700000000\n".into());
        assert_eq!(before.value("b{type=\"x y\"}"), Some(2.5));
        assert_eq!(after.growth(&before, "a"), Some(10.0));
        assert_eq!(after.growth(&before, "c"), Some(4.0));
        assert_eq!(after.growth(&before, "nothing"), None);
    }

    #[test]
    fn database_work_is_counted_per_operation() {
        let page = |statements: u32, conflicts: u32| {
            Page::parse(format!(
                "batzen_postgres_statements_total {statements}\nbatzen_postgres_races_total {conflicts}\n"
            ))
        };
        let figures = page(140, 3).database_figures(&page(100, 1), 20);
        assert_eq!(figures["backend_statements_per_op"], 2.0);
        assert_eq!(figures["lost_races"], 2.0);
        let embedded = Page::parse("batzen_store_commits_total 1\n".into());
        assert!(embedded.database_figures(&Page::default(), 20).is_empty());
    }

    #[test]
    fn histograms_become_batch_sizes() {
        let page = |counts: [u32; 3], sum: u32| {
            let [one, nine, all] = counts;
            Page::parse(format!(
                "items_bucket{{kind=\"check\",le=\"1\"}} {one}\nitems_bucket{{kind=\"check\",le=\"9\"}} {nine}\n\
                 items_bucket{{kind=\"check\",le=\"+Inf\"}} {all}\nitems_sum{{kind=\"check\"}} {sum}\n\
                 items_count{{kind=\"check\"}} {all}\nitems_bucket{{kind=\"sign\",le=\"+Inf\"}} 5\n"
            ))
        };
        let (before, after) = (page([1, 1, 1], 1), page([3, 4, 5], 41));
        let found = after.sizes(&before, "items");
        assert_eq!(found.len(), 1, "nothing was signed: {found:?}");
        let sizes = &found["check"];
        assert!((sizes.mean - 10.0).abs() < 1e-9, "{sizes:?}");
        assert_eq!(sizes.batches, 4);
        let buckets: Vec<_> = sizes.buckets.iter().map(|bucket| (bucket.up_to, bucket.batches)).collect();
        assert_eq!(buckets, [(Some(1), 2), (Some(9), 1), (None, 1)]);
        let plain = Page::parse("b_bucket{le=\"2\"} 3\nb_bucket{le=\"+Inf\"} 3\nb_sum 6\nb_count 3\n".into());
        assert!((plain.sizes(&Page::default(), "b")[""].mean - 2.0).abs() < 1e-9);
    }
}
