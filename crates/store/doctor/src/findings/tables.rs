//! Tables: dead rows, vacuum, statistics, wraparound, whole-table reads, HOT.

use std::collections::BTreeMap;

use super::{Finding, Severity, set};
use crate::facts::{Facts, Table};
use crate::words;

/// Tables, with all partitions of one together, by name (with the schema, unless that is `public`).
pub(crate) fn by_root(tables: &[Table]) -> BTreeMap<String, Vec<&Table>> {
    let mut groups: BTreeMap<String, Vec<&Table>> = BTreeMap::new();
    for table in tables {
        let name = table.root.as_deref().unwrap_or(&table.name);
        let name =
            if table.schema == "public" { name.to_owned() } else { format!("{}.{name}", table.schema) };
        groups.entry(name).or_default().push(table);
    }
    groups
}

/// Applies the rules.
pub(crate) fn find(facts: &Facts, found: &mut Vec<Finding>) {
    wraparound(facts, found);
    autovacuum(facts, found);
    if facts.tables.is_empty() {
        return;
    }
    dead_rows(facts, found);
    statistics(facts, found);
    whole_reads(facts, found);
    hot(facts, found);
}

fn wraparound(facts: &Facts, found: &mut Vec<Finding>) {
    /// The server refuses writes three million transactions before two thousand million.
    const STOP: u64 = 2_000_000_000;
    if facts.databases.is_empty() {
        return;
    }
    let limit = |name: &str, default: u64| facts.settings.number(name).map_or(default, |value| value as u64);
    let rules = [
        ("transactions", limit("autovacuum_freeze_max_age", 200_000_000), false),
        ("shared row locks", limit("autovacuum_multixact_freeze_max_age", 400_000_000), true),
    ];
    for (what, freeze, is_multixact) in rules {
        let age = |database: &crate::facts::Database| {
            if is_multixact { database.multixact_age } else { database.xid_age }
        };
        let Some(oldest) = facts.databases.iter().max_by_key(|database| age(database)) else { continue };
        let at = age(oldest);
        let measured = format!(
            "database {}: {} old, {} of the distance",
            oldest.name,
            words::count(at),
            words::share(at as f64 / STOP as f64)
        );
        let severity = if at >= 1_600_000_000 {
            Severity::Critical
        } else if at >= (freeze.saturating_mul(2)).clamp(500_000_000, 1_200_000_000) {
            Severity::Warning
        } else {
            Severity::Ok
        };
        if severity == Severity::Ok {
            if !is_multixact {
                found.push(Finding::ok("wraparound", "Transaction numbers are far from their end", measured));
            }
            continue;
        }
        let mut finding = Finding::new("wraparound", severity, format!("The numbers of {what} run out"), measured)
            .because("Before they are used up the server refuses every write. Vacuum frees them; something keeps it from it: a long transaction, a slot, a prepared transaction, or autovacuum is too slow.");
        if oldest.name == facts.server.database {
            let mut tables: Vec<_> = facts.tables.iter().collect();
            tables.sort_by_key(|table| std::cmp::Reverse(table.xid_age));
            for table in tables.into_iter().take(3).filter(|table| table.xid_age > freeze) {
                finding = finding.type_this(format!("VACUUM (FREEZE, VERBOSE) {};", table.sql()));
            }
        }
        if finding.remedy.is_empty() {
            finding = finding.type_this(format!("vacuumdb --freeze --jobs=4 {}", oldest.name));
        }
        found.push(finding);
    }
}

fn autovacuum(facts: &Facts, found: &mut Vec<Finding>) {
    for (name, what) in [
        ("autovacuum", "Autovacuum is switched off"),
        ("track_counts", "Nobody counts rows, so autovacuum does nothing"),
    ] {
        if facts.settings.is_on(name) == Some(false) {
            found.push(
                Finding::new(name, Severity::Warning, what, format!("{name} = off"))
                    .because("Dead rows stay, tables and indexes grow, statistics grow stale, and in the end transaction numbers run out.")
                    .type_this(set(facts, name, "on")),
            );
        }
    }
}

/// A number that a table may override.
fn own(facts: &Facts, table: &Table, name: &str, default: f64) -> f64 {
    let own = table.option(name).and_then(|value| value.parse().ok());
    own.or_else(|| facts.settings.number(name)).unwrap_or(default)
}

fn dead_rows(facts: &Facts, found: &mut Vec<Finding>) {
    let mut late = Vec::new();
    for table in facts.tables.iter().filter(|table| table.dead >= 10_000) {
        let threshold = own(facts, table, "autovacuum_vacuum_threshold", 50.0)
            + own(facts, table, "autovacuum_vacuum_scale_factor", 0.2)
                * table.planned.max(table.live as f64).max(0.0);
        let share = table.dead as f64 / (table.dead + table.live) as f64;
        // Slightly above the threshold it waits for a worker; far above it, autovacuum does not keep up.
        let is_late = table.dead as f64 > 2.0 * threshold || (table.has_autovacuum_off() && share > 0.1);
        if is_late && share > 0.1 && !table.is_vacuuming {
            late.push((table, share));
        }
    }
    if late.is_empty() {
        let dead: u64 = facts.tables.iter().map(|table| table.dead).sum();
        found.push(Finding::ok(
            "dead_rows",
            "Vacuum keeps up",
            format!("{} dead rows in {}", words::count(dead), words::several(facts.tables.len(), "table")),
        ));
        return;
    }
    late.sort_by_key(|(table, _)| std::cmp::Reverse(table.dead));
    let holders: Vec<_> = facts
        .sessions
        .iter()
        .filter(|session| session.snapshot_age.is_some_and(|age| age > 100_000))
        .map(super::sessions::phrase)
        .collect();
    for (table, share) in late.into_iter().take(5) {
        let last = table.vacuum_age.map_or("never".to_owned(), |age| format!("{} ago", words::span(age)));
        let mut finding = Finding::new(
            "dead_rows",
            Severity::Warning,
            format!("Table {} is full of dead rows", table.name),
            format!(
                "{} dead rows ({} of all), {}, last vacuum {last}",
                words::count(table.dead),
                words::share(share),
                words::bytes(table.bytes)
            ),
        )
        .because("Every scan reads past them, and the room they take is not used again.")
        .type_this(format!("VACUUM (ANALYZE, VERBOSE) {};", table.sql()));
        if table.has_autovacuum_off() {
            finding = finding.type_this(format!("ALTER TABLE {} RESET (autovacuum_enabled);", table.sql()));
        } else if facts.settings.is_on("autovacuum") == Some(false) {
            finding = finding.type_this(set(facts, "autovacuum", "on"));
        } else if holders.is_empty() {
            finding = finding.type_this(set(facts, "autovacuum_vacuum_cost_limit", "2000"));
        } else {
            finding.why += &format!(" Old snapshots keep vacuum from removing them: {}.", holders.join(", "));
        }
        found.push(finding);
    }
}

fn statistics(facts: &Facts, found: &mut Vec<Finding>) {
    let mut stale = Vec::new();
    for table in &facts.tables {
        let threshold = own(facts, table, "autovacuum_analyze_threshold", 50.0)
            + own(facts, table, "autovacuum_analyze_scale_factor", 0.1) * table.planned.max(0.0);
        let is_never = table.planned < 0.0 || (table.planned == 0.0 && table.live >= 10_000);
        let never = is_never && table.live.max(table.changed) >= 10_000;
        let outdated = table.changed >= 10_000
            && table.changed as f64 > 5.0 * threshold
            && table.changed as f64 > 0.5 * table.live as f64;
        // Autovacuum runs within minutes, so a table that was just filled does not count.
        let age = table.analyze_age.unwrap_or_else(|| facts.statistics_age());
        let had_time = age >= 300.0 || table.has_autovacuum_off();
        if (never || outdated) && had_time {
            stale.push(table);
        }
    }
    if stale.is_empty() {
        found.push(Finding::ok(
            "stale_statistics",
            "The planner's statistics are fresh",
            words::several(facts.tables.len(), "table"),
        ));
        return;
    }
    for (name, parts) in by_root(&stale.into_iter().cloned().collect::<Vec<_>>()) {
        let changed: u64 = parts.iter().map(|table| table.changed).sum();
        let live: u64 = parts.iter().map(|table| table.live).sum();
        let last = parts
            .iter()
            .filter_map(|table| table.analyze_age)
            .fold(None, |most: Option<f64>, age| Some(most.map_or(age, |most| most.max(age))));
        let last = last.map_or("never made".to_owned(), |age| format!("made {} ago", words::span(age)));
        let severity =
            if parts.iter().any(|table| table.is_vacuuming) { Severity::Notice } else { Severity::Warning };
        found.push(
            Finding::new(
                "stale_statistics",
                severity,
                format!("The planner knows table {name} badly"),
                format!(
                    "{} changed rows, {} live, statistics {last}",
                    words::count(changed),
                    words::count(live)
                ),
            )
            .because("With wrong row counts it chooses wrong plans: whole-table reads, wrong joins.")
            .type_this(format!("ANALYZE {};", analyzed(&parts))),
        );
    }
}

fn analyzed(parts: &[&Table]) -> String {
    let schema = words::identifier(&parts[0].schema);
    let name = parts[0].root.as_deref().unwrap_or(&parts[0].name);
    format!("{schema}.{}", words::identifier(name))
}

fn whole_reads(facts: &Facts, found: &mut Vec<Finding>) {
    let before = found.len();
    let hours = (facts.statistics_age() / 3600.0).max(1.0);
    for (name, parts) in by_root(&facts.tables) {
        let scans: u64 = parts.iter().map(|table| table.seq_scans).sum();
        let rows: u64 = parts.iter().map(|table| table.seq_rows).sum();
        let live: u64 = parts.iter().map(|table| table.live).sum();
        let by_index: u64 = parts.iter().map(|table| table.index_scans).sum();
        let bytes: u64 = parts.iter().map(|table| table.bytes).sum();
        let each = rows / scans.max(1);
        // More per hour than a nightly dump causes.
        let is_often = scans >= 20 && scans as f64 / hours > 2.0;
        if live < 10_000 || bytes < (8 << 20) || each < 5_000 || !is_often {
            continue;
        }
        let severity =
            if rows >= 50_000_000 || scans >= by_index { Severity::Warning } else { Severity::Notice };
        found.push(
            Finding::new(
                "whole_table_reads",
                severity,
                format!("Large table {name} is read as a whole, again and again"),
                format!(
                    "{} whole reads of {} rows each, {} through an index; {} rows, {}",
                    words::count(scans), words::count(each), words::count(by_index), words::count(live), words::bytes(bytes)
                ),
            )
            .because("An index is missing for some condition, or the statistics mislead the planner.")
            .type_this(format!(
                "SELECT calls, mean_exec_time, query FROM pg_stat_statements WHERE query ILIKE '%{}%' ORDER BY total_exec_time DESC LIMIT 10;",
                parts[0].root.as_deref().unwrap_or(&parts[0].name).replace('\'', "''")
            ))
            .type_this(format!("CREATE INDEX CONCURRENTLY ON {} (the columns of its WHERE);", analyzed(&parts))),
        );
    }
    if found.len() == before {
        found.push(Finding::ok(
            "whole_table_reads",
            "Large tables are read through indexes",
            words::several(facts.tables.len(), "table"),
        ));
    }
}

fn hot(facts: &Facts, found: &mut Vec<Finding>) {
    let mut seen = 0;
    let before = found.len();
    for (name, parts) in by_root(&facts.tables) {
        let updated: u64 = parts.iter().map(|table| table.updated).sum();
        let hot: u64 = parts.iter().map(|table| table.hot_updated).sum();
        if updated < 10_000 {
            continue;
        }
        seen += 1;
        let share = hot as f64 / updated as f64;
        if share >= 0.5 {
            continue;
        }
        let remedy = match parts[0].option("fillfactor") {
            None => format!(
                "ALTER TABLE {} SET (fillfactor = 80);   -- pages written from now on keep room",
                parts[0].sql()
            ),
            Some(_) => "drop the index on a column that these updates change, if nobody needs it".to_owned(),
        };
        found.push(
            Finding::new(
                "hot_updates",
                Severity::Notice,
                format!("Updates of table {name} write into its indexes"),
                format!("{} of {} updates were HOT", words::share(share), words::count(updated)),
            )
            .because("An update that finds room in the row's page and changes no indexed column leaves the indexes alone. Others write a new entry into every index.")
            .type_this(remedy),
        );
    }
    if found.len() == before && seen > 0 {
        found.push(Finding::ok(
            "hot_updates",
            "Updates leave the indexes alone",
            words::several(seen, "table"),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{settings, verdict, verdicts};
    use super::*;
    use crate::facts::{Database, Server, Session};

    fn table(name: &str) -> Table {
        Table {
            schema: "public".to_owned(),
            name: name.to_owned(),
            bytes: 1 << 30,
            live: 1_000_000,
            planned: 1_000_000.0,
            analyze_age: Some(600.0),
            ..Table::default()
        }
    }

    fn with(tables: Vec<Table>) -> Facts {
        Facts { server: Server { uptime: 600.0, ..Server::default() }, tables, ..Facts::default() }
    }

    #[test]
    fn dead_rows_count_if_autovacuum_does_not_come() {
        assert_eq!(verdicts(&with(vec![Table { dead: 350_000, ..table("t") }])), [], "a worker will come");
        let finding = verdict(&with(vec![Table { dead: 500_000, ..table("t") }]), "dead_rows").unwrap();
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.remedy[0].contains("VACUUM (ANALYZE, VERBOSE) public.t;"), "{finding:?}");
        assert_eq!(verdicts(&with(vec![Table { dead: 500_000, is_vacuuming: true, ..table("t") }])), []);
        assert_eq!(verdicts(&with(vec![Table { dead: 9_999, live: 0, planned: 0.0, ..table("t") }])), []);
    }

    #[test]
    fn finding_names_what_keeps_dead_rows() {
        let options = vec!["autovacuum_enabled=false".to_owned()];
        let finding =
            verdict(&with(vec![Table { dead: 200_000, options, ..table("t") }]), "dead_rows").unwrap();
        assert!(finding.remedy[1].contains("RESET (autovacuum_enabled)"), "{finding:?}");
        let mut facts = with(vec![Table { dead: 500_000, ..table("t") }]);
        facts.sessions = vec![Session { pid: 7, snapshot_age: Some(2_000_000), ..Session::default() }];
        assert!(verdict(&facts, "dead_rows").unwrap().why.contains("pid 7"));
        facts.settings = settings(&[("autovacuum", "off", "", "sighup")]);
        assert!(verdict(&facts, "dead_rows").unwrap().remedy[1].contains("autovacuum = on"));
        assert!(verdict(&facts, "autovacuum").is_some());
    }

    #[test]
    fn thresholds_of_a_table_count() {
        let options = vec!["autovacuum_vacuum_scale_factor=0.01".to_owned()];
        let facts = with(vec![Table { dead: 130_000, options, ..table("t") }]);
        assert_eq!(verdict(&facts, "dead_rows").unwrap().severity, Severity::Warning);
    }

    #[test]
    fn missing_and_outdated_statistics_are_stale() {
        assert_eq!(verdicts(&with(vec![Table { planned: -1.0, live: 50, ..table("t") }])), []);
        assert!(
            verdict(&with(vec![Table { planned: -1.0, ..table("t") }]), "stale_statistics").unwrap().severity
                == Severity::Warning
        );
        assert_eq!(verdicts(&with(vec![Table { changed: 400_000, ..table("t") }])), []);
        let young = Table { changed: 900_000, analyze_age: Some(60.0), ..table("t") };
        assert_eq!(verdicts(&with(vec![young])), [], "autovacuum will come");
        let facts = with(vec![Table { changed: 900_000, ..table("t") }]);
        assert_eq!(verdicts(&facts), [("stale_statistics".to_owned(), Severity::Warning)]);
    }

    #[test]
    fn partitions_of_a_table_are_one_finding() {
        let part = |name: &str| Table { root: Some("coins".to_owned()), planned: -1.0, ..table(name) };
        let facts = with(vec![part("coins_p00"), part("coins_p01")]);
        let finding = verdict(&facts, "stale_statistics").unwrap();
        assert_eq!(finding.remedy, ["ANALYZE public.coins;"]);
        assert_eq!(verdicts(&facts).len(), 1);
    }

    #[test]
    fn frequent_scans_of_large_tables_are_found_but_not_nightly_dumps() {
        let scanned = |scans, each| Table { seq_scans: scans, seq_rows: scans * each, ..table("t") };
        assert_eq!(
            verdict(&with(vec![scanned(100, 1_000_000)]), "whole_table_reads").unwrap().severity,
            Severity::Warning
        );
        assert_eq!(verdicts(&with(vec![scanned(100, 10)])), [], "LIMIT 10 reads little");
        assert_eq!(verdicts(&with(vec![scanned(19, 1_000_000)])), []);
        let mut month = with(vec![scanned(60, 1_000_000)]);
        month.server.uptime = 30.0 * 86_400.0;
        assert_eq!(verdicts(&month), []);
        let small = Table { live: 100, ..scanned(1_000, 100) };
        assert_eq!(verdicts(&with(vec![small])), []);
    }

    #[test]
    fn updates_that_touch_indexes_are_a_notice() {
        let updated = |hot, options: &[&str]| Table {
            updated: 20_000,
            hot_updated: hot,
            options: options.iter().map(|&option| option.to_owned()).collect(),
            ..table("t")
        };
        let finding = verdict(&with(vec![updated(1_000, &[])]), "hot_updates").unwrap();
        assert!(
            finding.severity == Severity::Notice && finding.remedy[0].contains("fillfactor"),
            "{finding:?}"
        );
        assert!(
            verdict(&with(vec![updated(0, &["fillfactor=70"])]), "hot_updates").unwrap().remedy[0]
                .contains("index")
        );
        assert_eq!(verdict(&with(vec![updated(19_000, &[])]), "hot_updates").unwrap().severity, Severity::Ok);
    }

    #[test]
    fn wraparound_is_reported_early() {
        let aged = |xid_age, multixact_age| Facts {
            databases: vec![Database {
                name: "old".to_owned(),
                xid_age,
                multixact_age,
                ..Database::default()
            }],
            ..Facts::default()
        };
        assert_eq!(verdicts(&aged(210_000_000, 0)), [], "freezing is under way");
        assert_eq!(verdict(&aged(510_000_000, 0), "wraparound").unwrap().severity, Severity::Warning);
        assert_eq!(verdict(&aged(1_700_000_000, 0), "wraparound").unwrap().severity, Severity::Critical);
        assert!(verdicts(&aged(0, 1_700_000_000)).contains(&("wraparound".to_owned(), Severity::Critical)));
    }
}
