//! Counters of the service, and their Prometheus text.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use batzen_engine::LaneSnapshot;
use batzen_http::StatsSnapshot;

use crate::workers::WorkerMetrics;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Counts `count` at once.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    /// The count since the start of the process.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Transactions that took effect for the first time.
#[derive(Debug, Default)]
pub struct SuccessCounters {
    /// Deposits of one coin each; a batch deposit counts its coins.
    pub deposit: Counter,
    /// Single withdrawals.
    pub withdraw: Counter,
    /// Batch withdrawals (calls, not coins).
    pub batch_withdraw: Counter,
    /// Melts.
    pub melt: Counter,
    /// Reveals.
    pub refresh_reveal: Counter,
}

/// Counters by kind of request.
#[derive(Debug, Default)]
pub struct RequestCounters {
    /// Everything that has no name of its own.
    pub other: Counter,
    /// Deposits and batch deposits.
    pub deposit: Counter,
    /// Withdrawals and batch withdrawals.
    pub withdraw: Counter,
    /// Melts.
    pub melt: Counter,
}

/// Requests that were answered from what was stored before.
#[derive(Debug, Default)]
pub struct IdempotentCounters {
    /// Single withdrawals.
    pub withdraw: Counter,
    /// Batch withdrawals.
    pub batch_withdraw: Counter,
}

/// Counters by signature algorithm.
#[derive(Debug, Default)]
pub struct AlgorithmCounters {
    /// Blind RSA.
    pub rsa: Counter,
    /// Clause Blind Schnorr.
    pub cs: Counter,
    /// Ed25519.
    pub eddsa: Counter,
}

/// What a request is counted as in [`Metrics::received`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestClass {
    /// Everything that has no name of its own.
    Other,
    /// Deposits.
    Deposit,
    /// Withdrawals.
    Withdraw,
    /// Melts.
    Melt,
}

/// All counters of one exchange process.
#[derive(Debug, Default)]
pub struct Metrics {
    /// `taler_exchange_success_transactions`
    pub success: SuccessCounters,
    /// `taler_exchange_serialization_failures`: batches repeated by the lane count under `other`.
    pub serialization_failures: RequestCounters,
    /// `taler_exchange_received_requests`
    pub received: RequestCounters,
    /// `taler_exchange_idempotent_requests`
    pub idempotent: IdempotentCounters,
    /// `taler_exchange_num_signatures`: signatures made.
    pub signatures: AlgorithmCounters,
    /// `taler_exchange_num_signature_verifications`: signatures checked.
    pub verifications: AlgorithmCounters,
    /// `taler_exchange_num_keyexchanges{type="ecdh"}`
    pub keyexchanges_ecdh: Counter,
    /// `taler_exchange_batch_withdraw_num_coins`: coins of successful batch withdrawals.
    pub batch_withdraw_coins: Counter,
    /// Denomination keys created since the start.
    pub denomination_keys_created: Counter,
    /// Online signing keys created since the start.
    pub signing_keys_created: Counter,
    /// Rebuilt key states.
    pub key_state_builds: Counter,
    /// Background workers.
    pub workers: WorkerMetrics,
}

/// What the metrics page reads besides the service's own counters.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The lane.
    pub lane: LaneSnapshot,
    /// The HTTP server.
    pub http: StatsSnapshot,
    /// Counters of the store and other rooms: name without prefix, help text, whether it only grows, value.
    pub further: Vec<(String, &'static str, bool, u64)>,
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn labelled(&mut self, name: &str, help: &str, rows: &[(&str, u64)]) {
        self.head(name, help, "counter");
        for (label, value) in rows {
            let _ = writeln!(self.0, "{name}{{type=\"{label}\"}} {value}");
        }
    }

    fn plain(&mut self, name: &str, help: &str, grows: bool, value: u64) {
        self.head(name, help, if grows { "counter" } else { "gauge" });
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn seconds(&mut self, name: &str, help: &str, ns: u64) {
        self.head(name, help, "counter");
        let _ = writeln!(self.0, "{name} {}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    }
}

impl Metrics {
    /// Counts a request that has been received.
    pub fn received(&self, class: RequestClass) {
        match class {
            RequestClass::Other => self.received.other.inc(),
            RequestClass::Deposit => self.received.deposit.inc(),
            RequestClass::Withdraw => self.received.withdraw.inc(),
            RequestClass::Melt => self.received.melt.inc(),
        }
    }

    /// The page `/metrics` in Prometheus' text format.
    pub fn render(&self, sources: &Sources) -> String {
        let mut page = Page(String::with_capacity(8 * 1024));
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
        page.labelled(
            "taler_exchange_success_transactions",
            "Transactions that took effect",
            &[
                ("deposit", self.success.deposit.get()),
                ("withdraw", self.success.withdraw.get()),
                ("batch-withdraw", self.success.batch_withdraw.get()),
                ("melt", self.success.melt.get()),
                ("refresh-reveal", self.success.refresh_reveal.get()),
            ],
        );
        page.labelled(
            "taler_exchange_serialization_failures",
            "Transactions that had to be run again",
            &requests(&self.serialization_failures, sources.lane.conflicts),
        );
        page.labelled("taler_exchange_received_requests", "Requests received", &requests(&self.received, 0));
        page.labelled(
            "taler_exchange_idempotent_requests",
            "Requests answered from an earlier result",
            &[
                ("withdraw", self.idempotent.withdraw.get()),
                ("batch-withdraw", self.idempotent.batch_withdraw.get()),
            ],
        );
        page.labelled("taler_exchange_num_signatures", "Signatures made", &algorithms(&self.signatures));
        page.labelled(
            "taler_exchange_num_signature_verifications",
            "Signatures checked",
            &algorithms(&self.verifications),
        );
        page.labelled(
            "taler_exchange_num_keyexchanges",
            "Key exchanges computed",
            &[("ecdh", self.keyexchanges_ecdh.get())],
        );
        page.plain(
            "taler_exchange_batch_withdraw_num_coins",
            "Coins issued by batch withdrawals",
            true,
            self.batch_withdraw_coins.get(),
        );
        self.render_own(sources, &mut page);
        page.0
    }

    fn render_own(&self, sources: &Sources, page: &mut Page) {
        let (lane, http) = (&sources.lane, &sources.http);
        for (name, help, grows, value) in [
            ("batzen_lane_batches_total", "Batches committed", true, lane.batches),
            ("batzen_lane_commands_total", "Commands decided", true, lane.commands),
            ("batzen_lane_refusals_total", "Commands refused by a rule", true, lane.refusals),
            ("batzen_lane_reruns_total", "Commands executed again for their evidence", true, lane.reruns),
            ("batzen_lane_conflicts_total", "Batches run again", true, lane.conflicts),
            (
                "batzen_lane_rejected_total",
                "Commands not accepted because the queue was full",
                true,
                lane.rejected,
            ),
            ("batzen_lane_queued", "Commands waiting", false, lane.queued),
            (
                "batzen_lane_batch_commands_max",
                "Commands in the largest batch",
                false,
                lane.batch_commands_max,
            ),
            ("batzen_http_connections_total", "Connections accepted", true, http.connections_accepted),
            ("batzen_http_connections_refused_total", "Connections refused", true, http.connections_refused),
            ("batzen_http_connections_open", "Connections open", false, http.connections_open),
            ("batzen_http_requests_total", "Requests", true, http.requests),
            ("batzen_http_requests_in_flight", "Requests in work", false, http.requests_in_flight),
            (
                "batzen_http_requests_overload_total",
                "Requests refused for load",
                true,
                http.requests_overload,
            ),
            ("batzen_http_cancelled_total", "Requests without answer", true, http.cancelled),
            ("batzen_http_panics_total", "Handlers that failed", true, http.panics),
            ("batzen_http_timeouts_total", "Connections closed for slowness", true, http.timeouts),
            ("batzen_http_received_bytes_total", "Bytes of request bodies", true, http.body_bytes_received),
            ("batzen_http_sent_bytes_total", "Bytes of response bodies", true, http.body_bytes_sent),
            (
                "batzen_keys_denominations_created_total",
                "Denomination keys created",
                true,
                self.denomination_keys_created.get(),
            ),
            (
                "batzen_keys_signing_created_total",
                "Signing keys created",
                true,
                self.signing_keys_created.get(),
            ),
            ("batzen_keys_builds_total", "Key states built", true, self.key_state_builds.get()),
        ] {
            page.plain(name, help, grows, value);
        }
        for (name, help, grows, value) in self.workers.rows() {
            page.plain(name, help, grows, value);
        }
        page.head("batzen_http_responses_total", "Answers by class of status", "counter");
        for (class, count) in http.responses.iter().enumerate() {
            let _ = writeln!(page.0, "batzen_http_responses_total{{class=\"{}xx\"}} {count}", class + 1);
        }
        for (name, help, ns) in [
            ("batzen_lane_prefetch_seconds_total", "Time spent loading rows", lane.prefetch_ns),
            ("batzen_lane_execute_seconds_total", "Time spent in rules", lane.execute_ns),
            ("batzen_lane_commit_seconds_total", "Time spent committing", lane.commit_ns),
        ] {
            page.seconds(name, help, ns);
        }
        for (name, help, grows, value) in &sources.further {
            page.plain(&format!("batzen_{name}"), help, *grows, *value);
        }
    }
}
