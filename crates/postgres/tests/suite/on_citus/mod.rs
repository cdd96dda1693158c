//! The suites of the store on a real Citus cluster. Without the extension, one line says that they did not run.

mod conformance;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use batzen_pg_cluster::shared_citus;
use batzen_postgres::schema::dbinit::dbinit;
use batzen_postgres::schema::{DbinitOptions, HISTORY};
use batzen_postgres::{Connection, PgOptions};
use batzen_store::TableDef;

use crate::common;

/// The address of a database on a Citus cluster: `BATZEN_TEST_CITUS_URL`, or one of a cluster of this process.
pub fn url() -> Option<&'static str> {
    static URL: OnceLock<Option<String>> = OnceLock::new();
    let find = || {
        if let Ok(url) = std::env::var("BATZEN_TEST_CITUS_URL") {
            return Some(url);
        }
        shared_citus().map(|cluster| cluster.fresh_database().unwrap())
    };
    URL.get_or_init(find).as_deref()
}

/// A new schema with these tables.
pub fn schema(tables: &'static [&'static TableDef]) -> Option<PgOptions> {
    static SCHEMAS: AtomicU32 = AtomicU32::new(0);
    let url = url()?;
    let name = format!("test_{}_{}", std::process::id(), SCHEMAS.fetch_add(1, Ordering::Relaxed));
    distribute(&mut common::connect(url), &name, tables);
    Some(PgOptions::new(url, &name, tables))
}

pub fn distribute(sql: &mut Connection, schema: &str, tables: &'static [&'static TableDef]) {
    let options = DbinitOptions { citus: true, ..DbinitOptions::default() };
    dbinit(sql, schema, tables, &options, &HISTORY).unwrap();
}
