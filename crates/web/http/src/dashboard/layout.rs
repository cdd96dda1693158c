//! What the dashboard shows: sections of tiles, charts and tables, each with the metrics that it comes from.
//! A section is left out if it needs a metric that the service does not have, so that one layout fits every
//! service.

use Bad::{Above, AboveShare, Below, Negative, Never, Positive};
use Lines::{Each, Named};
use Unit::{ByteRate, Bytes, Count, Money, Percent, Rate, Time, YesNo};
use Value::{Mean, Now, PerSecond, Quantile, Ratio, Sum, WorkFailed, WorkRate, WorkTime};

/// How a value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Rate,
    Count,
    Bytes,
    ByteRate,
    Money,
    Percent,
    YesNo,
    Time,
}

impl Unit {
    /// Its name in the JSON that the page reads.
    pub const fn name(self) -> &'static str {
        match self {
            Rate => "rate",
            Count => "count",
            Bytes => "bytes",
            ByteRate => "byteRate",
            Money => "money",
            Percent => "percent",
            YesNo => "yes",
            Time => "time",
        }
    }
}

/// Samples of one metric: all that have these labels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Of(pub &'static str, pub &'static [(&'static str, &'static str)]);

/// A value that is computed from one reading or from two.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    /// The sum of the samples.
    Now(Of),
    /// The sum of several metrics.
    Sum(&'static [&'static str]),
    /// One sum as a fraction of another.
    Ratio(&'static str, &'static str),
    /// How fast the sum of the samples grows.
    PerSecond(Of),
    /// The mean of what a histogram recorded.
    Mean(&'static str),
    /// A quantile of what a histogram recorded.
    Quantile(Of, f64),
    /// Operations completed per second, without long polls.
    WorkRate,
    /// A quantile of their response times.
    WorkTime(f64),
    /// How many of them failed since the start.
    WorkFailed,
}

/// Which values need attention.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bad {
    Never,
    /// Above zero.
    Positive,
    Negative,
    Above(f64),
    Below(f64),
    /// Above this share of another metric.
    AboveShare(f64, &'static str),
}

/// One number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    pub id: &'static str,
    pub label: &'static str,
    pub unit: Unit,
    pub value: Value,
    pub bad: Bad,
}

/// The lines of a chart.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lines {
    /// The named lines.
    Named(&'static [(&'static str, Value)]),
    /// One for each value of a label.
    Each { metric: &'static str, label: &'static str, value: Value, only: Only },
    /// The label values with the largest samples.
    Largest(&'static str, &'static str, usize),
}

/// Which label values have a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Only {
    All,
    /// Operations that count as work, see [`WORK`].
    Work,
    AllBut(&'static str),
}

/// Lines over time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chart {
    pub id: &'static str,
    pub title: &'static str,
    pub caption: &'static str,
    pub unit: Unit,
    pub lines: Lines,
}

/// Other parts of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extra {
    None,
    /// Tiles for gauges `batzen_money_*` that no tile of the section shows, labelled with their help.
    OtherMoney,
    /// A table of the gauges `batzen_expiry_*`.
    Expiry,
    /// A table of the switch's participants.
    Participants,
}

/// A part of the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section {
    pub id: &'static str,
    pub title: &'static str,
    /// The start of a metric's name. Without such a metric, there is no section.
    pub needs: &'static str,
    pub tiles: &'static [Tile],
    pub charts: &'static [Chart],
    pub extra: Extra,
}

/// Operations that are answered at once. Others may be long polls, whose times and counts say nothing about
/// the load.
pub(super) const WORK: [&str; 25] = [
    "withdraw",
    "batch-withdraw",
    "deposit",
    "batch-deposit",
    "melt",
    "reveal",
    "refund",
    "recoup",
    "recoup-refresh",
    "csr",
    "transfer",
    "add-incoming",
    "withdrawal",
    "account",
    "create_accounts",
    "create_transfers",
    "lookup",
    "query",
    "prepare",
    "fulfil",
    "error",
    "get",
    "bulk-prepare",
    "bulk-fulfil",
    "bulk-error",
];

/// The columns of the switch's participants after their name and currency: title and metric.
pub(super) const PARTICIPANT_COLUMNS: [(&str, &str); 4] = [
    ("Position", "batzen_switch_position"),
    ("Reserved", "batzen_switch_position_reserved"),
    ("Net debit cap", "batzen_switch_net_debit_cap"),
    ("Liquidity", "batzen_switch_liquidity"),
];

const fn tile(id: &'static str, label: &'static str, unit: Unit, value: Value, bad: Bad) -> Tile {
    Tile { id, label, unit, value, bad }
}

const fn chart(
    id: &'static str,
    title: &'static str,
    caption: &'static str,
    unit: Unit,
    lines: Lines,
) -> Chart {
    Chart { id, title, caption, unit, lines }
}

const fn gauge(name: &'static str) -> Value {
    Now(Of(name, &[]))
}

const fn rate(name: &'static str) -> Value {
    PerSecond(Of(name, &[]))
}

const fn quantile(name: &'static str, quantile: f64) -> Value {
    Quantile(Of(name, &[]), quantile)
}

const fn each(metric: &'static str, label: &'static str, value: Value) -> Lines {
    Each { metric, label, value, only: Only::All }
}

/// The median and the 99th percentile of a histogram.
macro_rules! spread {
    ($name:literal) => {
        Named(&[("median", quantile($name, 0.5)), ("99th percentile", quantile($name, 0.99))])
    };
}

/// Stages of a batch.
macro_rules! stage {
    ($name:literal) => {
        ($name, Quantile(Of("batzen_lane_stage_seconds", &[("stage", $name)]), 0.5))
    };
}

/// All sections, in the page's order.
pub(super) const SECTIONS: &[Section] = &[
    Section {
        id: "now",
        title: "Now",
        needs: "batzen_lane_queued",
        tiles: &[
            tile("work", "operations done", Rate, WorkRate, Never),
            tile("p50", "answer time, median", Time, WorkTime(0.5), Never),
            tile("p99", "answer time, 99th percentile", Time, WorkTime(0.99), Never),
            tile(
                "queue",
                "commands waiting",
                Count,
                gauge("batzen_lane_queued"),
                AboveShare(0.5, "batzen_lane_queue_limit"),
            ),
            tile("cpu", "processors busy", Count, rate("process_cpu_seconds_total"), Never),
            tile("failed", "failed since the start", Count, WorkFailed, Positive),
        ],
        charts: &[],
        extra: Extra::None,
    },
    Section {
        id: "money",
        title: "Money",
        needs: "batzen_money_issued",
        tiles: &[
            tile("wired-in", "received from banks", Money, gauge("batzen_money_wired_in"), Never),
            tile("reserves", "in reserves", Money, gauge("batzen_money_reserves"), Never),
            tile("issued", "issued as coins", Money, gauge("batzen_money_issued"), Never),
            tile("redeemed", "redeemed", Money, gauge("batzen_money_redeemed"), Never),
            tile("outstanding", "outstanding in wallets", Money, gauge("batzen_money_outstanding"), Never),
            tile("pending", "owed to merchants", Money, gauge("batzen_money_pending"), Never),
            tile("purses", "in purses", Money, gauge("batzen_money_purses"), Never),
            tile("wired-out", "paid out to banks", Money, gauge("batzen_money_wired_out"), Never),
            tile(
                "surplus",
                "surplus: fees and unrevealed melts",
                Money,
                gauge("batzen_money_surplus"),
                Negative,
            ),
        ],
        charts: &[chart(
            "money",
            "Where the money is",
            "What the exchange owes, by creditor.",
            Money,
            Named(&[
                ("in wallets", gauge("batzen_money_outstanding")),
                ("in reserves", gauge("batzen_money_reserves")),
                ("owed to merchants", gauge("batzen_money_pending")),
                ("in purses", gauge("batzen_money_purses")),
            ]),
        )],
        extra: Extra::OtherMoney,
    },
    Section {
        id: "bank",
        title: "Accounts and money",
        needs: "batzen_bank_accounts",
        tiles: &[
            tile("bank-accounts", "accounts", Count, gauge("batzen_bank_accounts"), Never),
            tile("bank-total", "in accounts", Money, gauge("batzen_bank_money_held"), Never),
            tile("bank-debt", "owed by overdrawn accounts", Money, gauge("batzen_bank_money_debt"), Never),
            tile(
                "bank-set-aside",
                "set aside for withdrawals",
                Money,
                gauge("batzen_bank_money_set_aside"),
                Never,
            ),
            tile(
                "bank-intents",
                "movements waiting for the ledger",
                Count,
                gauge("batzen_bank_intents_open"),
                Never,
            ),
        ],
        charts: &[chart(
            "bank-money",
            "Money in accounts",
            "Sums over all accounts, added up every ten seconds (less often on a large bank).",
            Money,
            Named(&[
                ("in accounts", gauge("batzen_bank_money_held")),
                ("owed by overdrawn accounts", gauge("batzen_bank_money_debt")),
                ("set aside", gauge("batzen_bank_money_set_aside")),
            ]),
        )],
        extra: Extra::None,
    },
    Section {
        id: "expiry",
        title: "Expiry of keys",
        needs: "batzen_expiry_",
        tiles: &[],
        charts: &[],
        extra: Extra::Expiry,
    },
    Section {
        id: "ledger",
        title: "Ledger",
        needs: "batzen_ledger_events_total",
        tiles: &[
            tile(
                "transfers-made",
                "transfers made",
                Rate,
                PerSecond(Of("batzen_ledger_events_total", &[("kind", "transfer"), ("outcome", "created")])),
                Never,
            ),
            tile(
                "ledger-p99",
                "commit time, 99th percentile",
                Time,
                quantile("batzen_ledger_commit_seconds", 0.99),
                Never,
            ),
            tile("events-waiting", "events waiting", Count, gauge("batzen_ledger_queue_events"), Never),
            tile("transfers", "transfers stored", Count, gauge("batzen_ledger_transfers"), Never),
            tile("pendings", "transfers pending", Count, gauge("batzen_ledger_pendings"), Never),
            tile("accounts", "accounts", Count, gauge("batzen_ledger_accounts"), Never),
            tile("ledger-busy", "requests turned away", Count, gauge("batzen_ledger_busy_total"), Positive),
            tile(
                "ledger-failed",
                "batches rolled back",
                Count,
                gauge("batzen_ledger_batches_failed_total"),
                Positive,
            ),
        ],
        charts: &[
            chart(
                "events",
                "Transfers by outcome",
                "Transfers decided per second.",
                Rate,
                each(
                    "batzen_ledger_events_total",
                    "outcome",
                    PerSecond(Of("batzen_ledger_events_total", &[("kind", "transfer")])),
                ),
            ),
            chart(
                "asked",
                "Requests",
                "Requests per second, by kind.",
                Rate,
                each("batzen_ledger_requests_total", "kind", rate("batzen_ledger_requests_total")),
            ),
            chart(
                "ledger-batch",
                "Events per batch",
                "Batches grow with the load.",
                Count,
                spread!("batzen_ledger_batch_events"),
            ),
            chart(
                "ledger-times",
                "Batch time",
                "Median time to execute a batch and to make it durable.",
                Time,
                Named(&[
                    ("execute", quantile("batzen_ledger_execute_seconds", 0.5)),
                    ("commit", quantile("batzen_ledger_commit_seconds", 0.5)),
                ]),
            ),
            chart(
                "ledger-memory",
                "Memory of the state",
                "Accounts and transfers are held in memory.",
                Bytes,
                each("batzen_ledger_memory_bytes", "part", gauge("batzen_ledger_memory_bytes")),
            ),
        ],
        extra: Extra::None,
    },
    Section {
        id: "network",
        title: "Network",
        needs: "batzen_ledger_net_requests_total",
        tiles: &[
            tile(
                "net-connections",
                "open connections",
                Count,
                gauge("batzen_ledger_net_connections_open"),
                Never,
            ),
            tile(
                "net-errors",
                "answered with an error",
                Count,
                gauge("batzen_ledger_net_errors_total"),
                Positive,
            ),
            tile("net-busy", "answered with busy", Count, gauge("batzen_ledger_net_busy_total"), Positive),
        ],
        charts: &[
            chart(
                "net-requests",
                "Requests over the binary protocol",
                "Requests per second, by kind.",
                Rate,
                each("batzen_ledger_net_requests_total", "kind", rate("batzen_ledger_net_requests_total")),
            ),
            chart(
                "net-batch",
                "Events per submission",
                "Events that the server hands to the ledger at once.",
                Count,
                spread!("batzen_ledger_net_batch_events"),
            ),
            chart(
                "net-bytes",
                "Traffic",
                "Bytes per second over the binary protocol.",
                ByteRate,
                Named(&[
                    ("received", rate("batzen_ledger_net_received_bytes_total")),
                    ("sent", rate("batzen_ledger_net_sent_bytes_total")),
                ]),
            ),
        ],
        extra: Extra::None,
    },
    Section {
        id: "switch",
        title: "Switch",
        needs: "batzen_switch_batch_commands_count",
        tiles: &[
            tile("switch-work", "requests done", Rate, WorkRate, Never),
            tile("switch-p99", "answer time, 99th percentile", Time, WorkTime(0.99), Never),
            tile("switch-queue", "requests waiting", Count, gauge("batzen_switch_waiting_requests"), Never),
            tile(
                "intents",
                "transfers waiting for the ledger",
                Count,
                gauge("batzen_switch_open_intents"),
                Never,
            ),
            tile(
                "callbacks-done",
                "callbacks acknowledged",
                Count,
                gauge("batzen_switch_callbacks_total"),
                Never,
            ),
            tile(
                "given-up",
                "callbacks given up",
                Count,
                gauge("batzen_switch_callbacks_given_up_total"),
                Positive,
            ),
            tile(
                "near-cap",
                "positions above their alarm threshold",
                Count,
                gauge("batzen_switch_near_cap"),
                Positive,
            ),
            tile(
                "over-limit",
                "participants over their limit",
                Count,
                gauge("batzen_switch_over_limit"),
                Positive,
            ),
            tile(
                "switch-rejected",
                "requests turned away",
                Count,
                gauge("batzen_switch_rejected_total"),
                Positive,
            ),
            tile(
                "switch-failed",
                "batches not committed",
                Count,
                gauge("batzen_switch_failed_batches_total"),
                Positive,
            ),
            tile(
                "unsettled",
                "gross settlements refused",
                Count,
                gauge("batzen_switch_gross_unsettled_total"),
                Positive,
            ),
            tile(
                "misfits",
                "ledger answers that contradict the books",
                Count,
                gauge("batzen_switch_ledger_broken_total"),
                Positive,
            ),
        ],
        charts: &[
            chart(
                "callbacks",
                "Callbacks",
                "Callbacks per second to participants.",
                Rate,
                Named(&[
                    ("acknowledged", rate("batzen_switch_callbacks_total")),
                    ("failed attempts", rate("batzen_switch_callbacks_failed_total")),
                ]),
            ),
            chart(
                "callback-time",
                "Callback time",
                "From the commit to the participant's acknowledgement.",
                Time,
                spread!("batzen_switch_callback_seconds"),
            ),
            chart(
                "switch-batch",
                "Commands per batch",
                "Batches grow with the load.",
                Count,
                spread!("batzen_switch_batch_commands"),
            ),
            chart(
                "switch-times",
                "Batch time",
                "From the first command of a batch to its commit.",
                Time,
                spread!("batzen_switch_batch_seconds"),
            ),
            chart(
                "switch-ledger",
                "Ledger time",
                "Time of a request to the ledger.",
                Time,
                spread!("batzen_switch_ledger_seconds"),
            ),
            chart(
                "switch-events",
                "Events per ledger request",
                "Transfers sent to the ledger at once.",
                Count,
                spread!("batzen_switch_ledger_events"),
            ),
        ],
        extra: Extra::None,
    },
    Section {
        id: "participants",
        title: "Participants and settlement",
        needs: "batzen_switch_participants",
        tiles: &[
            tile("participants", "participants", Count, gauge("batzen_switch_participants"), Never),
            tile(
                "approvals",
                "changes waiting for approval",
                Count,
                gauge("batzen_switch_pending_approvals"),
                Never,
            ),
            tile(
                "window",
                "number of the open settlement window",
                Count,
                gauge("batzen_switch_window_open"),
                Never,
            ),
            tile(
                "window-transfers",
                "transfers in the open window",
                Count,
                gauge("batzen_switch_window_open_transfers"),
                Never,
            ),
            tile(
                "windows-unsettled",
                "closed windows to be settled",
                Count,
                gauge("batzen_switch_windows_unsettled"),
                Never,
            ),
        ],
        charts: &[],
        extra: Extra::Participants,
    },
    Section {
        id: "signer",
        title: "Signer",
        needs: "batzen_signer_items_total",
        tiles: &[
            tile("primary", "creates keys", YesNo, gauge("batzen_signer_primary"), Never),
            tile("keys", "private keys", Count, gauge("batzen_signer_keys"), Never),
            tile("signer-connections", "open connections", Count, gauge("batzen_signer_connections"), Never),
            tile("synced", "behind the primary", Time, gauge("batzen_signer_sync_lag_seconds"), Above(300.0)),
            tile(
                "strangers",
                "failed handshakes",
                Count,
                gauge("batzen_signer_handshakes_failed_total"),
                Positive,
            ),
            tile("signer-busy", "requests turned away", Count, gauge("batzen_signer_busy_total"), Positive),
            tile(
                "forbidden",
                "requests beyond a client's role",
                Count,
                gauge("batzen_signer_forbidden_total"),
                Positive,
            ),
        ],
        charts: &[
            chart(
                "items",
                "Items signed",
                "Items per second, by kind.",
                Rate,
                each("batzen_signer_items_total", "kind", rate("batzen_signer_items_total")),
            ),
            chart(
                "signer-time",
                "Request time",
                "From a request to its answer.",
                Time,
                spread!("batzen_signer_request_seconds"),
            ),
            chart(
                "unsigned",
                "Items not signed",
                "Since the start, by reason.",
                Count,
                each("batzen_signer_refused_total", "reason", gauge("batzen_signer_refused_total")),
            ),
        ],
        extra: Extra::None,
    },
    Section {
        id: "operations",
        title: "Operations",
        needs: "batzen_operations_total",
        tiles: &[],
        charts: &[
            chart(
                "operations",
                "Operations done",
                "Per second, without long polls.",
                Rate,
                Each {
                    metric: "batzen_operations_total",
                    label: "operation",
                    value: PerSecond(Of("batzen_operations_total", &[("outcome", "done")])),
                    only: Only::Work,
                },
            ),
            chart(
                "latency",
                "Answer time",
                "From the complete request to the answer, without long polls.",
                Time,
                Named(&[("median", WorkTime(0.5)), ("99th percentile", WorkTime(0.99))]),
            ),
            chart(
                "outcomes",
                "Operations not done",
                "Per second, by outcome.",
                Rate,
                Each {
                    metric: "batzen_operations_total",
                    label: "outcome",
                    value: rate("batzen_operations_total"),
                    only: Only::AllBut("done"),
                },
            ),
        ],
        extra: Extra::None,
    },
    Section {
        id: "coins",
        title: "Coins",
        needs: "batzen_coins_total",
        tiles: &[],
        charts: &[
            chart(
                "coins",
                "Coins",
                "Coins per second, by operation.",
                Rate,
                each("batzen_coins_total", "operation", rate("batzen_coins_total")),
            ),
            chart(
                "conflicts",
                "Conflicts",
                "Requests since the start that a history contradicts.",
                Count,
                each("batzen_conflicts_total", "reason", gauge("batzen_conflicts_total")),
            ),
            chart(
                "repeats",
                "Repeated requests",
                "Coins since the start that were answered from an earlier result.",
                Count,
                each("batzen_repeated_coins_total", "operation", gauge("batzen_repeated_coins_total")),
            ),
        ],
        extra: Extra::None,
    },
    Section {
        id: "batches",
        title: "Batches",
        needs: "batzen_lane_batch_commands_count",
        tiles: &[],
        charts: &[
            chart(
                "batch",
                "Commands per batch",
                "Batches grow with the load.",
                Count,
                Named(&[
                    ("mean", Mean("batzen_lane_batch_commands")),
                    ("99th percentile", quantile("batzen_lane_batch_commands", 0.99)),
                ]),
            ),
            chart(
                "batches",
                "Batches and commands",
                "Per second.",
                Rate,
                Named(&[
                    ("batches", rate("batzen_lane_batch_commands_count")),
                    ("commands", rate("batzen_lane_commands_total")),
                ]),
            ),
            chart(
                "stages",
                "Batch time",
                "Median time of each stage of a batch.",
                Time,
                Named(&[stage!("prefetch"), stage!("execute"), stage!("commit")]),
            ),
            chart(
                "queued",
                "Waiting",
                "Commands waiting for a batch, and items waiting for a processor.",
                Count,
                Named(&[("commands", gauge("batzen_lane_queued")), ("items", gauge("batzen_pool_queued"))]),
            ),
        ],
        extra: Extra::None,
    },
    Section {
        id: "cryptography",
        title: "Cryptography",
        needs: "batzen_pool_items_total",
        tiles: &[],
        charts: &[
            chart(
                "crypto",
                "Items",
                "Signatures made and checked per second, by kind.",
                Rate,
                each("batzen_pool_items_total", "kind", rate("batzen_pool_items_total")),
            ),
            chart(
                "lanes",
                "Items per batch",
                "Mean number of items that are computed side by side.",
                Count,
                each("batzen_pool_items_total", "kind", Mean("batzen_pool_batch_items")),
            ),
            chart(
                "busy",
                "Processors busy",
                "Processors that compute, by kind of work.",
                Count,
                each("batzen_pool_items_total", "kind", rate("batzen_pool_batch_seconds_sum")),
            ),
            chart(
                "wait",
                "Wait for a processor",
                "Median time until an item is begun.",
                Time,
                each("batzen_pool_items_total", "kind", quantile("batzen_pool_wait_seconds", 0.5)),
            ),
        ],
        extra: Extra::None,
    },
    Section {
        id: "workers",
        title: "Workers",
        needs: "batzen_worker_wirewatch_credits_total",
        tiles: &[
            tile(
                "transfers-failed",
                "transfers refused for good",
                Count,
                gauge("batzen_worker_transfer_failed_total"),
                Positive,
            ),
            tile(
                "bank-failures",
                "failed calls to the bank",
                Count,
                Sum(&["batzen_worker_wirewatch_failures_total", "batzen_worker_transfer_retries_total"]),
                Never,
            ),
        ],
        charts: &[
            chart(
                "lag",
                "Lag",
                "How long the oldest piece of work has been due.",
                Time,
                Named(&[
                    ("credits", gauge("batzen_worker_wirewatch_lag_seconds")),
                    ("aggregation", gauge("batzen_worker_aggregator_lag_seconds")),
                    ("transfers", gauge("batzen_worker_transfer_lag_seconds")),
                ]),
            ),
            chart(
                "worked",
                "Work done",
                "Per second, by worker.",
                Rate,
                Named(&[
                    ("credits", rate("batzen_worker_wirewatch_credits_total")),
                    ("deposits aggregated", rate("batzen_worker_aggregator_deposits_total")),
                    ("transfers", rate("batzen_worker_transfer_done_total")),
                    ("reserves closed", rate("batzen_worker_closer_reserves_total")),
                ]),
            ),
        ],
        extra: Extra::None,
    },
    Section {
        id: "store",
        title: "Store",
        needs: "batzen_store_rows",
        tiles: &[
            tile("disk", "on disk", Bytes, gauge("batzen_store_disk_bytes"), Never),
            tile(
                "live",
                "of it in use",
                Percent,
                Ratio("batzen_store_live_bytes", "batzen_store_disk_bytes"),
                Never,
            ),
            tile("rows", "rows", Count, gauge("batzen_store_rows"), Never),
            tile("index", "memory of indexes", Bytes, gauge("batzen_store_index_bytes"), Never),
            tile("index-files", "index files", Bytes, gauge("batzen_store_index_file_bytes"), Never),
            tile(
                "free",
                "free on the disk",
                Bytes,
                gauge("batzen_store_disk_free_bytes"),
                Below(1_073_741_824.0),
            ),
        ],
        charts: &[
            chart(
                "fsync",
                "Disk wait",
                "Time until a commit is on disk.",
                Time,
                spread!("batzen_store_sync_seconds"),
            ),
            chart(
                "written",
                "Written",
                "Bytes per second to the journal.",
                ByteRate,
                Named(&[("journal", rate("batzen_store_written_bytes_total"))]),
            ),
            chart(
                "tables",
                "Largest tables",
                "Rows of the largest tables.",
                Count,
                Lines::Largest("batzen_store_table_rows", "table", 6),
            ),
        ],
        extra: Extra::None,
    },
    Section {
        id: "process",
        title: "Process",
        needs: "process_resident_memory_bytes",
        tiles: &[],
        charts: &[
            chart(
                "processors",
                "Processors",
                "Processors that this process keeps busy.",
                Count,
                Named(&[("busy", rate("process_cpu_seconds_total"))]),
            ),
            chart(
                "memory",
                "Memory",
                "Memory of this process.",
                Bytes,
                Named(&[("resident", gauge("process_resident_memory_bytes"))]),
            ),
            chart(
                "http",
                "HTTP answers",
                "Per second, by class of status.",
                Rate,
                each("batzen_http_responses_total", "class", rate("batzen_http_responses_total")),
            ),
            chart(
                "connections",
                "Connections",
                "Open connections, and requests in progress.",
                Count,
                Named(&[
                    ("connections", gauge("batzen_http_connections_open")),
                    ("requests", gauge("batzen_http_requests_in_flight")),
                ]),
            ),
        ],
        extra: Extra::None,
    },
];

impl Value {
    /// The metrics that it is computed from.
    pub fn metrics(&self) -> Vec<String> {
        match self {
            Now(Of(name, _)) | PerSecond(Of(name, _)) => vec![(*name).to_owned()],
            Sum(names) => names.iter().map(|name| (*name).to_owned()).collect(),
            Ratio(part, whole) => vec![(*part).to_owned(), (*whole).to_owned()],
            Mean(name) => vec![format!("{name}_sum"), format!("{name}_count")],
            Quantile(Of(name, _), _) => vec![format!("{name}_bucket")],
            WorkRate | WorkFailed => vec!["batzen_operations_total".to_owned()],
            WorkTime(_) => vec!["batzen_operation_seconds_bucket".to_owned()],
        }
    }
}

impl Lines {
    /// The metrics that they are computed from.
    pub fn metrics(&self) -> Vec<String> {
        match self {
            Named(lines) => lines.iter().flat_map(|(_, value)| value.metrics()).collect(),
            Each { metric, value, .. } => [vec![(*metric).to_owned()], value.metrics()].concat(),
            Self::Largest(metric, ..) => vec![(*metric).to_owned()],
        }
    }
}

impl Section {
    /// The metrics that it is computed from, as far as their names are given here.
    pub fn metrics(&self) -> Vec<String> {
        let mut names: Vec<String> = self.tiles.iter().flat_map(|tile| tile.value.metrics()).collect();
        for tile in self.tiles {
            if let AboveShare(_, of) = tile.bad {
                names.push(of.to_owned());
            }
        }
        names.extend(self.charts.iter().flat_map(|chart| chart.lines.metrics()));
        if self.extra == Extra::Participants {
            names.extend(PARTICIPANT_COLUMNS.iter().map(|(_, metric)| (*metric).to_owned()));
        }
        names
    }
}
