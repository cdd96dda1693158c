//! The suites of the store on a real Citus cluster. Without the extension, one line says that they did not run.

mod across;
mod behaviour;
mod conformance;
mod direct;
mod kills;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use batzen_postgres::schema::dbinit::dbinit;
use batzen_postgres::schema::{DbinitOptions, HISTORY};
use batzen_postgres::{Connection, PgOptions};
use batzen_store::TableDef;
use batzen_testkit::postgres::shared_citus;

use crate::common;

/// Returns whether there is a cluster, or one can be started.
pub(crate) fn is_there() -> bool {
    std::env::var("BATZEN_TEST_CITUS_URL").is_ok() || shared_citus().is_some()
}

/// The address of a database on a Citus cluster: `BATZEN_TEST_CITUS_URL`, or one of a cluster of this process.
pub(crate) fn url() -> Option<&'static str> {
    static URL: OnceLock<Option<String>> = OnceLock::new();
    let find = || {
        if let Ok(url) = std::env::var("BATZEN_TEST_CITUS_URL") {
            return Some(url);
        }
        shared_citus().map(|cluster| cluster.fresh_database().unwrap())
    };
    URL.get_or_init(find).as_deref()
}

/// An empty database: a new one on the cluster of this process, or, at `BATZEN_TEST_CITUS_URL`, the one there
/// without the schema of an earlier test, so that tests must run one by one.
pub(crate) fn fresh_database() -> String {
    if let Ok(url) = std::env::var("BATZEN_TEST_CITUS_URL") {
        let names = ["exchange", "exchange_view"].map(|name| format!("DROP SCHEMA IF EXISTS {name} CASCADE"));
        names.iter().for_each(|drop| common::connect(&url).script(drop).unwrap());
        return url;
    }
    shared_citus().expect("the extension is installed").fresh_database().unwrap()
}

/// A new schema with these tables.
pub(crate) fn schema(tables: &'static [&'static TableDef]) -> Option<PgOptions> {
    static SCHEMAS: AtomicU32 = AtomicU32::new(0);
    let url = url()?;
    let name = format!("test_{}_{}", std::process::id(), SCHEMAS.fetch_add(1, Ordering::Relaxed));
    distribute(&mut common::connect(url), &name, tables);
    Some(PgOptions::new(url, &name, tables))
}

pub(crate) fn distribute(sql: &mut Connection, schema: &str, tables: &'static [&'static TableDef]) {
    let options = DbinitOptions { citus: true, ..DbinitOptions::default() };
    dbinit(sql, schema, tables, &options, &HISTORY).unwrap();
}
