//! Sections that several services have.

use super::layout::Bad::{AboveShare, Below, Never, Positive};
use super::layout::Lines::{self, Each, Named};
use super::layout::Unit::{ByteRate, Bytes, Count, Percent, Rate, Time};
use super::layout::Value::{Mean, PerSecond, Quantile, Ratio, WorkFailed, WorkRate, WorkTime};
use super::layout::{Extra, Of, Only, Section, chart, each, gauge, quantile, rate, tile};
use crate::spread;

/// The layout of a service without sections of its own.
pub const COMMON: &[&Section] = &[&NOW, &OPERATIONS, &BATCHES, &CRYPTOGRAPHY, &STORE, &PROCESS];

/// Stages of a batch.
macro_rules! stage {
    ($name:literal) => {
        ($name, Quantile(Of("batzen_lane_stage_seconds", &[("stage", $name)]), 0.5))
    };
}

/// Load and response times.
pub const NOW: Section = Section {
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
};

/// Operations by outcome.
pub const OPERATIONS: Section = Section {
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
};

/// Batches of the lane.
pub const BATCHES: Section = Section {
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
};

/// The CPU pool.
pub const CRYPTOGRAPHY: Section = Section {
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
};

/// The store.
pub const STORE: Section = Section {
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
};

/// The process and its HTTP server.
pub const PROCESS: Section = Section {
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
};
