//! A change of a table changes existing databases, so it must increase the version.

use std::collections::BTreeMap;

use batzen_postgres::Layout;
use batzen_postgres::schema::{HISTORY, meta, wanted};
use batzen_tables::{bank, exchange, ledger, merchant, switch};

/// The statements that create each table of every service, by its place.
fn statements() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for (schema, tables) in [
        ("exchange", exchange::ALL),
        ("bank", bank::ALL),
        ("ledger", ledger::ALL),
        ("switch", switch::ALL),
        ("merchant", merchant::ALL),
    ] {
        let layouts: Vec<Layout> =
            tables.iter().map(|table| Layout::new(table, schema, 0).unwrap()).collect();
        for shape in meta::own_tables().iter().chain(&wanted::tables(&layouts)) {
            all.insert(format!("{schema}.{}", shape.name), shape.create(schema).join(";\n"));
        }
    }
    all
}

/// `tests/schema.sql` contains the tables of the version in its first line. A new table is only added to
/// databases, which needs no new version.
#[test]
fn no_table_changes_without_a_new_version() {
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schema.sql");
    let statements = statements();
    if std::env::var_os("BATZEN_BLESS").is_some() {
        let tables = statements.iter().map(|(name, text)| format!("-- {name}\n{text};\n"));
        std::fs::write(&file, format!("-- version {}\n{}", HISTORY.version, tables.collect::<String>()))
            .unwrap();
    }
    let known = std::fs::read_to_string(&file).unwrap();
    let mut parts = known.split("-- ").skip(1).map(|part| part.split_once('\n').unwrap());
    let version = parts.next().unwrap().0;
    assert_eq!(
        version,
        format!("version {}", HISTORY.version),
        "BATZEN_BLESS=1 writes {} again",
        file.display()
    );
    let mut tables = 0;
    for (name, text) in parts {
        let wanted = statements.get(name).map(|text| format!("{text};\n"));
        assert_eq!(
            wanted.as_deref(),
            Some(text),
            "{name} has changed. If databases of this version exist, raise HISTORY.version in schema/plan.rs, with a step if \
             something is renamed or gone; then BATZEN_BLESS=1 writes {} again",
            file.display()
        );
        tables += 1;
    }
    assert!(tables > 50);
}
