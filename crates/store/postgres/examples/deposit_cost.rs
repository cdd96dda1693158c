//! Measures the cost of a deposit in PostgreSQL: the CPU time of the server and of this process, by batch
//! size and partitions.
//!
//! `cargo run --release -p batzen-postgres --example deposit_cost [DEPOSITS [PARTITIONS [BATCH]]]`. Each
//! deposit reads its coin and its deposit, then writes a coin, a deposit and its place in the queue, as the
//! exchange does for a coin that pays for the first time.

use std::time::Instant;

use batzen_postgres::schema::HISTORY;
use batzen_postgres::schema::dbinit::{DbinitOptions, dbinit};
use batzen_postgres::{Connection, PgOptions, Target, open};
use batzen_store::{Backend, Change, ChangeSet, ColumnDef, ColumnKind, CommitOutcome, Read, Table, TableDef};
use batzen_tables::exchange::{Coins, Deposits};
use batzen_testkit::postgres::{Cluster, ClusterOptions};

const TABLES: &[&TableDef] = &[Coins::DEF, Deposits::DEF];

/// A value for each column, different for each `n` where possible.
fn record(columns: &[ColumnDef], n: u64, key: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for (at, def) in columns.iter().enumerate() {
        if def.column.nullable {
            out.push(0);
            continue;
        }
        let mixed =
            (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(u32::try_from(at).unwrap_or(0) * 7);
        match def.column.kind {
            ColumnKind::Fixed(size) => {
                let bytes = mixed.to_be_bytes().into_iter().chain(n.to_be_bytes()).cycle().take(size);
                out.extend(bytes.map(|byte| if key { byte } else { byte | 1 }));
            }
            ColumnKind::U8 | ColumnKind::Bool => out.push(0),
            ColumnKind::U16 => out.extend([0, 1]),
            ColumnKind::U32 => out.extend([0, 0, 0, 1]),
            ColumnKind::U64 | ColumnKind::I64 => out.extend(7_u64.to_be_bytes()),
            // All are due within the same hour.
            ColumnKind::Timestamp => out.extend((1_800_000_000_000_000 + n * 1_000).to_be_bytes()),
            ColumnKind::U128 => out.extend(7_u128.to_be_bytes()),
            ColumnKind::Amount => out.extend([0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]),
            // A blind signature of 2048 bits and its length.
            ColumnKind::Bytes | ColumnKind::Text => {
                out.extend([7; 257]);
                out.extend([0, 0]);
            }
        }
    }
    out
}

/// CPU time of a process in microseconds.
fn cpu_us(pid: &str) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    Some((fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?) * 10_000)
}

/// The CPU time of the postmaster's children in microseconds.
fn server_us(postmaster: u32) -> u64 {
    let children = std::fs::read_to_string(format!("/proc/{postmaster}/task/{postmaster}/children"));
    children.unwrap_or_default().split_whitespace().filter_map(cpu_us).sum()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = |at| std::env::args().nth(at).map(|text| text.parse::<u64>()).transpose();
    let deposits = argument(1)?.unwrap_or(60_000);
    let partitions = argument(2)?.map_or(vec![0, 64], |only| vec![only]);
    let batches = argument(3)?.map_or(vec![1, 16, 64, 256, 1024], |only| vec![only]);
    let cluster = Cluster::start(
        &ClusterOptions { is_small: false, ..ClusterOptions::default() }
            .set("shared_buffers", "1GB")
            .set("max_wal_size", "8GB")
            .set("wal_compression", "off"),
    )?;
    let postmaster = cluster.pid().ok_or("no postmaster")?;
    println!("partitions  batch  deposits/s  server us  client us  statements/batch");
    for partitions in partitions {
        let url = cluster.create_database(&format!("cost_{partitions}"))?;
        let mut connection = Connection::open(&Target::parse(&url)?)?;
        let options =
            DbinitOptions { partitions: Some(u16::try_from(partitions)?), ..DbinitOptions::default() };
        dbinit(&mut connection, "exchange", TABLES, &options, &HISTORY)?;
        let store = open(&PgOptions::new(&url, "exchange", TABLES))?;
        let mut n = 0;
        for &batch in &batches {
            let most = if batches.len() > 1 { batch * 400 } else { deposits };
            let count = deposits.min(most) / batch * batch;
            let run = |from: u64, count: u64| -> Result<(), Box<dyn std::error::Error>> {
                for first in (from..from + count).step_by(usize::try_from(batch)?) {
                    let numbers = first..first + batch;
                    let keys = |def: &TableDef| -> Vec<Vec<u8>> {
                        numbers.clone().map(|n| record(def.key_columns, n, true)).collect()
                    };
                    let reads = TABLES.iter().map(|table| Read::Rows { table, keys: keys(table) });
                    store.read_many(&reads.collect::<Vec<_>>())?;
                    let mut changes = ChangeSet::new();
                    for n in numbers {
                        for table in TABLES {
                            let key = record(table.key_columns, n, true);
                            changes.push(Change::Insert {
                                table,
                                key,
                                row: record(table.row_columns, n, false),
                            });
                        }
                    }
                    if store.commit(&changes)? != CommitOutcome::Committed {
                        return Err("the rows exist".into());
                    }
                }
                Ok(())
            };
            run(n, batch * 5)?;
            n += batch * 5;
            let mut page = batzen_metrics::Page::new();
            store.write_metrics(&mut page);
            let statements = |page: batzen_metrics::Page| -> u64 {
                let text = page.finish();
                let line = text.lines().find(|line| line.starts_with("batzen_postgres_statements_total"));
                line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
            };
            let before =
                (server_us(postmaster), cpu_us("self").unwrap_or(0), statements(page), Instant::now());
            run(n, count)?;
            n += count;
            let mut page = batzen_metrics::Page::new();
            store.write_metrics(&mut page);
            let each = |us: u64| us as f64 / count as f64;
            println!(
                "{partitions:10}  {batch:5}  {:10.0}  {:9.1}  {:9.1}  {:16.1}",
                count as f64 / before.3.elapsed().as_secs_f64(),
                each(server_us(postmaster).saturating_sub(before.0)),
                each(cpu_us("self").unwrap_or(0) - before.1),
                (statements(page) - before.2) as f64 / (count / batch) as f64,
            );
        }
    }
    Ok(())
}
