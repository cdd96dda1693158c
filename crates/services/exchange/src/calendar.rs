//! The expiration calendar: when denominations, signing keys and fees end, and by when the next ones must be
//! signed.
//!
//! A [`Period`] is the time for which one key or one set of fees is in force. The periods of one item, such
//! as the denominations of one value, must follow each other without a gap. [`Calendar::coverage`] finds the
//! first gap. All functions depend only on the periods and a time.

use std::collections::BTreeMap;

use batzen_crypto::Cipher;
use batzen_protocol::{Amount, Timestamp};

/// The item of a denomination: its value, and its cipher if that is not RSA.
pub(crate) fn denomination_item(value: Amount, cipher: Cipher) -> String {
    match cipher {
        Cipher::Rsa => value.to_string(),
        Cipher::Cs => format!("{value} CS"),
    }
}

batzen_protocol::enumeration! {
    /// The owner of a period.
    pub(crate) enum Kind {
        /// A denomination: it can be withdrawn within its period.
        Denomination => "denomination",
        /// An online signing key.
        SigningKey => "signing_key",
        /// The fees of a wire method.
        WireFee => "wire_fee",
        GlobalFee => "global_fee",
    }
}

/// The time for which one key or one set of fees is in force.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Period {
    /// Its owner.
    pub(crate) kind: Kind,
    /// The item: the value of a denomination, a wire method; empty for signing keys and global fees.
    pub(crate) item: String,
    /// When it begins.
    pub(crate) start: Timestamp,
    /// When it ends.
    pub(crate) end: Timestamp,
    /// Whether the offline master key has signed it.
    pub(crate) is_signed: bool,
}

/// Time that the signed periods of one item follow each other without a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Coverage {
    /// Its owner.
    pub(crate) kind: Kind,
    /// The item, as in [`Period::item`].
    pub(crate) item: String,
    /// The end of the last signed period before the first gap. None if no signed period is in force now.
    pub(crate) covered_until: Option<Timestamp>,
    /// The first gap between signed periods: its start and its end.
    pub(crate) gap: Option<(Timestamp, Timestamp)>,
    /// Periods that wait for the offline signature.
    pub(crate) unsigned: usize,
}

impl Coverage {
    /// The time by which the next period must be signed: the end of the coverage, or now if there is none.
    pub(crate) fn sign_by(&self, now: Timestamp) -> Timestamp {
        self.covered_until.unwrap_or(now)
    }

    /// The seconds until the coverage ends; 0 if no signed period is in force.
    pub(crate) fn seconds_left(&self, now: Timestamp) -> u64 {
        self.covered_until.map_or(0, |end| end.saturating_since(now).as_micros() / 1_000_000)
    }

    /// The length of the first gap in seconds; 0 if there is none.
    pub(crate) fn gap_seconds(&self) -> u64 {
        self.gap.map_or(0, |(start, end)| end.saturating_since(start).as_micros() / 1_000_000)
    }
}

/// The periods of an exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calendar {
    periods: Vec<Period>,
    /// Items that must be covered, even if they have no period.
    required: Vec<(Kind, String)>,
}

impl Calendar {
    /// A calendar of these periods, sorted by kind, item and start.
    #[must_use]
    pub(crate) fn new(mut periods: Vec<Period>) -> Self {
        periods.sort();
        periods.dedup();
        Self { periods, required: Vec::new() }
    }

    /// Adds an item that must be covered, even if it has no period.
    #[must_use]
    pub(crate) fn require(mut self, kind: Kind, item: &str) -> Self {
        self.required.push((kind, item.to_owned()));
        self
    }

    /// The periods that have not ended, sorted by kind, item and start.
    pub(crate) fn periods(&self, now: Timestamp) -> impl Iterator<Item = &Period> {
        self.periods.iter().filter(move |period| period.end > now)
    }

    /// The coverage of every item that has a period or must have one, sorted by kind and item.
    pub(crate) fn coverage(&self, now: Timestamp) -> Vec<Coverage> {
        let mut items: BTreeMap<(Kind, &str), Vec<&Period>> = BTreeMap::new();
        for (kind, item) in &self.required {
            items.entry((*kind, item)).or_default();
        }
        for period in self.periods(now) {
            items.entry((period.kind, &period.item)).or_default().push(period);
        }
        items.into_iter().map(|((kind, item), periods)| cover(kind, item, &periods, now)).collect()
    }
}

/// The coverage of one item by its periods, which are sorted by start.
fn cover(kind: Kind, item: &str, periods: &[&Period], now: Timestamp) -> Coverage {
    let open = periods.iter().filter(|period| period.end > now);
    let unsigned = open.clone().filter(|period| !period.is_signed).count();
    let mut covered_until: Option<Timestamp> = None;
    let mut gap = None;
    for period in open.filter(|period| period.is_signed) {
        let end = covered_until.unwrap_or(now);
        if period.start <= end {
            covered_until = Some(end.max(period.end));
        } else {
            gap = Some((end, period.start));
            break;
        }
    }
    Coverage { kind, item: item.to_owned(), covered_until, gap, unsigned }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn period(start: u64, end: u64, is_signed: bool) -> Period {
        let item = "KUDOS:1".to_owned();
        Period { kind: Kind::Denomination, item, start: at(start), end: at(end), is_signed }
    }

    fn coverage(periods: &[Period], now: u64) -> Coverage {
        Calendar::new(periods.to_vec()).coverage(at(now)).pop().unwrap()
    }

    #[test]
    fn signed_periods_that_overlap_or_adjoin_are_one_coverage() {
        let covered = coverage(&[period(25, 40, true), period(0, 20, true), period(20, 30, true)], 10);
        assert_eq!((covered.covered_until, covered.gap), (Some(at(40)), None));
        assert_eq!((covered.seconds_left(at(10)), covered.sign_by(at(10))), (30, at(40)));
    }

    #[test]
    fn a_gap_ends_the_coverage() {
        let covered = coverage(&[period(0, 20, true), period(25, 40, true)], 10);
        assert_eq!((covered.covered_until, covered.gap), (Some(at(20)), Some((at(20), at(25)))));
        assert_eq!(covered.gap_seconds(), 5);
    }

    #[test]
    fn unsigned_and_ended_periods_cover_nothing() {
        let covered = coverage(&[period(0, 9, true), period(5, 30, false), period(30, 50, false)], 10);
        assert_eq!((covered.covered_until, covered.unsigned), (None, 2));
        assert_eq!((covered.seconds_left(at(10)), covered.sign_by(at(10))), (0, at(10)));
        // A period that has not begun covers nothing now.
        let later = coverage(&[period(15, 30, true)], 10);
        assert_eq!((later.covered_until, later.gap), (None, Some((at(10), at(15)))));
    }

    #[test]
    fn a_required_item_without_periods_is_not_covered() {
        let covered = Calendar::new(Vec::new()).require(Kind::WireFee, "iban").coverage(at(1));
        assert_eq!((covered[0].item.as_str(), covered[0].covered_until), ("iban", None));
    }
}
