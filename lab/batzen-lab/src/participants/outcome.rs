//! The outcome of transfers and of loads.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::participants::order::Behaviour;

/// The longest latency that a histogram records, µs.
const LATENCY_MAX_US: u64 = 600_000_000;

/// A histogram of microseconds with this many significant digits.
pub(crate) fn histogram(digits: u8) -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_US, digits).expect("constant bounds")
}

/// The final notice that a participant received about a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Notice {
    /// COMMITTED.
    Committed,
    /// ABORTED, without a reason (PATCH, and answers to GET).
    Aborted,
    /// An error of the interface: four digits.
    Error(u16),
    /// The request itself was refused with this HTTP status.
    Refused(u16),
}

impl Notice {
    /// Returns whether the money has moved.
    #[must_use]
    pub const fn is_committed(self) -> bool {
        matches!(self, Self::Committed)
    }
}

impl std::fmt::Display for Notice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Committed => write!(f, "COMMITTED"),
            Self::Aborted => write!(f, "ABORTED"),
            Self::Error(code) => write!(f, "error {code:04}"),
            Self::Refused(status) => write!(f, "HTTP {status}"),
        }
    }
}

/// A transfer as its participants saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferOutcome {
    /// Number of the participant that pays.
    pub payer: usize,
    /// Number of the participant that is paid.
    pub payee: usize,
    /// The amount in hundredths of the currency.
    pub cents: u64,
    /// Their behaviour.
    pub behaviour: Behaviour,
    /// The notice to the payer.
    pub payer_notice: Option<Notice>,
    /// The notice to the payee. It receives one about failures, and about every transfer that it answered
    /// with RESERVED.
    pub payee_notice: Option<Notice>,
    /// When the payer received its notice, milliseconds since 1970.
    pub(crate) ended_ms: Option<u64>,
    /// Final callbacks to the payer.
    pub payer_callbacks: u32,
    /// Refusals of changed duplicates (3106), which end nothing.
    pub(crate) modified: u32,
    /// Whether a participant received contradictory notices, or the two received different ones.
    pub is_contradictory: bool,
}

/// A second of a load.
#[derive(Clone, Debug)]
pub struct Second {
    /// Transfers committed.
    pub(crate) committed: u64,
    /// The whole latency of these transfers, µs.
    pub(crate) whole: Histogram<u64>,
}

/// The outcome of a load. Latencies and `committed` cover the measured part, all other figures the whole
/// load.
#[derive(Clone, Debug)]
pub struct Report {
    /// Length of the measured part.
    pub measured: Duration,
    /// Transfers whose payer was notified of COMMITTED in the measured part.
    pub committed: u64,
    /// From sending the POST to its arrival at the payee, µs.
    pub prepare: Histogram<u64>,
    /// From sending the PUT to the callback at the payer, µs.
    pub fulfil: Histogram<u64>,
    /// From the planned start to the callback at the payer, µs.
    pub whole: Histogram<u64>,
    /// The measured part by second.
    pub seconds: Vec<Second>,
    /// Transfers begun at any time.
    pub begun: u64,
    /// Transfers whose payer was notified of COMMITTED at any time.
    pub committed_in_all: u64,
    /// Their sum, in hundredths of the currency.
    pub committed_cents: u128,
    /// Number of transfers by behaviour and notice to the payer.
    pub ends: BTreeMap<(Behaviour, Notice), u64>,
    /// Transfers whose payer received no notice.
    pub unresolved: u64,
    /// Requests other than prepares that were refused, by kind and status.
    pub refusals: BTreeMap<String, u64>,
    /// Requests repeated after overload or a broken connection.
    pub repeats: u64,
    /// Callbacks about transfers that had already ended.
    pub late_callbacks: u64,
    /// Invalid callbacks: to the wrong participant, with a wrong fulfilment, or contradicting an earlier one.
    pub wrong_callbacks: u64,
    /// The delay of transfers in an open loop because the simulators were busy, 99th percentile in µs.
    pub late_p99_us: u64,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            measured: Duration::ZERO,
            committed: 0,
            prepare: histogram(3),
            fulfil: histogram(3),
            whole: histogram(3),
            seconds: Vec::new(),
            begun: 0,
            committed_in_all: 0,
            committed_cents: 0,
            ends: BTreeMap::new(),
            unresolved: 0,
            refusals: BTreeMap::new(),
            repeats: 0,
            late_callbacks: 0,
            wrong_callbacks: 0,
            late_p99_us: 0,
        }
    }

    /// Transfers that ended differently from what their behaviour should cause, by the notice to the payer,
    /// and all other errors.
    #[must_use]
    pub fn failures(&self) -> BTreeMap<String, u64> {
        let mut failures = BTreeMap::new();
        for ((behaviour, notice), count) in &self.ends {
            if behaviour.commits() != notice.is_committed() {
                *failures.entry(format!("{}: {notice}", behaviour.name())).or_default() += count;
            }
        }
        failures.extend(self.refusals.clone());
        let others = [("no callback", self.unresolved), ("wrong callback", self.wrong_callbacks)];
        failures.extend(
            others.into_iter().filter(|(_, count)| *count > 0).map(|(name, count)| (name.to_owned(), count)),
        );
        failures
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.committed += other.committed;
        self.prepare += &other.prepare;
        self.fulfil += &other.fulfil;
        self.whole += &other.whole;
        for (index, second) in other.seconds.iter().enumerate() {
            match self.seconds.get_mut(index) {
                Some(sum) => {
                    sum.committed += second.committed;
                    sum.whole += &second.whole;
                }
                None => self.seconds.push(second.clone()),
            }
        }
        self.begun += other.begun;
        self.committed_in_all += other.committed_in_all;
        self.committed_cents += other.committed_cents;
        for (end, count) in &other.ends {
            *self.ends.entry(*end).or_default() += count;
        }
        self.measured = self.measured.max(other.measured);
        self.unresolved += other.unresolved;
        for (refusal, count) in &other.refusals {
            *self.refusals.entry(refusal.clone()).or_default() += count;
        }
        self.repeats += other.repeats;
        self.late_callbacks += other.late_callbacks;
        self.wrong_callbacks += other.wrong_callbacks;
        self.late_p99_us = self.late_p99_us.max(other.late_p99_us);
    }
}
