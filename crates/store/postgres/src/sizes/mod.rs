//! Rows and sizes of the tables, for the metrics. They are read rarely, because a schema with many partitions
//! occupies the server for much of a second, and in the background if there is an older answer.

mod known;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use batzen_store::{Result, StoreError, TableDef};

use crate::database::Database;
use crate::layout::quoted;

pub(crate) use known::{Known, Sizes};

/// Tables below this size are counted exactly instead of estimated.
const COUNTED_BYTES: i64 = 1 << 20;

/// An answer is used for this many times as long as it took, so that the queries cost the server a hundredth
/// of its time; but no longer than [`GOOD_MAX`].
const GOOD_FACTOR: u32 = 100;
const GOOD_MAX: Duration = Duration::from_secs(300);
/// Time to wait after a failure.
const AGAIN: Duration = Duration::from_secs(5);

/// The latest sizes. If they are old, they are read again in the background; only the first caller waits. So
/// the metrics page stays fast while the server is down.
///
/// # Errors
/// If there is no answer yet and the server does not respond.
pub(crate) fn sizes(database: &Arc<Database>) -> Result<Arc<Sizes>> {
    let known = {
        let mut state = database.sizes.state();
        let is_old = state.good_until.is_none_or(|until| until < Instant::now());
        let known = state.sizes.clone();
        if is_old && (known.is_some() || state.has_failed) && !state.is_asking {
            state.is_asking = true;
            let database = Arc::clone(database);
            let ask = move || {
                if let Err(error) = ask(&database) {
                    tracing::debug!(%error, "the sizes of tables are not known now");
                }
            };
            if std::thread::Builder::new().name("store-sizes".into()).spawn(ask).is_err() {
                state.is_asking = false;
            }
        }
        if known.is_none() && state.has_failed {
            return Err(StoreError::Unavailable("the sizes of tables are not known".into()));
        }
        known
    };
    known.map_or_else(|| ask(database), Ok)
}

fn ask(database: &Database) -> Result<Arc<Sizes>> {
    let begin = Instant::now();
    let sizes = database.ask_sizes().map(Arc::new);
    let mut state = database.sizes.state();
    state.is_asking = false;
    state.good_until = Some(Instant::now() + (GOOD_FACTOR * begin.elapsed()).min(GOOD_MAX));
    state.has_failed = sizes.is_err();
    match &sizes {
        Ok(sizes) => state.sizes = Some(Arc::clone(sizes)),
        // The server may be back soon.
        Err(_) => state.good_until = Some(Instant::now() + AGAIN),
    }
    sizes
}

impl Database {
    /// On Citus the tables of the coordinator are empty. Rows are counted.
    fn ask_sizes_on_citus(&self) -> Result<Sizes> {
        let mut rows = HashMap::new();
        for statements in self.tables() {
            let def: &'static TableDef = statements.layout.def;
            rows.insert(def.id, self.count_rows(def)?);
        }
        let text = format!(
            "SELECT coalesce(sum(shard_size), 0)::bigint::text FROM citus_shards WHERE table_name IN (SELECT c.oid::regclass \
             FROM pg_class c WHERE c.relnamespace = '{}'::regnamespace)",
            quoted(&self.options.schema).replace('\'', "''")
        );
        let found = self.with_reader(|connection| connection.query_text(&text))?;
        let bytes = found.first().and_then(|row| row.first()?.as_ref()?.parse().ok());
        Ok(Sizes { rows, bytes: bytes.ok_or_else(|| StoreError::Backend("no size".into()))? })
    }

    fn ask_sizes(&self) -> Result<Sizes> {
        if self.citus.is_some() {
            return self.ask_sizes_on_citus();
        }
        let literal = |name: String| format!("'{}'", name.replace('\'', "''"));
        let names: Vec<String> =
            self.tables().iter().map(|statements| literal(statements.layout.table())).collect();
        let text = format!(
            "SELECT coalesce(s.bytes, 0)::text, coalesce(s.rows, 0)::bigint::text FROM unnest(ARRAY[{}]::text[]) WITH \
             ORDINALITY AS n(name, ord) CROSS JOIN LATERAL (SELECT sum(pg_relation_size(c.oid)) AS bytes, \
             sum(greatest(c.reltuples, pg_stat_get_live_tuples(c.oid), 0)) AS rows FROM (SELECT n.name::regclass::oid AS \
             oid UNION SELECT relid::oid FROM pg_partition_tree(n.name::regclass)) p JOIN pg_class c ON c.oid = p.oid \
             WHERE c.relkind = 'r') s ORDER BY n.ord",
            names.join(", ")
        );
        let found = self.with_reader(|connection| connection.query_text(&text))?;
        let number = |row: &[Option<String>], at: usize| row.get(at)?.as_ref()?.parse::<i64>().ok();
        let mut rows = HashMap::with_capacity(found.len());
        for (statements, row) in self.tables().iter().zip(&found) {
            let def: &'static TableDef = statements.layout.def;
            let count = match (number(row, 0), number(row, 1)) {
                (Some(0), _) => 0,
                (Some(bytes), Some(rows)) if bytes >= COUNTED_BYTES => rows.cast_unsigned(),
                _ => self.count_rows(def)?,
            };
            rows.insert(def.id, count);
        }
        let text = format!(
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint::text FROM pg_class c WHERE c.relnamespace = \
             {}::regnamespace AND c.relkind = 'r'",
            literal(quoted(&self.options.schema))
        );
        let found = self.with_reader(|connection| connection.query_text(&text))?;
        let bytes = found.first().and_then(|row| number(row, 0));
        let bytes = bytes.ok_or_else(|| StoreError::Backend("no size".into()))?;
        Ok(Sizes { rows, bytes: bytes.cast_unsigned() })
    }
}
