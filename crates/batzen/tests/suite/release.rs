//! Stores of an earlier release open with everything that they hold. `tests/data/store-0.2` has those of the
//! bank and the exchange after `batzen demo --once`, and what that program said about them.

use crate::common;

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use batzen_exchange::history::balance_of;
use batzen_exchange::reads::read;
use batzen_exchange::rules::{CoinHistoryItem, DenomTable, ReserveHistoryItem};
use batzen_protocol::Money;
use batzen_store::embedded::{EmbeddedStore, Options};
use batzen_store::{Store, TableDef};
use batzen_tables::{bank, exchange};
use common::{must, must_json};
use serde_json::{Value, json};

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/store-0.2")
}

fn expected() -> Value {
    serde_json::from_str(&std::fs::read_to_string(data().join("expected.json")).unwrap()).unwrap()
}

/// Unpacks a store.
fn unpack(name: &str, dir: &Path) -> PathBuf {
    let store = dir.join(name);
    std::fs::create_dir_all(&store).unwrap();
    for entry in std::fs::read_dir(data().join(name)).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = Vec::new();
        let packed = std::fs::File::open(&path).unwrap();
        flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
        std::fs::write(store.join(path.file_stem().unwrap()), bytes).unwrap();
    }
    store
}

fn open(dir: &Path, tables: &[&'static TableDef]) -> Store {
    Store::new(EmbeddedStore::open(dir, tables, Options::default()).unwrap())
}

/// The number of rows of each table and a digest of all, by name. Tables whose layout has changed since have no
/// digest.
fn rows(store: &Store, tables: &[&'static TableDef]) -> BTreeMap<&'static str, Value> {
    let mut found = BTreeMap::new();
    for table in tables {
        let mut rows = BTreeMap::new();
        let frozen = store.freeze(&[table]).unwrap();
        let mut visit = |record: batzen_store::RawRecord| {
            rows.insert(record.key, (record.serial, record.row));
            ControlFlow::Continue(())
        };
        frozen.scan(table, &mut visit).unwrap();
        if rows.is_empty() {
            continue;
        }
        let mut bytes = Vec::new();
        for (key, (serial, row)) in &rows {
            for part in [&serial.to_be_bytes()[..], key, row] {
                bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
                bytes.extend_from_slice(part);
            }
        }
        let digest = batzen_crypto::base32::encode(&batzen_crypto::hash::sha512(&bytes).as_bytes()[..16]);
        let digest = (table.layout() == 0).then_some(digest);
        found.insert(table.name, json!({ "rows": rows.len(), "digest": digest }));
    }
    found
}

/// Compares rows with the recorded ones.
fn compare(name: &str, found: &BTreeMap<&'static str, Value>) {
    if std::env::var_os("BATZEN_BLESS").is_some() {
        let mut all = expected();
        all["rows"][name] = json!(found);
        std::fs::write(data().join("expected.json"), format!("{all:#}\n")).unwrap();
    }
    assert_eq!(expected()["rows"][name], json!(found), "{name}");
}

/// Asserts that the history of every coin and every reserve explains what is left.
fn check_histories(store: &Store) {
    let denoms = DenomTable::load(store).unwrap();
    let coins = store.all::<exchange::Coins>().unwrap();
    let reserves = store.all::<exchange::Reserves>().unwrap();
    assert!(coins.len() > 30 && reserves.len() > 5, "{} coins, {} reserves", coins.len(), reserves.len());
    for coin in coins {
        let history = read::coin_history(store, &denoms, coin.key.coin_pub).unwrap().unwrap();
        let value = denoms.get(coin.row.denom).unwrap().value;
        let effects = history.items.iter().map(CoinHistoryItem::effect);
        assert_eq!(balance_of(value, effects), Some(coin.row.remaining));
    }
    for reserve in reserves {
        let pub_key = reserve.key.reserve_pub;
        let statement = read::reserve_statement(store, &denoms, pub_key, None).unwrap().unwrap();
        let effects = statement.items.iter().map(ReserveHistoryItem::effect);
        assert_eq!(balance_of(Money::ZERO, effects), Some(reserve.row.balance), "{pub_key}");
    }
}

fn verify(store: &Path) {
    must(&["store", "verify", store.to_str().unwrap()]);
}

#[test]
fn an_exchange_of_an_earlier_release_opens_with_everything() {
    let dir = tempfile::tempdir().unwrap();
    let path = unpack("exchange", dir.path());
    verify(&path);
    let manifest = std::fs::read_to_string(path.join("MANIFEST")).unwrap();
    assert!(manifest.starts_with("batzen-store 2\n"), "{manifest}");
    // Open it twice: the first time migrates rows.
    for _ in 0..2 {
        let store = open(&path, exchange::ALL);
        compare("exchange", &rows(&store, exchange::ALL));
        check_histories(&store);
        let requirements = store.all::<exchange::KycRequirements>().unwrap();
        assert!(!requirements.is_empty() && requirements.iter().all(|found| found.row.asked.is_none()));
        assert!(requirements.iter().all(|found| !found.row.checks.is_empty()));
        store.close().unwrap();
    }
    let manifest = std::fs::read_to_string(path.join("MANIFEST")).unwrap();
    assert!(manifest.starts_with("batzen-store 4\n") && manifest.contains("\nlayout 37 1 1\n"), "{manifest}");
    verify(&path);
    let mut totals = must_json(&["exchange", "totals", path.to_str().unwrap(), "--json"]);
    // The release did not show what is missing.
    let mut new = |member: &str| totals.as_object_mut().unwrap().remove(member).unwrap();
    assert_eq!(
        [new("overdrawn"), new("overredeemed"), new("solvent")],
        [json!("0"), json!("0"), json!(true)]
    );
    assert_eq!(totals, expected()["totals"]);
}

#[test]
fn a_bank_of_an_earlier_release_opens_with_everything() {
    let dir = tempfile::tempdir().unwrap();
    let path = unpack("bank", dir.path());
    verify(&path);
    let tables = bank::ALL_WITH_LEDGER;
    for _ in 0..2 {
        let store = open(&path, tables);
        compare("bank", &rows(&store, tables));
        store.close().unwrap();
    }
    let said = must(&["ledger", "verify", path.to_str().unwrap()]);
    let (_, said) = said.trim().split_once(": ").unwrap();
    assert_eq!(said, expected()["ledger"].as_str().unwrap());
}
