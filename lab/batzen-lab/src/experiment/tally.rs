//! The operations of a load's wallets: a generator counts them second by second, the controller adds up the seconds of all
//! generators. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use batzen_cli_support::numbers::milliseconds;
use batzen_protocol::Money;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The largest latency recorded, in microseconds.
const LATENCY_MAX_US: u64 = 600_000_000;
/// Significant digits of latencies. Two are 1 %.
const DIGITS: u8 = 2;
/// The most kinds of errors that are told apart.
const ERRORS_MAX: usize = 50;
/// The heads of the columns of times.
pub(super) const TIMES_HEAD: [&str; 7] = ["kind", "amount", "coins", "count", "mean ms", "p50 ms", "p99 ms"];

/// Operations of one kind, amount and number of coins in one second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SizeSecond {
    /// The largest amount of the class in whole units.
    pub(super) amount_max: u64,
    /// The largest number of coins of the class.
    pub(super) coins_max: u64,
    /// Their latencies: value in microseconds and count.
    pub(super) latencies_us: Vec<(u64, u64)>,
}

/// Operations of one kind in one second.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KindSecond {
    /// Operations that succeeded.
    pub(super) ops: u64,
    /// Coins that they moved.
    pub(super) coins: u64,
    /// Their latencies by size.
    pub(super) sizes: Vec<SizeSecond>,
}

/// The operations of a generator in one second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Second {
    /// Milliseconds since 1970.
    pub(super) time_ms: u64,
    /// Wallets at work.
    pub(super) wallets: usize,
    /// Operations that were to begin, in an open loop.
    pub(super) offered: u64,
    /// Operations that wait for a wallet.
    pub(super) backlog: usize,
    /// Operations given up because too many waited.
    pub(super) missed: u64,
    /// Operations by kind.
    pub(super) kinds: BTreeMap<String, KindSecond>,
    /// Failed operations by reason.
    pub(super) errors: BTreeMap<String, u64>,
    /// The correlation id of the first of them by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) examples: BTreeMap<String, String>,
}

/// Latencies in microseconds.
struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LATENCY_MAX_US, DIGITS).expect("constant bounds"))
    }
}

/// The largest number of the class of a number. Classes end at 1, 2, 5, 10, 20, 50 and so on.
fn class(number: u64) -> u64 {
    let mut decade = 1_u64;
    loop {
        let bounds = [1, 2, 5].map(|factor| decade.saturating_mul(factor));
        if let Some(bound) = bounds.into_iter().find(|bound| number <= *bound) {
            return bound;
        }
        decade = decade.saturating_mul(10);
    }
}

/// The smallest number of the class that ends with this one.
fn class_min(bound: u64) -> u64 {
    // Of 1, 2 and 5 in a decade, only 5 is more than twice the one before.
    let before = if bound.to_string().starts_with('5') { bound / 5 * 2 } else { bound / 2 };
    before + 1
}

#[derive(Default)]
struct Counts {
    ops: u64,
    coins: u64,
    sizes: BTreeMap<(u64, u64), Latencies>,
}

/// The counts until the next line.
#[derive(Default)]
pub(super) struct Tally {
    kinds: BTreeMap<&'static str, Counts>,
    errors: BTreeMap<String, u64>,
    examples: BTreeMap<String, String>,
}

impl Tally {
    /// Counts an operation with its amount and number of coins.
    pub(super) fn count(&mut self, kind: &'static str, (amount, coins): (Money, usize), took: Duration) {
        let (units, coins) = (amount.value() + u64::from(amount.fraction() > 0), coins as u64);
        let counts = self.kinds.entry(kind).or_default();
        counts.ops += 1;
        counts.coins += coins;
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        counts.sizes.entry((class(units), class(coins))).or_default().0.saturating_record(took_us);
    }

    /// Counts a failure of the operation with this correlation id.
    pub(super) fn fail(&mut self, error: &anyhow::Error, id: &str) {
        let reason = reason(error);
        let reason = if self.errors.len() < ERRORS_MAX || self.errors.contains_key(&reason) {
            reason
        } else {
            "other".to_owned()
        };
        self.examples.entry(reason.clone()).or_insert_with(|| id.to_owned());
        *self.errors.entry(reason).or_default() += 1;
    }

    /// Takes operations and failures since the last call.
    pub(super) fn take(&mut self) -> Second {
        let kinds = std::mem::take(&mut self.kinds).into_iter().map(|(name, counts)| {
            let sizes = counts.sizes.into_iter().map(|((amount_max, coins_max), latencies)| {
                let recorded = latencies.0.iter_recorded();
                let latencies_us =
                    recorded.map(|step| (step.value_iterated_to(), step.count_at_value())).collect();
                SizeSecond { amount_max, coins_max, latencies_us }
            });
            (name.to_owned(), KindSecond { ops: counts.ops, coins: counts.coins, sizes: sizes.collect() })
        });
        Second {
            kinds: kinds.collect(),
            errors: std::mem::take(&mut self.errors),
            examples: std::mem::take(&mut self.examples),
            ..Second::default()
        }
    }
}

/// The reason of a failure without the numbers that differ each time.
fn reason(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let mut short = String::new();
    for character in text.chars().take(300) {
        match (character.is_ascii_digit(), short.ends_with('#')) {
            (true, true) => {}
            (true, false) => short.push('#'),
            (false, _) => short.push(character),
        }
    }
    short
}

/// Whether operations of this kind are what a load consists of; the others are done for them.
pub(super) fn is_counted(kind: &str) -> bool {
    matches!(kind, "pay" | "send" | "transfer")
}

/// The operations of several seconds of several generators together.
#[derive(Default)]
pub(super) struct Sum {
    pub(super) offered: u64,
    pub(super) ops: u64,
    pub(super) coins: u64,
    pub(super) errors: BTreeMap<String, u64>,
    /// The correlation id of one of them by reason.
    pub(super) examples: BTreeMap<String, String>,
    pub(super) by_kind: BTreeMap<String, u64>,
    by_size: BTreeMap<(String, u64, u64), Latencies>,
}

impl Sum {
    /// Adds up seconds.
    pub(super) fn of<'a>(seconds: impl IntoIterator<Item = &'a Second>) -> Self {
        let mut sum = Self::default();
        for second in seconds {
            sum.offered += second.offered;
            for (reason, count) in &second.errors {
                *sum.errors.entry(reason.clone()).or_default() += count;
            }
            for (reason, id) in &second.examples {
                sum.examples.entry(reason.clone()).or_insert_with(|| id.clone());
            }
            for (kind, counts) in &second.kinds {
                sum.coins += counts.coins;
                if is_counted(kind) {
                    sum.ops += counts.ops;
                }
                *sum.by_kind.entry(kind.clone()).or_default() += counts.ops;
                for size in &counts.sizes {
                    let key = (kind.clone(), size.amount_max, size.coins_max);
                    let latencies = sum.by_size.entry(key).or_default();
                    for (value, count) in &size.latencies_us {
                        // Values above the bound were recorded as the bound.
                        let _ = latencies.0.record_n((*value).min(LATENCY_MAX_US), *count);
                    }
                }
            }
        }
        sum
    }

    /// The latencies of the operations that a load consists of.
    pub(super) fn latency(&self) -> Histogram<u64> {
        let mut all = Latencies::default().0;
        for ((kind, ..), latencies) in &self.by_size {
            if is_counted(kind) {
                // The bounds are the same.
                let _ = all.add(&latencies.0);
            }
        }
        all
    }

    /// The times by kind, amount and number of coins.
    pub(super) fn times(&self) -> Vec<Times> {
        let times = self.by_size.iter().map(|((kind, amount_max, coins_max), latencies)| Times {
            kind: kind.clone(),
            amount: [class_min(*amount_max), *amount_max],
            coins: [class_min(*coins_max), *coins_max],
            count: latencies.0.len(),
            mean_us: latencies.0.mean(),
            p50_us: latencies.0.value_at_quantile(0.5),
            p99_us: latencies.0.value_at_quantile(0.99),
        });
        times.collect()
    }
}

/// The time that wallets took for operations of one kind and size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Times {
    kind: String,
    /// The smallest and the largest amount of the class in whole units, rounded up.
    amount: [u64; 2],
    /// The smallest and the largest number of coins of the class.
    coins: [u64; 2],
    count: u64,
    mean_us: f64,
    p50_us: u64,
    p99_us: u64,
}

impl Times {
    /// Its cells, in the order of [`TIMES_HEAD`].
    pub(super) fn cells(&self) -> [String; 7] {
        let range =
            |[min, max]: [u64; 2]| if min == max { max.to_string() } else { format!("{min}–{max}") };
        [
            self.kind.clone(),
            range(self.amount),
            range(self.coins),
            self.count.to_string(),
            milliseconds(self.mean_us),
            milliseconds(self.p50_us as f64),
            milliseconds(self.p99_us as f64),
        ]
    }
}

/// Times as a table of plain text.
pub(super) fn times_table(times: &[Times]) -> String {
    let mut text = String::new();
    for [kind, others @ ..] in
        [TIMES_HEAD.map(str::to_owned)].into_iter().chain(times.iter().map(Times::cells))
    {
        let _ = write!(text, "{kind:<10}");
        for cell in others {
            let _ = write!(text, "{cell:>10}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(value: u64) -> Money {
        Money::new(value, 0).unwrap()
    }

    #[test]
    fn classes_cover_every_number_once() {
        assert_eq!([0, 1, 2, 3, 5, 6, 10, 11, 60].map(class), [1, 1, 2, 5, 5, 10, 10, 20, 100]);
        let mut before = 0;
        for bound in [1, 2, 5, 10, 20, 50, 100, 200, 500] {
            assert_eq!(class_min(bound), before + 1);
            assert_eq!((class(before + 1), class(bound)), (bound, bound));
            before = bound;
        }
        assert_eq!(class(u64::MAX), u64::MAX);
    }

    #[test]
    fn seconds_of_several_generators_add_up() {
        let mut tally = Tally::default();
        for ms in 1..=100 {
            tally.count("pay", (units(4), 3), Duration::from_millis(ms));
        }
        tally.count("withdraw", (units(60), 8), Duration::from_secs(9));
        tally.fail(&anyhow::anyhow!("HTTP 502"), "one");
        tally.fail(&anyhow::anyhow!("HTTP 503"), "two");
        let second = Second { offered: 110, ..tally.take() };
        assert_eq!(tally.take(), Second::default());
        assert_eq!(second.examples["HTTP #"], "one", "the first of a kind is the example");
        let line = serde_json::to_string(&second).unwrap();
        assert_eq!(serde_json::from_str::<Second>(&line).unwrap(), second);
        let sum = Sum::of([&second, &second]);
        assert_eq!((sum.offered, sum.ops, sum.coins), (220, 200, 616));
        assert_eq!((sum.by_kind["pay"], sum.errors["HTTP #"]), (200, 4));
        // A withdrawal is done for a payment, and is no operation of the load itself.
        let latency = sum.latency();
        assert_eq!(latency.len(), 200);
        let p99 = latency.value_at_quantile(0.99);
        assert!((98_000..=101_000).contains(&p99), "{p99}");
    }

    #[test]
    fn times_are_by_kind_amount_and_number_of_coins() {
        let mut tally = Tally::default();
        let half = Money::from_units(units(2).units() + units(1).units() / 2).unwrap();
        for (kind, amount, coins, ms) in [
            ("pay", units(3), 2, 10),
            ("pay", units(5), 2, 30),
            ("pay", half, 2, 20),
            ("pay", units(5), 3, 1_000),
            ("refund", units(5), 3, 7),
        ] {
            tally.count(kind, (amount, coins), Duration::from_millis(ms));
        }
        let kinds = tally.take().kinds;
        let times = Sum::of([&Second { kinds, ..Second::default() }]).times();
        let of = |index: usize| {
            (times[index].kind.as_str(), times[index].amount, times[index].coins, times[index].count)
        };
        assert_eq!(of(0), ("pay", [3, 5], [2, 2], 3));
        assert_eq!(of(1), ("pay", [3, 5], [3, 5], 1));
        assert_eq!(of(2), ("refund", [3, 5], [3, 5], 1));
        assert!((19_500.0..20_500.0).contains(&times[0].mean_us), "{times:?}");
        let table = times_table(&times);
        assert!(table.contains("3–5") && table.lines().count() == 4, "{table}");
    }

    #[test]
    fn failures_are_told_apart_by_reason_not_by_number() {
        let of = |text: &str| reason(&anyhow::anyhow!(text.to_owned()));
        assert_eq!(of("operation 17 failed"), of("operation 4711 failed"));
        assert_ne!(of("operation 17 failed"), of("operation 17 is pending"));
        let mut tally = Tally::default();
        for number in 0..2 * ERRORS_MAX {
            tally.fail(&anyhow::anyhow!("x".repeat(number + 1)), "id");
        }
        assert_eq!(tally.errors.len(), ERRORS_MAX + 1);
    }
}
