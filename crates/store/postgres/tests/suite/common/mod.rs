//! Stores in separate databases.

use batzen_postgres::schema::{DbinitOptions, HISTORY, dbinit::dbinit};
use batzen_postgres::{Connection, PgOptions, Target};
use batzen_store::conformance::{Fixture, TABLES};
use batzen_store::{Store, TableDef};

use crate::on_citus;

pub(crate) const SCHEMA: &str = "exchange";

/// A new database with these tables.
pub(crate) fn database(tables: &'static [&'static TableDef], partitions: u16) -> PgOptions {
    if runs_on_citus() {
        let url = on_citus::fresh_database();
        on_citus::distribute(&mut connect(&url), SCHEMA, tables);
        return PgOptions::new(&url, SCHEMA, tables);
    }
    let url = batzen_testkit::postgres::fresh_database();
    create(&url, tables, partitions);
    PgOptions::new(&url, SCHEMA, tables)
}

/// Returns whether the tests that take their store from [`database`] run on Citus: `make citus-test` sets
/// `BATZEN_TEST_ON=citus`.
pub(crate) fn runs_on_citus() -> bool {
    std::env::var("BATZEN_TEST_ON").is_ok_and(|on| on == "citus") && on_citus::is_there()
}

/// The same database through another port, such as a proxy's, and the port of its server.
pub(crate) fn through(url: &str, port: impl FnOnce(u16) -> u16) -> String {
    let (server, name) = url.rsplit_once('/').unwrap();
    let (host, own) = server.rsplit_once(':').unwrap();
    format!("{host}:{}/{name}", port(own.parse().unwrap()))
}

pub(crate) fn create(url: &str, tables: &'static [&'static TableDef], partitions: u16) {
    let mut connection = connect(url);
    let options = DbinitOptions { partitions: Some(partitions), ..DbinitOptions::default() };
    dbinit(&mut connection, SCHEMA, tables, &options, &HISTORY).unwrap();
}

pub(crate) fn connect(url: &str) -> Connection {
    Connection::open(&Target::parse(url).unwrap()).unwrap()
}

pub(crate) fn open(options: &PgOptions) -> Store {
    Store::new(batzen_postgres::open(options).unwrap())
}

/// A fixture of the conformance suite.
pub(crate) fn fixture(partitions: u16) -> Fixture {
    let options = database(TABLES, partitions);
    Fixture::durable(move || open(&options))
}
