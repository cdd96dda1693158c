//! A plan for people.

use std::fmt::Write as _;

use batzen_cli_support::numbers;

use super::StoreChoice;
use super::formula::Plan;

/// The longest bar, in characters.
const BAR: f64 = 40.0;

/// Bytes with a decimal unit.
pub(super) fn bytes(bytes: f64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1_000.0 && unit + 1 < units.len() {
        value /= 1_000.0;
        unit += 1;
    }
    format!("{} {}", numbers::number(value), units[unit])
}

/// The plan as text, with a bar for each stage.
pub(crate) fn table(plan: &Plan) -> String {
    let demand = &plan.demand;
    let mut out = format!(
        "{} payments of {} coins a second at the peak, {} % of that on average, kept for {} years\n\n",
        numbers::number(demand.payments_per_s),
        numbers::number(demand.coins_per_payment),
        numbers::number(demand.mean_share * 100.0),
        numbers::number(demand.years),
    );
    let most = plan.cores.values().copied().chain([plan.database_cores]).fold(0.0, f64::max);
    let mut bar = |name: &str, cores: f64| {
        let length = if most > 0.0 { (cores / most * BAR).round() as usize } else { 0 };
        let _ = writeln!(out, "  {name:<22} {:>10} cores  {}", numbers::number(cores), "█".repeat(length));
    };
    for (stage, name) in [
        ("http", "HTTP"),
        ("cpu", "cryptography"),
        ("lane", "lanes"),
        ("store", "upkeep of the store"),
        ("other", "other"),
    ] {
        if let Some(cores) = plan.cores.get(stage).filter(|cores| **cores >= 0.005) {
            bar(name, *cores);
        }
    }
    if plan.database_cores > 0.0 {
        bar("database", plan.database_cores);
    }
    let copies = match demand.copies {
        1 => "one copy".to_owned(),
        copies => format!("{copies} copies"),
    };
    let _ = writeln!(
        out,
        "\n  {:<22} {:>10}  at {} % utilisation, one copy",
        "cores of the exchange",
        numbers::number(plan.cores_in_all),
        numbers::number(demand.utilisation * 100.0)
    );
    let mut line = |name: &str, value: String, note: &str| {
        let _ = writeln!(out, "  {name:<22} {value:>10}  {note}");
    };
    let lanes = if plan.citus.is_some() {
        "in each service: one for each worker, and one more"
    } else {
        "[exchange] LANES"
    };
    line("lanes", plan.lanes.to_string(), lanes);
    if let Some(most) = plan.payments_per_s_of_a_store {
        line(
            "stores",
            plan.stores.to_string(),
            &format!("at most {} payments/s each", numbers::number(most)),
        );
    }
    line("machines", plan.machines.to_string(), &format!("of {} cores, {copies}", demand.cores_per_machine));
    if demand.store == StoreChoice::Postgres {
        line(
            "database machines",
            plan.database_machines.to_string(),
            &format!("of {} cores, {copies}", demand.cores_per_machine),
        );
    }
    if let Some(citus) = &plan.citus {
        let of_worker = format!("of {} cores, {copies}", demand.worker_cores);
        line("workers", (citus.workers * demand.copies).to_string(), &of_worker);
        let share = numbers::number(citus.coordinator_share * 100.0);
        line(
            "coordinator",
            numbers::number(citus.coordinator_cores),
            &format!("cores of one server, {share} % of the database, one copy"),
        );
        line("shards", citus.shards.to_string(), "batzen exchange dbinit --citus --shards");
        line(
            "connections",
            citus.worker_connections.to_string(),
            &format!("to a worker at most, {} to the coordinator", citus.coordinator_connections),
        );
    }
    line("disk a day", bytes(plan.disk_bytes_per_day), "one copy");
    line("disk in the end", bytes(plan.disk_bytes), "one copy");
    if plan.memory_bytes > 0.0 {
        line("memory for indexes", bytes(plan.memory_bytes), "RAM in the end, one copy");
    }
    let journal = if demand.store != StoreChoice::Embedded { "write-ahead log" } else { "journal" };
    line(journal, format!("{}/s", bytes(plan.journal_bytes_per_s)), "at the peak");
    line("network", format!("{}/s", bytes(plan.network_bytes_per_s)), "at the peak, both directions");
    if let Some(slowdown) = plan.costs.slowdown {
        let _ = writeln!(
            out,
            "\nThis machine takes {:.2} times as long for cryptography as {}, and {:.2} times for the rest.",
            slowdown.cryptography, plan.costs.machine.model, slowdown.other
        );
    }
    out.push('\n');
    for remark in &plan.remarks {
        let _ = writeln!(out, "* {remark}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(bytes(999.0), "999 B");
        assert!(bytes(1.5e12).ends_with(" TB"), "{}", bytes(1.5e12));
    }
}
