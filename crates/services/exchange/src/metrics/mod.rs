//! Counters of the service, and their Prometheus text.

pub mod flow;
mod workers;

use batzen_engine::Count;
use batzen_metrics::{Counter, Page};

use crate::rules::{Answer, ConflictReason, Refusal};
pub(crate) use workers::{Leases, Queue, Standing, WorkerMetrics};

/// Transactions that took effect for the first time.
#[derive(Debug, Default)]
pub(crate) struct SuccessCounters {
    /// Deposits of one coin each; a batch deposit counts its coins.
    pub(crate) deposit: Counter,
    /// Single withdrawals.
    pub(crate) withdraw: Counter,
    /// Batch withdrawals (calls, not coins).
    pub(crate) batch_withdraw: Counter,
    pub(crate) melt: Counter,
    pub(crate) refresh_reveal: Counter,
}

/// Counters by kind of request.
#[derive(Debug, Default)]
pub(crate) struct RequestCounters {
    /// All other kinds.
    pub(crate) other: Counter,
    /// Deposits and batch deposits.
    pub(crate) deposit: Counter,
    /// Withdrawals and batch withdrawals.
    pub(crate) withdraw: Counter,
    pub(crate) melt: Counter,
}

/// Repeated requests, answered from stored rows.
#[derive(Debug, Default)]
pub(crate) struct IdempotentCounters {
    /// Single withdrawals.
    pub(crate) withdraw: Counter,
    /// Batch withdrawals.
    pub(crate) batch_withdraw: Counter,
}

/// Counters by signature algorithm.
#[derive(Debug, Default)]
pub struct AlgorithmCounters {
    /// Blind RSA.
    pub(crate) rsa: Counter,
    /// Clause Blind Schnorr.
    pub(crate) cs: Counter,
    /// Ed25519.
    pub eddsa: Counter,
}

/// All counters of one exchange process.
#[derive(Debug, Default)]
pub struct Metrics {
    /// `taler_exchange_success_transactions`
    pub(crate) success: SuccessCounters,
    /// `taler_exchange_serialization_failures`: batches repeated by the lane count under `other`.
    pub(crate) serialization_failures: RequestCounters,
    /// `taler_exchange_received_requests`
    pub(crate) received: RequestCounters,
    /// `taler_exchange_idempotent_requests`
    pub(crate) idempotent: IdempotentCounters,
    /// `taler_exchange_num_signatures`: signatures made.
    pub(crate) signatures: AlgorithmCounters,
    /// `taler_exchange_num_signature_verifications`: signatures checked.
    pub verifications: AlgorithmCounters,
    /// `taler_exchange_num_keyexchanges{type="ecdh"}`
    pub(crate) keyexchanges_ecdh: Counter,
    /// `taler_exchange_batch_withdraw_num_coins`: coins of successful batch withdrawals.
    pub(crate) batch_withdraw_coins: Counter,
    /// Denomination keys created since the start.
    pub(crate) denomination_keys_created: Counter,
    /// Online signing keys created since the start.
    pub(crate) signing_keys_created: Counter,
    /// Rebuilt key states.
    pub(crate) key_state_builds: Counter,
    /// Background workers.
    pub workers: WorkerMetrics,
    /// Identification of customers.
    pub(crate) kyc: KycCounters,
    /// Decisions of the rules.
    pub(crate) decisions: Decisions,
}

/// Values of the label `operation`.
pub(crate) const OPERATIONS: [&str; 18] = [
    "withdraw",
    "batch-withdraw",
    "csr",
    "deposit",
    "batch-deposit",
    "refund",
    "melt",
    "reveal",
    "link",
    "recoup",
    "recoup-refresh",
    "purse",
    "keys",
    "reserve",
    "tracking",
    "kyc",
    "management",
    "other",
];

/// Requests that conflict with a coin's or a reserve's history, by kind of conflict.
#[derive(Debug, Default)]
pub(crate) struct ConflictCounters {
    double_spend: Counter,
    other_denomination: Counter,
    other_age: Counter,
    other_deposit: Counter,
    refund: Counter,
    reserve_insufficient: Counter,
    nonce_reuse: Counter,
}

impl ConflictCounters {
    fn rows(&self) -> [(&'static str, u64); 7] {
        [
            ("double-spend", self.double_spend.get()),
            ("other-denomination", self.other_denomination.get()),
            ("other-age", self.other_age.get()),
            ("other-deposit", self.other_deposit.get()),
            ("refund", self.refund.get()),
            ("reserve-insufficient", self.reserve_insufficient.get()),
            ("nonce-reuse", self.nonce_reuse.get()),
        ]
    }
}

/// Coins of one kind of command.
#[derive(Debug)]
struct CoinCounters {
    /// The command's [`METRIC`](batzen_engine::Command::METRIC).
    name: &'static str,
    new: Counter,
    repeated: Counter,
}

/// Counters of what the rules decided.
#[derive(Debug)]
pub(crate) struct Decisions {
    coins: Vec<CoinCounters>,
    conflicts: ConflictCounters,
}

impl Default for Decisions {
    fn default() -> Self {
        let counters = |name| CoinCounters { name, new: Counter::default(), repeated: Counter::default() };
        Self { coins: Answer::metrics().map(counters).collect(), conflicts: ConflictCounters::default() }
    }
}

impl Decisions {
    /// Counts a decision on a command.
    pub(crate) fn count(&self, verdict: &Result<Answer, Refusal>) {
        match verdict {
            Ok(answer) => answer.metric().into_iter().for_each(|(name, count)| self.count_coins(name, count)),
            Err(refusal) => self.count_refusal(refusal),
        }
    }

    fn count_coins(&self, name: &str, count: Count) {
        let counters = self.coins.iter().find(|counters| counters.name == name);
        let counters = counters.expect("every metric has counters");
        counters.new.add(count.new);
        counters.repeated.add(count.repeated);
    }

    fn count_refusal(&self, refusal: &Refusal) {
        let conflicts = &self.conflicts;
        let counter = match refusal {
            Refusal::CoinConflict { conflict, .. } => match conflict.reason {
                ConflictReason::Insufficient { .. } => &conflicts.double_spend,
                ConflictReason::OtherDenomination => &conflicts.other_denomination,
                ConflictReason::OtherAgeCommitment => &conflicts.other_age,
                ConflictReason::OtherDeposit => &conflicts.other_deposit,
                ConflictReason::RefundOtherAmount | ConflictReason::RefundAboveDeposit { .. } => {
                    &conflicts.refund
                }
            },
            Refusal::ReserveInsufficient(_) => &conflicts.reserve_insufficient,
            Refusal::NonceReuse { .. } => &conflicts.nonce_reuse,
            _ => return,
        };
        counter.inc();
    }

    /// Counts coins of a repeated withdrawal that was answered without the rules.
    pub(crate) fn count_repeated_withdrawal(&self, coins: usize) {
        self.count_coins("withdraw", Count::of(coins, true));
    }

    fn write(&self, page: &mut Page) {
        page.counters(
            "batzen_coins_total",
            "Coins of operations that took effect for the first time",
            "operation",
            self.coins.iter().map(|counters| (counters.name, counters.new.get())),
        );
        page.counters(
            "batzen_repeated_coins_total",
            "Coins of operations that were answered from an earlier result",
            "operation",
            self.coins.iter().map(|counters| (counters.name, counters.repeated.get())),
        );
        page.counters(
            "batzen_conflicts_total",
            "Requests that a history contradicts; a double spend is one that takes more than is left on the coin",
            "reason",
            self.conflicts.rows(),
        );
    }
}

impl Metrics {
    /// Counts a request that has been received, by its operation.
    pub(crate) fn received(&self, operation: &str) {
        match operation {
            "deposit" | "batch-deposit" => self.received.deposit.inc(),
            "withdraw" | "batch-withdraw" => self.received.withdraw.inc(),
            "melt" => self.received.melt.inc(),
            _ => self.received.other.inc(),
        }
    }

    /// Writes the exchange's own counters: `taler_exchange_*` with the names that existing dashboards know
    /// (without `_total`), and `batzen_*`. `lane_conflicts` is the number of batches that the lane ran again.
    pub(crate) fn write(&self, page: &mut Page, lane_conflicts: u64) {
        self.write_taler(page, lane_conflicts);
        self.decisions.write(page);
        for (name, help, counter) in [
            (
                "batzen_keys_denominations_created_total",
                "Denomination keys created",
                &self.denomination_keys_created,
            ),
            ("batzen_keys_signing_created_total", "Signing keys created", &self.signing_keys_created),
            ("batzen_keys_builds_total", "Key states built", &self.key_state_builds),
        ] {
            page.count(name, help, counter);
        }
        for (name, help, grows, value) in self.workers.rows() {
            match value {
                Some(value) if grows => page.counter(name, help, value),
                Some(value) => page.gauge(name, help, value),
                None => {}
            }
        }
    }

    fn write_taler(&self, page: &mut Page, lane_conflicts: u64) {
        let requests = |counters: &RequestCounters, further: u64| {
            [
                ("other", counters.other.get() + further),
                ("deposit", counters.deposit.get()),
                ("withdraw", counters.withdraw.get()),
                ("melt", counters.melt.get()),
            ]
        };
        let algorithms = |counters: &AlgorithmCounters| {
            [("rsa", counters.rsa.get()), ("cs", counters.cs.get()), ("eddsa", counters.eddsa.get())]
        };
        let mut by_type = |name: &str, help: &str, rows: &[(&str, u64)]| {
            page.counters(&format!("taler_exchange_{name}"), help, "type", rows.iter().copied());
        };
        by_type(
            "success_transactions",
            "Transactions that took effect",
            &[
                ("deposit", self.success.deposit.get()),
                ("withdraw", self.success.withdraw.get()),
                ("batch-withdraw", self.success.batch_withdraw.get()),
                ("melt", self.success.melt.get()),
                ("refresh-reveal", self.success.refresh_reveal.get()),
            ],
        );
        by_type(
            "serialization_failures",
            "Transactions that had to be run again",
            &requests(&self.serialization_failures, lane_conflicts),
        );
        by_type("received_requests", "Requests received", &requests(&self.received, 0));
        by_type(
            "idempotent_requests",
            "Requests answered from an earlier result",
            &[
                ("withdraw", self.idempotent.withdraw.get()),
                ("batch-withdraw", self.idempotent.batch_withdraw.get()),
            ],
        );
        by_type("num_signatures", "Signatures made", &algorithms(&self.signatures));
        by_type("num_signature_verifications", "Signatures checked", &algorithms(&self.verifications));
        by_type("num_keyexchanges", "Key exchanges computed", &[("ecdh", self.keyexchanges_ecdh.get())]);
        let kyc = [
            ("required", self.kyc.required.get()),
            ("submitted", self.kyc.submitted.get()),
            ("identified", self.kyc.identified.get()),
            ("failed", self.kyc.failed.get()),
        ];
        page.counters("batzen_kyc_total", "Identification of customers", "kind", kyc);
        page.count(
            "taler_exchange_batch_withdraw_num_coins",
            "Coins issued by batch withdrawals",
            &self.batch_withdraw_coins,
        );
    }
}

/// Identification of customers, `batzen_kyc_total` in `/metrics`.
#[derive(Debug, Default)]
pub(crate) struct KycCounters {
    /// Operations refused until somebody is identified.
    pub(crate) required: Counter,
    /// Forms filled in for officers.
    pub(crate) submitted: Counter,
    /// Customers identified.
    pub(crate) identified: Counter,
    /// Attempts that failed at the provider.
    pub(crate) failed: Counter,
}
