//! The exchange's dashboard.

use batzen_service::dashboard::Bad::{Negative, Never, Positive};
use batzen_service::dashboard::Lines::Named;
use batzen_service::dashboard::Unit::{Count, Money, Rate, Time};
use batzen_service::dashboard::Value::Sum;
use batzen_service::dashboard::{
    BATCHES, CRYPTOGRAPHY, Extra, Layout, NOW, OPERATIONS, PROCESS, Reading, STORE, Section, Table, caption,
    chart, each, gauge, rate, short, tile,
};
use serde_json::json;

/// The dashboard.
pub const DASHBOARD: Layout = Layout {
    sections: &[
        &NOW,
        &MONEY,
        &EXPIRY,
        &OPERATIONS,
        &COINS,
        &BATCHES,
        &CRYPTOGRAPHY,
        &WORKERS,
        &STORE,
        &PROCESS,
    ],
    work: &[
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
    ],
};

const MONEY: Section = Section {
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
        tile("surplus", "surplus: fees and unrevealed melts", Money, gauge("batzen_money_surplus"), Negative),
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
    extra: Extra::Amounts { prefix: "batzen_money_", zero: "batzen_money_conservation_difference" },
};

const EXPIRY: Section = Section {
    id: "expiry",
    title: "Expiry of keys",
    needs: "batzen_expiry_",
    tiles: &[],
    charts: &[],
    extra: Extra::Table { metrics: &["batzen_expiry_"], make: expiries },
};

const COINS: Section = Section {
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
};

const WORKERS: Section = Section {
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
                ("closings", gauge("batzen_worker_closer_lag_seconds")),
                ("purses", gauge("batzen_worker_expire_lag_seconds")),
                ("profit", gauge("batzen_worker_drain_lag_seconds")),
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
};

/// Expirations, the next first. A gauge has either the seconds that are left or a time in seconds since 1970.
fn expiries(now: &Reading) -> Table {
    let mut rows: Vec<(f64, String)> = Vec::new();
    for name in now.names("batzen_expiry_") {
        for sample in now.samples(name) {
            let left = if sample.value > 1e9 { sample.value - now.unix_s } else { sample.value };
            let labels: Vec<&str> = sample.labels.iter().map(|(_, value)| value.as_str()).collect();
            let what = caption(now.help(name), name);
            let what = if labels.is_empty() { what } else { format!("{what}: {}", labels.join(", ")) };
            rows.push((left, what));
        }
    }
    rows.sort_by(|one, other| one.0.total_cmp(&other.0));
    Table {
        id: "expiries",
        title: "Next to expire",
        empty: "Nothing expires.",
        columns: vec![("What", None), ("Time left", Some(Time))],
        rows: rows.into_iter().map(|(left, what)| vec![json!(what), json!(short(left))]).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_next_to_expire_is_first() {
        let page = "# HELP batzen_expiry_seconds Until the last key expires\n\
                    batzen_expiry_seconds{kind=\"signing\"} 60\n\
                    batzen_expiry_seconds{kind=\"denomination\"} 30\n";
        let table = expiries(&Reading::parse(page, Instant::now(), 1e9, |_| true));
        assert_eq!(table.rows[0], [json!("until the last key expires: denomination"), json!(30.0)]);
    }
}
