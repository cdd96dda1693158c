//! Checks in the server's plans that every statement of a payment touches only the partitions of its own
//! shards. This then holds for the shards of a Citus cluster as well.

use std::collections::BTreeSet;

use batzen_tables::exchange;
use batzen_testkit::postgres::fresh_database;

use super::dbinit::{DbinitOptions, dbinit};
use super::{HISTORY, Sql};
use crate::layout::{IndexForm, Layout, SqlColumn, SqlType, quoted};
use crate::statements::{SESSION, Statements};
use crate::{Connection, Target};

const PARTITIONS: u16 = 64;

/// The shard of the test's rows, and the part that holds it.
const SHARD: u16 = 333;
const PART: &str = "_p20";

/// Lookups that visit every shard by design: by planchet for recoups, the deposits of a transfer, contracts by
/// their key, and what purses add to the histories of coins and reserves.
const ALL_SHARDS: &[&str] = &[
    "contracts.by_contract",
    "deposits.by_wtid",
    "kyc_requirements.by_row",
    "purse_deposits.by_coin",
    "purse_merges.by_reserve",
    "reveals.by_coin_ev",
    "withdrawals.by_coin_ev",
];

/// Inserts a meaningless row into a table.
fn fill(sql: &mut Connection, layout: &Layout) {
    let columns = layout.columns();
    let value = |name: &str, of: SqlType| match (name, of) {
        ("vshard", _) => SHARD.to_string(),
        (_, SqlType::Bool) => "false".to_owned(),
        (_, SqlType::Bytea) => "'\\x01'".to_owned(),
        (_, SqlType::Text) => "'x'".to_owned(),
        _ => "1".to_owned(),
    };
    let wanted = || columns.iter().filter(|column| !column.nullable);
    let names: Vec<String> = wanted().map(SqlColumn::quoted).collect();
    let values: Vec<String> = wanted().map(|column| value(&column.name, column.sql)).collect();
    sql.script(&format!(
        "INSERT INTO {} ({}) VALUES ({})",
        layout.table(),
        names.join(", "),
        values.join(", ")
    ))
    .unwrap();
}

/// The types of a statement's parameters: those of arrays follow each parameter as a cast; the others are
/// numbers.
fn types(text: &str) -> Vec<String> {
    let mut types = std::collections::BTreeMap::new();
    for rest in text.split('$').skip(1) {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: usize = rest[..digits].parse().unwrap();
        let of = rest[digits..].strip_prefix("::").map_or("bigint", |cast| {
            &cast[..cast
                .find(|c: char| !(c.is_ascii_alphanumeric() || "[]".contains(c)))
                .unwrap_or(cast.len())]
        });
        types.insert(number, of.to_owned());
    }
    types.into_values().collect()
}

/// The names that a statement gives to the arrays that it unnests.
fn names(text: &str) -> Vec<String> {
    let Some((_, rest)) = text.split_once("AS u(") else { return Vec::new() };
    rest.split_once(')').unwrap().0.split(", ").map(str::to_owned).collect()
}

/// Runs a statement for the table's row as the program would, and returns which partitions it has read.
fn parts_touched(sql: &mut Connection, layout: &Layout, text: &str) -> Vec<String> {
    let names = names(text);
    let mut names = names.iter();
    let mut arguments = Vec::new();
    for of in types(text) {
        let element = of.trim_end_matches("[]");
        let name = if element == of { None } else { names.next().map(String::as_str) };
        let source = match name {
            // A bound of the shards, how many rows must be affected, or hashes to look up.
            None if of == "smallint" => {
                arguments.push(SHARD.to_string());
                continue;
            }
            None => {
                arguments.push(if element == of { "1".to_owned() } else { "'{1}'".to_owned() });
                continue;
            }
            Some("ver") => "version".to_owned(),
            Some("ser") => quoted(layout.serial),
            Some(name) if name.starts_with("ix") => "NULL".to_owned(),
            Some(name) => name.to_owned(),
        };
        let row = sql.row(&format!("SELECT array_agg(({source})::{element})::text FROM {}", layout.table()));
        arguments.push(format!("{}::{of}", super::shape::literal(row.unwrap().unwrap().text(0))));
    }
    let part = format!("{}_p", layout.name);
    let parts: BTreeSet<String> = (scanned(sql, text, &arguments).iter())
        // A part, or one of its indexes.
        .filter_map(|name| Some(format!("{part}{}", name.strip_prefix(&part)?.get(..2)?)))
        .collect();
    parts.into_iter().collect()
}

/// Runs a statement, rolls it back, and returns the tables and indexes that its plan has read.
fn scanned(sql: &mut Connection, text: &str, arguments: &[String]) -> Vec<String> {
    sql.script(&format!("PREPARE probe AS {text}")).unwrap_or_else(|error| panic!("{error}: {text}"));
    sql.script("BEGIN").unwrap();
    let plan = sql
        .rows(&format!(
            "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) EXECUTE probe ({})",
            arguments.join(", ")
        ))
        .unwrap_or_else(|error| panic!("{error}: {text}: {arguments:?}"));
    sql.script("ROLLBACK; DEALLOCATE probe").unwrap();
    plan.iter()
        .map(|row| row.text(0))
        .filter(|line| line.contains("Scan") && line.contains("(actual"))
        .filter_map(|line| line.split_once(" on ")?.1.split_whitespace().next().map(str::to_owned))
        .collect()
}

/// An exchange's tables, and a session like the program's.
fn tables() -> Connection {
    let mut sql = Connection::open(&Target::parse(&fresh_database()).unwrap()).unwrap();
    let options = DbinitOptions { partitions: Some(PARTITIONS), ..DbinitOptions::default() };
    dbinit(&mut sql, "exchange", exchange::ALL, &options, &HISTORY).unwrap();
    sql.script(SESSION).unwrap();
    sql
}

#[test]
fn each_statement_of_a_payment_touches_only_partitions_of_its_shards() {
    let mut sql = tables();
    let mut asked_all = Vec::new();
    let mut statements_seen = 0;
    for def in exchange::ALL.iter().filter(|def| def.is_sharded()) {
        let statements = Statements::new(Layout::new(def, "exchange", PARTITIONS).unwrap());
        let layout = &statements.layout;
        fill(&mut sql, layout);
        let mine = vec![format!("{}{PART}", layout.name)];
        let mut mask = vec![true; def.row_columns.len()];
        let mut hot = vec![
            ("get", statements.get.sql.clone()),
            ("keep", statements.keep.sql.clone()),
            ("delete", statements.delete.sql.clone()),
            ("update", statements.update(&mut mask).sql.clone()),
        ];
        for index in &layout.indexes {
            match index.form {
                IndexForm::PrimaryKey { .. } => {
                    hot.push((index.def.name, statements.lookup(index.def.id).sql.clone()));
                }
                IndexForm::Hash | IndexForm::HashMany => {
                    asked_all.push(format!("{}.{}", layout.name, index.def.name));
                    // The check must notice this.
                    let text = &statements.lookup(index.def.id).sql;
                    assert_eq!(
                        parts_touched(&mut sql, layout, text).len(),
                        usize::from(PARTITIONS),
                        "{text}"
                    );
                }
                // These are queues of workers.
                IndexForm::KeyPrefix { .. } | IndexForm::Position | IndexForm::Queue => {}
            }
        }
        for (what, text) in hot {
            assert_eq!(parts_touched(&mut sql, layout, &text), mine, "{what} of {}: {text}", layout.name);
            statements_seen += 1;
        }
        // An insert goes to its part.
        let place = sql.row(&format!("SELECT tableoid::regclass FROM {}", layout.table())).unwrap().unwrap();
        assert!(place.text(0).ends_with(PART), "{place:?}");
    }
    assert!(statements_seen >= 60, "{statements_seen}");
    asked_all.sort_unstable();
    assert_eq!(asked_all, ALL_SHARDS, "only lookups that the design allows may visit every shard");
}

/// The parts of a queue, with the time at which each starts.
fn days(sql: &mut Connection, queue: &str) -> Vec<(String, i64)> {
    let rows = sql.rows(&format!(
        r"SELECT c.relname, substring(pg_get_expr(c.relpartbound, c.oid) FROM '\d+') FROM pg_inherits i
          JOIN pg_class c ON c.oid = i.inhrelid
          WHERE i.inhparent = 'exchange.{queue}'::regclass AND c.relname NOT LIKE '%\_default' ORDER BY 1"
    ));
    rows.unwrap().iter().map(|row| (row.text(0).to_owned(), row.number(1))).collect()
}

/// The parameters of a queue's statement for one entry, by the names in its text.
fn arguments(text: &str, value: impl Fn(&str, &str) -> String) -> Vec<String> {
    let (types, names) = (types(text), names(text));
    let scalars = types.len() - names.len();
    let of = |(at, of): (usize, &String)| match at.checked_sub(scalars) {
        // How many rows must be affected, or where serials start.
        None => "1".to_owned(),
        Some(at) => format!("ARRAY[{}]::{of}", value(&names[at], of)),
    };
    types.iter().enumerate().map(of).collect()
}

/// A queue is partitioned by days. An entry is inserted into and deleted from only the partition of its day,
/// by its shard, so that one node handles it in a Citus cluster.
#[test]
fn each_statement_of_a_queue_touches_only_the_partition_of_its_day_and_shard() {
    let mut sql = tables();
    let mut queues = 0;
    for def in exchange::ALL.iter().filter(|def| !def.queue.is_empty()) {
        let statements = Statements::new(Layout::new(def, "exchange", PARTITIONS).unwrap());
        let queue = statements.layout.queue_name().unwrap();
        let days = days(&mut sql, &queue);
        assert!(days.len() > 2, "{days:?}");
        let (part, from) = &days[days.len() / 2];
        let due = from + 1;
        let insert = &statements.queue_insert.as_ref().unwrap().sql;
        let given = arguments(insert, |name, of| match name {
            "due" => due.to_string(),
            "vshard" => SHARD.to_string(),
            "ser" => "NULL".to_owned(),
            _ if of.starts_with("bytea") => r"'\x01'".to_owned(),
            _ => "1".to_owned(),
        });
        let of_queue = |read: Vec<String>| {
            read.into_iter().filter(|name| name.starts_with(&queue)).collect::<BTreeSet<_>>()
        };
        assert_eq!(of_queue(scanned(&mut sql, insert, &given)), BTreeSet::new(), "{insert}");
        let execute = |text: &str, given: &[String]| {
            format!("PREPARE entry AS {text}; EXECUTE entry ({}); DEALLOCATE entry", given.join(", "))
        };
        sql.script(&execute(insert, &given)).unwrap();
        let row =
            sql.row(&format!("SELECT tableoid::regclass, vshard FROM exchange.{queue}")).unwrap().unwrap();
        assert_eq!((row.text(0), row.number(1)), (format!("exchange.{part}").as_str(), i64::from(SHARD)));

        let first = statements.layout.queue_indexes().next().unwrap().column.clone().unwrap();
        let delete = &statements.queue_delete.as_ref().unwrap().sql;
        let place = sql.row(&format!("SELECT {} FROM exchange.{queue}", quoted(&first))).unwrap().unwrap();
        let taken_from = |shard: u16| {
            arguments(delete, |name, _| match name {
                "due" => due.to_string(),
                "vshard" => shard.to_string(),
                _ => format!("'{}'", place.text(0)),
            })
        };
        let read = of_queue(scanned(&mut sql, delete, &taken_from(SHARD)));
        assert_eq!(read, BTreeSet::from([part.clone()]), "{delete}");
        // Another shard has no such entry.
        let error = sql.script(&execute(delete, &taken_from(SHARD + 1))).unwrap_err();
        assert_eq!(error.code(), Some("BZ001"), "{error}");
        queues += 1;
    }
    assert_eq!(queues, 1, "deposits have a queue");
}

/// A value of a statement's parameter: arrays have `shards.len()` elements.
fn value(of: &str, shards: &[u16]) -> String {
    let one = |shard: &u16| match of.trim_end_matches("[]") {
        "smallint" => shard.to_string(),
        "boolean" => "false".to_owned(),
        "bytea" => "\\\\x01".to_owned(),
        // The hashes of an index with several entries.
        "text" => "\"{1}\"".to_owned(),
        _ => "1".to_owned(),
    };
    match of.strip_suffix("[]") {
        Some(_) => format!("E'{{{}}}'::{of}", shards.iter().map(one).collect::<Vec<_>>().join(",")),
        None => match of {
            "bytea" => "'\\x01'::bytea".to_owned(),
            "text" => "'{1}'::text".to_owned(),
            _ => format!("{}::{of}", one(&shards[0])),
        },
    }
}

/// Number of tasks, each on one node, that Citus makes of a statement.
fn tasks(sql: &mut Connection, text: &str, shards: &[u16]) -> i64 {
    sql.script(&format!("PREPARE probe AS {text}")).unwrap_or_else(|error| panic!("{error}: {text}"));
    let given: Vec<String> = types(text).iter().map(|of| value(of, shards)).collect();
    let plan = sql
        .rows(&format!("EXPLAIN (COSTS OFF) EXECUTE probe ({})", given.join(", ")))
        .unwrap_or_else(|error| panic!("{error}: {text}: {given:?}"));
    sql.script("DEALLOCATE probe").unwrap();
    let counts: Vec<i64> =
        plan.iter().filter_map(|row| row.text(0).trim().strip_prefix("Task Count: ")?.parse().ok()).collect();
    assert_eq!(counts.len(), 1, "{text}: {plan:?}");
    counts[0]
}

/// Not by partitions: Citus itself says to how many shards it sends each statement.
#[test]
fn each_statement_of_a_payment_is_one_task_of_citus() {
    let Some(cluster) = batzen_testkit::postgres::shared_citus() else { return };
    let url = cluster.fresh_database().unwrap();
    let mut sql = Connection::open(&Target::parse(&url).unwrap()).unwrap();
    let options = DbinitOptions { citus: true, ..DbinitOptions::default() };
    dbinit(&mut sql, "exchange", exchange::ALL, &options, &HISTORY).unwrap();
    sql.script(crate::citus::SESSION).unwrap();
    let placement =
        crate::citus::placement::Placement::read(&mut sql, "exchange", "\"exchange\".\"coins\"").unwrap();
    assert_eq!(placement.shards().len(), 4, "two for each worker");
    let other = (0..1024).find(|vshard| placement.place(*vshard) != placement.place(SHARD)).unwrap();
    let beside = (0..1024).rfind(|vshard| placement.place(*vshard) == placement.place(SHARD)).unwrap();
    let mut seen = 0;
    for def in exchange::ALL.iter().filter(|def| def.is_sharded()) {
        let layout = Layout::new(def, "exchange", 0).unwrap();
        let statements = Statements::of(layout, crate::statements::Dialect::Citus);
        let layout = &statements.layout;
        let mut hot =
            vec![statements.get.sql.clone(), statements.keep.sql.clone(), statements.delete.sql.clone()];
        hot.push(statements.update(&mut vec![true; def.row_columns.len()]).sql.clone());
        let inserts = statements.citus_inserts.iter().chain(&statements.citus_queue_inserts);
        hot.extend(inserts.map(|inserts| inserts.last().unwrap().sql.clone()));
        hot.extend(statements.queue_delete.iter().map(|statement| statement.sql.clone()));
        let by_key = layout.indexes.iter().filter(|index| matches!(index.form, IndexForm::PrimaryKey { .. }));
        hot.extend(by_key.map(|index| statements.lookup(index.def.id).sql.clone()));
        for text in hot {
            // Rows of two virtual shards that Citus keeps together.
            assert_eq!(tasks(&mut sql, &text, &[SHARD, beside]), 1, "{text}");
            seen += 1;
        }
        // The check must notice this.
        assert_eq!(tasks(&mut sql, &statements.get.sql, &[SHARD, other]), 2);
    }
    assert!(seen >= 60, "{seen}");
}
