//! The switch's dashboard.

use batzen_service::dashboard::Bad::{Never, Positive};
use batzen_service::dashboard::Lines::Named;
use batzen_service::dashboard::Unit::{Count, Money, Percent, Rate, Time};
use batzen_service::dashboard::Value::{WorkRate, WorkTime};
use batzen_service::dashboard::{
    Extra, Layout, OPERATIONS, PROCESS, Reading, STORE, Sample, Section, Table, chart, gauge, rate, short,
    tile,
};
use batzen_service::spread;
use serde_json::json;

/// The dashboard.
pub const DASHBOARD: Layout = Layout {
    sections: &[&SWITCH, &PARTICIPANTS, &OPERATIONS, &STORE, &PROCESS],
    work: &["transfer", "prepare", "fulfil", "error", "get", "bulk-prepare", "bulk-fulfil", "bulk-error"],
};

const SWITCH: Section = Section {
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
};

const PARTICIPANTS: Section = Section {
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
    extra: Extra::Table {
        metrics: &[COLUMNS[0].1, COLUMNS[1].1, COLUMNS[2].1, COLUMNS[3].1],
        make: positions,
    },
};

/// Title and metric of the columns after a participant's name and currency.
const COLUMNS: [(&str, &str); 4] = [
    ("Position", "batzen_switch_position"),
    ("Reserved", "batzen_switch_position_reserved"),
    ("Net debit cap", "batzen_switch_net_debit_cap"),
    ("Liquidity", "batzen_switch_liquidity"),
];

fn positions(now: &Reading) -> Table {
    let mut columns = vec![("Participant", None), ("Currency", None)];
    columns.extend(COLUMNS.iter().map(|(title, _)| (*title, Some(Money))));
    columns.push(("Limit in use", Some(Percent)));
    let row = |sample: &Sample| {
        let [name, currency] =
            ["participant", "currency"].map(|label| sample.label(label).unwrap_or_default());
        let wanted = [("participant", name), ("currency", currency)];
        let mut row = vec![json!(name), json!(currency)];
        let values = COLUMNS.map(|(_, metric)| now.sum(metric, &wanted));
        row.extend(values.iter().map(|value| json!(value)));
        let [position, _, cap, liquidity] = values.map(|value| value.unwrap_or(0.0));
        let limit = cap.min(liquidity);
        let used = (limit > 0.0).then(|| position.max(0.0) / limit);
        row.push(json!(used.and_then(short)));
        row
    };
    Table {
        id: "positions",
        title: "Positions",
        empty: "There are no participants yet.",
        columns,
        rows: now.samples(COLUMNS[0].1).iter().map(row).collect(),
    }
}
