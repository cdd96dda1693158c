//! One reading of the metrics page, and what can be computed from two of them.

use std::collections::HashMap;
use std::time::Instant;

/// Number of samples of one reading that are kept; the rest of a larger page is left out.
const SAMPLES_MAX: usize = 8192;

/// One sample of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its labels.
    pub labels: Vec<(String, String)>,
    /// Its value.
    pub value: f64,
}

impl Sample {
    /// The value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }

    fn fits(&self, wanted: &[(&str, &str)]) -> bool {
        wanted.iter().all(|(name, value)| self.label(name) == Some(value))
    }
}

/// A metrics page at one moment.
#[derive(Clone, Debug)]
pub struct Reading {
    /// When it was taken, in seconds since 1970.
    pub unix_s: f64,
    at: Instant,
    samples: HashMap<String, Vec<Sample>>,
    helps: HashMap<String, String>,
}

impl Reading {
    /// Reads a page in Prometheus' text format. Keeps only the families for which `is_wanted` is true.
    pub fn parse(page: &str, at: Instant, unix_s: f64, is_wanted: impl Fn(&str) -> bool) -> Self {
        let mut reading = Self { unix_s, at, samples: HashMap::new(), helps: HashMap::new() };
        let mut count = 0;
        for line in page.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                if let Some((name, text)) = help.split_once(' ')
                    && is_wanted(name)
                {
                    reading.helps.insert(name.to_owned(), text.to_owned());
                }
                continue;
            }
            let Some((name, sample)) = sample(line) else { continue };
            if count < SAMPLES_MAX && is_wanted(name) {
                count += 1;
                reading.samples.entry(name.to_owned()).or_default().push(sample);
            }
        }
        reading
    }

    /// The samples of a metric.
    pub fn samples(&self, name: &str) -> &[Sample] {
        self.samples.get(name).map_or(&[], Vec::as_slice)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.samples.contains_key(name)
    }

    /// The help text of a metric.
    pub fn help(&self, name: &str) -> &str {
        self.helps.get(name).map_or("", String::as_str)
    }

    /// The names of the metrics that start with this prefix, in order.
    pub fn names(&self, prefix: &str) -> Vec<&str> {
        let mut names: Vec<&str> =
            self.samples.keys().map(String::as_str).filter(|name| name.starts_with(prefix)).collect();
        names.sort_unstable();
        names
    }

    /// The values of a label, each once, in the page's order.
    pub(super) fn label_values<'a>(&'a self, name: &str, label: &str) -> Vec<&'a str> {
        let mut values = Vec::new();
        for value in self.samples(name).iter().filter_map(|sample| sample.label(label)) {
            if !values.contains(&value) {
                values.push(value);
            }
        }
        values
    }

    /// The sum of a metric's samples that have these labels; none if there is no such sample.
    pub fn sum(&self, name: &str, wanted: &[(&str, &str)]) -> Option<f64> {
        let fitting = self.samples(name).iter().filter(|sample| sample.fits(wanted));
        fitting.map(|sample| sample.value).reduce(|one, other| one + other)
    }

    /// Returns the growth of a counter since `before`, per second. If it has fallen, the service was
    /// restarted.
    pub(super) fn rate(&self, before: Option<&Self>, name: &str, wanted: &[(&str, &str)]) -> Option<f64> {
        let before = before?;
        let (end, start) = (self.sum(name, wanted)?, before.sum(name, wanted)?);
        let seconds = self.at.saturating_duration_since(before.at).as_secs_f64();
        (seconds > 0.0).then(|| if end < start { end } else { end - start } / seconds)
    }

    /// The mean of what a histogram recorded since `before`.
    pub(super) fn mean(&self, before: Option<&Self>, name: &str, wanted: &[(&str, &str)]) -> Option<f64> {
        let count = self.rate(before, &format!("{name}_count"), wanted)?;
        let sum = self.rate(before, &format!("{name}_sum"), wanted)?;
        (count > 0.0).then_some(sum / count)
    }

    /// Returns the values that a histogram recorded since `before`, by upper bound; not cumulative.
    pub(super) fn buckets(&self, before: Option<&Self>, name: &str, wanted: &[(&str, &str)]) -> Buckets {
        let name = format!("{name}_bucket");
        let end = self.cumulative(&name, wanted);
        let start = before.map(|before| before.cumulative(&name, wanted)).unwrap_or_default();
        let was_restarted = end.last().zip(start.last()).is_some_and(|(end, start)| end.1 < start.1);
        let mut last = 0.0;
        let buckets = end.iter().map(|(bound, count)| {
            let old = start.iter().find(|(other, _)| other == bound).filter(|_| !was_restarted);
            let so_far = count - old.map_or(0.0, |(_, count)| *count);
            let count = f64::max(0.0, so_far - last);
            last = f64::max(last, so_far);
            (*bound, count)
        });
        Buckets(buckets.collect())
    }

    fn cumulative(&self, name: &str, wanted: &[(&str, &str)]) -> Vec<(f64, f64)> {
        let mut sums: Vec<(f64, f64)> = Vec::new();
        for sample in self.samples(name).iter().filter(|sample| sample.fits(wanted)) {
            let Some(bound) = sample.label("le").and_then(number) else { continue };
            match sums.iter_mut().find(|(other, _)| *other == bound) {
                Some((_, sum)) => *sum += sample.value,
                None => sums.push((bound, sample.value)),
            }
        }
        sums.sort_by(|one, other| one.0.total_cmp(&other.0));
        sums
    }
}

/// Counts of a histogram by upper bound, ascending.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Buckets(Vec<(f64, f64)>);

impl Buckets {
    /// Adds the counts of another histogram.
    pub(super) fn add(&mut self, other: &Self) {
        for (bound, count) in &other.0 {
            match self.0.iter_mut().find(|(known, _)| known == bound) {
                Some((_, sum)) => *sum += count,
                None => self.0.push((*bound, *count)),
            }
        }
        self.0.sort_by(|one, other| one.0.total_cmp(&other.0));
    }

    /// A quantile, interpolated linearly within its bucket (for numbers of things, the bucket's bound); none
    /// if nothing was recorded.
    pub(super) fn quantile(&self, quantile: f64, is_whole: bool) -> Option<f64> {
        let total: f64 = self.0.iter().map(|(_, count)| count).sum();
        if total <= 0.0 {
            return None;
        }
        let (mut rest, mut low) = (quantile * total, 0.0);
        for (bound, count) in &self.0 {
            if *count > 0.0 && rest <= *count {
                return Some(if bound.is_infinite() {
                    low
                } else if is_whole {
                    *bound
                } else {
                    low + (bound - low) * rest / count
                });
            }
            rest -= count;
            if bound.is_finite() {
                low = *bound;
            }
        }
        Some(low)
    }
}

fn number(text: &str) -> Option<f64> {
    if text == "+Inf" { Some(f64::INFINITY) } else { text.parse().ok() }
}

/// Reads one line: `name{label="value",…} 1`. Our pages have no escapes in labels.
fn sample(line: &str) -> Option<(&str, Sample)> {
    if line.starts_with('#') {
        return None;
    }
    let (head, value) = line.rsplit_once(' ')?;
    let value = number(value)?;
    let Some((name, labels)) = head.split_once('{') else {
        return Some((head, Sample { labels: Vec::new(), value }));
    };
    let mut rest = labels.strip_suffix('}')?;
    let mut labels = Vec::new();
    while let Some((label, after)) = rest.split_once("=\"") {
        let (text, after) = after.split_once('"')?;
        labels.push((label.to_owned(), text.to_owned()));
        rest = after.strip_prefix(',').unwrap_or(after);
    }
    Some((name, Sample { labels, value }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn reading(page: &str, seconds: u64) -> Reading {
        let begin = *BEGIN;
        Reading::parse(page, begin + Duration::from_secs(seconds), seconds as f64, |_| true)
    }

    static BEGIN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);

    #[test]
    fn samples_have_their_labels_and_families_their_help() {
        let page = "# HELP a_total What it is\n# TYPE a_total counter\na_total 3\n\
                    b{kind=\"x\",part=\"with, comma\"} 1.5\nb{kind=\"y\",part=\"\"} 2\nnonsense\nc{ 1\n";
        let reading = reading(page, 0);
        assert_eq!(reading.help("a_total"), "What it is");
        assert_eq!(reading.sum("a_total", &[]), Some(3.0));
        assert_eq!(reading.sum("b", &[]), Some(3.5));
        assert_eq!(reading.sum("b", &[("part", "with, comma")]), Some(1.5));
        assert_eq!(reading.sum("b", &[("kind", "z")]), None);
        assert_eq!(reading.label_values("b", "kind"), ["x", "y"]);
        assert_eq!(reading.names(""), ["a_total", "b"]);
    }

    #[test]
    fn what_is_not_wanted_is_left_out() {
        let reading = Reading::parse("a 1\nb 2\n", *BEGIN, 0.0, |name| name == "b");
        assert_eq!((reading.has("a"), reading.has("b")), (false, true));
    }

    #[test]
    fn rates_are_of_the_time_between_and_survive_a_restart() {
        let (first, second) = (reading("a 10\n", 0), reading("a 40\n", 3));
        assert_eq!(second.rate(Some(&first), "a", &[]), Some(10.0));
        assert_eq!(second.rate(None, "a", &[]), None);
        assert_eq!(reading("a 9\n", 3).rate(Some(&first), "a", &[]), Some(3.0));
    }

    #[test]
    fn quantiles_are_of_what_came_between_two_readings() {
        let page = |low: u32, high: u32| {
            format!(
                "h_bucket{{le=\"1\"}} {low}\nh_bucket{{le=\"2\"}} {high}\nh_bucket{{le=\"+Inf\"}} {high}\nh_sum 9\nh_count 9\n"
            )
        };
        let (first, second) = (reading(&page(100, 100), 0), reading(&page(100, 110), 3));
        let buckets = second.buckets(Some(&first), "h", &[]);
        assert_eq!(buckets.quantile(0.5, false), Some(1.5));
        assert_eq!(buckets.quantile(0.5, true), Some(2.0));
        assert_eq!(first.buckets(Some(&first), "h", &[]).quantile(0.5, false), None);
        // After a restart, the counts start again.
        assert_eq!(reading(&page(4, 4), 6).buckets(Some(&second), "h", &[]).quantile(1.0, false), Some(1.0));
    }
}
