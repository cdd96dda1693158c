//! Stores in separate databases.

use batzen_postgres::schema::{DbinitOptions, HISTORY, dbinit::dbinit};
use batzen_postgres::{Connection, PgOptions, Target};
use batzen_store::conformance::{Fixture, TABLES};
use batzen_store::{Store, TableDef};

pub const SCHEMA: &str = "exchange";

/// A new database with these tables.
pub fn database(tables: &'static [&'static TableDef], partitions: u16) -> PgOptions {
    let url = batzen_pg_cluster::fresh_database();
    create(&url, tables, partitions);
    PgOptions::new(&url, SCHEMA, tables)
}

pub fn create(url: &str, tables: &'static [&'static TableDef], partitions: u16) {
    let mut connection = connect(url);
    let options = DbinitOptions { partitions: Some(partitions), ..DbinitOptions::default() };
    dbinit(&mut connection, SCHEMA, tables, &options, &HISTORY).unwrap();
}

pub fn connect(url: &str) -> Connection {
    Connection::open(&Target::parse(url).unwrap()).unwrap()
}

pub fn open(options: &PgOptions) -> Store {
    Store::new(batzen_postgres::open(options).unwrap())
}

/// A fixture of the conformance suite.
pub fn fixture(partitions: u16) -> Fixture {
    let options = database(TABLES, partitions);
    Fixture::durable(move || open(&options))
}
