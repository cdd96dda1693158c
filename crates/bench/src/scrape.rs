//! Reading a service's `/metrics`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::BenchError;
use crate::result::{BatchBucket, BatchSizes};
use crate::wire;

/// What a service's `/metrics` said.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The text as it came.
    pub text: String,
    values: BTreeMap<String, f64>,
}

impl Page {
    /// Asks the service.
    ///
    /// # Errors
    /// When it does not answer with 200.
    pub fn fetch(server: SocketAddr) -> Result<Self, BenchError> {
        let failed = |reason: String| BenchError::set_up("cannot read the server's /metrics", reason);
        let answer = wire::call(server, &wire::get("/metrics")).map_err(|error| failed(error.to_string()))?;
        if answer.status != 200 {
            return Err(failed(format!("HTTP {}", answer.status)));
        }
        Ok(Self::parse(String::from_utf8_lossy(&answer.body).into_owned()))
    }

    /// Reads Prometheus' text format. Lines that it does not understand are passed over.
    #[must_use]
    pub fn parse(text: String) -> Self {
        let mut values = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            // Values of labels may hold blanks.
            let split = line.rfind('}').map_or_else(|| line.find(' '), |brace| Some(brace + 1));
            let Some((name, rest)) = split.and_then(|at| line.split_at_checked(at)) else { continue };
            if let Some(value) = rest.split_whitespace().next().and_then(|text| text.parse().ok()) {
                values.insert(name.to_owned(), value);
            }
        }
        Self { text, values }
    }

    /// The value of a series, named as in the text, labels included.
    #[must_use]
    pub fn value(&self, series: &str) -> Option<f64> {
        self.values.get(series).copied()
    }

    /// How much a counter has grown since `earlier`.
    #[must_use]
    pub fn growth(&self, earlier: &Self, series: &str) -> Option<f64> {
        Some(self.value(series)? - earlier.value(series).unwrap_or(0.0))
    }

    /// How the histograms whose names begin with `start` and end with `end` have grown, by what stands between (with
    /// labels other than `le`).
    #[must_use]
    pub fn histograms(&self, earlier: &Self, start: &str, end: &str) -> BTreeMap<String, BatchSizes> {
        let mut found: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for series in self.values.keys() {
            let Some(rest) = series.strip_prefix(start) else { continue };
            let Some((name, labels)) = rest.split_once('{') else { continue };
            let Some(name) = name.strip_suffix("_bucket").and_then(|name| name.strip_suffix(end)) else {
                continue;
            };
            let (mut key, mut limit) = (name.trim_matches('_').to_owned(), None);
            for label in labels.trim_end_matches('}').split(',') {
                let Some((label, value)) = label.split_once('=') else { continue };
                let value = value.trim_matches('"');
                if label == "le" {
                    limit = if value == "+Inf" { Some(f64::INFINITY) } else { value.parse().ok() };
                } else {
                    if !key.is_empty() {
                        key.push('-');
                    }
                    key.push_str(value);
                }
            }
            if let (Some(limit), Some(growth)) = (limit, self.growth(earlier, series)) {
                found.entry(key).or_default().push((limit, growth));
            }
        }
        found.into_iter().map(|(key, cumulative)| (key, sizes(cumulative))).collect()
    }
}

/// From Prometheus' cumulative buckets. The mean takes each batch for the middle of its bucket; who knows better replaces
/// it.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts and limits of batches are small"
)]
fn sizes(mut cumulative: Vec<(f64, f64)>) -> BatchSizes {
    cumulative.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sizes, mut below, mut items, mut lower) = (BatchSizes::default(), 0.0, 0.0, 0.0);
    for (limit, count) in cumulative {
        let batches = (count - below).max(0.0);
        let middle = if limit.is_finite() { f64::midpoint(lower + 1.0, limit) } else { lower };
        items += batches * middle;
        sizes.batches += batches as u64;
        sizes
            .buckets
            .push(BatchBucket { up_to: limit.is_finite().then_some(limit as u64), batches: batches as u64 });
        (below, lower) = (count, if limit.is_finite() { limit } else { lower });
    }
    if below > 0.0 {
        sizes.mean = items / below;
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
    fn histograms_become_batch_sizes() {
        let before = Page::parse("pool_batch_items_bucket{kind=\"verify\",le=\"1\"} 1\n".into());
        let after = Page::parse(
            "pool_batch_items_bucket{kind=\"verify\",le=\"1\"} 3\npool_batch_items_bucket{kind=\"verify\",le=\"9\"} \
             4\npool_batch_items_bucket{kind=\"verify\",le=\"+Inf\"} 4\npool_batch_items_sum{kind=\"verify\"} 7\n"
                .into(),
        );
        let found = after.histograms(&before, "pool_batch", "items");
        let sizes = &found["verify"];
        assert_eq!(sizes.batches, 4);
        let buckets: Vec<_> = sizes.buckets.iter().map(|bucket| (bucket.up_to, bucket.batches)).collect();
        assert_eq!(buckets, [(Some(1), 2), (Some(9), 2), (None, 0)]);
    }
}
