//! The ledger's dashboard.

use batzen_service::dashboard::Bad::{Never, Positive};
use batzen_service::dashboard::Lines::Named;
use batzen_service::dashboard::Unit::{ByteRate, Bytes, Count, Rate, Time};
use batzen_service::dashboard::Value::PerSecond;
use batzen_service::dashboard::{
    Extra, Layout, OPERATIONS, Of, PROCESS, STORE, Section, chart, each, gauge, quantile, rate, tile,
};
use batzen_service::spread;

/// The dashboard.
pub const DASHBOARD: Layout = Layout {
    sections: &[&LEDGER, &NETWORK, &OPERATIONS, &STORE, &PROCESS],
    work: &["create_accounts", "create_transfers", "lookup", "query"],
};

const LEDGER: Section = Section {
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
};

const NETWORK: Section = Section {
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
};
