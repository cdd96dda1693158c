//! The text format.

use std::fmt::{Display, Write as _};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::{Counter, Histogram, Unit};

/// The content type of a [`Page`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page in Prometheus' text format that is being written. Each family is written by one call, so that its
/// samples are adjacent, as the format requires.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
    /// The families so far: a second one of the same name would make the page invalid.
    names: Vec<String>,
}

impl Page {
    /// An empty page.
    #[must_use]
    pub fn new() -> Self {
        Self { text: String::with_capacity(16 * 1024), names: Vec::new() }
    }

    /// The text.
    #[must_use]
    pub fn finish(self) -> String {
        self.text
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        debug_assert!(is_name(name), "{name} is no metric's name");
        assert!(!self.names.iter().any(|known| known == name), "{name} is written twice");
        self.names.push(name.to_owned());
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Writes one sample. Labels come from the program, never from a request, so there is nothing to escape.
    fn sample(&mut self, name: &str, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        self.text.push_str(suffix);
        for (index, (label, text)) in labels.iter().enumerate() {
            debug_assert!(!text.contains(['"', '\\', '\n']), "{text}: a label's value needs no escapes");
            let _ = write!(self.text, "{}{label}=\"{text}\"", if index == 0 { '{' } else { ',' });
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    /// A counter without labels.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, help, "counter");
        self.sample(name, "", &[], value);
    }

    /// A gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, help, "gauge");
        self.sample(name, "", &[], value);
    }

    /// A counter of time, in seconds.
    pub fn seconds(&mut self, name: &str, help: &str, spent: Duration) {
        self.head(name, help, "counter");
        self.sample(name, "", &[], Seconds(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX)));
    }

    /// A counter with one label.
    pub fn counters<'a>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        rows: impl IntoIterator<Item = (&'a str, impl Display)>,
    ) {
        self.head(name, help, "counter");
        for (text, value) in rows {
            self.sample(name, "", &[(label, text)], value);
        }
    }

    /// A gauge with one label.
    pub fn gauges<'a>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        rows: impl IntoIterator<Item = (&'a str, impl Display)>,
    ) {
        self.head(name, help, "gauge");
        for (text, value) in rows {
            self.sample(name, "", &[(label, text)], value);
        }
    }

    /// A gauge with two labels.
    pub fn labelled_gauges<'a>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; 2],
        rows: impl IntoIterator<Item = ([&'a str; 2], impl Display)>,
    ) {
        self.head(name, help, "gauge");
        for (texts, value) in rows {
            self.sample(name, "", &[(labels[0], texts[0]), (labels[1], texts[1])], value);
        }
    }

    /// A counter with two labels: each row's text is the value of the first label, and its counters are by
    /// the second.
    pub fn matrix<'a, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; 2],
        columns: [&str; N],
        rows: impl IntoIterator<Item = (&'a str, [u64; N])>,
    ) {
        self.head(name, help, "counter");
        for (row, values) in rows {
            for (column, value) in columns.iter().zip(values) {
                self.sample(name, "", &[(labels[0], row), (labels[1], column)], value);
            }
        }
    }

    /// A gauge with several labels. Their values contain no quotes, backslashes or line ends.
    pub fn labelled<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; N],
        rows: impl IntoIterator<Item = ([String; N], impl Display)>,
    ) {
        self.head(name, help, "gauge");
        for (texts, value) in rows {
            let labels: Vec<(&str, &str)> =
                labels.iter().copied().zip(texts.iter().map(String::as_str)).collect();
            self.sample(name, "", &labels, value);
        }
    }

    /// A gauge whose information is in the labels; its value is always 1.
    pub fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) {
        self.head(name, help, "gauge");
        self.sample(name, "", labels, 1);
    }

    /// A histogram without labels.
    pub fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, help, "histogram");
        self.buckets(name, &[], histogram);
    }

    /// Histograms with one label.
    pub fn histograms<'a>(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        rows: impl IntoIterator<Item = (&'a str, &'a Histogram)>,
    ) {
        self.head(name, help, "histogram");
        for (text, histogram) in rows {
            self.buckets(name, &[(label, text)], histogram);
        }
    }

    fn buckets(&mut self, name: &str, labels: &[(&str, &str)], histogram: &Histogram) {
        let mut so_far = 0;
        let counts = histogram.counts.iter().map(|count| count.load(Relaxed));
        let bounds = histogram.bounds.iter().map(Some).chain([None]);
        for (count, bound) in counts.zip(bounds) {
            so_far += count;
            let text = match (bound, histogram.unit) {
                (None, _) => "+Inf".to_owned(),
                (Some(bound), Unit::Time) => Seconds(*bound).to_string(),
                (Some(bound), Unit::Count) => bound.to_string(),
            };
            self.sample(name, "_bucket", &[labels, &[("le", &text)]].concat(), so_far);
        }
        let sum = histogram.sum.load(Relaxed);
        match histogram.unit {
            Unit::Time => self.sample(name, "_sum", labels, Seconds(sum)),
            Unit::Count => self.sample(name, "_sum", labels, sum),
        }
        // The count of the last bucket, so that both agree even if values are recorded meanwhile.
        self.sample(name, "_count", labels, so_far);
    }

    /// A counter of the service.
    pub fn count(&mut self, name: &str, help: &str, counter: &Counter) {
        self.counter(name, help, counter.get());
    }
}

/// Nanoseconds, written as seconds without trailing zeros.
struct Seconds(u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, rest) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        write!(f, "{whole}.{}", format!("{rest:09}").trim_end_matches('0'))
    }
}

fn is_name(name: &str) -> bool {
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
    starts && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_format() {
        let histogram = Histogram::of_counts();
        histogram.count(1);
        histogram.count(3);
        histogram.count(9_999);
        let mut page = Page::new();
        page.counter("a_total", "As", 7);
        page.gauge("b_seconds", "Bs", "0.5");
        page.seconds("c_seconds_total", "Cs", Duration::from_millis(1_250));
        page.counters("d_total", "Ds", "kind", [("x", 1), ("y", 2)]);
        page.matrix("e_total", "Es", ["row", "column"], ["p", "q"], [("r", [3, 4])]);
        page.info("f_info", "Fs", &[("version", "1.0")]);
        page.labelled("i", "Is", ["row", "column"], [(["r".to_owned(), "p".to_owned()], "-0.5")]);
        page.histogram("g", "Gs", &histogram);
        page.histograms("h", "Hs", "kind", [("x", &Histogram::of_times())]);
        let text = page.finish();
        for line in [
            "# HELP a_total As\n# TYPE a_total counter\na_total 7\n",
            "# TYPE b_seconds gauge\nb_seconds 0.5\n",
            "\nc_seconds_total 1.25\n",
            "\nd_total{kind=\"x\"} 1\nd_total{kind=\"y\"} 2\n",
            "\ne_total{row=\"r\",column=\"p\"} 3\ne_total{row=\"r\",column=\"q\"} 4\n",
            "\nf_info{version=\"1.0\"} 1\n",
            "\ni{row=\"r\",column=\"p\"} -0.5\n",
            "# TYPE g histogram\ng_bucket{le=\"1\"} 1\ng_bucket{le=\"2\"} 1\ng_bucket{le=\"4\"} 2\n",
            "g_bucket{le=\"4096\"} 2\ng_bucket{le=\"+Inf\"} 3\ng_sum 10003\ng_count 3\n",
            "h_bucket{kind=\"x\",le=\"0.00001\"} 0\n",
            "h_bucket{kind=\"x\",le=\"0.5\"} 0\nh_bucket{kind=\"x\",le=\"1\"} 0\n",
            "h_sum{kind=\"x\"} 0\nh_count{kind=\"x\"} 0\n",
        ] {
            assert!(text.contains(line), "{line}\nis missing in\n{text}");
        }
    }

    #[test]
    #[should_panic(expected = "twice")]
    fn a_family_is_written_once() {
        let mut page = Page::new();
        page.counter("a_total", "As", 1);
        page.counter("a_total", "As", 1);
    }
}
