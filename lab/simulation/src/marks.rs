//! Coverage marks: rare states that a run has reached.

use std::collections::BTreeMap;

/// Marks that a few hundred seeds must reach. A simulation that does not reach its rare states tests nothing.
pub const EXPECTED: &[&str] = &[
    "aggregate.paid",
    "aggregate.small",
    "audit.after_recovery",
    "bank.finished_after_restart",
    "bank.in_flight",
    "batch.several",
    "clock.step_back",
    "clock.step_forward",
    "close.paid",
    "crash.bank",
    "crash.customer_after_commit",
    "crash.customer_before_commit",
    "crash.exchange",
    "crash.ledger",
    "crash.power_loss",
    "crash.process_kill",
    "crash.shop",
    "crash.within_commit",
    "crash.within_recovery",
    "deposit.refused_spent",
    "deposit.repeated",
    "disk.full",
    "disk.write_failed",
    "history.page_full",
    "keys.revoked",
    "kyc.decided",
    "kyc.submitted",
    "ledger.pending_expired",
    "ledger.snapshot_taken",
    "melt.repeated",
    "message.delayed",
    "message.duplicated",
    "message.lost",
    "message.to_dead_process",
    "pay.repeated",
    "purse.deleted",
    "purse.expired",
    "purse.merged",
    "purse.refunded",
    "purse.request_paid",
    "recoup.accepted",
    "recoup_refresh.accepted",
    "refund.accepted",
    "refund.repeated",
    "reveal.repeated",
    "shop.paid",
    "shop.refund_approved",
    "shop.refunded",
    "shop.repeated",
    "store.checkpoint",
    "transfer.repeated",
    "withdraw.denomination_expired",
    "withdraw.repeated",
];

/// Marks that some thousand seeds must reach as well.
pub const RARE: &[&str] = &[
    "close.unpaid",
    "disk.full_refused",
    "disk.misdirected_write",
    "disk.misdirected_write_found",
    "history.repeated",
    "recoup.repeated",
    "refund.too_late",
    "theft.tried",
    "revocation.within_request",
    "shop.already_paid",
    "shop.exchange_silent",
    "shop.refund_waits",
    "transfer.two_answers",
    "withdraw.after_expiry",
];

/// Number of seeds that must reach [`RARE`].
pub const SEEDS_FOR_RARE: u64 = 5_000;

/// Number of times that each mark was reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks(BTreeMap<&'static str, u64>);

impl Marks {
    /// Marks a state as reached.
    pub fn meet(&mut self, mark: &'static str) {
        *self.0.entry(mark).or_default() += 1;
    }

    /// Adds the marks of another run.
    pub fn add(&mut self, other: &Self) {
        for (mark, count) in &other.0 {
            *self.0.entry(mark).or_default() += count;
        }
    }

    /// The marks that this many seeds should have reached but did not.
    #[must_use]
    pub fn missing(&self, seeds: u64) -> Vec<&'static str> {
        let rare = if seeds >= SEEDS_FOR_RARE { RARE } else { &[] };
        EXPECTED.iter().chain(rare).copied().filter(|mark| !self.0.contains_key(mark)).collect()
    }

    /// All reached marks, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(mark, count)| (*mark, *count))
    }
}
